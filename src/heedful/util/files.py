"""Atomic writes through temporary files; JSON and TOML parsed with one-line errors."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

from heedful.errors import HeedfulError

MAX_BYTES = 1 << 28  # of a JSON or TOML file that is parsed
MAX_DEPTH = 100  # levels of nested lists and objects
WINDOWS = os.name == "nt"  # there an open or memory-mapped file can be neither replaced nor removed
PATIENCE = 2.0  # seconds for which a rename is retried on Windows
MAX_DIGITS = 300  # of a whole number: every such number is a finite float
# Names of temporary files and folders, which a killed process leaves behind. Users do not give such names.
TEMPORARY = re.compile(
    r"\.(.+\.)?\d+-\d+\.part"  # temporary_name
    r"|\..+\.(json|jsonl|toml|toml\.part|svg|html|png|pdf|txt|md|bin)\.[a-z0-9_]{8}"  # of earlier versions
    r"|(checkpoint\.pt(\.\d+)?|metrics\.jsonl)\.part"  # likewise
)


def similar_path(path: str | os.PathLike[str]) -> Path | None:
    """Returns the file or folder beside a missing ``path`` whose name is the most similar; None if none is similar."""
    folder = Path(path).parent
    with suppress(OSError):
        close = get_close_matches(Path(path).name, os.listdir(folder), n=1)
        return folder / close[0] if close else None
    return None


def write(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Writes ``content`` to ``path`` atomically, text as UTF-8, and returns the path. Creates a missing folder.

    Raises:
        HeedfulError: the file cannot be written, or the disk is full.
    """
    path, data = Path(path), content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            file.write(data)
    except OSError as error:
        raise HeedfulError(f"cannot write {path}: {error.strerror}; free disk space, or choose another file") from None
    return path


