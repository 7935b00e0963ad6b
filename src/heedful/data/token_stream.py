"""Token streams: tokens cached on disk, and windows over them for language models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from heedful.errors import HeedfulError
from heedful.util.files import atomic_file, cache_folder, sync

PART = 1 << 24  # tokens counted at a time
NOWHERE = np.zeros(0, dtype=np.int64)


class Stream(NamedTuple):
    """Stream of tokens (N,) that a language model reads in windows of ``context`` inputs and one more target.

    ``starts`` has the positions of the first tokens of documents if attention must not cross documents; else it is
    empty.
    """

    tokens: np.ndarray
    context: int
    starts: np.ndarray = NOWHERE

    @property
    def windows(self) -> int:
        """Number of windows that together predict every token of the stream but the first."""
        return -(-(len(self.tokens) - 1) // self.context)


class StreamWindow(NamedTuple):
    """Window of a stream: the stream and the window's number, from 0."""

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
    """Contents of B windows of a stream, three arrays (B, context + 1).

    Attributes:
        tokens: the token ids, int64.
        is_inside: True for positions within the stream, boolean.
        positions: positions in the stream; those beyond its end continue at its start.
    """

    tokens: np.ndarray
    is_inside: np.ndarray
    positions: np.ndarray

    def document_starts(self, stream: Stream) -> np.ndarray:
        """Returns a boolean array (B, context + 1), True for the first tokens of documents in ``stream``."""
        indices = np.searchsorted(stream.starts, self.positions).clip(max=len(stream.starts) - 1)
        return np.asarray(stream.starts[indices] == self.positions)


def read_windows(windows: Sequence[StreamWindow], random: np.random.Generator | None = None) -> WindowBatch:
    """Returns the contents of windows, all of one stream.

    Without ``random``, window i begins at i · context: together the windows predict each token of the stream but the
    first exactly once. The last window may extend beyond the end.

    With ``random``, the stream is circular and windows begin at random offsets. Of K windows over N tokens, window i
    begins at ⌊(i + u) N / K⌋, with u uniform in [0, 1). An epoch then has about one window for each stretch of
    ``context`` tokens, at a different offset in each epoch. Every token is predicted with the same probability, and
    with the same distribution of preceding tokens.

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
    """Returns tokens and document starts from files in the cache folder, which it writes on the first call.

    Args:
        identity: values that determine the tokens; the files are named by a digest of them.
        parts: returns the arrays of tokens to concatenate. It is called only if the files do not exist.
        kind: dtype of the tokens.
        starts: positions of the first tokens of documents; iterating over the parts fills it.

    Returns:
        The tokens (``numpy.memmap``) and the document starts.

    Raises:
        HeedfulError: the files cannot be written.
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
