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
    """Tokens (N,) read through windows of ``context`` tokens and the token after them.

    ``starts`` are the positions of the first tokens of documents, if attention does not cross documents.
    """

    tokens: np.ndarray
    context: int
    starts: np.ndarray = NOWHERE

    @property
    def windows(self) -> int:
        """Number of windows that predict every token but the first."""
        return -(-(len(self.tokens) - 1) // self.context)


class StreamWindow(NamedTuple):
    """Window of a stream, by its number."""

    stream: Stream
    number: int


class StreamWindows(Sequence[StreamWindow]):
    """All windows of a stream, created on access: there may be more than fit memory."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return self.stream.windows

    @overload
    def __getitem__(self, index: int) -> StreamWindow: ...

    @overload
    def __getitem__(self, index: slice) -> list[StreamWindow]: ...

    def __getitem__(self, index: int | slice) -> StreamWindow | list[StreamWindow]:
        numbers = range(len(self))[index]
        if isinstance(numbers, int):
            return StreamWindow(self.stream, numbers)
        return [StreamWindow(self.stream, number) for number in numbers]


def count_token(tokens: np.ndarray, token: int | None) -> int:
    """Returns the number of occurrences of a token in ``tokens``; 0 for None."""
    if token is None:
        return 0
    starts = range(0, len(tokens), PART)
    return sum(int((tokens[start : start + PART] == token).sum()) for start in starts)


class WindowBatch(NamedTuple):
    """Contents of windows, (B, context + 1) each."""

    tokens: np.ndarray  # int64
    is_inside: np.ndarray  # boolean: within the stream
    positions: np.ndarray  # in the stream

    def document_starts(self, stream: Stream) -> np.ndarray:
        """Returns a boolean array, True for the first tokens of documents."""
        indices = np.searchsorted(stream.starts, self.positions).clip(max=len(stream.starts) - 1)
        return np.asarray(stream.starts[indices] == self.positions)


def read_windows(windows: Sequence[StreamWindow], random: np.random.Generator | None = None) -> WindowBatch:
    """Returns the contents of windows of one stream.

    Without ``random``, window i begins at i · context: together the windows predict each token of the stream but the
    first exactly once. The last may extend beyond the end.

    With ``random``, of K windows over N tokens, window i begins at ⌊(i + u) N / K⌋, u uniform in [0, 1), and the stream
    is circular. An epoch then has about one window for each stretch of ``context`` tokens, at a different offset each
    time. Every token is predicted with the same probability, and with the same distribution of preceding tokens.

    >>> read_windows([StreamWindow(Stream(np.arange(6), 4), 1)])[:2]
    (array([[4, 5, 0, 1, 2]]), array([[ True,  True, False, False, False]]))
    """
    stream = windows[0].stream
    numbers = np.fromiter((window.number for window in windows), np.int64, len(windows))
    if random is None:
        starts = numbers * stream.context
    else:
        starts = np.floor((numbers + random.random(len(numbers))) * (len(stream.tokens) / stream.windows)).astype(int)
    index = starts[:, None] + np.arange(stream.context + 1)
    positions = index % len(stream.tokens)
    is_inside = np.ones_like(index, dtype=bool) if random is not None else index < len(stream.tokens)
    return WindowBatch(stream.tokens[positions].astype(np.int64), is_inside, positions)


def cached_tokens(
    identity: Iterable[object],
    parts: Callable[[], Iterable[np.ndarray]],
    kind: np.dtype[Any],
    starts: MutableSequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of all ``parts``, concatenated, and ``starts``, both from cache files (``numpy.memmap``).

    Iterating over the parts fills ``starts``. The files are in ``cache_folder()``, named by a digest of ``identity``.
    Existing ones are reused; new ones are written atomically.
    """
    digest = hashlib.blake2b(digest_size=16)
    for item in identity:
        digest.update(repr(item).encode("utf-8", "surrogatepass") + b"\0")
    name = digest.hexdigest()
    tokens, start_file = cache_folder() / f"{name}.tokens", cache_folder() / f"{name}.starts.npy"
    if not (tokens.exists() and start_file.exists()):
        try:
            tokens.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(tokens) as file:
                for part in parts():
                    file.write(part.data)
                sync(file)
            with atomic_file(start_file) as file:
                np.save(file, np.array(starts, dtype=np.int64))
                sync(file)
        except OSError as error:
            raise HeedfulError(
                f"cannot write tokens to {tokens.parent}: {error.strerror}; free disk space, or set HEEDFUL_CACHE "
                "to another folder"
            ) from None
    return np.memmap(tokens, kind, "r"), np.load(start_file)


def cache_folder() -> Path:
    """Returns the cache folder: ``$HEEDFUL_CACHE``, ``$XDG_CACHE_HOME/heedful``, or ``~/.cache/heedful``."""
    named = os.environ.get("HEEDFUL_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heedful"
