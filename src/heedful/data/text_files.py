"""Text files, compressed or not, opened and decoded with one-line errors."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Container, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from heedful.errors import HeedfulError

STDIN = "-"
COMPRESSED = (".gz", ".xz", ".zst")
UNPACK = {".gz": "gzip -dc", ".xz": "xz -dc", ".zst": "zstd -dc"}
# First bytes of files mistaken for text, and their format.
FORMATS = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"%PDF-": "a PDF",
    b"PK\x03\x04": "a ZIP archive, as Word and Excel write them",
}
MAX_PATH = 1000  # characters of a path that a message prints whole
CHUNK = 1 << 14  # bytes of a buffer
COMPRESSED_CHUNK = 1 << 9  # bytes of a .zst file that are decompressed at a time, to 16 MiB at most
LONGEST_ROW = 1 << 24  # bytes of a line that is one example; tokenizers need some hundred bytes for each
# A decompression bomb expands to more than BOMB_BYTES and BOMB_RATIO times its size. Measured ratios: English text 2
# to 4, logs of packages 9 to 15, repeated equal lines 26 (.gz) and 267 (.xz), zeros 1,000 to 30,000.
BOMB_BYTES, BOMB_RATIO = 1 << 28, 500


class NotText(HeedfulError):
    """Error: the file is not UTF-8 text."""


def display_name(path: str) -> str:
    """Returns the name of a file for messages, such as "standard input" for ``-``."""
    return "standard input" if path == STDIN else path


def extension(path: str) -> str:
    """Returns the last extension in lower case, such as ".tsv" for "a.TSV.gz"; "" if there is none."""
    name = Path(path.lower())
    return Path(name.stem).suffix if name.suffix in COMPRESSED else name.suffix


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    r"""Yields (number, line) of a UTF-8 file, from 1.

    Lines end at ``\n`` or ``\r\n`` and nowhere else (a form feed or U+2028 is text); a byte order mark is dropped;
    ``-`` is standard input. Raises `HeedfulError`, naming file and line, for a file that is missing, a folder,
    unreadable, broken, binary or not UTF-8, and for a line of more than 16,777,216 bytes.
    """
    for number, line in raw_lines(path):
        yield number, line.removesuffix("\n").removesuffix("\r")


def raw_lines(path: str, longest: int | None = LONGEST_ROW) -> Iterator[tuple[int, str]]:
    """Yields (number, line) of a UTF-8 file, from 1, with line ends kept, since CSV fields may contain them.

    Raises `HeedfulError` in the same cases as `read_lines`; a line may have at most `longest` bytes (None: no limit).
    """
    with open_file(path) as stream:
        limit = -1 if longest is None else longest + 1
        for number, line in enumerate(iter(lambda: stream.readline(limit), b""), 1):
            if longest is not None and len(line) > longest:
                raise HeedfulError(
                    f"the line has more than {longest:,} bytes, in {display_name(path)}:{number}; split it into "
                    "several examples"
                )
            yield number, decode_line(line, path, number)


def decode_line(line: bytes, path: str, number: int) -> str:
    """Decodes a line of a UTF-8 file. Raises `NotText`, naming file and line, for anything else."""
    if number == 1:
        if line.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise NotText(
                f"the file is UTF-16, in {display_name(path)}:1; convert it: iconv -f UTF-16 -t UTF-8 {path} > new-file"
            )
        file_format = next((name for magic, name in FORMATS.items() if line.startswith(magic)), None)
        if file_format:
            raise NotText(
                f"{display_name(path)} is {file_format}, but text is expected; save its text as UTF-8 and give "
                "that file"
            )
    if b"\0" in line:
        raise NotText(
            f"the file has a NUL byte and is not text, in {display_name(path)}:{number}; give a text file, or name a "
            f"compressed or Parquet file by its extension ({', '.join(COMPRESSED)}, .parquet)"
        )
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise NotText(
            f"invalid UTF-8 (byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line), in "
            f"{display_name(path)}:{number}; convert the file: {_conversion_command(path)} > new-file"
        ) from error
    return text.removeprefix("\ufeff") if number == 1 else text


def _conversion_command(path: str) -> str:
    """Returns the command that converts a file to UTF-8 from the most likely encoding."""
    unpack = UNPACK.get(Path(path).suffix.lower())
    convert = "iconv -f WINDOWS-1252 -t UTF-8"
    return f"{unpack} {path} | {convert}" if unpack else f"{convert} {path}"


def read_text(path: str) -> str:
    r"""Returns the text of a UTF-8 file with every line end as ``\n``; raises `HeedfulError` as `read_lines` does."""
    text = "".join(line for _, line in raw_lines(path, longest=None))
    return text.replace("\r\n", "\n").replace("\r", "\n")


def files_below(folder: str, without: Container[str] = ()) -> Iterator[str]:
    """Yields the paths of the files in a folder, sorted by name, then those in its sub-folders.

    Hidden files and folders, and folders named in `without`, are left out. Raises `HeedfulError` for an
    unreadable folder.
    """
    for parent, folders, files in os.walk(folder, onerror=_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in without)
        paths = (os.path.join(parent, name) for name in sorted(files) if not name.startswith("."))
        yield from (path for path in paths if os.path.isfile(path))  # no pipe, socket or broken link


def subfolders(folder: str) -> list[str]:
    """Returns the sorted names of the sub-folders, without hidden ones."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        _unreadable(error)
        raise
    return [name for name in names if not name.startswith(".") and os.path.isdir(os.path.join(folder, name))]


