"""Tokens on disk: written once as they are made, then read as they are looked at, through the system's file cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

import numpy as np

from heedful.errors import HeedfulError
from heedful.util.files import move


def stored(
    identity: Iterable[object],
    parts: Callable[[], Iterable[np.ndarray]],
    kind: np.dtype[Any],
    starts: MutableSequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """The parts joined, and ``starts``, which making them fills: both mapped from files (``numpy.memmap``).

    They lie in ``home()`` under a name made of all that ``identity`` gives; where they are there nothing is made. They
    are written beside, as far as the disk, and renamed, so half of them is never read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for each in identity:
        digest.update(repr(each).encode("utf-8", "surrogatepass") + b"\0")
    name = digest.hexdigest()
    tokens, places = home() / f"{name}.tokens", home() / f"{name}.starts.npy"
    if not (tokens.exists() and places.exists()):
        try:
            tokens.parent.mkdir(parents=True, exist_ok=True)
            with _whole(tokens) as file:
                for part in parts():
                    file.write(part.data)
            with _whole(places) as file:
                np.save(file, np.array(starts, dtype=np.int64))
        except OSError as error:
            raise HeedfulError(
                f"cannot write tokens to {tokens.parent}: {error.strerror}; make room, or name another folder in "
                "HEEDFUL_CACHE"
            ) from None
    return np.memmap(tokens, kind, "r"), np.load(places)


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when all of it is on the disk; where that fails, nothing of it stays."""
    beside = path.with_name(f"{path.name}.{token_hex(8)}.part")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        move(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def home() -> Path:
    """Where tokens are kept: ``$HEEDFUL_CACHE``, else ``heedful`` in ``$XDG_CACHE_HOME``, else ``~/.cache/heedful``."""
    named = os.environ.get("HEEDFUL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heedful"
