"""Texts larger than memory: a file cut into pieces that are read whenever they are asked for, and forgotten."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from heedful.data.files import COMPRESSED
from heedful.data.rows import Row
from heedful.errors import HeedfulError

LARGE = 1 << 28  # bytes from which on a plain file is cut
PIECE = 1 << 20  # bytes of a piece, about
CUT = re.compile(rb"[A-Za-z](?=\r?\n)")  # before a line's end, behind a letter: tokenizers of words cut there too


class Piece(Mapping[str, Any]):
    """The values of a row, its text lying in a file from byte ``start`` to ``end``; every line end is ``\\n``.

    Args:
        path: the file, UTF-8.
        column: the name of the text.
        start: its first byte.
        end: the one after its last.
        line: that it begins at, from 1.
    """

    __slots__ = ("column", "end", "line", "path", "start")

    def __init__(self, path: str, column: str, start: int, end: int, line: int) -> None:
        self.path, self.column, self.start, self.end, self.line = path, column, start, end, line

    @property
    def continues(self) -> bool:
        """Whether it goes on with the text of the piece before it."""
        return self.start > 0

    def __getitem__(self, name: str) -> str:
        if name != self.column:
            raise KeyError(name)
        try:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                found = file.read(self.end - self.start)
        except OSError as error:
            raise HeedfulError(f"{self.path} cannot be read any more ({error.strerror}); begin again") from None
        try:
            text = found.decode("utf-8" if self.start else "utf-8-sig")
        except UnicodeDecodeError as error:
            line = self.line + found.count(b"\n", 0, error.start)
            raise HeedfulError(
                f"invalid UTF-8 (byte 0x{found[error.start]:02x}) in {self.path}:{line}; convert the file first"
            ) from None
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def __iter__(self) -> Iterator[str]:
        return iter((self.column,))

    def __len__(self) -> int:
        return 1


def is_cut(rows: Sequence[Row]) -> bool:
    """Whether some of the rows are pieces."""
    return any(isinstance(row.values, Piece) for row in rows)


def continues(row: Row) -> bool:
    """Whether a row goes on with the text of the one before it."""
    return isinstance(row.values, Piece) and row.values.continues


def identity(row: Row) -> tuple[str | int, ...]:
    """What is equal for equal texts; of a piece as long as its file is what it was."""
    piece = row.values
    if isinstance(piece, Piece):
        return piece.path, os.stat(piece.path).st_mtime_ns, piece.start, piece.end
    return tuple(str(value) for value in piece.values())


def is_large(path: str) -> bool:
    """Whether a source is cut: a plain file, not packed, of many bytes."""
    packed = Path(path).suffix.lower() in COMPRESSED
    return not packed and os.path.isfile(path) and os.path.getsize(path) >= LARGE


def pieces(path: str, column: str) -> Iterator[Row]:
    """A row a piece; joined they are the file. Each ends behind a letter, before a line's end, if there is such a place
    within twice its size, else behind a line's end, else where a character ends.
    """
    size, start, line = os.path.getsize(path), 0, 1
    with open(path, "rb") as file:
        while start < size:
            file.seek(start)
            found = file.read(2 * PIECE)
            end = len(found) if len(found) < 2 * PIECE else _end(found)
            yield Row(Piece(os.path.abspath(path), column, start, start + end, line), path, line)
            line += found.count(b"\n", 0, end)
            start += end


def _end(found: bytes) -> int:
    if place := CUT.search(found, PIECE):
        return place.end()
    if (end := found.rfind(b"\n")) > 0:
        return end + 1
    end = len(found)
    while end > 1 and found[end - 1] & 0xC0 == 0x80:  # of a character of several bytes, all but the first
        end -= 1
    return end - 1 if found[end - 1] & 0x80 else end
