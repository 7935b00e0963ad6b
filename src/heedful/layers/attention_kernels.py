"""Implementations of attention for given queries, keys and values: written out, and PyTorch's fused kernel.

Shapes: B sequences, T queries, S keys, H query heads, K key-value heads (K divides H), E head size.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from heedful.errors import HeedfulError
from heedful.layers.mask import Mask, add_bias, tensor_mask
from heedful.layers.relative import ScoreTerms

Bias = Tensor | ScoreTerms | None  # added to the scores: a tensor that broadcasts to (B, H, T, S), or a layer's terms


class Attend(Protocol):
    """Implementation of attention: q (B, H, T, E), k and v (B, K, S, E) → (B, H, T, E).

    In decoding, n adjacent rows of q may share keys and values, as the beams of a sentence share its source: k and v
    then have B / n rows, and the mask depends on the keys alone, (B / n, 1, 1, S). ``fused_attention`` takes such rows;
    for the others, as ``explicit_attention``, ``repeat_shared_rows`` gives each row of q its own.
    """

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        """Returns softmax(scale · q kᵀ + bias) v over the keys that ``mask`` allows."""


def is_registered(attend: Attend) -> bool:
    """Returns True for a registered attention function (``heedful.register``).

    Such a function is called once, with all queries, since it need not be a softmax over the keys of each query.
    """
    return getattr(attend, "registered", False)


MaskLike = TypeVar("MaskLike")
BiasLike = TypeVar("BiasLike")


def repeat_shared_rows(
    q: Tensor, k: Tensor, v: Tensor, mask: MaskLike, bias: BiasLike
) -> tuple[Tensor, Tensor, MaskLike, BiasLike]:
    """Returns keys, values, mask and bias with as many rows as ``q``: repeated if rows of ``q`` share them."""
    if q.size(0) == k.size(0):  # not ``len``, which a tracer turns into a constant
        return k, v, mask, bias
    rows = torch.arange(len(q), device=q.device) // (len(q) // len(k))
    own: Any = [x.expand(len(k), *x.shape[1:])[rows] if isinstance(x, Tensor) else x for x in (mask, bias)]
    return k[rows], v[rows], *own


# ---------------------------------------------------------------------------------------------------------- written out


def attention_weights(q: Tensor, k: Tensor, mask: Mask, bias: Tensor | None, scale: float) -> Tensor:
    """Attention weights (B, H, T, S): softmax(scale · q kᵀ + bias) over the keys that ``mask`` allows.

    A query that may attend to nothing gets zeros, where a plain softmax would give NaN.

    >>> q, k = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    >>> attention_weights(q, k, None, None, scale=1.0)
    tensor([[[[0.7311, 0.2689]]]])
    """
    return weights_of(attention_scores(q, k, mask, bias, scale))


def attention_scores(q: Tensor, k: Tensor, mask: Mask, bias: Bias, scale: float, cap: float | None = None) -> Tensor:
    """Attention scores (B, H, T, S): scale · q kᵀ, capped if there is a ``cap``, + bias; −∞ where the mask forbids."""
    scores = soft_cap(scale * q @ k.repeat_interleave(q.size(1) // k.size(1), dim=1).transpose(-2, -1), cap)
    return scores + (bias.bias(q, k, scale, mask) if isinstance(bias, ScoreTerms) else float_mask(mask, scores, bias))


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """Returns c · tanh(x / c), which lies in ±c, for the cap c; ``x`` itself for None."""
    return x if cap is None else (x / cap).tanh() * cap


def weights_of(scores: Tensor) -> Tensor:
    """Returns softmax(scores) over the keys; zeros for a query whose scores are all −∞."""
    empty = (scores == float("-inf")).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)  # without the first, gradients are NaN


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


@dataclass(frozen=True)
class SoftCappedAttention:
    """Attention with a soft cap c of the scores, written out: softmax(c · tanh(scale · q kᵀ / c) + bias) v.

    Gemma 2, 2024, section 2. PyTorch has no fused kernel for it, so that all weights are stored.

    >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
    >>> expected = explicit_attention(q, k, v, None, None, 1.0)
    >>> torch.allclose(SoftCappedAttention(1e4)(q, k, v, None, None, 1.0), expected, atol=1e-4)
    True
    """

    cap: float

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float = 0.0
    ) -> Tensor:
        """Returns the values mixed by the weights, (B, H, T, E)."""
        k, v, mask, bias = repeat_shared_rows(q, k, v, mask, bias)
        weights = F.dropout(weights_of(attention_scores(q, k, mask, bias, scale, self.cap)), dropout)
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
    scores. A plan (``heedful.kernels.plan``) may use another implementation: in training on a CPU,
    ``heedful.kernels.blocked_attention``. Raises ``HeedfulError`` if rows of q share keys under "causal".

    >>> q, k, v = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    >>> fused_attention(q, k, v, "causal", None, scale=8**-0.5).shape
    torch.Size([1, 4, 3, 8])
    """
    if len(q) > len(k):
        return _of_shared_keys(q, k, v, mask, bias, scale, dropout)
    if bias is not None:
        bias, mask = add_bias(mask, bias, q.size(-2), k.size(-2)), None
    grouped = q.size(1) != k.size(1)
    if grouped and q.size(2) == 1 and not isinstance(mask, str):
        return _of_grouped_query(q, k, v, mask, bias, scale, dropout)
    if isinstance(mask, str) and q.size(-2) == k.size(-2):  # the kernel's own causal mask is aligned top-left
        return F.scaled_dot_product_attention(q, k, v, None, dropout, True, scale=scale, enable_gqa=grouped)
    if bias is not None:
        tensor: Tensor | None = bias.to(q.dtype)  # the kernel on a CPU misreads a bias of another type
    else:
        tensor = tensor_mask(mask, q.size(-2), k.size(-2), q.device)
    with without_cudnn() if tensor is not None and q.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, tensor, dropout, scale=scale, enable_gqa=grouped)


