"""Texts larger than memory: a file cut into pieces that are read whenever they are asked for, and forgotten."""

from __future__ import annotations

import io
import os
import re
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from heedful.data.file_formats import EXTENSIONS
from heedful.data.rows import Row
from heedful.data.tables import extension_of
from heedful.data.text_files import COMPRESSED, STDIN, decoded, opened
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
