"""Blocked attention for training on a CPU: each block of attention weights is used while the CPU's cache holds it.

Nothing is computed above a causal diagonal, and dropout costs little. In bfloat16 on short sequences, the backward pass
of PyTorch's fused kernel takes several times as long as its matrix products; this backward pass does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from heedful.kernels.cpu_dropout import DropoutMasks
from heedful.kernels.onednn_linear import onednn_is_faster
from heedful.layers.attention_kernels import float_mask, fused_attention
from heedful.layers.mask import Mask, add_bias

QUERIES = 128  # of a block
VECTOR = 32  # bfloat16 numbers of a vector instruction
BLOCK = 2**19  # weights of a block, about
FUSED = (torch.float64,)  # types whose fused kernel is faster without dropout
KEYS = 1024  # maximum; the saved weights grow with the square of the length, the fused kernel's memory does not
KEYS_PER_WIDTH = 5  # of float32 for each number of a head: saved weights then add a third to a block's activations


class AttentionBlock(NamedTuple):
    """Rows, queries and keys of a batch that are computed together."""

    rows: slice
    queries: slice
    keys: slice

    def of(self, mask: Tensor) -> Tensor:
        """Returns the block of a mask that broadcasts to (B, H, T, S)."""
        slices = [self.rows, slice(None), self.queries, self.keys]
        return mask[tuple(part if size > 1 else slice(None) for part, size in zip(slices, mask.shape, strict=True))]


def attention_blocks(q: Tensor, k: Tensor, causal: bool) -> Iterator[AttentionBlock]:
    """Yields blocks of queries (B, H, T, E) with the keys (B, H, S, E) that they may attend to."""
    (rows, heads, queries, _), keys = q.shape, k.size(2)
    for begin in range(0, queries, QUERIES):
        end = min(begin + QUERIES, queries)
        key_count = keys - queries + end if causal else keys
        size = max(1, BLOCK // (heads * (end - begin) * key_count))
        for row in range(0, rows, size):
            yield AttentionBlock(slice(row, row + size), slice(begin, end), slice(0, key_count))


def softmax(scores: Tensor) -> Tensor:
    """Returns the softmax over the last axis, in the dtype of ``scores``. In bfloat16, rows whose length is no
    multiple of the vector size are computed in float32, since PyTorch computes the rest of such a row number by number.

    >>> softmax(torch.tensor([2.0, 4.0, 5.0]))
    tensor([0.0351, 0.2595, 0.7054])
    """
    if scores.dtype is torch.bfloat16 and scores.size(-1) % VECTOR:
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, -1)


def softmax_backward(d: Tensor, weights: Tensor) -> Tensor:
    """Returns the gradient of the softmax's input, from that of its output ``weights``; float32 for short rows."""
    wide = torch.float32 if weights.dtype is torch.bfloat16 and weights.size(-1) < VECTOR else weights.dtype
    gradient: Tensor = torch.ops.aten._softmax_backward_data(d.to(wide), weights.to(wide), -1, wide)
    return gradient.to(weights.dtype)


class SavedAttention(NamedTuple):
    """Tensors that the backward pass of blocked attention needs besides q, k and v."""

    empty: Tensor | None  # queries that may attend to nothing
    weights: list[Tensor]  # of each block; dropped ones are negated
    scale: float  # of the scores
    dropout_scale: float | None  # 1 / (1 − rate); None without dropout
    causal: bool


def attention_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, rate: float
) -> tuple[Tensor, SavedAttention]:
    """Returns y = (softmax(scale · q kᵀ + mask) · b / (1 − rate)) v, where b is a random ``DropoutMasks`` mask.

    q, k, v and y are (B, H, T, E) with equal numbers of heads; y is zero for queries that may attend to nothing.
    """
    masks, saved_weights, empty = (DropoutMasks(rate) if rate else None), [], None
    if mask is not None:
        empty = mask.amax(-1, keepdim=True) == float("-inf")
        if bool(empty.any()):
            mask = mask.masked_fill(empty, 0.0)  # softmax would return NaN
        else:
            empty = None
    y = torch.empty_like(q)
    for block in attention_blocks(q, k, causal):
        rows, queries, keys = block
        bias = causal_bias(queries, keys, q) if causal else q.new_empty(1)
        scores = torch.baddbmm(bias, flat(q[rows, :, queries]), flat(k[rows, :, keys]).mT, beta=causal, alpha=scale)
        scores = scores.unflatten(0, (-1, q.size(1)))
        if mask is not None:
            scores += block.of(mask)
        weights = softmax(scores)
        if masks is not None:
            weights *= (2 * masks.draw(weights.shape) - 1).to(weights.dtype)
        kept_weights = weights if masks is None else weights.relu()
        write_product(y[rows, :, queries], flat(kept_weights), flat(v[rows, :, keys]))
        saved_weights.append(weights)
    if masks is not None:
        y.mul_(masks.scale)
    if empty is not None:
        y.masked_fill_(empty, 0.0)
    return y, SavedAttention(empty, saved_weights, scale, None if masks is None else masks.scale, causal)


