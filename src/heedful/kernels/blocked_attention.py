"""Attention of a step on a CPU, block by block: each block of weights stays in the cache until it is used up.

Above a causal diagonal nothing is computed, dropped weights cost little more than others, and in bfloat16 short
sequences, whose backward pass in the fused kernel costs several times its products, cost what they should.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from heedful.kernels.cpu_dropout import Bits
from heedful.layers.attention import fused_attention
from heedful.layers.mask import Mask, tensor_mask

QUERIES = 128  # of a block
VECTOR = 32  # numbers of bfloat16 that are taken at a time
BLOCK = 2**19  # weights at a time, about
FUSED = (torch.float32, torch.float64)  # types whose fused kernel is the quicker way where nothing is dropped
KEYS = 1024  # up to which the weights are kept for the backward pass; they grow with the square, the fused kernel's not


class Part(NamedTuple):
    """Block of a batch that is computed at a time."""

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


def softmax(scores: Tensor) -> Tensor:
    """Over the last axis, in the type of ``scores``; in float32 where bfloat16's vectors do not fill a row, since
    PyTorch would take their rest number by number.

    >>> softmax(torch.tensor([2.0, 4.0, 5.0]))
    tensor([0.0351, 0.2595, 0.7054])
    """
    if scores.dtype is torch.bfloat16 and scores.size(-1) % VECTOR:
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, -1)


def softmax_backward(d: Tensor, weights: Tensor) -> Tensor:
    """Returns the gradient before the softmax that gave ``weights`` from the one after it; float32 for short rows."""
    wide = torch.float32 if weights.dtype is torch.bfloat16 and weights.size(-1) < VECTOR else weights.dtype
    made: Tensor = torch.ops.aten._softmax_backward_data(d.to(wide), weights.to(wide), -1, wide)
    return made.to(weights.dtype)


class Made(NamedTuple):
    """Tensors that the backward pass of blocked attention needs besides q, k and v."""

    empty: Tensor | None  # queries that may attend to nothing
    weights: list[Tensor]  # of each block; those that were dropped have their sign turned
    scale: float  # of the scores
    factor: float | None  # 1 / (1 − rate), where something is dropped
    causal: bool


def there(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, rate: float
) -> tuple[Tensor, Made]:
    """y = (softmax(scale · q kᵀ + mask) · b / (1 − rate)) v, b as ``Dropping`` has it, for q, k and v of as many heads:
    (B, H, T, E), zeros for queries that may attend to nothing.
    """
    bits, made, empty = (Bits(rate) if rate else None), [], None
    if mask is not None:
        empty = (mask == float("-inf")).all(-1, keepdim=True)
        mask = mask.masked_fill(empty, 0.0)  # else softmax made NaN of them
    y = torch.empty_like(q)
    for part in parts(q, k, causal):
        rows, queries, keys = part
        late = later(queries, keys, q) if causal else q.new_empty(1)
        scores = torch.baddbmm(late, flat(q[rows, :, queries]), flat(k[rows, :, keys]).mT, beta=causal, alpha=scale)
        scores = scores.unflatten(0, (-1, q.size(1)))
        if mask is not None:
            scores += part.of(mask)
        weights = softmax(scores)
        if bits is not None:
            weights *= (2 * bits.keep(weights.shape) - 1).to(weights.dtype)
        put(y[rows, :, queries], flat(weights if bits is None else weights.relu()), flat(v[rows, :, keys]))
        made.append(weights)
    if bits is not None:
        y.mul_(bits.scale)
    if empty is not None:
        y.masked_fill_(empty, 0.0)
    return y, Made(empty, made, scale, None if bits is None else bits.scale, causal)


def back(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, made: Made) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk and dv.

    With g = dy: dv = (P b / (1 − rate))ᵀ g, dP = b / (1 − rate) · g vᵀ, and what is before P as a softmax has it.
    """
    empty, each, scale, factor, causal = made
    dropped = factor is not None
    if factor is not None:
        dy = dy * factor
    if empty is not None:
        dy = dy.masked_fill(empty, 0.0)
    dy = dy.contiguous()
    dq, dk, dv = map(torch.empty_like, (q, k, v))
    if more := q.size(2) > QUERIES:  # keys get a sum over the blocks of their queries
        dk.zero_(), dv.zero_()
    for (rows, queries, keys), weights in zip(parts(q, k, causal), each, strict=True):
        g, keyed = flat(dy[rows, :, queries]), (rows, slice(None), keys)
        put(dv[keyed], flat(weights.relu() if dropped else weights).mT, g, more)
        d = torch.bmm(g, flat(v[keyed]).mT).view_as(weights)
        if dropped:
            d, weights = torch.ops.aten.threshold_backward(d, weights, 0), weights.abs()
        d = flat(softmax_backward(d, weights))
        put(dq[rows, :, queries], d, flat(k[keyed]), alpha=scale)
        put(dk[keyed], d.mT, flat(q[rows, :, queries]), more, scale)
    return dq, dk, dv


