"""No work on padding while a model learns: a stack reads the real tokens of a batch as one long row.

Norms, projections and the feed-forward treat each token alone, and take the row as it is. Queries, keys and values are
put back into their batch for attention, which is little work beside the products, and its output is taken out again.

Shapes: B sequences, T tokens of the longest with its padding, N real tokens in all, D model width, H heads, E head
size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from heedful.cache import NoCache, counted
from heedful.kernels.allocator import alike
from heedful.kernels.prepacked_linear import made_for_rows
from heedful.kernels.unpadded import watched
from heedful.layers.attention import Attend, Attention
from heedful.layers.mask import Mask, padding_mask
from heedful.stack import NO_CACHE, Block, Stack


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


class Across:
    """Attends as ``attend`` does, between rows too."""

    def __init__(self, attend: Attend) -> None:
        self.attend = attend

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | Between, scale: float, dropout: float) -> Tensor:
        """q (1, H, N, E), k and v (1, H, M, E) → (1, H, N, E) under ``Between``; else what ``attend`` gives."""
        if not isinstance(mask, Between):
            return self.attend(q, k, v, mask, scale, dropout)
        k, v = mask.keys.heads(k), mask.keys.heads(v)
        y = self.attend(mask.queries.heads(q), k, v, mask.allowed, scale, dropout)
        return mask.queries.gather(y.transpose(1, 2)).transpose(1, 2)


class Packed(Stack):
    """A stack that leaves padding out as it learns: what ``Stack`` computes at the real tokens, and zeros at padding.

    Where it does not learn, where nothing is padded, where a cache is given or a mask that tells texts apart, and where
    its parts are watched (``heedful.record``, an intervention, any hook), it runs as ``Stack`` does. Make one with
    ``leave_padding_out``.
    """

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: NoCache | None = None,
    ) -> Tensor:
        """Embeddings ``x`` (B, T, D), real where ``mask`` (B, T) is True → hidden stream (B, T, D)."""
        masks = [each for each in (mask, memory_mask) if each is not None]
        boolean = all(each.dtype is torch.bool for each in masks)
        padded = boolean and not all(bool(each.all()) for each in masks)
        if not padded or cache is not None or not (self.training and torch.is_grad_enabled()) or watched(self):
            return super().forward(x, mask, memory=memory, memory_mask=memory_mask, cache=cache)
        seen = NO_CACHE.see(x, mask)
        allowed = self.position.prepare(seen.queries, seen.keys).join(self.visible(seen, self.config))
        filled = made_for_rows() and self.config.norm != "batch"  # whose statistics are of real tokens alone
        own = Row(x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask, filled)
        place = self.position.prepare(own.positions, own.positions[:, :0])  # turns; its bias is in ``allowed``
        x = self.dropout(self.embedding_norm(self.position.embed(own.gather(x), own.positions, seen.end)))
        across: Between | None = None
        if memory is not None:
            theirs = Row(
                memory.new_ones(memory.shape[:2], dtype=torch.bool) if memory_mask is None else memory_mask, filled
            )
            across = Between(own, theirs, None if memory_mask is None else padding_mask(memory_mask))
            memory = theirs.gather(memory)
        for block in self.block:
            x = block(x, mask=Between(own, own, allowed), position=place, memory=memory, memory_mask=across)
        return own.scatter(self.norm(x))


def leave_padding_out(model: nn.Module) -> None:
    """Let every stack of ``model`` leave padding out while it learns.

    What is drawn once for a sequence (``drop_paths``) would be drawn once for the row: leave such a model as it is.

    >>> from heedful.config import StackConfig
    >>> stack, x = Stack(StackConfig(dim=16, depth=2, heads=4)), torch.randn(2, 3, 16)
    >>> real = torch.tensor([[True, True, True], [True, False, False]])
    >>> padded = stack(x, real)[real]
    >>> leave_padding_out(stack)
    >>> torch.allclose(stack(x, real)[real], padded, atol=1e-5)
    True
    """
    for stack in [part for part in model.modules() if type(part) is Stack]:
        stack.__class__ = Packed
        for block in stack.block:
            assert isinstance(block, Block)
            for attention in (block.attention, block.cross_attention):
                if isinstance(attention, Attention):
                    attention.attend = Across(attention.attend)
