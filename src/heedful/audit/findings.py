"""`Finding`: result of a check, with its count, places and remedy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from heedful.data import Row
from heedful.util.escaping import named

PLACES = 3  # shown of each finding; all are in the JSON, up to ``KEPT``
KEPT = 1000


@dataclass(frozen=True)
class Finding:
    """One thing about the data.

    Attributes:
        name: a word for it: "duplicates", "leakage", "lengths", ...
        level: "warning" where something is likely wrong, else "fact".
        count: of examples, or of what ``text`` says.
        text: a line for a person, with the remedy where it is a warning.
        places: file and line of the examples, "train.tsv:41".
        part: of the data that it is about.
    """

    name: str
    level: Literal["fact", "warning"]
    count: int
    text: str
    places: Sequence[str] = field(default=())
    part: Literal["train", "valid"] = "train"

    def line(self) -> str:
        """``! duplicates  12 examples ... (train.tsv:41, train.tsv:77, ...)``."""
        more = ", ..." if len(self.places) > PLACES else ""
        where = f" ({', '.join(self.places[:PLACES])}{more})" if self.places else ""
        part = "validation: " if self.part == "valid" else ""
        return f"{'!' if self.level == 'warning' else ' '} {self.name:<12}{part}{self.text}{where}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "level": self.level,
            "part": self.part,
            "count": self.count,
            "text": self.text,
            "places": list(self.places[:KEPT]),
        }


def place(row: Row, line: int | None = None) -> str:
    """File and line at which a row begins, or another line of it.

    >>> place(Row({}, "train.tsv", 41)), place(Row({}, "train.tsv", 41), 43), place(Row({}, "train.json", 1, "q7"))
    ('train.tsv:41', 'train.tsv:43', 'train.json:1 (q7)')
    """
    if line is not None:
        return f"{relative(row.file)}:{line}"
    return f"{relative(row.file)}:{row.line}" + (f" ({named(row.name)})" if row.name else "")


def relative(path: str) -> str:
    """An absolute path below the current folder as seen from there; any other as it was given.

    >>> relative(os.path.join(os.getcwd(), "data", "train.tsv")), relative("../train.tsv")
    ('data/train.tsv', '../train.tsv')
    """
    if not os.path.isabs(path):
        return path
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # the current folder is gone
        return path
    return path.removeprefix(here) or path
