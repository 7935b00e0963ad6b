"""Key-value caches for decoding. The caller makes a cache and passes it in; the model is stateless.

Each attention gets one small object, a ``Remembered``: ``update(project)`` calls ``project`` only when it must, and
returns the keys and values (B, heads, S, head size) to attend to. ``Cache`` holds them for a whole stack, with the mask
of the tokens seen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.layers.attention import NOTHING, Pair, Project, Remembered
from heedful.layers.mask import padding_mask

Pieces = tuple[Tensor, ...]  # keys and values, or nothing yet


def _selected(pieces: Pieces, rows: Tensor) -> Pieces:
    return tuple(piece.index_select(0, rows) for piece in pieces)


class Growing(Remembered):
    """All keys and values so far, in rooms with a quarter to spare: most steps write their own and copy nothing."""

    window = sys.maxsize  # so many are kept from call to call

    def __init__(self) -> None:
        self.rooms: Pieces = ()
        self.room, self.first, self.length = 0, 0, 0  # the rooms' size, and what is kept in them
        self.inference = False  # whether they were made in inference mode

    @property
    def pair(self) -> Pieces:
        """Cached keys and values, as views."""
        return tuple(room.narrow(2, self.first, self.length - self.first) for room in self.rooms)

    @property
    def closed(self) -> bool:
        """True if the tensors must not be written: autograd needs them, or inference mode has ended."""
        return torch.is_grad_enabled() | (self.inference > torch.is_inference_mode_enabled())

    def update(self, project: Project) -> Pair:
        """The old ones and the new."""
        new = project()
        if (self.length + new[0].size(2) > self.room) | self.closed:
            self._move(new)
        past, first, count = self.length, self.first, new[0].size(2)
        self.length = past + count
        self.first = max(first, self.length - self.window)
        for room, part in zip(self.rooms, new, strict=True):
            room.narrow(2, past, count).copy_(part)
        key, value = (room.narrow(2, first, self.length - first) for room in self.rooms)
        return key, value

    def select(self, rows: Tensor) -> None:
        """Keep ``rows``, in that order."""
        self.rooms, self.inference = _selected(self.pair, rows), torch.is_inference_mode_enabled()
        self.first, self.length = 0, self.length - self.first
        self.room = self.length

    def reorder(self, rows: Tensor, moved: Tensor, come: Tensor) -> None:
        """The same for as many rows, of which only ``moved`` change: they are ``come`` of those before."""
        if self.closed:
            self.select(rows)
        else:
            for part in self.pair:
                part.index_copy_(0, moved, part.index_select(0, come))

    def crop(self, length: int) -> None:
        """Keep the first ``length`` tokens: what stands behind them is written again."""
        self.length = min(self.length, length)

    def size(self, tokens: int) -> int:
        """Of rooms for ``tokens``; a long first input that will not be kept has none to spare."""
        return tokens + (tokens // 4 + 16) * (tokens <= 2 * self.window)

    def _move(self, new: Pair) -> None:
        """Into rooms that hold what is kept and ``new``."""
        old, kept = self.pair, self.length - self.first
        self.room = self.size(kept + new[0].size(2))
        self.rooms = tuple(part.new_empty(*part.shape[:2], self.room, part.size(3)) for part in new)
        self.first, self.length, self.inference = 0, kept, torch.is_inference_mode_enabled()
        for room, part in zip(self.rooms, old, strict=False):
            room[:, :, :kept] = part


class Sliding(Growing):
    """The last ``window`` keys and values; a longer first input is attended to whole, then cut."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def crop(self, length: int) -> None:
        """Not to be had: what stood before the window is gone."""
        raise HeedfulError("a sliding cache cannot go back, since it keeps no earlier tokens; use one without window")


