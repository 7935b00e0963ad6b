"""Files: written whole or not at all; JSON and TOML parsed, with every fault of theirs as one line for people."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError

LARGEST = 1 << 28  # bytes of a JSON or TOML file that is parsed
DEEPEST = 100  # levels of lists and objects, one in the other
WINDOWS = os.name == "nt"  # there a file that is open or memory-mapped can be neither replaced nor removed
PATIENCE = 2.0  # seconds for which a rename is tried again there
LONGEST = 300  # digits of a whole number: any of them is a finite float


def write(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write ``content``, text as UTF-8, to ``path``: beside it first and renamed then, so that nobody reads half of it.

    The folder is made where it is missing. Raises ``HeedfulError`` where it may not be written, or the disk is full.
    """
    path, data = Path(path), content.encode() if isinstance(content, str) else content
    beside: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(beside, 0o666 & ~_umask())
        move(beside, path)
    except OSError as error:
        if beside is not None:
            Path(beside).unlink(missing_ok=True)
        raise HeedfulError(f"cannot write {path}: {error.strerror}; make room, or choose another place") from None
    return path


def move(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Renames ``source`` to ``target``, which it replaces in one step: ``os.replace``.

    On Windows a rename is tried again for two seconds: a reader, a virus scanner or an indexer that has one of the two
    files open refuses it there, and is soon done.
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


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def read_json(path: Path, remedy: str) -> Any:
    """Returns the value in a JSON file. Raises ``HeedfulError`` as ``parse_json`` does, and for a missing file."""
    return parse_json(read_bytes(path, remedy), path, remedy)


def read_toml(path: Path, remedy: str) -> dict[str, Any]:
    """Returns the table in a TOML file. Raises ``HeedfulError`` as ``parse_toml`` does, and for a missing file."""
    return parse_toml(read_bytes(path, remedy), path, remedy)


def check_regular(path: Path, remedy: str) -> None:
    """Raises ``HeedfulError`` for what is there and is no regular file: opening a pipe would wait for a writer."""
    if path.exists() and not path.is_file():
        raise HeedfulError(f"{path} is no regular file; {remedy}")


def read_bytes(path: Path, remedy: str) -> bytes:
    """Returns the content of a regular file of at most 256 MiB; everything else raises ``HeedfulError``."""
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise HeedfulError(f"{path} is no regular file; {remedy}")
        if facts.st_size > LARGEST:
            raise HeedfulError(f"{path} has {facts.st_size:,} bytes, more than {LARGEST:,}; {remedy}")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        if isinstance(error, HeedfulError):
            raise
        raise HeedfulError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}; {remedy}") from None


def parse_json(content: str | bytes, where: str | Path, remedy: str) -> Any:
    """Returns the value that a JSON text holds.

    Args:
        content: the text, or its bytes in UTF-8.
        where: the file, or the file and line, that the error names.
        remedy: what a person can do, the end of the error.

    Raises:
        HeedfulError: one line, for what is not UTF-8, not JSON, nested more than 100 levels deep, or holds a whole
            number of more than 300 digits.

    >>> parse_json('{"a": [1, 2.5]}', "a.json", "write it again")
    {'a': [1, 2.5]}
    """
    try:
        value = json.loads(_text(content), parse_int=_integer)
        _check_depth(value)
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}" if isinstance(where, Path) else where
        raise HeedfulError(f"broken JSON in {place}: {error.msg}; {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise HeedfulError(f"cannot read {where}: {_reason(error)}; {remedy}") from None
    return value


def parse_toml(content: str | bytes, where: str | Path, remedy: str) -> dict[str, Any]:
    """Returns the table that a TOML text holds; raises ``HeedfulError`` of one line, as ``parse_json`` does."""
    import tomllib

    try:
        values = tomllib.loads(_text(content))
        _check_depth(values)
    except (ValueError, RecursionError) as error:
        raise HeedfulError(f"{where} is not a TOML file: {_reason(error)}; {remedy}") from None
    return values


def _text(content: str | bytes) -> str:
    return content.decode("utf-8-sig") if isinstance(content, bytes) else content


def _integer(digits: str) -> int:
    if len(digits) > LONGEST:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def _check_depth(value: Any) -> None:
    """Raises ``ValueError`` for nesting that a function which calls itself could not follow, and for endless integers
    (TOML's reader has no hook for them).
    """
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        inner = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
        if any(type(part) is int and part.bit_length() > 3 * LONGEST for part in inner):
            raise ValueError(f"a number of more than {LONGEST} digits")
        level = [part for part in inner if isinstance(part, dict | list)]
        if not level:
            return
    raise ValueError(f"lists and objects are nested more than {DEEPEST} levels deep")


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return f"lists and objects are nested more than {DEEPEST} levels deep"
    return str(error).partition("\n")[0]
