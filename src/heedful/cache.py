"""Key-value caches for decoding. The caller makes a cache and passes it in; the model is stateless.

Each attention gets one small object, an ``AttentionCache``: its method ``update(project)`` returns the keys and values
(B, heads, S, head size) to attend to, and calls ``project`` only when it must. A ``Cache`` holds two for each block of
a stack, and the mask of all tokens so far.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.layers.attention import NO_ATTENTION_CACHE, AttentionCache, KeysValues, Project
from heedful.layers.mask import TokenPositions, attended_tokens, check_whole_mask, own_positions, token_positions

Stored = tuple[Tensor, ...]  # keys and values, or empty

UNLIMITED = sys.maxsize


def selected_rows(tensors: Stored, rows: Tensor) -> Stored:
    """Returns the rows of stored keys and values with the indices ``rows``, in that order."""
    return tuple(tensor.index_select(0, rows) for tensor in tensors)


class Growing(AttentionCache):
    """Cache of all keys and values, in growing buffers with a quarter of spare room: most steps copy nothing."""

    window = UNLIMITED  # number of tokens that stay stored from call to call

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self.dtype = dtype  # of the stored keys and values; None: as they come
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
        return key.to(new[0].dtype), value.to(new[1].dtype)

    def begin(self, like: KeysValues) -> Stored:
        """Makes room for the first tokens, of the shapes of ``like``, and counts them; returns the buffers.

        The caller writes them. The cache must be empty.
        """
        self._move(like)
        self._advance(like[0].size(2))
        return self.buffers

    def append_column(self) -> tuple[Stored, slice]:
        """Makes room for one token; returns the buffers and the columns to attend to. The caller writes the last one.

        The cache must hold earlier tokens and must not be ``read_only``.
        """
        if self.length == self.allocated:
            self._move(tuple(buffer[:, :, :1] for buffer in self.buffers))  # type: ignore[arg-type]  # keys and values
        return self.buffers, self._advance(1)

    def reserve(self, count: int) -> tuple[Stored, int]:
        """Makes room for ``count`` tokens; returns the buffers and their first column.

        The caller writes the tokens and counts them. The cache must hold earlier tokens and must not be ``read_only``.
        """
        if self.length + count > self.allocated:
            self._move(tuple(buffer[:, :, :count] for buffer in self.buffers))  # type: ignore[arg-type]  # keys and values
        return self.buffers, self.first

    def _advance(self, count: int) -> slice:
        """Counts new tokens as stored; returns the columns that they attend to."""
        first = self.first
        self.length += count
        self.first = max(first, self.length - self.window)
        return slice(first, self.length)

    def select(self, rows: Tensor) -> None:
        """Keeps the rows of the batch with the indices ``rows``, in that order."""
        self.buffers, self.made_in_inference = selected_rows(self.pair, rows), torch.is_inference_mode_enabled()
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
        self.buffers = tuple(
            tensor.new_empty((*tensor.shape[:2], self.allocated, tensor.size(3)), dtype=self.dtype) for tensor in new
        )
        self.first, self.length, self.made_in_inference = 0, count, torch.is_inference_mode_enabled()
        for buffer, tensor in zip(self.buffers, old, strict=False):  # nothing is stored before the first call
            buffer[:, :, :count] = tensor


class Sliding(Growing):
    """Cache of the last ``window`` keys and values. The first input may be longer: it is cut after its own call."""

    def __init__(self, window: int, dtype: torch.dtype | None = None) -> None:
        super().__init__(dtype)
        self.window = window

    def crop(self, length: int) -> None:
        """Raises ``HeedfulError``, because the tokens before the window are not stored."""
        raise HeedfulError(
            "a sliding cache lacks the tokens before its window and cannot be cropped; use a cache without a window"
        )


class Preallocated(Growing):
    """Cache of keys and values in buffers for ``capacity`` tokens, which the first call allocates."""

    def __init__(self, capacity: int, dtype: torch.dtype | None = None) -> None:
        super().__init__(dtype)
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
        self.pair = selected_rows(self.pair, rows)


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


class StackCache:
    """Base class of the caches of a stack. It stores nothing: a call attends only to its own tokens."""

    def extend(self, x: Tensor, real: Tensor | None) -> TokenPositions:
        """Returns the positions of the tokens ``x`` (B, T, D).

        ``real`` (B, T) is True for non-padding tokens, or numbers the texts of a packed batch; None: no padding. A
        ``real`` of (B, T, T) is the whole mask.
        """
        return own_positions(x, real)

    def layers(self, depth: int) -> Sequence[tuple[AttentionCache, AttentionCache]]:
        """Returns a pair of caches, of self-attention and of cross-attention, for each of ``depth`` blocks."""
        return [(NO_ATTENTION_CACHE, NO_ATTENTION_CACHE)] * depth


class Cache(StackCache):
    """Key-value cache of a stack of ``depth`` blocks.

    Args:
        depth: number of blocks.
        capacity: number of tokens for which the first call allocates room; None: the cache grows as needed.
        window: number of last tokens that are stored, for a stack with a sliding window; None: all tokens. Or one for
            each block, as ``StackConfig.windows``; a capacity is then that of the blocks without a window.
        dtype: of the stored keys and values of self-attention; None: the dtype in which they are computed.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0).eval()
    >>> cache = Cache(model.config.decoder.depth)
    >>> first = model(torch.tensor([[1, 2, 3]]), cache=cache)
    >>> model(torch.tensor([[4]]), cache=cache).shape, cache.length
    (torch.Size([1, 1, 65]), 4)
    """

    def __init__(
        self,
        depth: int,
        *,
        capacity: int | None = None,
        window: int | Sequence[int | None] | None = None,
        dtype: torch.dtype | None = None,
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
        self.pairs = [(_self_attention_cache(None if own else capacity, own, dtype), Cross()) for own in windows]

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


def _boolean(real: Tensor | None, x: Tensor, tokens: int) -> Tensor:
    return x.new_ones(len(x), tokens, dtype=torch.bool) if real is None else real.bool()


def _self_attention_cache(capacity: int | None, window: int | None, dtype: torch.dtype | None) -> Growing:
    if window is not None:
        return Sliding(window, dtype)
    return Growing(dtype) if capacity is None else Preallocated(capacity, dtype)
