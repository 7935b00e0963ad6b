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
from heedful.data.records import BUFFER, nested_value, rows_per_batch
from heedful.data.rows import Row
from heedful.data.tables import Table, extension_of
from heedful.data.text_files import COMPRESSED, STDIN, decode_line, extension, open_file, require_library
from heedful.errors import HeedfulError

LARGE = 1 << 28  # total bytes of files above which texts stay on disk
PIECE = 1 << 20  # approximate bytes of a piece
RECORDS = (".jsonl", ".ndjson", ".parquet")  # tables with random access to rows
PIECE_END = re.compile(rb"[A-Za-z](?=\r?\n)")  # between a letter and a line's end, where word tokenizers split too


class OnDisk(Mapping[str, str]):
    """Values of a row whose only text stays in a file and is read on access."""

    __slots__ = ()

    @property
    @abstractmethod
    def column(self) -> str:
        """Name of the task's column that holds this text."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of bytes of the text in UTF-8."""

    @property
    def continues(self) -> bool:
        """True if the text continues the text of the previous row."""
        return False

    @abstractmethod
    def text(self) -> str:
        """Reads the text from the file and returns it."""

    @abstractmethod
    def identity(self) -> Hashable:
        """Returns a key by which texts can be compared without reading them.

        Equal keys mean equal texts, as long as the file is unchanged.
        """

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


class FileSlice(OnDisk):
    """Values of a row whose text is a piece of a file; every line end is ``\\n``.

    Args:
        path: the file, UTF-8.
        column: name of the task's column that holds the text.
        start: index of the first byte of the piece in the file.
        end: index after the last byte of the piece.
    """

    __slots__ = ("_column", "end", "path", "start")

    def __init__(self, path: str, column: str, start: int, end: int) -> None:
        self.path, self._column, self.start, self.end = path, column, start, end

    @property
    def column(self) -> str:
        """Name of the task's column that holds this text."""
        return self._column

    @property
    def size(self) -> int:
        """Number of bytes of the piece."""
        return self.end - self.start

    @property
    def continues(self) -> bool:
        """True unless this is the first piece of its file."""
        return self.start > 0

    def text(self) -> str:
        """Reads the piece from the file and returns it, every line end as ``\\n``."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                content = file.read(self.end - self.start)
            return normalize_line_ends(content.decode("utf-8" if self.start else "utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            raise changed_error(self.path, error) from None

    def identity(self) -> Hashable:
        """Returns path, modification time and size of the file, and the bounds of the piece."""
        return file_stamp(self.path), self.start, self.end


def file_stamp(path: str) -> tuple[str, int, int]:
    """Returns path, modification time and size of a file."""
    status = os.stat(path)
    return os.path.abspath(path), status.st_mtime_ns, status.st_size


def changed_error(path: str, error: Exception) -> HeedfulError:
    """Returns the error that a file changed since it was first read; ``error`` gives the reason."""
    reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
    return HeedfulError(f"{path} changed during the run ({reason}); start the run again")


def normalize_line_ends(text: str) -> str:
    """Returns a text with every line end as ``\\n``."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def any_on_disk(rows: Sequence[Row]) -> bool:
    """Returns True if the text of at least one row is read from a file on access."""
    return any(isinstance(row.values, OnDisk) for row in rows)


def continues_previous(row: Row) -> bool:
    """Returns True if a row continues the text of the previous row."""
    return isinstance(row.values, OnDisk) and row.values.continues


def row_size(row: Row) -> int:
    """Returns the number of bytes of a row's texts."""
    if isinstance(row.values, OnDisk):
        return row.values.size
    return sum(utf8_length(value) for value in row.values.values() if isinstance(value, str))