class Preallocated(Growing):
    """Room for ``capacity`` tokens, made at the first call."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def size(self, tokens: int) -> int:
        """All of it at once."""
        if tokens > self.capacity:
            raise HeedfulError(f"{tokens} tokens for a cache with room for {self.capacity}; make it larger")
        return self.capacity


class Cross(Remembered):
    """The keys and values of the encoder's output: projected once."""

    def __init__(self) -> None:
        self.pair: Pieces = ()

    def update(self, project: Project) -> Pair:
        """The same at every step."""
        key, value = self.pair = self.pair or project()
        return key, value

    def select(self, rows: Tensor) -> None:
        """Keep ``rows``, in that order."""
        self.pair = _selected(self.pair, rows)


class Seen(NamedTuple):
    """Positions of a call's tokens among all cached ones; B is 1 where all rows are alike."""

    queries: Tensor  # (B, T) positions of this call's tokens, counted over real tokens
    keys: Tensor  # (B, S) positions of the tokens that attention may look at, this call's last
    real: Tensor | None  # (B, S) which of those are real; None: all
    end: int  # all positions are below it

    def mask(self, real: Tensor) -> Tensor:
        """Padding mask over keys of which ``real`` (B, S) are real, the same for every query."""
        return padding_mask(real)


class Packed(Seen):
    """Several texts in a row: ``real`` numbers them, and positions count in each.

    >>> numbers, positions = torch.tensor([[1, 1, 2, 0]]), torch.tensor([[0, 1, 0, 0]])
    >>> Packed(positions, positions, numbers, 4).mask(numbers)[0, 0]
    tensor([[ True,  True, False, False],
            [ True,  True, False, False],
            [False, False,  True, False],
            [ True,  True,  True, False]])
    """

    def mask(self, real: Tensor) -> Tensor:
        """Mask of the keys of the query's own text, (B, 1, T, S); padding, which nobody reads, attends to all. Without
        text
        """
        own = self.real[:, None, :, None]  # type: ignore[index]  # it is there
        return padding_mask(real) & ((own == real[:, None, None, :]) | (own == 0) | (real.dtype == torch.bool))


def anything(new: Tensor | None, real: Tensor) -> None:
    """Padding may stand on either side; several texts in a row are refused."""
    if new is not None and bool((new > 1).any()):
        raise HeedfulError("a cache remembers one text a row, and the mask numbers several; give each its own row")


def left_padded(new: Tensor | None, real: Tensor) -> None:
    """Padding must stand before the real tokens: what follows them would push them out of a sliding cache."""
    if new is not None and bool((real[:, 1:] < real[:, :-1]).any() | (new > 1).any()):
        raise HeedfulError("a sliding cache takes one text a row, padded on the left; or use a cache without window")


def counted(real: Tensor) -> Tensor:
    """0, 1, 2, ... over the real tokens of each row, (B, S); padding before them stands at 0."""
    return (real.bool().cumsum(-1) - 1).clamp(min=0)


def counted_in_texts(texts: Tensor) -> Tensor:
    """The same over the real tokens of each text of a row, by the texts' numbers (B, S).

    >>> counted_in_texts(torch.tensor([[0, 1, 1, 2, 2, 2]]))
    tensor([[0, 0, 1, 0, 1, 2]])
    """
    count, last = counted(texts), texts.cummax(-1).values
    return count - torch.where(last != last.roll(1, -1), count, 0).cummax(-1).values  # less where its text began


class NoCache:
    """A stack that remembers nothing: what it sees is all there is."""

    def see(self, x: Tensor, real: Tensor | None) -> Seen:
        """The tokens of ``x`` (B, T, D), of which ``real`` (B, T) are real, or which it numbers by their texts."""
        if real is not None and real.dtype != torch.bool:
            return Packed(at := counted_in_texts(real), at, real, x.size(1))
        positions = torch.arange(x.size(1), device=x.device)[None] if real is None else counted(real)
        return Seen(positions, positions, real, x.size(1))

    def layers(self, depth: int) -> Sequence[tuple[Remembered, Remembered]]:
        """A pair (own, cross) for each of ``depth`` blocks."""
        return [(NOTHING, NOTHING)] * depth