def flat(x: Tensor) -> Tensor:
    """(B, H, ...) → (B · H, ...)."""
    return x.flatten(0, 1)


def put(out: Tensor, one: Tensor, other: Tensor, more: bool = False, alpha: float = 1.0) -> None:
    """Into ``out`` (B, H, T, E), or to what is there, α times the products of (B · H, T, S) and (B · H, S, E)."""
    if out.is_contiguous():
        torch.baddbmm(flat(out), one, other, beta=more, alpha=alpha, out=flat(out))
    elif more:
        out += torch.bmm(one, other).mul_(alpha).view_as(out)
    else:
        out.copy_(torch.bmm(one, other).mul_(alpha).view_as(out))


def later(queries: slice, keys: slice, like: Tensor) -> Tensor:
    """(T, S): −∞ where a key stands behind a query, the last of both side by side; else 0."""
    size = queries.stop - queries.start, keys.stop - keys.start
    return like.new_full(size, float("-inf")).triu_(1 + size[1] - size[0])


class BlockedAttention(torch.autograd.Function):
    """``there``, and its way ``back``."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, rate: float
    ) -> Tensor:
        """y (B, H, T, E)."""
        y, made = there(q, k, v, mask, causal, scale, rate)
        ctx.save_for_backward(q, k, v, made.empty, *made.weights)
        ctx.made = made._replace(empty=None, weights=[])  # tensors are kept where PyTorch sees them
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """dq, dk and dv."""
        q, k, v, empty, *weights = ctx.saved_tensors
        return *back(dy, q, k, v, ctx.made._replace(empty=empty, weights=weights)), None, None, None, None


def blocked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float = 0.0) -> Tensor:
    """Computes ``fused_attention`` in blocks: faster on a CPU with dropout, or where a gradient is wanted in bfloat16.

    >>> q, k, v = torch.randn(3, 1, 2, 5, 8, requires_grad=True)
    >>> torch.allclose(blocked_attention(q, k, v, "causal", 1.0), fused_attention(q, k, v, "causal", 1.0), atol=1e-6)
    True
    """
    learned = isinstance(mask, Tensor) and mask.requires_grad  # a bias whose gradient is wanted
    learning = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else q.dtype
    worth = 0 < dropout < 1 or (dropout == 0 and learning and dtype not in FUSED and k.size(2) <= KEYS)
    empty = not (q.numel() and k.numel())
    if not worth or empty or q.device.type != "cpu" or learned or len(q) != len(k):
        return fused_attention(q, k, v, mask, scale, dropout)
    causal = isinstance(mask, str) and q.size(2) <= k.size(2)
    q, k, v = (one.to(dtype) for one in (q, k, v))
    added = None if causal else added_mask(tensor_mask(mask, q.size(2), k.size(2), q.device), q.dtype)
    k, v = (
        one.repeat_interleave(q.size(1) // one.size(1), dim=1) if len(q[0]) > len(one[0]) else one for one in (k, v)
    )
    with torch.autocast("cpu", enabled=False):
        y: Tensor = BlockedAttention.apply(
            q.contiguous(), k.contiguous(), v.contiguous(), added, causal, scale, dropout
        )
    return y


def added_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Returns the term added to scores (B, H, T, S): 0 and −∞ for a boolean mask, a bias as it is."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, float("-inf"))
    return mask.to(dtype)[(None,) * (4 - mask.ndim)]
