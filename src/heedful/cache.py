"""Key-value caches for decoding. The caller makes a cache and passes it in; the model is stateless.

Each attention gets one small object, an ``AttentionCache``: its method ``update(project)`` returns the keys and values
(B, heads, S, head size) to attend to, and calls ``project`` only when it must. A ``Cache`` holds two for each block of
a stack, and the mask of all tokens so far.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.layers.attention import NO_ATTENTION_CACHE, AttentionCache, KeysValues, Project
from heedful.layers.mask import TokenPositions, attended_tokens, check_whole_mask, own_positions, token_positions

Stored = tuple[Tensor, ...]  # keys and values, or empty

UNLIMITED = sys.maxsize


def _selected(tensors: Stored, rows: Tensor) -> Stored:
    return tuple(tensor.index_select(0, rows) for tensor in tensors)


class Growing(AttentionCache):
    """Cache of all keys and values, in growing buffers with a quarter of spare room: most steps copy nothing."""

    window = UNLIMITED  # number of tokens that stay stored from call to call

    def __init__(self) -> None:
        self.buffers: Stored = ()
        self.allocated, self.first, self.length = 0, 0, 0  # capacity in tokens; tokens first to length are stored
        self.made_in_inference = False

    @property
    def pair(self) -> Stored:
        """Stored keys and values, as views of the buffers."""
        return tuple(buffer.narrow(2, self.first, self.length - self.first) for buffer in self.buffers)

    @property
    def read_only(self) -> bool:
        """True if the buffers must not be written: autograd needs them, or inference mode has ended."""
        return torch.is_grad_enabled() or (self.made_in_inference and not torch.is_inference_mode_enabled())

    def update(self, project: Project) -> KeysValues:
        """Stores new keys and values, and returns all that are stored, the new ones last.

        ``project`` computes the new keys and values: it is called without arguments and returns both.
        """
        new = project()
        count = new[0].size(2)
        if self.length + count > self.allocated or self.read_only:
            self._move(new)
        past, columns = self.length, self._advance(count)
        for buffer, tensor in zip(self.buffers, new, strict=True):
            buffer.narrow(2, past, count).copy_(tensor)
        key, value = (buffer.narrow(2, columns.start, columns.stop - columns.start) for buffer in self.buffers)
        return key, value

    def append_column(self) -> tuple[Stored, slice]:
        """Makes room for one token; returns the buffers and the columns to attend to. The caller writes the last one.

        The cache must hold earlier tokens and must not be ``read_only``.
        """
        if self.length == self.allocated:
            self._move(tuple(buffer[:, :, :1] for buffer in self.buffers))  # type: ignore[arg-type]  # keys and values
        return self.buffers, self._advance(1)

    def _advance(self, count: int) -> slice:
        """Counts new tokens as stored; returns the columns that they attend to."""
        first = self.first
        self.length += count
        self.first = max(first, self.length - self.window)
        return slice(first, self.length)

    def select(self, rows: Tensor) -> None:
        """Keeps the rows of the batch with the indices ``rows``, in that order."""
        self.buffers, self.made_in_inference = _selected(self.pair, rows), torch.is_inference_mode_enabled()
        self.first, self.length = 0, self.length - self.first
        self.allocated = self.length

    def reorder(self, rows: Tensor, changed: Tensor, sources: Tensor) -> None:
        """Does the same as ``select(rows)`` if the number of rows stays, and copies only rows that change.

        Args:
            rows: index of the old row for each new row.
            changed: new rows that differ from the old row at the same index.
            sources: the old rows of ``changed``: ``rows[changed]``.
        """
        if self.read_only:
            self.select(rows)
            return
        for tensor in self.pair:
            tensor.index_copy_(0, changed, tensor.index_select(0, sources))

    def crop(self, length: int) -> None:
        """Keeps the first ``length`` tokens; the next call overwrites the others."""
        self.length = min(self.length, length)

    def buffer_size(self, tokens: int) -> int:
        """Returns the size of a new buffer for ``tokens`` tokens, a quarter more than they need.

        A long first input, which a window will cut, gets no spare room.
        """
        if tokens > 2 * self.window:
            return tokens
        return tokens + tokens // 4 + 16

    def _move(self, new: KeysValues) -> None:
        """Moves the stored tensors to new buffers with room for ``new``."""
        old, count = self.pair, self.length - self.first
        self.allocated = self.buffer_size(count + new[0].size(2))
        self.buffers = tuple(tensor.new_empty(*tensor.shape[:2], self.allocated, tensor.size(3)) for tensor in new)
        self.first, self.length, self.made_in_inference = 0, count, torch.is_inference_mode_enabled()
        for buffer, tensor in zip(self.buffers, old, strict=False):  # nothing is stored before the first call
            buffer[:, :, :count] = tensor


class Sliding(Growing):
    """Cache of the last ``window`` keys and values. The first input may be longer: it is cut after its own call."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def crop(self, length: int) -> None:
        """Raises ``HeedfulError``, because the tokens before the window are not stored."""
        raise HeedfulError(
            "a sliding cache lacks the tokens before its window and cannot be cropped; use a cache without a window"
        )


