"""Dropout that costs little on a CPU: random bits by the sixteen, and attention that drops its weights block by block.

PyTorch draws the numbers of a mask one after the other on a CPU, about 10 ns each: a fifth of a small model's step.
Here a number takes 16 bits of a generator (SFC64) that is seeded from PyTorch's, so that a run stays a function of its
seed. Attention with dropout, for which there is no fused kernel, is computed over blocks that stay in the cache, and
above a causal diagonal nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from heedful.layers.attention import Attention, fused_attention
from heedful.layers.mask import Mask, tensor_mask

LEVELS = 2**16  # a rate is rounded to a multiple of 1 / LEVELS
MANY = 2**14  # numbers from which on a generator of one's own is made faster than they are drawn one by one
QUERIES = 128  # of a block
BLOCK = 2**19  # weights at a time, about


class Bits:
    """Which numbers are kept, each with probability 1 − ``rate``; drawn in turn from a seed that PyTorch draws.

    >>> bits = Bits(0.25)
    >>> abs(bits.keep((1000, 100)).double().mean().item() - 0.75) < 0.01
    True
    """

    def __init__(self, rate: float) -> None:
        self.level = min(round(rate * LEVELS), LEVELS - 1)
        self.scale = LEVELS / (LEVELS - self.level)  # 1 / (1 − rate), of the rate as it was rounded
        self.random = np.random.Generator(np.random.SFC64(int(torch.randint(2**62, ()))))

    def keep(self, shape: tuple[int, ...]) -> Tensor:
        """1 where a number is kept and 0 where not, int8, of this shape: PyTorch is slow with booleans on a CPU."""
        count = int(np.prod(shape))
        drawn = self.random.integers(0, 2**64, -(-count // 4), dtype=np.uint64).view(np.int16)[:count]
        return torch.from_numpy((drawn >= self.level - LEVELS // 2).view(np.int8)).view(shape)


class Dropping(torch.autograd.Function):
    """x · b / (1 − rate), b = 0 with probability ``rate`` and else 1, for each number (Srivastava et al. 2014)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        """y, of the shape of ``x``."""
        bits = Bits(rate)
        keep, ctx.scale = bits.keep(x.shape), bits.scale
        ctx.save_for_backward(keep)
        return keep.to(x.dtype).mul_(x).mul_(bits.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        """dx."""
        (keep,) = ctx.saved_tensors
        return keep.to(dy.dtype).mul_(dy).mul_(ctx.scale), None


class Dropper:
    """The forward of a module of PyTorch's, where it drops much at a time."""

    def __init__(self, dropout: nn.Dropout) -> None:
        self.dropout = dropout

    def __call__(self, x: Tensor) -> Tensor:
        """``x``, some of it made 0 where the module is in training."""
        rate, training = self.dropout.p, self.dropout.training
        if not training or not 0 < rate < 1 or x.numel() < MANY or x.device.type != "cpu":
            return F.dropout(x, rate, training)
        made: Tensor = Dropping.apply(x, rate)
        return made


class Part(NamedTuple):
    """What of a batch is computed at a time."""

    rows: slice
    queries: slice
    keys: slice

    def of(self, mask: Tensor) -> Tensor:
        """Its part of what broadcasts to (B, H, T, S)."""
        where = [self.rows, slice(None), self.queries, self.keys]
        return mask[tuple(one if size > 1 else slice(None) for one, size in zip(where, mask.shape, strict=True))]


def parts(q: Tensor, k: Tensor, causal: bool) -> Iterator[Part]:
    """Blocks of queries (B, H, T, E), with the keys (B, H, S, E) that they see: under a causal mask no later ones."""
    (rows, heads, queries, _), keys = q.shape, k.size(2)
    for begin in range(0, queries, QUERIES):
        end = min(begin + QUERIES, queries)
        seen = keys - queries + end if causal else keys
        size = max(1, BLOCK // (heads * (end - begin) * seen))
        for row in range(0, rows, size):
            yield Part(slice(row, row + size), slice(begin, end), slice(0, seen))


class DroppedAttention(torch.autograd.Function):
    """(softmax(scale · q kᵀ + mask) · b / (1 − rate)) v, b as ``Dropping`` has it, for q, k and v of as many heads.

    Of a block its softmax P is kept for the backward pass, with the sign of what was dropped turned. With g = dy:
    dv = (P b / (1 − rate))ᵀ g, dP = b / (1 − rate) · g vᵀ, and what is before P as a softmax has it.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, rate: float
    ) -> Tensor:
        """y (B, H, T, E); zeros for queries that may attend to nothing."""
        bits, made, empty = Bits(rate), [], None
        if mask is not None:
            empty = (mask == float("-inf")).all(-1, keepdim=True)
            mask = mask.masked_fill(empty, 0.0)  # else softmax made NaN of them
        y = torch.empty_like(q)
        for part in parts(q, k, causal):
            rows, queries, keys = part
            scores = (q[rows, :, queries] * scale) @ k[rows, :, keys].mT
            if causal:
                late = keys.stop - queries.stop + queries.start
                scores[..., late:] += scores.new_full((queries.stop - queries.start,) * 2, float("-inf")).triu_(1)
            if mask is not None:
                scores += part.of(mask)
            weights = torch.softmax(scores, -1)
            weights *= (2 * bits.keep(weights.shape) - 1).to(weights.dtype)
            y[rows, :, queries] = weights.relu() @ v[rows, :, keys]
            made.append(weights)
        y.mul_(bits.scale)
        if empty is not None:
            y.masked_fill_(empty, 0.0)
        ctx.save_for_backward(q, k, v, empty, *made)
        ctx.causal, ctx.scale, ctx.factor = causal, scale, bits.scale
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """dq, dk and dv."""
        q, k, v, empty, *made = ctx.saved_tensors
        dy = dy * ctx.factor
        if empty is not None:
            dy = dy.masked_fill_(empty, 0.0)
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for (rows, queries, keys), weights in zip(parts(q, k, ctx.causal), made, strict=True):
            g = dy[rows, :, queries]
            dv[rows, :, keys] += weights.relu().mT @ g
            d = torch.ops.aten.threshold_backward(g @ v[rows, :, keys].mT, weights, 0)
            d = torch.ops.aten._softmax_backward_data(d, weights.abs(), -1, weights.dtype).mul_(ctx.scale)
            dq[rows, :, queries] = d @ k[rows, :, keys]
            dk[rows, :, keys] += d.mT @ q[rows, :, queries]
        return dq, dk, dv, None, None, None, None


def dropped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float = 0.0) -> Tensor:
    """What ``fused_attention`` computes, faster on a CPU where weights are dropped.

    >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
    >>> torch.equal(dropped_attention(q, k, v, "causal", 1.0), fused_attention(q, k, v, "causal", 1.0))
    True
    """
    learned = isinstance(mask, Tensor) and mask.requires_grad  # a bias whose gradient is wanted
    if not 0 < dropout < 1 or q.device.type != "cpu" or learned or len(q) != len(k):
        return fused_attention(q, k, v, mask, scale, dropout)
    causal = isinstance(mask, str) and q.size(2) <= k.size(2)
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (one.to(torch.get_autocast_dtype("cpu")) for one in (q, k, v))
    added = None if causal else tensor_mask(mask, q.size(2), k.size(2), q.device)
    if added is not None:
        if added.dtype == torch.bool:
            added = torch.where(added, 0.0, float("-inf"))
        added = added.to(q.dtype)[(None,) * (4 - added.ndim)]
    k, v = (
        one.repeat_interleave(q.size(1) // one.size(1), dim=1) if len(q[0]) > len(one[0]) else one for one in (k, v)
    )
    with torch.autocast("cpu", enabled=False):
        y: Tensor = DroppedAttention.apply(
            q.contiguous(), k.contiguous(), v.contiguous(), added, causal, scale, dropout
        )
    return y


def drop_quickly(model: nn.Module) -> None:
    """Let the dropouts of ``model``, those of attention weights among them, cost little on a CPU.

    The rate is rounded to 16 bits, and what is scaled by is 1 / (1 − the rounded one): means stay what they were.
    A module with a forward of its own keeps it, and so does an attention that attends in another way.

    >>> dropout = nn.Dropout(0.5)
    >>> drop_quickly(dropout)
    >>> dropout(torch.ones(200, 200)).unique().tolist()
    [0.0, 2.0]
    """
    for part in model.modules():
        if type(part) is nn.Dropout and "forward" not in vars(part):
            vars(part)["forward"] = Dropper(part)
        if isinstance(part, Attention) and part.attend is fused_attention:
            part.attend = dropped_attention
