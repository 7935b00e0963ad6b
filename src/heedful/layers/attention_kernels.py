"""Implementations of attention for queries, keys and values: written out, PyTorch's fused kernel, and in blocks.

Shapes: B sequences, T queries, S keys, H query heads, K key-value heads (K divides H), E head size.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from heedful.errors import HeedfulError
from heedful.layers.mask import Mask, add_bias, tensor_mask
from heedful.layers.relative import STORED, ScoreTerms, block_sizes

OTHER_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
Bias = Tensor | ScoreTerms | None  # of the scores: broadcasts to (B, H, T, S), or terms of a layer


class Attend(Protocol):
    """Implementation of attention: q (B, H, T, E), k and v (B, K, S, E) → (B, H, T, E).

    Adjacent rows of q may share keys and values, as the beams of a sentence share its source: k and v then have B / n
    rows, each for n rows of q, and the mask depends on the keys alone, (B / n, 1, 1, S).
    """

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        """Returns softmax(scale · q kᵀ + bias) v over the keys that ``mask`` allows."""


def is_registered(attend: Attend) -> bool:
    """Returns True for a registered attention function (``heedful.register``), which is called once, with all queries.

    It may not use softmax.
    """
    return getattr(attend, "registered", False)


class AttendWithTerms(Protocol):
    """Attention whose bias may be terms that depend on the queries and keys: a kernel by rows, or a probe."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, scale: float, dropout: float) -> Tensor:
        """Returns softmax(scale · q kᵀ + bias) v over the keys that ``mask`` allows."""


class RowLayout(Protocol):
    """Layout of the tokens of queries and keys in memory; computes their attention by a kernel for batches."""

    def attend(
        self, kernel: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, scale: float, dropout: float
    ) -> Tensor:
        """Returns the output of attention, in the layout of ``q``."""


# ---------------------------------------------------------------------------------------------------------- written out


def attention_weights(q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None, scale: float) -> Tensor:
    """Attention weights (B, H, T, S): softmax(scale · q kᵀ + bias) over the keys that ``mask`` allows.

    A query that may attend to nothing gets zeros, where a plain softmax would give NaN.

    >>> q, k = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    >>> attention_weights(q, k, None, None, scale=1.0)
    tensor([[[[0.7311, 0.2689]]]])
    """
    return weights_of(attention_scores(q, k, mask, bias, scale))


def attention_scores(q: Tensor, k: Tensor, mask: Mask, bias: Bias, scale: float) -> Tensor:
    """Attention scores (B, H, T, S): scale · q kᵀ + bias, −∞ where attention is not allowed."""
    scores = scale * q @ k.repeat_interleave(q.size(1) // k.size(1), dim=1).transpose(-2, -1)
    return scores + (bias.bias(q, k, scale, mask) if isinstance(bias, ScoreTerms) else float_mask(mask, scores, bias))


def weights_of(scores: Tensor) -> Tensor:
    """Returns softmax(scores) over the keys; zeros for a query whose scores are all −∞."""
    empty = (scores == float("-inf")).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)  # first 0: the gradient would be NaN too


