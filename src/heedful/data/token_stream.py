"""Token streams: tokens cached on disk, and windows over them for language models."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from heedful.errors import HeedfulError
from heedful.util.files import atomic_file, sync

PART = 1 << 24  # tokens counted at a time
NOWHERE = np.zeros(0, dtype=np.int64)


class Stream(NamedTuple):
    """Tokens (N,) read through windows of ``context`` tokens and the next one. ``starts`` are the places of the first
    tokens of documents, if these are kept apart.
    """

    tokens: np.ndarray
    context: int
    starts: np.ndarray = NOWHERE

    @property
    def windows(self) -> int:
        """The number of windows that predict every token but the first."""
        return -(-(len(self.tokens) - 1) // self.context)


class StreamWindow(NamedTuple):
    """Window of a stream, by its number."""

    stream: Stream
    place: int


class StreamWindows(Sequence[StreamWindow]):
    """All windows of a stream, made on access: there may be more than memory holds."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return self.stream.windows

    @overload
    def __getitem__(self, place: int) -> StreamWindow: ...

    @overload
    def __getitem__(self, place: slice) -> list[StreamWindow]: ...

    def __getitem__(self, place: int | slice) -> StreamWindow | list[StreamWindow]:
        places = range(len(self))[place]
        return (
            StreamWindow(self.stream, places)
            if isinstance(places, int)
            else [StreamWindow(self.stream, number) for number in places]
        )


def count_token(tokens: np.ndarray, wanted: int | None) -> int:
    """Returns the count of one token among ``tokens``."""
    if wanted is None:
        return 0
    return sum(int((tokens[at : at + PART] == wanted).sum()) for at in range(0, len(tokens), PART))


class WindowBatch(NamedTuple):
    """Contents of windows, (B, context + 1) each."""

    tokens: np.ndarray  # int64
    there: np.ndarray  # boolean: within the stream
    places: np.ndarray  # in the stream

    def begins(self, stream: Stream) -> np.ndarray:
        """Returns where a document begins, boolean."""
        found = np.searchsorted(stream.starts, self.places).clip(max=len(stream.starts) - 1)
        return np.asarray(stream.starts[found] == self.places)


def read_windows(windows: Sequence[StreamWindow], random: np.random.Generator | None = None) -> WindowBatch:
    """Returns the contents of windows of one stream.

    Without ``random`` window i begins at i · context: all windows together predict each token of the stream but the
    first exactly once; the last may reach over the end.

    With it, of K windows over N tokens, window i begins at ⌊(i + u) N / K⌋, u uniform in [0, 1), and the beginning of
    the stream stands after its end. An epoch then has about one window from each stretch of a context, elsewhere each
    time, and every token is equally likely to be predicted, and with equally many before it.

    >>> read_windows([StreamWindow(Stream(np.arange(6), 4), 1)])[:2]
    (array([[4, 5, 0, 1, 2]]), array([[ True,  True, False, False, False]]))
    """
    stream = windows[0].stream
    places = np.fromiter((window.place for window in windows), np.int64, len(windows))
    if random is None:
        starts = places * stream.context
    else:
        starts = np.floor((places + random.random(len(places))) * (len(stream.tokens) / stream.windows)).astype(int)
    index = starts[:, None] + np.arange(stream.context + 1)
    places = index % len(stream.tokens)
    there = np.ones_like(index, dtype=bool) if random is not None else index < len(stream.tokens)
    return WindowBatch(stream.tokens[places].astype(np.int64), there, places)


def cached_tokens(
    identity: Iterable[object],
    parts: Callable[[], Iterable[np.ndarray]],
    kind: np.dtype[Any],
    starts: MutableSequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the joined ``parts``, and ``starts``, which making the parts fills, mapped from files (``numpy.memmap``).

    The files are in ``cache_folder()``, named by a digest of ``identity``; existing ones are used again. They are
    written atomically.
    """
    digest = hashlib.blake2b(digest_size=16)
    for item in identity:
        digest.update(repr(item).encode("utf-8", "surrogatepass") + b"\0")
    name = digest.hexdigest()
    tokens, places = cache_folder() / f"{name}.tokens", cache_folder() / f"{name}.starts.npy"
    if not (tokens.exists() and places.exists()):
        try:
            tokens.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(tokens) as file:
                for part in parts():
                    file.write(part.data)
                sync(file)
            with atomic_file(places) as file:
                np.save(file, np.array(starts, dtype=np.int64))
                sync(file)
        except OSError as error:
            raise HeedfulError(
                f"cannot write tokens to {tokens.parent}: {error.strerror}; make room, or name another folder in "
                "HEEDFUL_CACHE"
            ) from None
    return np.memmap(tokens, kind, "r"), np.load(places)


def cache_folder() -> Path:
    """Returns the cache folder: ``$HEEDFUL_CACHE``, ``$XDG_CACHE_HOME/heedful``, or ``~/.cache/heedful``."""
    named = os.environ.get("HEEDFUL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heedful"
