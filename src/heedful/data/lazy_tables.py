"""Tables of documents larger than memory: of JSON lines and Parquet a text is read whenever it is asked for."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Hashable, Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np

from heedful.data.lazy_texts import OnDisk, bytes_of, changed, stamp
from heedful.data.records import BUFFER, look_up, together
from heedful.data.rows import Row
from heedful.data.tables import Table
from heedful.data.text_files import extension, needed

CHUNK = 1 << 24  # bytes in which line ends are looked for


class Document(OnDisk):
    """The values of a row of one text, that of ``line`` in a table."""

    __slots__ = ("line", "shelf")

    def __init__(self, shelf: Shelf, line: int) -> None:
        self.shelf, self.line = shelf, line

    @property
    def column(self) -> str:
        """The name of the text."""
        return self.shelf.column

    @property
    def size(self) -> int:
        """Its bytes in UTF-8."""
        return self.shelf.sizes[self.line - 1]

    def text(self) -> str:
        """The text, read."""
        return self.shelf.text(self.line)

    def identity(self) -> Hashable:
        """Where it stands, and when the table was written."""
        return *self.shelf.stamp, self.shelf.name, self.line


class Shelf(ABC):
    """A table on disk, read once to see what texts it has.

    Args:
        path: of the table.
        column: the name of the text in rows.
        name: what the table calls it; None: the same.
    """

    def __init__(self, path: str, column: str, name: str | None = None) -> None:
        self.path, self.column, self.name = path, column, name or column
        self.stamp = stamp(path)
        self.sizes = array("q")  # bytes of each line's text

    def rows(self) -> Iterator[tuple[int, Row | None]]:
        """Each line with its row; None for one without any words. Raises what ``heedful.data.tables.Table`` does."""
        for line, values in Table(self.path, {self.column: "document"}, [self.name]):
            text = values[0] if values else ""
            self.sizes.append(bytes_of(text))
            yield line, Row(Document(self, line), self.path, line) if text.strip() else None

    def text(self, line: int) -> str:
        """The text of a line, from 1, as it was when the rows were made."""
        try:
            value = look_up(self.record(line), self.name)
        except (OSError, ValueError, LookupError, StopIteration) as error:  # pyarrow's own are some of these
            raise changed(self.path, error) from None
        if not isinstance(value, str):
            raise changed(self.path, ValueError(f"no text in line {line}"))
        return value

    def check(self) -> None:
        """Raise `ValueError` where the file was written since."""
        if stamp(self.path) != self.stamp:
            raise ValueError("it was written since")

    @abstractmethod
    def record(self, line: int) -> dict[str, Any]:
        """The record of a line."""


class JsonLines(Shelf):
    """An object a line, found by where the line begins."""

    def __init__(self, path: str, column: str, name: str | None = None) -> None:
        super().__init__(path, column, name)
        self._begins = _line_begins(path)

    def record(self, line: int) -> dict[str, Any]:
        """The object of a line."""
        self.check()
        start, end = self._begins[line - 1 : line + 1].tolist()
        with open(self.path, "rb") as file:
            file.seek(start)
            found: dict[str, Any] = json.loads(file.read(end - start))
        return found


class ParquetShelf(Shelf):
    """A Parquet file, some rows of which are decoded at a time: quick where they are asked for in order."""

    def record(self, line: int) -> dict[str, Any]:
        """The record of a row, of the text's column alone."""
        return _decoder(self).record(line - 1)


class _Decoder:
    """A Parquet file, open; the rows last decoded are kept."""

    def __init__(self, shelf: ParquetShelf) -> None:
        parquet = needed("pyarrow.parquet", shelf.path)
        self._file = parquet.ParquetFile(shelf.path, pre_buffer=False, buffer_size=BUFFER)
        there, metadata = self._file.schema_arrow.names, self._file.metadata
        self._check = shelf.check
        self._column = shelf.name if shelf.name in there else shelf.name.partition(".")[0]
        groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self._begins = [0, *accumulate(groups)]  # of the row groups
        self._rows = together(metadata)
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = ()
        self._first = self._end = 0  # the first row of the batch, and the one after the last of its group

    def record(self, place: int) -> dict[str, Any]:
        """The record of a row, from 0."""
        if not self._first <= place < self._end:
            self._check()
            group = bisect_right(self._begins, place) - 1
            self._batches = self._file.iter_batches(self._rows, row_groups=[group], columns=[self._column])
            self._first, self._end, self._batch = *self._begins[group : group + 2], ()
        while place >= self._first + len(self._batch):
            self._first += len(self._batch)
            self._batch = ()  # not two of them in memory
            self._batch = next(self._batches)
        found: dict[str, Any] = self._batch.slice(place - self._first, 1).to_pylist()[0]
        return found


@lru_cache(maxsize=1)
def _decoder(shelf: ParquetShelf) -> _Decoder:
    """What decodes a file; of the files only the last is open."""
    return _Decoder(shelf)


def _line_begins(path: str) -> np.ndarray:
    """Where each line begins, and where the file ends, in bytes."""
    found, at = [np.zeros(1, dtype=np.int64)], 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            found.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + at + 1)
            at += len(chunk)
    return np.concatenate([*found, [at]])


def shelf(path: str, column: str, name: str | None) -> Shelf:
    """The shelf of a table of records."""
    return (ParquetShelf if extension(path) == ".parquet" else JsonLines)(path, column, name)