@contextmanager
def atomic_file(path: Path, temporary: Path | None = None) -> Iterator[BinaryIO]:
    """Context manager that yields a new file, which replaces ``path`` at its end; after an error ``path`` is unchanged.

    Args:
        path: the file to write.
        temporary: path of the new file until the block ends; ``temporary_path(path)`` by default.

    Raises:
        OSError: the file cannot be written; ``FileExistsError`` if ``temporary`` exists.
    """
    temporary = temporary_path(path) if temporary is None else temporary
    file = temporary.open("xb+")
    try:
        with file:
            yield file
        move(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(file: BinaryIO) -> None:
    """Writes the buffers of an open file to the disk, before the file is renamed.

    After the rename, the file then has all its bytes, even if the power fails.
    """
    file.flush()
    os.fsync(file.fileno())


def temporary_name(name: str = "") -> str:
    """Returns an unused name, to be used while the file or folder ``name`` is being written: ".NAME.PID-TIME.part"."""
    return f".{name}{'.' if name else ''}{os.getpid()}-{time.time_ns()}.part"


def temporary_path(path: Path) -> Path:
    """Returns an unused path in the folder of ``path``, to be used while ``path`` is being written."""
    return path.with_name(temporary_name(path.name))


def cache_folder() -> Path:
    """Returns the cache folder: ``$HEEDFUL_CACHE``, else ``$XDG_CACHE_HOME/heedful``, else ``~/.cache/heedful``."""
    named = os.environ.get("HEEDFUL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heedful"


def shared_folder(folder: Path) -> Path | None:
    """Returns the first folder on a resolved path in which another user may put files; None if there is none.

    Folders of root are trusted, and so are those in which files belong to their writers, such as ``/tmp``. Below a
    folder that only its owner may enter, nobody else reaches the others.
    """
    is_closed = False
    for part in (*reversed(folder.parents), folder):
        status = part.stat()
        is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.getuid()) or (is_shared and not is_closed):
            return part
        is_closed = is_closed or not status.st_mode & (stat.S_IXGRP | stat.S_IXOTH)
    return None


def read_own_bytes(path: Path) -> bytes | None:
    """Returns the bytes of a regular file that only this user (or root) may write; None for any other."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(number, "rb") as file:
        status = os.fstat(number)
        is_own = status.st_uid in (0, os.getuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return file.read() if is_own and stat.S_ISREG(status.st_mode) else None


def move(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Renames ``source`` to ``target`` and replaces an existing ``target``, by ``os.replace``.

    On Windows a refused rename is retried for two seconds: another program may have the file open.
    """
    limit = time.monotonic() + PATIENCE
    while True:
        try:
            os.replace(source, target)
        except PermissionError:
            if not WINDOWS or time.monotonic() > limit:
                raise
            time.sleep(PATIENCE / 40)
        else:
            return


def read_json(path: Path, remedy: str) -> Any:
    """Returns the value in a JSON file.

    Raises ``HeedfulError``, which ends with ``remedy``, for a file that cannot be read or is not valid JSON.
    """
    return parse_json(read_bytes(path, remedy), path, remedy)


def read_toml(path: Path, remedy: str) -> dict[str, Any]:
    """Returns the table in a TOML file.

    Raises ``HeedfulError``, which ends with ``remedy``, for a file that cannot be read or is not valid TOML.
    """
    return parse_toml(read_bytes(path, remedy), path, remedy)


def check_regular(path: Path, remedy: str) -> None:
    """Raises ``HeedfulError`` if a path exists and is not a regular file, such as a pipe, whose reading would wait."""
    if path.exists() and not path.is_file():
        raise HeedfulError(f"{path} is not a regular file; {remedy}")


def read_bytes(path: Path, remedy: str) -> bytes:
    """Returns the bytes of a file. Raises ``HeedfulError`` if it is missing, not a regular file, or over 256 MiB."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise HeedfulError(f"{path} is not a regular file; {remedy}")
        if status.st_size > MAX_BYTES:
            raise HeedfulError(f"{path} has {status.st_size:,} bytes, more than {MAX_BYTES:,}; {remedy}")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: an impossible file name
        if isinstance(error, HeedfulError):
            raise
        raise HeedfulError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}; {remedy}") from None


def parse_json(content: str | bytes, location: str | Path, remedy: str) -> Any:
    """Returns the value of a JSON text.

    Args:
        content: the text, or its bytes in UTF-8.
        location: the file, or file and line, for the error.
        remedy: what the user can do; the error ends with it.

    Raises:
        HeedfulError: the text is not UTF-8 or not JSON, is nested more than 100 levels deep, or has a whole number of
            more than 300 digits. One line.

    >>> parse_json('{"a": [1, 2.5]}', "a.json", "write it again")
    {'a': [1, 2.5]}
    """
    try:
        value = json.loads(_text(content), parse_int=_integer)
        _check_depth(value)
    except json.JSONDecodeError as error:
        location = f"{location}:{error.lineno}" if isinstance(location, Path) else location
        raise HeedfulError(f"broken JSON in {location}: {error.msg}; {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise HeedfulError(f"cannot read {location}: {_reason(error)}; {remedy}") from None
    return value


def parse_toml(content: str | bytes, location: str | Path, remedy: str) -> dict[str, Any]:
    """Returns the table of a TOML text. Arguments and errors are those of ``parse_json``."""
    import tomllib

    try:
        values = tomllib.loads(_text(content))
        _check_depth(values)
    except (ValueError, RecursionError) as error:
        raise HeedfulError(f"{location} is not a TOML file: {_reason(error)}; {remedy}") from None
    return values


def _text(content: str | bytes) -> str:
    return content.decode("utf-8-sig") if isinstance(content, bytes) else content


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it contains a number of {len(digits):,} digits, more than {MAX_DIGITS}")
    return int(digits)


def _check_depth(value: Any) -> None:
    """Raises ``ValueError`` for nesting too deep for recursive functions, and for huge integers.

    TOML's reader has no hook for integers.
    """
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        items = [item for values in level for item in (values.values() if isinstance(values, dict) else values)]
        if any(type(item) is int and item.bit_length() > 3 * MAX_DIGITS for item in items):
            raise ValueError(f"it contains a number of more than {MAX_DIGITS} digits")
        level = [item for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise ValueError(f"its lists and objects are nested more than {MAX_DEPTH} levels deep")


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return f"its lists and objects are nested more than {MAX_DEPTH} levels deep"
    return str(error).partition("\n")[0]