class Preallocated(Growing):
    """Cache of keys and values in buffers for ``capacity`` tokens, which the first call allocates."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def buffer_size(self, tokens: int) -> int:
        """Returns the cache's capacity; raises ``HeedfulError`` if ``tokens`` is larger."""
        if tokens > self.capacity:
            raise HeedfulError(
                f"the cache has room for {self.capacity} tokens, not {tokens}; give it a larger capacity"
            )
        return self.capacity


class Cross(AttentionCache):
    """Cache of the keys and values of the encoder's output, which are projected once."""

    def __init__(self) -> None:
        self.pair: Stored = ()

    def update(self, project: Project) -> KeysValues:
        """Returns the stored keys and values, which ``project`` computes in the first call."""
        if not self.pair:
            self.pair = project()
        key, value = self.pair
        return key, value

    def select(self, rows: Tensor) -> None:
        """Keeps the rows of the batch with the indices ``rows``, in that order."""
        self.pair = _selected(self.pair, rows)


def _check_single_texts(new: Tensor | None, real: Tensor) -> None:
    """Raises ``HeedfulError`` for a packed mask of new tokens; padding may be on either side."""
    if new is not None and bool((new > 1).any()):
        raise HeedfulError("a row of the mask holds several texts, but a cache takes one; give each text its own row")


def _check_left_padded(new: Tensor | None, real: Tensor) -> None:
    """Raises ``HeedfulError`` for padding after a text, which would push its tokens out of a sliding cache."""
    if new is not None and bool((real[:, 1:] < real[:, :-1]).any() | (new > 1).any()):
        raise HeedfulError(
            "a sliding cache takes one text a row, with padding on the left only; pad on the left, or use a cache "
            "without window"
        )


class NoCache:
    """Null cache of a stack: nothing is stored, and a call attends only to its own tokens."""

    def extend(self, x: Tensor, real: Tensor | None) -> TokenPositions:
        """Returns the positions of the tokens ``x`` (B, T, D).

        ``real`` (B, T) is True for non-padding tokens, or numbers the texts of a packed batch; None: no padding. A
        ``real`` of (B, T, T) is the whole mask.
        """
        return own_positions(x, real)

    def layers(self, depth: int) -> Sequence[tuple[AttentionCache, AttentionCache]]:
        """Returns a pair of caches, of self-attention and of cross-attention, for each of ``depth`` blocks."""
        return [(NO_ATTENTION_CACHE, NO_ATTENTION_CACHE)] * depth


