"""What decoding remembers. The caller makes a cache and hands it in; the model is stateless.

Each attention gets one small object, a ``Remembered``: ``update(project)`` calls ``project`` only when it must, and
returns the keys and values (B, heads, S, head size) to attend to. ``Cache`` holds them for a whole stack, with the mask
of the tokens seen.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.layers.attention import NOTHING, Pair, Project, Remembered


def _selected(pair: Pair | None, rows: Tensor) -> Pair | None:
    return pair and (pair[0].index_select(0, rows), pair[1].index_select(0, rows))


class Growing(Remembered):
    """All keys and values so far, one allocation a step."""

    def __init__(self) -> None:
        self.pair: Pair | None = None

    def update(self, project: Project) -> Pair:
        """The old ones and the new."""
        new = project()
        if self.pair is not None:
            new = (torch.cat((self.pair[0], new[0]), 2), torch.cat((self.pair[1], new[1]), 2))
        self.pair = new
        return new

    def select(self, rows: Tensor) -> None:
        """Keep ``rows``, in that order."""
        self.pair = _selected(self.pair, rows)


class Sliding(Growing):
    """The last ``window`` keys and values; a longer first input is attended to whole, then cut."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def update(self, project: Project) -> Pair:
        """The kept ones and the new."""
        key, value = super().update(project)
        self.pair = (key[:, :, -self.window :], value[:, :, -self.window :])
        return key, value


class Preallocated(Remembered):
    """Room for ``capacity`` tokens, made at the first call: a step writes its own rows and copies nothing."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.pair: Pair | None = None

    def update(self, project: Project) -> Pair:
        """Views of what is filled, the new ones last."""
        new = project()
        if self.pair is None:
            self.pair = (self._room(new[0]), self._room(new[1]))
        start, end = self.length, self.length + new[0].size(2)
        if end > self.capacity:
            raise HeedfulError(f"{end} tokens for a cache with room for {self.capacity}; make it larger")
        self.length = end
        key, value = (room[:, :, : self.length] for room in self.pair)
        key[:, :, start:], value[:, :, start:] = new
        return key, value

    def select(self, rows: Tensor) -> None:
        """Keep ``rows``; only what is filled moves."""
        if self.pair is not None:
            self.pair = (self._moved(self.pair[0], rows), self._moved(self.pair[1], rows))

    def _room(self, like: Tensor) -> Tensor:
        return like.new_empty(len(like), like.size(1), self.capacity, like.size(3))

    def _moved(self, room: Tensor, rows: Tensor) -> Tensor:
        made = room.new_empty(len(rows), *room.shape[1:])
        made[:, :, : self.length] = room[:, :, : self.length].index_select(0, rows)
        return made


class Cross(Remembered):
    """The keys and values of the encoder's output: projected once."""

    def __init__(self) -> None:
        self.pair: Pair | None = None

    def update(self, project: Project) -> Pair:
        """The same at every step."""
        if self.pair is None:
            self.pair = project()
        return self.pair

    def select(self, rows: Tensor) -> None:
        """Keep ``rows``, in that order."""
        self.pair = _selected(self.pair, rows)


class Seen(NamedTuple):
    """Where a call's tokens stand among all that were seen; B is 1 where all rows are alike."""

    queries: Tensor  # (B, T) positions of this call's tokens, counted over real tokens
    keys: Tensor  # (B, S) positions of the tokens that attention may look at, this call's last
    real: Tensor | None  # (B, S) which of those are real; None: all
    end: int  # all positions are below it


def anything(real: Tensor | None) -> None:
    """Padding may stand on either side."""


def left_padded(real: Tensor | None) -> None:
    """Padding must stand before the real tokens: what follows them would push them out of a sliding cache."""
    if real is not None and not bool(real[:, -1].all()):
        raise HeedfulError("a sliding cache takes padding on the left only; pad there, or use a cache without window")


def counted(real: Tensor) -> Tensor:
    """0, 1, 2, ... over the real tokens of each row, (B, S); padding before them stands at 0."""
    return (real.bool().cumsum(-1) - 1).clamp(min=0)


class NoCache:
    """A stack that remembers nothing: what it sees is all there is."""

    def see(self, x: Tensor, real: Tensor | None) -> Seen:
        """The tokens of ``x`` (B, T, D), of which ``real`` (B, T) are real."""
        positions = torch.arange(x.size(1), device=x.device)[None] if real is None else counted(real)
        return Seen(positions, positions, real, x.size(1))

    def layers(self, depth: int) -> list[tuple[Remembered, Remembered]]:
        """A pair (own, cross) for each of ``depth`` blocks."""
        return [(NOTHING, NOTHING)] * depth


class Cache(NoCache):
    """What a stack of ``depth`` blocks remembers between calls.

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
        self.length, self.masked = 0, False
        self.check = anything if window is None else left_padded
        self.most = sys.maxsize if window is None else window  # so many are kept from call to call
        self.real = torch.ones(1, 0, dtype=torch.bool)
        self.pairs: list[tuple[Remembered, Remembered]] = [(_own(capacity, window), Cross()) for _ in range(depth)]

    def layers(self, depth: int) -> list[tuple[Remembered, Remembered]]:
        """A pair (own, cross) for each block; another ``depth`` than the cache was made for is an error."""
        if depth != len(self.pairs):
            raise HeedfulError(f"a cache for {len(self.pairs)} blocks was given to a stack of {depth}")
        return self.pairs

    def see(self, x: Tensor, real: Tensor | None) -> Seen:
        """The tokens of ``x`` (B, T, D) after all earlier ones."""
        past, self.length = self.length, self.length + x.size(1)
        new = x.new_ones(x.shape[:2], dtype=torch.bool) if real is None else real.bool()
        self.real = torch.cat((self.real.to(x.device).expand(len(x), -1), new), 1)
        self.check(real)
        self.masked |= real is not None
        positions = counted(self.real if self.masked else self.real[:1])  # without padding all rows are alike
        first = max(0, past - self.most)
        kept = self.real[:, first:] if self.masked else None
        return Seen(positions[:, past:], positions[:, first:], kept, self.length)

    def reorder(self, rows: Tensor) -> None:
        """Put the batch in another order that leaves each row beside the same source: cross-attention stays."""
        self.real = self.real[rows]
        for own, _ in self.pairs:
            own.select(rows)

    def select(self, rows: Tensor) -> None:
        """Keep ``rows`` (B',) of the batch, in that order: a beam's new order, or the rows still alive."""
        self.reorder(rows)
        for _, cross in self.pairs:
            cross.select(rows)


def _own(capacity: int | None, window: int | None) -> Remembered:
    if window is not None:
        return Sliding(window)
    return Growing() if capacity is None else Preallocated(capacity)
