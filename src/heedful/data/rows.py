"""What every reader gives: rows of text that know where they came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One example: `values` by the task's column names, and the `file` and `line` (from 1) that it begins at."""

    values: dict[str, str]
    file: str
    line: int


class Rows(list[Row]):
    """A list of rows; `skipped` counts those left out because a wanted value was blank, `columns` holds the names, keys
    or numbers under which the wanted values were found in the file (the files' names for parallel files).
    """

    def __init__(self, rows: Iterable[Row] = (), skipped: int = 0, columns: Iterable[str] = ()) -> None:
        super().__init__(rows)
        self.skipped = skipped
        self.columns = tuple(columns)