class Cache(NoCache):
    """Key-value cache of a stack of ``depth`` blocks.

    Args:
        depth: number of blocks.
        capacity: number of tokens for which the first call allocates room; None: the cache grows as needed.
        window: number of last tokens that are stored, for a stack with a sliding window; None: all tokens. Or one for
            each block, as ``StackConfig.windows``; a capacity is then that of the blocks without a window.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0).eval()
    >>> cache = Cache(model.config.decoder.depth)
    >>> first = model(torch.tensor([[1, 2, 3]]), cache=cache)
    >>> model(torch.tensor([[4]]), cache=cache).shape, cache.length
    (torch.Size([1, 1, 65]), 4)
    """

    def __init__(
        self, depth: int, *, capacity: int | None = None, window: int | Sequence[int | None] | None = None
    ) -> None:
        windows = tuple(window) if isinstance(window, Sequence) else (window,) * depth
        if len(windows) != depth:
            raise HeedfulError(f"a cache for {depth} blocks was given {len(windows)} windows; give one for each block")
        if capacity is not None and None not in windows:
            raise HeedfulError(
                f"a cache has a capacity ({capacity}) or a window ({window}), not both; give one of them"
            )
        self.length, self.rows = 0, 0
        self.check = _check_single_texts if {*windows} == {None} else _check_left_padded
        self.stored = {own: UNLIMITED if own is None else own for own in windows}  # number of tokens, by window
        self.window = max(self.stored.values())  # of the blocks that store most
        self.real: Tensor | None = None  # (B, length), True for real tokens; None: all are
        self.pairs = [(_self_attention_cache(None if own else capacity, own), Cross()) for own in windows]

    def layers(self, depth: int) -> Sequence[tuple[AttentionCache, AttentionCache]]:
        """Returns a pair of caches, of self-attention and of cross-attention, for each block.

        Raises ``HeedfulError`` if the cache was made for another ``depth``.
        """
        if depth != len(self.pairs):
            raise HeedfulError(
                f"a cache for {len(self.pairs)} blocks was given to a stack of {depth}; make one with Cache({depth})"
            )
        return self.pairs

    def extend(self, x: Tensor, real: Tensor | None) -> TokenPositions:
        """Appends the tokens of ``x`` (B, T, D) and returns their positions.

        ``real`` is (B, T), or the whole mask of the new tokens over all S so far, (B, T, S).
        """
        past, self.length, self.rows = self.length, self.length + x.size(1), len(x)
        first, whole_mask = max(0, past - self.window), None
        if real is not None and real.ndim == 3:
            check_whole_mask(real, x, self.length)
            real, whole_mask = attended_tokens(real)[:, past:], real[..., first:]
        if self.real is None and real is None:  # all rows are equal
            positions = torch.arange(first, self.length, device=x.device)[None]
            return self._by_window(TokenPositions(positions[:, past - first :], positions, None, self.length), past)
        self.real = torch.cat((_boolean(self.real, x, past), _boolean(real, x, x.size(1))), 1)
        self.check(real, self.real)
        positions = token_positions(self.real)
        tokens = TokenPositions(
            positions[:, past:], positions[:, first:], self.real[:, first:], self.length, whole_mask
        )
        return self._by_window(tokens, past)

    def _by_window(self, tokens: TokenPositions, past: int) -> TokenPositions:
        """Adds the positions for blocks that store fewer of the ``past`` tokens: the last ``window``."""
        if len(self.stored) == 1:
            return tokens
        first = max(0, past - self.window)
        missing = {window: max(0, past - stored) - first for window, stored in self.stored.items()}
        return tokens._replace(by_window={own: tokens.without_first(count) for own, count in missing.items() if count})

    def crop(self, length: int) -> None:
        """Keeps the first ``length`` columns of tokens, in every row; the cross-attention caches are unchanged."""
        if not 0 <= length <= self.length:
            raise HeedfulError(
                f"a cache of {self.length} tokens cannot be cropped to {length}; give 0 to {self.length}"
            )
        for self_attention, _ in self.pairs:
            self_attention.crop(length)
        self.real, self.length = None if self.real is None else self.real[:, :length], length

    def reorder(self, rows: Tensor) -> None:
        """Reorders the rows of the self-attention caches; ``rows`` (B',) are the indices of the old rows.

        It is for beams that stay with their sources: the cross-attention caches are unchanged. If the number of rows
        stays, only rows that change are copied; on a GPU all rows, since to count them the host would wait.
        """
        self.real = None if self.real is None else self.real[rows]
        if len(rows) != self.rows:
            self._select(rows)
            return
        changed = torch.arange(len(rows), device=rows.device)
        if rows.device.type == "cpu":
            changed = (rows != changed).nonzero()[:, 0]
        if len(changed):
            sources = rows[changed]
            for self_attention, _ in self.pairs:
                self_attention.reorder(rows, changed, sources)

    def select(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keeps the rows of the batch with the indices ``rows`` (B',), in that order, such as unfinished rows.

        ``sources`` are the indices of the rows that the cross-attention caches keep; None: ``rows``. Each of them then
        serves B' / len(sources) adjacent rows.
        """
        self.real = None if self.real is None else self.real[rows]
        self._select(rows)
        for _, cross in self.pairs:
            cross.select(rows if sources is None else sources)

    def _select(self, rows: Tensor) -> None:
        self.rows = len(rows)
        for self_attention, _ in self.pairs:
            self_attention.select(rows)


Store = Callable[[Stored, Stored, Tensor, Tensor], None]


def store_columns(buffers: Stored, new: Stored, rows: Tensor, columns: Tensor) -> None:
    """Stores the keys and values ``new`` (R, K, 1, E) in the ``rows`` and ``columns`` (R,) of the buffers."""
    for buffer, tokens in zip(buffers, new, strict=True):
        buffer[rows, :, columns] = tokens[:, :, 0]


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
        self.store(self.buffers, project(), self.rows, self.new_columns)
        key, value = _selected(self.buffers, self.rows) if self.is_shared else self.buffers
        return key, value


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


class RingCache(NoCache):
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
                buffer.index_copy_(0, rows, stored.gather(2, index))
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
            (self._attention(_selected(self_attention.buffers, rows), self.rows, self.rings[window]), cross)
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
                buffer[slot].index_copy_(1, columns, stored[0, :, stored.size(2) - count :])
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

    def begin(self, lengths: Sequence[int], slots: Sequence[int] | None = None) -> None:
        """Begins a call of as many rows as ``lengths``, the numbers of tokens that they have already.

        ``slots`` are the slots of the rows: rows of the same slot are successive tokens. None: row i is slot i.
        """
        longest = max(lengths) + 1
        if not self.is_fixed:
            self.end = longest  # all positions are below it
        for slot, length in zip(range(len(lengths)) if slots is None else slots, lengths, strict=True):
            self.used[slot] = max(self.used[slot], min(length + 1, self.capacity))
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


def _boolean(real: Tensor | None, x: Tensor, tokens: int) -> Tensor:
    return x.new_ones(len(x), tokens, dtype=torch.bool) if real is None else real.bool()


def _self_attention_cache(capacity: int | None, window: int | None) -> Growing:
    if window is not None:
        return Sliding(window)
    return Growing() if capacity is None else Preallocated(capacity)
