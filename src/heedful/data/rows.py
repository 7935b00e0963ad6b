"""What every reader gives: rows that know where they came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

# What a column holds, and so what a row's value is:
#   "text" a str, never blank; "text?" the same, left out of the row where the file has no such column;
#   "label" the name of a class (str), or where rows have several or none, a tuple of them;
#   "document" a whole text (str), line ends and all; "image" a `Picture`;
#   "words" a tuple of words, never empty, "tags" a tuple of labels, one a word;
#   "answers" a tuple of `Span`, pieces of another column's text, () where that text has no answer;
#   "number?" a float, left out of the row where the file has no such column;
#   "messages" a conversation: a tuple of mappings, each with its "role" and "content"; "messages?" as the others with a
#   question mark.
Kind = Literal[
    "text", "text?", "label", "document", "image", "words", "tags", "answers", "number?", "messages", "messages?"
]


class Span(NamedTuple):
    """A piece of a text, and the character (from 0) that it begins at."""

    text: str
    start: int


def required(columns: Mapping[str, Kind]) -> list[str]:
    """The columns that every source must have, in their order."""
    return [column for column, kind in columns.items() if not kind.endswith("?")]


@dataclass(frozen=True, slots=True)
class Row:
    """One example: `values` by the task's column names, and the `file` and `line` (from 1) that it begins at."""

    values: dict[str, Any]
    file: str
    line: int


class Rows(list[Row]):
    """A list of rows; `skipped` counts those left out because a wanted value was blank, and a folder's files that are
    nothing wanted; `columns` holds the names, keys or numbers under which the wanted values were found in the file (the
    files' names for parallel files).
    """

    def __init__(self, rows: Iterable[Row] = (), skipped: int = 0, columns: Iterable[str] = ()) -> None:
        super().__init__(rows)
        self.skipped = skipped
        self.columns = tuple(columns)