def utf8_length(text: str) -> int:
    """Returns the number of bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def text_identity(row: Row) -> Hashable:
    """Returns a key that is equal for rows with equal texts.

    For a text that is read from a file on access, the key holds only while the file is unchanged.
    """
    if isinstance(row.values, OnDisk):
        return row.values.identity()
    return tuple(str(value) for value in row.values.values())


def can_stay_on_disk(path: str) -> bool:
    """Returns True if a source's texts can be read on access: an uncompressed file of plain text or records."""
    table = extension_of(path)
    is_compressed = Path(path).suffix.lower() in COMPRESSED
    return (
        path != STDIN and not is_compressed and (table in RECORDS or table not in EXTENSIONS) and os.path.isfile(path)
    )


def are_large(paths: Iterable[str]) -> bool:
    """Returns True if those sources whose texts can be read on access have 256 MiB or more together."""
    return sum(os.path.getsize(path) for path in paths if can_stay_on_disk(path)) >= LARGE


def file_slices(path: str, column: str) -> list[Row]:
    """Returns a row for each piece of a text file, about one MiB; no rows for a file with only white space.

    A piece ends between a letter and the line end after it, if there is such a position within twice its size.
    Otherwise it ends after a line end, or else after any character. Raises `NotText` for a file that is not UTF-8 text.
    """
    rows, start, line, has_words = list[Row](), 0, 1, False
    with open_file(path) as file:
        while content := file.read(2 * PIECE):
            end = len(content) if len(content) < 2 * PIECE else _slice_end(content)
            has_words = bool(_decode_slice(content[:end], path, line, start).strip()) or has_words
            rows.append(Row(FileSlice(path, column, start, start + end), path, line))
            line += content.count(b"\n", 0, end)
            start += end
            file.seek(start)
    return rows if has_words else []


def _decode_slice(content: bytes, path: str, line: int, start: int) -> str:
    """Returns the text of a piece. Raises ``NotText``, naming the line, if it is not UTF-8 text."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if start and "\0" not in text:
        return text
    return "".join(decode_line(bytes_, path, number) for number, bytes_ in enumerate(io.BytesIO(content), line))


def _slice_end(content: bytes) -> int:
    if match := PIECE_END.search(content, PIECE):
        return match.end()
    if (end := content.rfind(b"\n")) > 0:
        return end + 1
    end = len(content)
    while end > 1 and content[end - 1] & 0xC0 == 0x80:  # continuation bytes of UTF-8
        end -= 1
    return end - 1 if end > 1 and content[end - 1] & 0x80 else end


CHUNK = 1 << 24  # bytes searched for line ends at a time


class Document(OnDisk):
    """Values of a row whose text is in row or line ``line`` of a table on disk."""

    __slots__ = ("line", "table")

    def __init__(self, table: TableOnDisk, line: int) -> None:
        self.table, self.line = table, line

    @property
    def column(self) -> str:
        """Name of the task's column that holds this text."""
        return self.table.column

    @property
    def size(self) -> int:
        """Number of bytes of the text in UTF-8."""
        return self.table.sizes[self.line - 1]

    def text(self) -> str:
        """Reads the text from the table and returns it."""
        return self.table.text(self.line)

    def identity(self) -> Hashable:
        """Returns path, modification time and size of the table, and the column and the line of the text."""
        return *self.table.stamp, self.table.name, self.line


class TableOnDisk(ABC):
    """Table on disk, scanned once for the sizes of its texts, which are then read on access.

    Args:
        path: path of the table.
        column: name of the task's column that holds the text.
        name: name of that column in the table; None: the same name.
    """

    def __init__(self, path: str, column: str, name: str | None = None) -> None:
        self.path, self.column, self.name = path, column, name or column
        self.stamp = file_stamp(path)
        self.sizes = array("q")  # number of bytes of each line's text

    def rows(self) -> Iterator[tuple[int, Row | None]]:
        """Yields (line, row) for each line of the table; the row is None for a blank text.

        Raises ``HeedfulError``, naming the line, for a row without a text, as ``heedful.data.tables.Table`` does.
        """
        for line, values in Table(self.path, {self.column: "document"}, [self.name]):
            text = values[0] if values else ""
            self.sizes.append(utf8_length(text))
            yield line, Row(Document(self, line), self.path, line) if text.strip() else None

    def text(self, line: int) -> str:
        """Returns the text in a line, from 1. Raises ``HeedfulError`` if the file changed since it was scanned."""
        try:
            value = nested_value(self.record(line), self.name)
        except (OSError, ValueError, LookupError, StopIteration) as error:  # also pyarrow's
            raise changed_error(self.path, error) from None
        if not isinstance(value, str):
            raise changed_error(self.path, ValueError(f"no text in line {line}"))
        return value

    def check(self) -> None:
        """Raises `ValueError` if the file was modified after it was scanned."""
        if file_stamp(self.path) != self.stamp:
            raise ValueError("it was modified after it was scanned")

    @abstractmethod
    def record(self, line: int) -> dict[str, Any]:
        """Reads one line of the table, from 1, and returns it as a dictionary."""


