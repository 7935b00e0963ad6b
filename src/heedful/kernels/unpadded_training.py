"""No work on padding while a model learns: a stack reads the real tokens of a batch as one long row.

Norms, projections and the feed-forward treat each token alone, and take the row as it is. Queries, keys and values are
put back into their batch for attention, which is little work beside the products, and its output is taken out again.

Shapes: B sequences, T tokens of the longest with its padding, N real tokens in all, D model width, H heads, E head
size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.cache import counted
from heedful.kernels.allocator import alike
from heedful.kernels.blocked_attention import blocked_attention
from heedful.kernels.prepacked_linear import made_for_rows
from heedful.kernels.unpadded import attends_by, watched
from heedful.layers.dropout import DropPath
from heedful.layers.mask import Mask, padding_mask
from heedful.stack import NO_CACHE, Stack, StackInput, padded


class Row:
    """The real tokens of a batch, one sequence after the other, and up to ``alike`` of them copies of the first, from
    which nothing is learned.

    >>> row = Row(torch.tensor([[True, True, True], [False, True, True]]))
    >>> row.places.tolist(), row.positions.tolist()
    ([0, 1, 2, 4, 5], [[0, 1, 2, 0, 1]])
    """

    def __init__(self, real: Tensor, filled: bool = False) -> None:
        self.shape = real.shape
        self.places = real.flatten().nonzero()[:, 0]  # (N,) in the batch, counted along its rows
        more = alike(len(self.places)) - len(self.places) if filled else 0
        self.taken = torch.cat((self.places, self.places[:1].expand(more)))
        self.positions = counted(real).flatten()[self.taken][None]  # (1, N)

    def gather(self, x: Tensor) -> Tensor:
        """(B, T, D) → (1, N, D)."""
        return x.flatten(0, 1)[self.taken][None]

    def scatter(self, y: Tensor) -> Tensor:
        """(1, N, ...) → (B, T, ...); padding is zeros."""
        made = y.new_zeros(self.shape.numel(), *y.shape[2:])
        return made.index_copy(0, self.places, y[0, : len(self.places)]).unflatten(0, self.shape)

    def heads(self, q: Tensor) -> Tensor:
        """(1, H, N, E) → (B, H, T, E)."""
        return self.scatter(q.transpose(1, 2)).transpose(1, 2)


class Between(NamedTuple):
    """A mask for rows: ``allowed`` is what it is in their batches, of the queries' and the keys'."""

    queries: Row
    keys: Row
    allowed: Mask


def blocked_row_attention(q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float, dropout: float = 0.0) -> Tensor:
    """``blocked_attention``, under the masks of rows too.

    Under ``Between`` q is (1, H, N, E), k and v are (1, H, M, E), and the output is (1, H, N, E).
    """
    if not isinstance(mask, Between):
        return blocked_attention(q, k, v, mask, scale, dropout)
    k, v = mask.keys.heads(k), mask.keys.heads(v)
    y = blocked_attention(mask.queries.heads(q), k, v, mask.allowed, scale, dropout)
    return mask.queries.gather(y.transpose(1, 2)).transpose(1, 2)


def drops_paths(stack: Stack) -> bool:
    """Returns True if a residual of the stack has a rate of stochastic depth."""
    return any(isinstance(part, DropPath) and part.rate > 0 for part in stack.block[-1].modules())


def unpadded_training(stack: Stack, batch: StackInput) -> Tensor:
    """Leaves padding out in training: what ``padded`` computes at the real tokens, and zeros at padding.

    Outside training, where nothing is padded, where a cache is given or a mask that tells texts apart, where the parts
    of the stack are watched (``heedful.record``, an intervention, any hook) and where an attention has a callable of
    its own, it runs as ``padded``; under stochastic depth too, which would be drawn once a row, not once a sequence.

    >>> from heedful.config import StackConfig
    >>> from heedful.kernels.plan import apply_plan
    >>> stack, x = Stack(StackConfig(dim=16, depth=2, heads=4)), torch.randn(2, 3, 16)
    >>> real = torch.tensor([[True, True, True], [True, False, False]])
    >>> output = stack(x, real)[real]
    >>> torch.allclose(apply_plan(stack, "cpu-training")(x, real)[real], output, atol=1e-5)
    True
    """
    x, mask, memory, memory_mask, cache = batch
    masks = [each for each in (mask, memory_mask) if each is not None]
    boolean = all(each.dtype is torch.bool for each in masks)
    padding = boolean and not all(bool(each.all()) for each in masks)
    learns = stack.training and torch.is_grad_enabled()
    if not padding or cache is not None or not learns or drops_paths(stack) or watched(stack):
        return padded(stack, batch)
    if not attends_by(stack, blocked_row_attention):
        return padded(stack, batch)
    seen = NO_CACHE.see(x, mask)
    allowed = stack.position.prepare(seen.queries, seen.keys).join(stack.visible(seen, stack.config))
    filled = made_for_rows() and stack.config.norm != "batch"  # whose statistics are of real tokens alone
    own = Row(x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask, filled)
    place = stack.position.prepare(own.positions, own.positions[:, :0])  # turns; its bias is in ``allowed``
    x = stack.dropout(stack.embedding_norm(stack.position.embed(own.gather(x), own.positions, seen.end)))
    across: Between | None = None
    if memory is not None:
        theirs = Row(
            memory.new_ones(memory.shape[:2], dtype=torch.bool) if memory_mask is None else memory_mask, filled
        )
        across = Between(own, theirs, None if memory_mask is None else padding_mask(memory_mask))
        memory = theirs.gather(memory)
    for block in stack.block:
        x = block(x, mask=Between(own, own, allowed), position=place, memory=memory, memory_mask=across)
    return own.scatter(stack.norm(x))