class Cache(NoCache):
    """Key-value cache of a stack of ``depth`` blocks.

    Args:
        depth: number of blocks.
        capacity: room for so many tokens from the start; None grows.
        window: keep only the last so many (a stack with a sliding window).

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0).eval()
    >>> cache = Cache(model.config.decoder.depth)
    >>> first = model(torch.tensor([[1, 2, 3]]), cache=cache)
    >>> model(torch.tensor([[4]]), cache=cache).shape, cache.length
    (torch.Size([1, 1, 65]), 4)
    """

    def __init__(self, depth: int, *, capacity: int | None = None, window: int | None = None) -> None:
        if capacity is not None and window is not None:
            raise HeedfulError(f"a cache has a capacity ({capacity}) or a window ({window}), not both; leave one out")
        self.length, self.rows = 0, 0
        self.check = anything if window is None else left_padded
        self.most = sys.maxsize if window is None else window  # so many are kept from call to call
        self.real: Tensor | None = None  # (B, length); None: all
        self.pairs = [(_own(capacity, window), Cross()) for _ in range(depth)]

    def layers(self, depth: int) -> Sequence[tuple[Remembered, Remembered]]:
        """A pair (own, cross) for each block; another ``depth`` than the cache was made for is an error."""
        if depth != len(self.pairs):
            raise HeedfulError(f"a cache for {len(self.pairs)} blocks was given to a stack of {depth}")
        return self.pairs

    def see(self, x: Tensor, real: Tensor | None) -> Seen:
        """The tokens of ``x`` (B, T, D) after all earlier ones."""
        past, self.length, self.rows = self.length, self.length + x.size(1), len(x)
        first = max(0, past - self.most)
        if self.real is None and real is None:  # all rows are alike
            positions = torch.arange(first, self.length, device=x.device)[None]
            return Seen(positions[:, past - first :], positions, None, self.length)
        self.real = torch.cat((_real(self.real, x, past), _real(real, x, x.size(1))), 1)
        self.check(real, self.real)
        positions = counted(self.real)
        return Seen(positions[:, past:], positions[:, first:], self.real[:, first:], self.length)

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` columns of tokens, in every row; cross-attention stays."""
        if not 0 <= length <= self.length:
            raise HeedfulError(
                f"a cache of {self.length} tokens cannot be cropped to {length}; give 0 to {self.length}"
            )
        for own, _ in self.pairs:
            own.crop(length)
        self.real, self.length = None if self.real is None else self.real[:, :length], length

    def reorder(self, rows: Tensor) -> None:
        """Take ``rows`` of the batch where cross-attention stays: as many for each source, beside each other.

        Where there are as many as before, only those move that are others than before.
        """
        self.real = None if self.real is None else self.real[rows]
        if len(rows) == self.rows:
            moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero()[:, 0]
            come = rows[moved]
            for own, _ in self.pairs if len(moved) else ():
                own.reorder(rows, moved, come)
        else:
            self._take(rows)

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keep ``rows`` (B',) of the batch, in that order: a beam's new order, or the rows still alive.

        ``sources`` are what cross-attention keeps, each for B' / len(sources) rows beside each other; None: ``rows``.
        """
        self.real = None if self.real is None else self.real[rows]
        self._take(rows)
        for _, cross in self.pairs:
            cross.select(rows if sources is None else sources)

    def _take(self, rows: Tensor) -> None:
        self.rows = len(rows)
        for own, _ in self.pairs:
            own.select(rows)


def _real(real: Tensor | None, x: Tensor, tokens: int) -> Tensor:
    return x.new_ones(len(x), tokens, dtype=torch.bool) if real is None else real.bool()


def _own(capacity: int | None, window: int | None) -> Growing | Preallocated:
    if window is not None:
        return Sliding(window)
    return Growing() if capacity is None else Preallocated(capacity)
