"""Texts larger than memory: pieces of files, JSON lines and Parquet rows, read on access."""

from __future__ import annotations

import io
import json
import os
import re
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from heedful.data.file_formats import EXTENSIONS
from heedful.data.records import BUFFER, look_up, together
from heedful.data.rows import Row
from heedful.data.tables import Table, extension_of
from heedful.data.text_files import COMPRESSED, STDIN, decoded, extension, needed, opened
from heedful.errors import HeedfulError

LARGE = 1 << 28  # bytes from which on files, all together, are not held in memory
PIECE = 1 << 20  # bytes of a piece, about
RECORDS = (".jsonl", ".ndjson", ".parquet")  # tables of which a row can be found again
CUT = re.compile(rb"[A-Za-z](?=\r?\n)")  # before a line's end, behind a letter: tokenizers of words cut there too


class OnDisk(Mapping[str, str]):
    """The values of a row of one text that lies in a file: it is read whenever it is asked for, and forgotten."""

    __slots__ = ()

    @property
    @abstractmethod
    def column(self) -> str:
        """The name of the text."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Its bytes in UTF-8."""

    @property
    def continues(self) -> bool:
        """Whether it goes on with the text of the row before it."""
        return False

    @abstractmethod
    def text(self) -> str:
        """The text, read."""

    @abstractmethod
    def identity(self) -> Hashable:
        """What is equal for equal texts, as long as the file is what it was."""

    def __getitem__(self, name: str) -> str:
        if name != self.column:
            raise KeyError(name)
        return self.text()

    def __contains__(self, name: object) -> bool:
        return name == self.column

    def __iter__(self) -> Iterator[str]:
        return iter((self.column,))

    def __len__(self) -> int:
        return 1


class Piece(OnDisk):
    """The values of a row, its text lying in a file from byte ``start`` to ``end``; every line end is ``\\n``.

    Args:
        path: the file, UTF-8.
        column: the name of the text.
        start: its first byte.
        end: the one after its last.
    """

    __slots__ = ("_column", "end", "path", "start")

    def __init__(self, path: str, column: str, start: int, end: int) -> None:
        self.path, self._column, self.start, self.end = path, column, start, end

    @property
    def column(self) -> str:
        """The name of the text."""
        return self._column

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.end - self.start

    @property
    def continues(self) -> bool:
        """Whether it goes on with the text of the piece before it."""
        return self.start > 0

    def text(self) -> str:
        """The piece, read."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                found = file.read(self.end - self.start)
            return with_line_ends(found.decode("utf-8" if self.start else "utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            raise changed(self.path, error) from None

    def identity(self) -> Hashable:
        """Where it stands, and when the file was written."""
        return stamp(self.path), self.start, self.end


def stamp(path: str) -> tuple[str, int, int]:
    """A file as it is now: where it lies, when it was written, its bytes."""
    found = os.stat(path)
    return os.path.abspath(path), found.st_mtime_ns, found.st_size


def changed(path: str, error: Exception) -> HeedfulError:
    """What is said of a file that was read, and cannot be read again."""
    reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    return HeedfulError(f"{path} is not what it was when the run began ({reason}); begin again")


def with_line_ends(text: str) -> str:
    """A text whose lines all end in the same way."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def on_disk(rows: Sequence[Row]) -> bool:
    """Whether texts of some of the rows are read when they are asked for."""
    return any(isinstance(row.values, OnDisk) for row in rows)


def continues(row: Row) -> bool:
    """Whether a row goes on with the text of the one before it."""
    return isinstance(row.values, OnDisk) and row.values.continues


def size(row: Row) -> int:
    """The bytes of a row's text, or texts."""
    if isinstance(row.values, OnDisk):
        return row.values.size
    return sum(bytes_of(value) for value in row.values.values() if isinstance(value, str))


def bytes_of(text: str) -> int:
    """How many bytes a text has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def identity(row: Row) -> Hashable:
    """What is equal for equal texts; of one on disk as long as its file is what it was."""
    if isinstance(row.values, OnDisk):
        return row.values.identity()
    return tuple(str(value) for value in row.values.values())


def can_stay(path: str) -> bool:
    """Whether the texts of a source can be read when they are asked for: a file, not packed, that is plain text or has
    records.
    """
    table = extension_of(path)
    packed = Path(path).suffix.lower() in COMPRESSED
    return path != STDIN and not packed and (table in RECORDS or table not in EXTENSIONS) and os.path.isfile(path)


def are_large(paths: Iterable[str]) -> bool:
    """Whether the texts of sources stay on disk, as far as they can: where these are of many bytes together."""
    return sum(os.path.getsize(path) for path in paths if can_stay(path)) >= LARGE


def pieces(path: str, column: str) -> list[Row]:
    """A row a piece; joined they are the file. Each ends behind a letter, before a line's end, if there is such a place
    within twice its size, else behind a line's end, else where a character ends. Of a file without any words none.

    Raises `NoText` as `heedful.data.text_files.text_stream` does.
    """
    rows, start, line, words = list[Row](), 0, 1, False
    with opened(path) as file:
        while found := file.read(2 * PIECE):
            end = len(found) if len(found) < 2 * PIECE else _end(found)
            words = bool(_checked(found[:end], path, line, start).strip()) or words
            rows.append(Row(Piece(path, column, start, start + end), path, line))
            line += found.count(b"\n", 0, end)
            start += end
            file.seek(start)
    return rows if words else []


def _checked(found: bytes, path: str, line: int, start: int) -> str:
    """A piece as text, if it is one."""
    try:
        text = found.decode()
    except UnicodeDecodeError:
        text = "\0"
    if start and "\0" not in text:
        return text
    return "".join(decoded(each, path, number) for number, each in enumerate(io.BytesIO(found), line))


def _end(found: bytes) -> int:
    if place := CUT.search(found, PIECE):
        return place.end()
    if (end := found.rfind(b"\n")) > 0:
        return end + 1
    end = len(found)
    while end > 1 and found[end - 1] & 0xC0 == 0x80:  # of a character of several bytes, all but the first
        end -= 1
    return end - 1 if end > 1 and found[end - 1] & 0x80 else end


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