class JsonLinesOnDisk(TableOnDisk):
    """JSON Lines file on disk; the byte offsets of its lines are known, so that any line can be read."""

    def __init__(self, path: str, column: str, name: str | None = None) -> None:
        super().__init__(path, column, name)
        self._offsets = _line_offsets(path)

    def record(self, line: int) -> dict[str, Any]:
        """Reads one line of the file, from 1, and returns its object."""
        self.check()
        start, end = self._offsets[line - 1 : line + 1].tolist()
        with open(self.path, "rb") as file:
            file.seek(start)
            record: dict[str, Any] = json.loads(file.read(end - start))
        return record


class ParquetOnDisk(TableOnDisk):
    """Parquet file on disk, decoded some rows at a time, which is fast for access in order."""

    def record(self, line: int) -> dict[str, Any]:
        """Reads one row of the file, from 1, and returns it as a dictionary with only the column of the text."""
        return _decoder(self).record(line - 1)


class _Decoder:
    """Open Parquet file with its last decoded rows."""

    def __init__(self, table: ParquetOnDisk) -> None:
        parquet = require_library("pyarrow.parquet", table.path)
        self._file = parquet.ParquetFile(table.path, pre_buffer=False, buffer_size=BUFFER)
        present, metadata = self._file.schema_arrow.names, self._file.metadata
        self._check = table.check
        self._column = table.name if table.name in present else table.name.partition(".")[0]
        groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self._group_starts = [0, *accumulate(groups)]
        self._rows = rows_per_batch(metadata)
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = ()
        self._first = self._end = 0  # first row of the batch, and end of its row group

    def record(self, index: int) -> dict[str, Any]:
        """Returns the record of a row, from 0."""
        if not self._first <= index < self._end:
            self._check()
            group = bisect_right(self._group_starts, index) - 1
            self._batches = self._file.iter_batches(self._rows, row_groups=[group], columns=[self._column])
            self._first, self._end, self._batch = *self._group_starts[group : group + 2], ()
        while index >= self._first + len(self._batch):
            self._first += len(self._batch)
            self._batch = ()  # frees it before the next is decoded
            self._batch = next(self._batches)
        record: dict[str, Any] = self._batch.slice(index - self._first, 1).to_pylist()[0]
        return record


@lru_cache(maxsize=1)
def _decoder(table: ParquetOnDisk) -> _Decoder:
    """Returns the decoder of a file; only the last file stays open."""
    return _Decoder(table)


def _line_offsets(path: str) -> np.ndarray:
    """Returns the byte offsets of the lines, and of the file's end."""
    offsets, start = [np.zeros(1, dtype=np.int64)], 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            offsets.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + start + 1)
            start += len(chunk)
    return np.concatenate([*offsets, [start]])


def table_on_disk(path: str, column: str, name: str | None) -> TableOnDisk:
    """Opens a table of records (JSON Lines or Parquet) whose texts are read on access.

    Args:
        path: path of the table.
        column: name of the task's column that holds the text.
        name: name of that column in the table; None: the same name.
    """
    return (ParquetOnDisk if extension(path) == ".parquet" else JsonLinesOnDisk)(path, column, name)