def _of_shared_keys(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float
) -> Tensor:
    """Computes attention of n adjacent rows of q as queries of one row, so that their keys are read once."""
    if isinstance(mask, str):
        raise HeedfulError(
            f"{len(q)} rows of queries share {len(k)} rows of keys, which takes a mask of the keys alone, not "
            f"{mask!r}; give each row of queries its own keys"
        )
    one_row = q.view(len(k), -1, *q.shape[1:]).transpose(1, 2).flatten(2, 3)  # (B / n, H, n · T, E)
    y = fused_attention(one_row, k, v, mask, bias, scale, dropout)
    return y.unflatten(2, (-1, q.size(2))).transpose(1, 2).flatten(0, 1)


def _of_grouped_query(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float, dropout: float
) -> Tensor:
    """Computes attention of one query for each row: the G heads that share a head's keys become G queries of that head.

    q then has as many heads as k, so that ``fused_attention`` calls PyTorch's kernel.
    """
    mask, bias = (_by_group(x, k.size(1)) for x in (mask, bias))
    queries = q[:, :, 0].unflatten(1, (k.size(1), -1))  # (B, H, 1, E) → (B, K, G, E)
    return fused_attention(queries, k, v, mask, bias, scale, dropout).flatten(1, 2)[:, :, None]


def _by_group(x: Tensor | None, kv_heads: int) -> Tensor | None:
    """Returns a mask or bias of one query, (..., H, 1, S), with the heads of a group as queries: (..., K, G, S)."""
    if x is None or x.ndim < 3 or x.size(-3) == 1:
        return x
    return x.squeeze(-2).unflatten(-2, (kv_heads, -1))  # (..., H, 1, S) → (..., H, S) → (..., K, G, S)


KERNELS_WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def without_cudnn() -> AbstractContextManager[Any]:
    """Returns a context manager in which PyTorch's attention does not use cuDNN.

    With a mask, cuDNN's kernel gives a query that may attend to nothing the mean of the values; all others give zeros.
    """
    return sdpa_kernel(KERNELS_WITHOUT_CUDNN) if torch.compiler.is_compiling() else _WithoutCudnn()


class _WithoutCudnn:
    """Switches cuDNN's kernel off in a twentieth of the time of ``sdpa_kernel``; the compiler cannot trace it."""

    def __enter__(self) -> None:
        self.before = torch.backends.cuda.cudnn_sdp_enabled()
        torch.backends.cuda.enable_cudnn_sdp(False)

    def __exit__(self, *error: object) -> None:
        torch.backends.cuda.enable_cudnn_sdp(self.before)