def _unreadable(error: OSError) -> None:
    raise HeedfulError(
        f"{error.filename} cannot be read ({error.strerror or error}); correct this or give another folder"
    ) from error


@contextmanager
def open_file(path: str, *, pipes: bool = True) -> Iterator[IO[bytes]]:
    """Opens a file to read bytes; a last extension of ``.gz``, ``.xz`` or ``.zst`` means that it is decompressed.

    With ``pipes``, a named pipe such as the shell's ``<(zcat FILE)`` is read; devices and sockets are always refused.
    Raises ``HeedfulError`` for errors when opening the file and in the block.
    """
    if path == STDIN:
        yield sys.stdin.buffer
        return
    if not path:
        raise HeedfulError("the file name is empty; give the name of a file")
    file = Path(path)
    try:
        if file.is_dir():
            raise HeedfulError(f"{path} is a folder, but a file is expected; give a file in it")
        if not file.exists():
            name = path if path.isprintable() and path.strip() else repr(path)
            if file.is_symlink():
                raise HeedfulError(f"{name} is a broken link, to {os.readlink(file)!r}; correct or remove it")
            raise HeedfulError(f"no such file: {name}; {_similar_name(file)}")
        mode = file.stat().st_mode
        if not (stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode))):
            raise HeedfulError(f"{path} is a pipe, a device or a socket, but a file is expected; give a regular file")
        with _decompressed(file) as stream:
            yield stream
    except EOFError as error:
        raise HeedfulError(f"{path} is incomplete: it ends too early; copy or download it again") from error
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise HeedfulError(
            f"{path} is not a complete {file.suffix} file ({error}); copy or download it again"
        ) from error
    except OSError as error:
        raise HeedfulError(
            f"{path if len(path) < MAX_PATH else path[:99] + '...'} cannot be read ({error.strerror or error}); "
            "correct this or give another file"
        ) from error


def _decompressed(file: Path) -> IO[bytes]:
    match file.suffix.lower():
        case ".gz":
            return io.BufferedReader(_LimitedReader(file, gzip.open(file)), 4 * CHUNK)
        case ".xz":
            return io.BufferedReader(_LimitedReader(file, lzma.open(file)), 4 * CHUNK)
        case ".zst":
            zstandard = require_library("zstandard", str(file))
            return io.BufferedReader(_LimitedReader(file, _ZstdReader(file.open("rb"), zstandard)), 4 * CHUNK)
        case _:
            return file.open("rb")


class _LimitedReader(io.RawIOBase):
    """Bytes of a compressed file. Raises `HeedfulError` for a decompression bomb when the limit is reached."""

    def __init__(self, file: Path, stream: io.BufferedIOBase | io.RawIOBase | gzip.GzipFile | lzma.LZMAFile) -> None:
        self._file, self._stream = file, stream
        self._limit = max(BOMB_BYTES, BOMB_RATIO * file.stat().st_size)
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._stream.readinto(buffer) or 0
        self._count += count
        if self._count > self._limit:
            size = self._file.stat().st_size
            raise HeedfulError(
                f"{self._file} has {size:,} bytes and expands to more than {self._count - count:,} bytes, over "
                f"{BOMB_RATIO} times as many, which is unusual for text; to read it anyway, decompress it and give "
                "that file"
            )
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


class _ZstdReader(io.RawIOBase):
    """Frames of a .zst file, decompressed on reading: the library's own stream accepts a truncated file."""

    def __init__(self, file: IO[bytes], library: ModuleType) -> None:  # both set first, so that `close` finds the file
        self._file, self._library, self._name = file, library, file.name
        self._frame: Any = None
        self._pending = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            compressed, self._pending = self._pending or self._file.read(COMPRESSED_CHUNK), b""
            if not compressed:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._frame = self._frame or self._library.ZstdDecompressor().decompressobj()
            try:
                self._output = memoryview(self._frame.decompress(compressed))
            except self._library.ZstdError as error:
                raise HeedfulError(
                    f"{self._name} is not a complete .zst file ({error}); copy or download it again"
                ) from error
            if self._frame.eof:
                self._pending, self._frame = self._frame.unused_data, None
        chunk = self._output[: len(buffer)]
        buffer[: len(chunk)], self._output = chunk, self._output[len(chunk) :]  # a view, not a copy
        return len(chunk)

    def close(self) -> None:
        self._file.close()
        super().close()


def require_library(library: str, path: str, purpose: str = "reading") -> ModuleType:
    """Imports the optional library that a file needs. Raises ``HeedfulError`` with the line that installs it."""
    try:
        return import_module(library)
    except ImportError as error:
        raise HeedfulError(
            f"{purpose} {path} needs {library.partition('.')[0]}; pip install 'heedful[data]'"
        ) from error


def _similar_name(file: Path) -> str:
    folder = file.parent
    if not folder.is_dir():
        return f"there is no folder {folder} either; check the path"
    names = sorted(path.name for path in folder.iterdir())
    # The compressed file first: "train.en.gz" for "train.en".
    close = [name for name in names if name in {file.name + end for end in COMPRESSED}]
    close = close or get_close_matches(file.name, names, n=1)
    return f"did you mean {str(folder / close[0])!r}?" if close else f"check the path; {folder} has no similar name"