def explicit_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float = 0.0
) -> Tensor:
    """Reference implementation of attention: softmax(scale · q kᵀ + bias) v, written out.

    >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
    >>> expected = fused_attention(q, k, v, None, None, 1.0)
    >>> torch.allclose(explicit_attention(q, k, v, None, None, 1.0), expected, atol=1e-6)
    True
    """
    weights = F.dropout(attention_weights(q, k, mask, bias, scale), dropout)
    return weights @ v.repeat_interleave(q.size(1) // v.size(1), dim=1)


def float_mask(mask: Mask, scores: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns what is added to ``scores`` (B, H, T, S): 0 or ``bias`` where a mask allows attention, −∞ elsewhere."""
    if bias is not None:
        return add_bias(mask, bias, scores.size(-2), scores.size(-1))
    tensor = tensor_mask(mask, scores.size(-2), scores.size(-1), scores.device)
    return scores.new_zeros(1, 1) if tensor is None else torch.where(tensor, 0.0, float("-inf")).to(scores)


# ----------------------------------------------------------------------------------------------- PyTorch's fused kernel


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float = 0.0
) -> Tensor:
    """Computes softmax(scale · q kᵀ + bias) v by PyTorch's fused kernel; zeros for queries that may attend to nothing.

    ``mask`` is None, "causal" (aligned bottom-right) or a boolean tensor (True: may attend); ``bias`` is added to the
    scores. Rows of q that share keys become queries of one row, so that the keys are read once for these rows; they
    raise ``HeedfulError`` for "causal". A plan (``heedful.kernels.plan``) may use another implementation: in training
    on a CPU, ``heedful.kernels.blocked_attention``.

    >>> q, k, v = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    >>> fused_attention(q, k, v, "causal", None, scale=8**-0.5).shape
    torch.Size([1, 4, 3, 8])
    """
    if len(q) > len(k):
        if isinstance(mask, str):
            raise HeedfulError(
                f"{len(q)} rows of queries share {len(k)} rows of keys, which takes a mask of the keys alone, not "
                f"{mask!r}; give each row of queries its own keys"
            )
        shape = (len(k), -1, *q.shape[1:])  # (B / n, n, H, T, E)
        y = fused_attention(q.view(shape).transpose(1, 2).flatten(2, 3), k, v, mask, bias, scale, dropout)
        return y.unflatten(2, (-1, q.size(2))).transpose(1, 2).flatten(0, 1)
    if bias is not None:
        bias, mask = add_bias(mask, bias, q.size(-2), k.size(-2)), None
    grouped = q.size(1) != k.size(1)
    if grouped and q.size(2) == 1 and not isinstance(mask, str):  # a group's heads become queries of one head
        mask, bias = (_by_group(x, k.size(1)) for x in (mask, bias))
        y = fused_attention(q[:, :, 0].unflatten(1, (k.size(1), -1)), k, v, mask, bias, scale, dropout)
        return y.flatten(1, 2)[:, :, None]
    if isinstance(mask, str) and q.size(-2) == k.size(-2):  # the kernel's own causal mask is aligned top-left
        return F.scaled_dot_product_attention(q, k, v, None, dropout, True, scale=scale, enable_gqa=grouped)
    tensor = tensor_mask(mask, q.size(-2), k.size(-2), q.device)
    if bias is not None:
        tensor = bias.to(q.dtype)  # the kernel on a CPU misreads a bias of another type
    with nullcontext() if tensor is None or not q.is_cuda else without_cudnn():
        return F.scaled_dot_product_attention(q, k, v, tensor, dropout, scale=scale, enable_gqa=grouped)


def without_cudnn() -> AbstractContextManager[Any]:
    """Context manager that keeps attention from cuDNN's kernel.

    With a mask it gives a query that may attend to nothing a mean of the values, where all other kernels give zeros.
    """
    return sdpa_kernel(OTHER_KERNELS) if torch.compiler.is_compiling() else _WithoutCudnn()


class _WithoutCudnn:
    """Context manager for one call; it takes a twentieth of the time of ``sdpa_kernel``, which the compiler knows."""

    def __enter__(self) -> None:
        self.before = torch.backends.cuda.cudnn_sdp_enabled()
        torch.backends.cuda.enable_cudnn_sdp(False)

    def __exit__(self, *error: object) -> None:
        torch.backends.cuda.enable_cudnn_sdp(self.before)


def _by_group(mask: Tensor | None, kv_heads: int) -> Tensor | None:
    """Returns a mask or bias of one query, (..., H, 1, S), with the heads of a group as queries: (..., K, G, S)."""
    if mask is None or mask.ndim < 3 or mask.size(-3) == 1:
        return mask
    return mask.squeeze(-2).unflatten(-2, (kv_heads, -1))


# ------------------------------------------------------------------------------------------------- in blocks of queries


class BatchRows:
    """Rows of a batch, whose sequences have as many queries and as many keys each: q (B, H, T, E), k (B, K, S, E)."""

    def attend(
        self, kernel: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, scale: float, dropout: float
    ) -> Tensor:
        """Computes attention by a kernel; ``ScoreTerms`` become a bias on the scores, a block of queries at a time.

        So every kernel that takes a bias takes positions that depend on the queries and keys, and no tensor of all
        scores is made. In training the scores of up to ``STORED`` queries are stored for the backward pass; those of
        more are computed again there.
        """
        if not isinstance(bias, ScoreTerms):
            return kernel(q, k, v, mask, bias, scale, dropout)
        sequences, queries = block_sizes(q, k)
        if (sequences, queries) == (q.size(0), q.size(2)) or is_registered(kernel):
            return _attend_block(kernel, q, k, v, mask, bias, scale, dropout, slice(None), slice(None))
        recomputes = torch.is_grad_enabled() and q.size(2) > STORED
        rows, row = [], 0
        for own_q, own_k, own_v in zip(*(x.split(sequences) for x in (q, k, v)), strict=True):  # its gradient: one cat
            own, blocks, first = slice(row, row := row + sequences), [], 0
            for block_q in own_q.split(queries, 2):
                part = slice(first, first := first + queries)
                given = (kernel, block_q, own_k, own_v, mask, bias, scale, dropout, own, part)
                y = checkpoint(_attend_block, *given, use_reentrant=False) if recomputes else _attend_block(*given)
                blocks.append(y)
            rows.append(torch.cat(blocks, 2))
        return torch.cat(rows)


BATCH = BatchRows()


def _attend_block(
    kernel: Attend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    terms: ScoreTerms,
    scale: float,
    dropout: float,
    sequences: slice,
    queries: slice,
) -> Tensor:
    """Computes attention of a part of the sequences and queries, q (b, H, t, E): (b, H, t, E)."""
    bias = terms.bias(q, k, scale, mask, sequences=sequences, queries=queries)
    if terms.terms.value_rows is None:
        return kernel(q, k, v, None, bias, scale, dropout)
    weights = F.dropout(attention_weights(q, k, None, bias, scale), dropout)
    y = weights @ v.repeat_interleave(q.size(1) // v.size(1), dim=1)
    return y + terms.values(weights, sequences, queries)


def add_value_rows(y: Tensor, weights: Tensor, bias: Bias) -> Tensor:
    """Returns the mixed values ``y`` (B, H, T, E) with the value rows of ``ScoreTerms``, if they have any."""
    return y + bias.values(weights) if isinstance(bias, ScoreTerms) and bias.terms.value_rows is not None else y


MaskLike = TypeVar("MaskLike")
BiasLike = TypeVar("BiasLike")


def repeat_shared_rows(
    q: Tensor, k: Tensor, v: Tensor, mask: MaskLike, bias: BiasLike
) -> tuple[Tensor, Tensor, MaskLike, BiasLike]:
    """Repeats keys, values, mask and bias if several rows of queries share them, so that each row has its own."""
    if q.size(0) == k.size(0):  # not ``len``, which a tracer turns into a constant
        return k, v, mask, bias
    rows = torch.arange(len(q), device=q.device) // (len(q) // len(k))
    own: Any = [x.expand(len(k), *x.shape[1:])[rows] if isinstance(x, Tensor) else x for x in (mask, bias)]
    return k[rows], v[rows], *own
