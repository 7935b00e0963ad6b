"""Key-value caches of fixed shape, for decoding steps that are compiled, captured, or shared by many requests.

A call stores one token of each row, in columns that were allocated before. ``heedful.cache`` has the caches of the
model itself, which also read prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.cache import Cache, Cross, StackCache, Stored, selected_rows
from heedful.errors import HeedfulError
from heedful.layers.attention import AttentionCache, KeysValues, Project
from heedful.layers.mask import TokenPositions

Store = Callable[[Stored, Stored, Tensor, Tensor], None]


def store_columns(buffers: Stored, new: Stored, rows: Tensor, columns: Tensor) -> None:
    """Stores the keys and values ``new`` (R, K, 1, E) in the ``rows`` and ``columns`` (R,) of the buffers."""
    for buffer, tokens in zip(buffers, new, strict=True):
        buffer[rows, :, columns] = tokens[:, :, 0].to(buffer.dtype)


class StaticAttention(AttentionCache):
    """Cache of keys and values in buffers of fixed shape; every call stores one token of each row.

    Args:
        buffers: keys and values (B, K, C, E).
        rows: (B,) 0, 1, 2, ...
        new_columns: (B,) the column of each row's new token, which the owner changes in place before each call.
        is_shared: True if ``rows`` (R,) are any rows of the buffers, and several may be the same: tokens of one text.
        store: computes ``store_columns``.
    """

    def __init__(
        self,
        buffers: Stored,
        rows: Tensor,
        new_columns: Tensor,
        is_shared: bool = False,
        store: Store = store_columns,
    ) -> None:
        self.buffers, self.rows, self.new_columns, self.is_shared = buffers, rows, new_columns, is_shared
        self.store = store

    def update(self, project: Project) -> KeysValues:
        """Stores the keys and values that ``project`` computes, (B, K, 1, E), and returns all columns (B, K, C, E)."""
        new = project()
        self.store(self.buffers, new, self.rows, self.new_columns)
        key, value = selected_rows(self.buffers, self.rows) if self.is_shared else self.buffers
        return key.to(new[0].dtype), value.to(new[1].dtype)


class Ring(NamedTuple):
    """Columns of the blocks with one window: the token at position p is in column p mod C.

    Column j therefore holds position p − ((p − j) mod C), where p is the row's newest position; it is empty if that
    number is negative. With C = window the columns are a sliding window.
    """

    capacity: int  # number of columns C
    columns: Tensor  # (S,) the columns to attend to: 0, 1, 2, ...
    new_columns: Tensor  # (B,) column of the newest token of each row

    def locate(self, positions: Tensor) -> Tensor:
        """Sets ``new_columns`` from the newest ``positions`` (B,); returns the positions (B, S) of the columns."""
        torch.remainder(positions, self.capacity, out=self.new_columns)
        newest = positions[:, None]
        return newest - (newest - self.columns) % self.capacity


class RingCache(StackCache):
    """Base of caches of preallocated columns, for calls of one token a row.

    Attributes:
        capacity: number of columns of the blocks that store most.
        end: all positions are below it.
        windows: window of each block; None: it attends to all tokens.
        positions: (B,) position of the newest token of each row.
        rings: columns of the blocks with each window.
        pairs: caches of self-attention and of cross-attention of each block.
        store: stores a token of each row, in the buffers of a block.
    """

    capacity: int
    end: int
    windows: Sequence[int | None]
    positions: Tensor
    rings: dict[int | None, Ring]
    pairs: list[tuple[StaticAttention, Cross]]
    store: Store

    def layers(self, depth: int) -> Sequence[tuple[AttentionCache, AttentionCache]]:
        """Returns a pair of caches, of self-attention and of cross-attention, for each of ``depth`` blocks."""
        return self.pairs

    def _attention(self, buffers: Stored, rows: Tensor, ring: Ring, is_shared: bool = False) -> StaticAttention:
        return StaticAttention(buffers, rows, ring.new_columns, is_shared, self.store)

    def _tokens(self) -> TokenPositions:
        """Returns the positions of the newest tokens and of all columns, whose empty ones are masked."""
        newest = self.positions[:, None]
        by_window = {}
        for window, ring in self.rings.items():
            keys = ring.locate(self.positions)
            mask = keys >= 0
            if window is not None and ring.capacity > window:
                mask &= keys > newest - window
            by_window[window] = TokenPositions(newest, keys, None, self.end, mask[:, None])
        return TokenPositions.joined(by_window)


class StaticCache(RingCache):
    """Key-value cache of fixed shape for calls of one token a row, as ``torch.cuda.graph`` needs it.

    Rows may have different lengths, and padding is not stored. A call changes tensors in place and reads nothing back;
    it must be in inference mode if the cache was made there, and takes no gradient.

    Args:
        prefix: the cache that read the prompts. Padding must be on the left.
        lengths: (B,) number of tokens of each row in ``prefix``, without padding.
        last: (B,) the last position of each row: a row that reaches it stays there, and overwrites its newest token.
        end: all positions are below it. A row has as many columns, in the blocks with a window at most the window.
        windows: window of each block, as ``StackConfig.windows``; None: no block has one.
        store: computes ``store_columns``, as ``heedful.kernels.decode_attention`` does on a GPU.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0).eval()
    >>> prefix = Cache(model.config.decoder.depth)
    >>> with torch.inference_mode():
    ...     first = model(torch.tensor([[1, 2, 3]]), cache=prefix)
    ...     cache = StaticCache(prefix, torch.tensor([3]), last=torch.tensor([9]), end=10)
    ...     model(torch.tensor([[4]]), cache=cache).shape, cache.positions
    (torch.Size([1, 1, 65]), tensor([3]))
    """

    def __init__(
        self,
        prefix: Cache,
        lengths: Tensor,
        last: Tensor,
        *,
        end: int,
        windows: Sequence[int | None] | None = None,
        store: Store = store_columns,
    ) -> None:
        self.windows, self.store = (None,) * len(prefix.pairs) if windows is None else windows, store
        sizes = {window: end if window is None else min(end, window) for window in self.windows}
        self.capacity, self.end = max(sizes.values()), end
        self.positions, self.last = lengths - 1, last.clone()
        self.rows = torch.arange(len(lengths), device=lengths.device)
        self.rings = {
            window: Ring(size, torch.arange(size, device=lengths.device), self.positions % size)
            for window, size in sizes.items()
        }
        self.pairs = []
        for window, (self_attention, cross) in zip(self.windows, prefix.pairs, strict=True):
            ring = self.rings[window]
            buffers = tuple(x.new_zeros(*x.shape[:2], ring.capacity, x.size(3)) for x in self_attention.pair)
            self.pairs.append((self._attention(buffers, self.rows, ring), cross))
        self.fill(self.rows, prefix, lengths, last)

    def fill(self, rows: Tensor, prefix: Cache, lengths: Tensor, last: Tensor) -> None:
        """Replaces the ``rows`` (b,) by those of ``prefix``, a cache of b rows; the buffers stay the same.

        ``lengths`` and ``last`` (b,) are as in the constructor. The keys and values of cross-attention do not change.
        """
        newest = lengths[:, None] - 1
        back = {  # (b, C) tokens between a column's token and the newest
            window: (newest - ring.columns) % ring.capacity for window, ring in self.rings.items()
        }
        for window, (self_attention, _), (source, _) in zip(self.windows, self.pairs, prefix.pairs, strict=True):
            for buffer, stored in zip(self_attention.buffers, source.pair, strict=True):
                columns = (stored.size(2) - 1 - back[window]).clamp(min=0)[:, None, :, None]  # of an empty one: any
                index = columns.expand(-1, stored.size(1), -1, stored.size(3))
                buffer.index_copy_(0, rows, stored.gather(2, index).to(buffer.dtype))
        self.positions.index_copy_(0, rows, lengths - 1)
        self.last.index_copy_(0, rows, last)

    def extend(self, x: Tensor, real: Tensor | None) -> TokenPositions:
        """Advances every row by the token of ``x`` (B, 1, D) and returns the positions and the mask of all columns."""
        if x.shape[:2] != (len(self.rows), 1) or real is not None:
            raise HeedfulError(
                f"a static cache of {len(self.rows)} rows takes one token a row and no mask, not {tuple(x.shape[:2])}; "
                "read prompts with a cache of another kind"
            )
        torch.minimum(self.positions.add_(1), self.last, out=self.positions)
        return self._tokens()

    def reorder(self, rows: Tensor) -> None:
        """Reorders the rows of the self-attention caches; ``rows`` (B',) are the indices of the old rows.

        The buffers stay the same if the number of rows does. The cross-attention caches are unchanged.
        """
        if len(rows) != len(self.rows):
            self._resize(rows)
            return
        for self_attention, _ in self.pairs:
            for buffer in self_attention.buffers:
                buffer.copy_(buffer.index_select(0, rows))
        self.positions.copy_(self.positions.index_select(0, rows))
        self.last.copy_(self.last.index_select(0, rows))

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keeps the rows with the indices ``rows`` (B',), in that order, in new buffers.

        ``sources`` are the indices of the rows that the cross-attention caches keep; None: ``rows``.
        """
        self._resize(rows)
        for _, cross in self.pairs:
            cross.select(rows if sources is None else sources)

    def _resize(self, rows: Tensor) -> None:
        self.positions, self.last = self.positions[rows], self.last[rows]
        self.rows = torch.arange(len(rows), device=rows.device)
        self.rings = {window: ring._replace(new_columns=ring.new_columns[rows]) for window, ring in self.rings.items()}
        self.pairs = [
            (self._attention(selected_rows(self_attention.buffers, rows), self.rows, self.rings[window]), cross)
            for window, (self_attention, cross) in zip(self.windows, self.pairs, strict=True)
        ]


class SlotCache(RingCache):
    """Key-value cache of preallocated slots, for calls of one token a row between which rows come and go.

    Row i of a call is slot i, unless the call begins with the slots of its rows: then several successive tokens of a
    slot may be rows of one call. Rows may have different lengths. A call reads the columns up to its longest row,
    rounded up to a multiple of ``UNIT``: kernels then compute a row with the same bits whatever the longest row is.

    Args:
        prefix: a cache of the same stack, for the shapes and the dtype of keys and values.
        slots: number of slots.
        capacity: number of tokens of the longest row.
        windows: window of each block, as ``StackConfig.windows``; None: no block has one.
        is_fixed: True if a call reads all columns: calls of as many rows then do the same work in the same memory.
        together: maximum number of tokens of a slot in one call.
        store: computes ``store_columns``.

    Attributes:
        capacity: number of columns of a slot in the blocks that store most. A block stores as many as the longest row
            has, at most its window and the tokens that come together, rounded up.
        is_shared: True if the rows of the present call are those of given slots.
        compiled_rows: number of rows up to which a compiled step must be used, if there is one, for the same bits.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0).eval()
    >>> prefix = Cache(model.config.decoder.depth)
    >>> with torch.inference_mode():
    ...     first = model(torch.tensor([[1, 2, 3]]), cache=prefix)
    ...     cache = SlotCache(prefix, slots=4, capacity=20)
    ...     cache.fill(0, prefix, 3)
    ...     cache.begin([3])
    ...     model(torch.tensor([[4]]), cache=cache).shape, cache.capacity
    (torch.Size([1, 1, 65]), 32)
    """

    UNIT = 16
    compiled_rows = 0

    def __init__(
        self,
        prefix: Cache,
        slots: int,
        *,
        capacity: int,
        windows: Sequence[int | None] | None = None,
        is_fixed: bool = False,
        together: int = 1,
        store: Store = store_columns,
    ) -> None:
        self.windows, self.store = (None,) * len(prefix.pairs) if windows is None else windows, store
        stored = {
            window: capacity if window is None else min(capacity, window + together - 1) for window in self.windows
        }
        self.capacities = {window: self._rounded(count) for window, count in stored.items()}
        self.capacity = max(self.capacities.values())
        self.end, self.is_fixed = capacity, is_fixed
        self.buffers = [
            tuple(x.new_zeros(slots, x.size(1), self.capacities[window], x.size(3)) for x in own.pair)
            for window, (own, _) in zip(self.windows, prefix.pairs, strict=True)
        ]
        self.used = [0] * slots  # columns that may hold numbers other than zero
        device = self.buffers[0][0].device
        self.all_rows = torch.arange(slots, device=device)
        self.all_columns = torch.arange(self.capacity, device=device)
        self.shape, self.is_shared = (0, 0), False  # rows and columns of the present call

    def _rounded(self, columns: int) -> int:
        return -(-columns // self.UNIT) * self.UNIT

    def fill(self, slot: int, prefix: Cache, length: int) -> None:
        """Replaces a slot by the only row of ``prefix``, which has read ``length`` tokens, without padding; 0: by none.

        The other columns become zeros: what is left of an earlier row may be infinite, and 0 · ∞ is NaN.
        """
        sources = [own.pair for own, _ in prefix.pairs] if length else []
        for own, source in zip(self.buffers, sources, strict=False):
            for buffer, stored in zip(own, source, strict=True):
                capacity = buffer.size(2)
                count = min(stored.size(2), capacity)
                columns = torch.arange(length - count, length, device=stored.device) % capacity
                newest = stored[0, :, stored.size(2) - count :]
                buffer[slot].index_copy_(1, columns, newest.to(buffer.dtype))  # compiled meanwhile: of another dtype
        self.clear(slot, length)

    def move(self, source: int, target: int) -> None:
        """Copies a slot to another one."""
        length = self.used[source]
        for own in self.buffers:
            for buffer in own:
                buffer[target, :, :length] = buffer[source, :, :length]
        self.clear(target, length)

    def clear(self, slot: int, length: int = 0) -> None:
        """Writes zeros after the first ``length`` tokens of a slot."""
        length = min(length, self.capacity)
        for own in self.buffers:
            for buffer in own:
                buffer[slot, :, length : self.used[slot]] = 0
        self.used[slot] = length

    def begin(self, lengths: Sequence[int], slots: Sequence[int] | None = None, steps: int = 1) -> None:
        """Begins a call of as many rows as ``lengths``, the numbers of tokens that they have already.

        ``slots`` are the slots of the rows: rows of the same slot are successive tokens. None: row i is slot i. In a
        call of several ``steps`` so many tokens of each row join the cache, one after another.
        """
        longest = max(lengths) + steps
        if not self.is_fixed:
            self.end = longest  # all positions are below it
        for slot, length in zip(range(len(lengths)) if slots is None else slots, lengths, strict=True):
            self.used[slot] = max(self.used[slot], min(length + steps, self.capacity))
        columns = self.capacity if self.is_fixed else min(self._rounded(longest), self.capacity)
        rows = len(lengths)
        is_shared = slots is not None
        if (rows, columns) != self.shape or is_shared or self.is_shared:
            self._resize(rows, columns, None if slots is None else self.all_rows.new_tensor(slots))
        self.positions.copy_(torch.tensor(lengths))

    def _resize(self, rows: int, columns: int, slots: Tensor | None) -> None:
        self.shape, self.is_shared = (rows, columns), slots is not None
        self.positions = self.all_rows.new_zeros(rows)
        self.rings = {
            window: Ring(capacity, self.all_columns[: min(columns, capacity)], self.all_rows.new_zeros(rows))
            for window, capacity in self.capacities.items()
        }
        used, sources = (slice(rows), self.all_rows[:rows]) if slots is None else (slice(None), slots)
        self.pairs = []
        for window, own in zip(self.windows, self.buffers, strict=True):
            ring = self.rings[window]
            views = tuple(buffer[used, :, : len(ring.columns)] for buffer in own)
            self.pairs.append((self._attention(views, sources, ring, self.is_shared), Cross()))

    def extend(self, x: Tensor, real: Tensor | None) -> TokenPositions:
        """Returns the positions of the tokens ``x`` (R, 1, D) and the mask of the columns."""
        if x.shape[:2] != (self.shape[0], 1) or real is not None:
            raise HeedfulError(
                f"this call of a slot cache takes one token of {self.shape[0]} rows and no mask, not "
                f"{tuple(x.shape[:2])}; give begin the lengths of the rows first"
            )
        return self._tokens()
