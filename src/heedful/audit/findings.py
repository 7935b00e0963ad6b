"""`Finding`: the result of a check, with a count, locations and a remedy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from heedful.data import Row
from heedful.util.escaping import named

PLACES = 3  # printed of each finding
JSON_PLACES = 1000  # written to JSON of each finding


@dataclass(frozen=True)
class Finding:
    """Result of a check of the data.

    Attributes:
        name: name of the check: "duplicates", "leakage", "lengths", ...
        level: "warning" if something is likely wrong, else "fact".
        count: number of examples, labels, tokens or words that ``text`` is about.
        text: one line for people; that of a warning ends with the remedy.
        places: location of each example, such as "train.tsv:41".
        part: the split that was checked.
        shown: number of places that ``line`` prints.
    """

    name: str
    level: Literal["fact", "warning"]
    count: int
    text: str
    places: Sequence[str] = field(default=())
    part: Literal["train", "valid"] = "train"
    shown: int = PLACES

    def line(self) -> str:
        """Returns the line that is printed: ``! duplicates  12 examples ... (train.tsv:41, train.tsv:77, ...)``."""
        more = ", ..." if len(self.places) > self.shown else ""
        where = f" ({', '.join(self.places[: self.shown])}{more})" if self.places else ""
        part = "validation: " if self.part == "valid" else ""
        return f"{'!' if self.level == 'warning' else ' '} {self.name + '  ':<16}{part}{self.text}{where}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the finding as a dictionary for JSON."""
        return {
            "name": self.name,
            "level": self.level,
            "part": self.part,
            "count": self.count,
            "text": self.text,
            "places": list(self.places[:JSON_PLACES]),
        }


def location(row: Row, line: int | None = None) -> str:
    """Returns where a row stands as ``FILE:LINE``: the row's first line, or another ``line`` of the same file.

    >>> location(Row({}, "train.tsv", 41)), location(Row({}, "train.tsv", 41), 43)
    ('train.tsv:41', 'train.tsv:43')
    >>> location(Row({}, "train.json", 1, "q7"))
    'train.json:1 (q7)'
    """
    if line is not None:
        return f"{relative_path(row.file)}:{line}"
    return f"{relative_path(row.file)}:{row.line}" + (f" ({named(row.name)})" if row.name else "")


def relative_path(path: str) -> str:
    """Returns the relative form of an absolute path below the current folder; any other path unchanged.

    >>> relative_path(os.path.join(os.getcwd(), "data", "train.tsv")), relative_path("../train.tsv")
    ('data/train.tsv', '../train.tsv')
    """
    if not os.path.isabs(path):
        return path
    try:
        current = os.path.join(os.getcwd(), "")
    except OSError:  # the current folder is gone
        return path
    return path.removeprefix(current) or path
