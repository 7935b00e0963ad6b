"""A file written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from heedful.errors import HeedfulError


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
        os.replace(beside, path)
    except OSError as error:
        if beside is not None:
            Path(beside).unlink(missing_ok=True)
        raise HeedfulError(f"cannot write {path}: {error.strerror}; make room, or choose another place") from None
    return path


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