def attention_backward(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, saved: SavedAttention, dmask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns dq, dk and dv, and writes the gradient of the mask to ``dmask`` (B, H, T, S) if it is given.

    With g = dy and P the softmax: dv = (P b / (1 − rate))ᵀ g, dP = b / (1 − rate) · g vᵀ, then the softmax's gradient.
    """
    empty, saved_weights, scale, dropout_scale, causal = saved
    if dropout_scale is not None:
        dy = dy * dropout_scale
    if empty is not None:
        dy = dy.masked_fill(empty, 0.0)
    dy = dy.contiguous()
    dq, dk, dv = map(torch.empty_like, (q, k, v))
    if add := q.size(2) > QUERIES:  # gradients of keys are sums over the blocks of queries
        dk.zero_(), dv.zero_()
    for (rows, queries, keys), weights in zip(attention_blocks(q, k, causal), saved_weights, strict=True):
        g, key_slice = flat(dy[rows, :, queries]), (rows, slice(None), keys)
        kept_weights = weights if dropout_scale is None else weights.relu()
        write_product(dv[key_slice], flat(kept_weights).mT, g, add)
        d = torch.bmm(g, flat(v[key_slice]).mT).view_as(weights)
        if dropout_scale is not None:
            d, weights = torch.ops.aten.threshold_backward(d, weights, 0), weights.abs()
        d = softmax_backward(d, weights)
        if dmask is not None:
            dmask[rows, :, queries, keys] = d
        d = flat(d)
        write_product(dq[rows, :, queries], d, flat(k[key_slice]), alpha=scale)
        write_product(dk[key_slice], d.mT, flat(q[rows, :, queries]), add, scale)
    return dq, dk, dv


def flat(x: Tensor) -> Tensor:
    """Reshapes (B, H, ...) to (B · H, ...)."""
    return x.flatten(0, 1)


def write_product(out: Tensor, a: Tensor, b: Tensor, add: bool = False, alpha: float = 1.0) -> None:
    """Writes α · a b to ``out`` (B, H, T, E), or adds it to ``out``, for a (B · H, T, S) and b (B · H, S, E)."""
    if out.is_contiguous():
        torch.baddbmm(flat(out), a, b, beta=add, alpha=alpha, out=flat(out))
    elif add:
        out += torch.bmm(a, b).mul_(alpha).view_as(out)
    else:
        out.copy_(torch.bmm(a, b).mul_(alpha).view_as(out))


def causal_bias(queries: slice, keys: slice, like: Tensor) -> Tensor:
    """Returns the causal bias (T, S), bottom-right aligned: −∞ for later keys, else 0."""
    size = queries.stop - queries.start, keys.stop - keys.start
    return like.new_full(size, float("-inf")).triu_(1 + size[1] - size[0])


class BlockedAttention(torch.autograd.Function):
    """Attention by ``attention_forward`` and ``attention_backward``."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, rate: float
    ) -> Tensor:
        """Returns y (B, H, T, E)."""
        y, saved = attention_forward(q, k, v, mask, causal, scale, rate)
        ctx.save_for_backward(q, k, v, saved.empty, *saved.weights)
        ctx.saved = saved._replace(empty=None, weights=[])  # tensors are saved by PyTorch
        ctx.mask_shape = None if mask is None or not mask.requires_grad else mask.shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Returns dq, dk, dv and the gradient of a learned mask; None for the other arguments."""
        q, k, v, empty, *weights = ctx.saved_tensors
        saved = ctx.saved._replace(empty=empty, weights=weights)
        dmask = None if ctx.mask_shape is None else q.new_empty(ctx.mask_shape)
        return *attention_backward(dy, q, k, v, saved, dmask), dmask, None, None, None


def blocked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float = 0.0
) -> Tensor:
    """Computes ``fused_attention`` in blocks: faster on a CPU with dropout, or with a gradient in bfloat16.

    So is a learned bias of every score, with which PyTorch has no fused kernel; a bias that sequences share is left to
    it. In float32 the fused kernel is slow where oneDNN multiplies faster than MKL (``onednn_is_faster``): blocks are
    faster there, and used while the saved weights are few.

    >>> q, k, v = torch.randn(3, 1, 2, 5, 8, requires_grad=True)
    >>> expected = fused_attention(q, k, v, "causal", None, 1.0)
    >>> torch.allclose(blocked_attention(q, k, v, "causal", None, 1.0), expected, atol=1e-6)
    True
    """
    if bias is not None:
        bias, mask = add_bias(mask, bias, q.size(2), k.size(2)), None
    causal = isinstance(mask, str) and q.size(2) <= k.size(2)
    if not is_faster_in_blocks(q, k, v, bias, causal, dropout):
        return fused_attention(q, k, v, mask, bias, scale, dropout)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else q.dtype
    q, k, v = (x.to(dtype) for x in (q, k, v))
    if bias is None and mask is not None and not causal:
        bias = float_mask(mask, q.new_empty(1).expand(*q.shape[:3], k.size(2)))
    bias = None if bias is None else bias.to(dtype)[(None,) * (4 - bias.ndim)]
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) if len(q[0]) > len(x[0]) else x for x in (k, v))
    with torch.autocast("cpu", enabled=False):
        y: Tensor = BlockedAttention.apply(q.contiguous(), k.contiguous(), v.contiguous(), bias, causal, scale, dropout)
    return y


def is_faster_in_blocks(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, dropout: float) -> bool:
    """Returns True if ``blocked_attention`` computes blocks."""
    if q.device.type != "cpu" or not (q.numel() and k.numel()) or len(q) != len(k) or dropout >= 1:
        return False
    if bias is not None and bias.requires_grad:
        return bias.shape == (*q.shape[:3], k.size(2)) and k.size(2) <= KEYS
    needs_gradient = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else q.dtype
    if dropout > 0 or not needs_gradient or dtype in FUSED:
        return dropout > 0
    if dtype is torch.float32:
        spared = max(0, q.size(2) - QUERIES) / 2 if causal else 0  # of a query, on average
        is_slow = onednn_is_faster() and k.size(2) - spared <= KEYS_PER_WIDTH * q.size(3)
        return is_slow and k.size(2) <= KEYS
    return k.size(2) <= KEYS
