"""Attention: multi-head, grouped-query and multi-query, self and cross, in one class.

Shapes: B sequences, T queries, S keys, D model width, H query heads, K key-value heads (K divides H), E head size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from heedful.config import StackConfig
from heedful.errors import HeedfulError, lookup
from heedful.layers.linear import Linear
from heedful.layers.mask import Mask, tensor_mask
from heedful.layers.norm import Identity, RMSNorm
from heedful.layers.position import NO_ENCODING, PositionEncoding
from heedful.layers.probe import repeat_shared_rows
from heedful.layers.relative import STORED, RelativeLayer, RelativeMask, block_sizes, relative_layer_of

OTHER_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
KeysValues = tuple[Tensor, Tensor]
Project = Callable[[], KeysValues]


class AttentionCache:
    """Cache that stores nothing: every call computes its keys and values. Caches that store them: ``heedful.cache``."""

    def update(self, project: Project) -> KeysValues:
        """Returns the keys and values (B, K, S, E) to attend to; ``project`` computes the new keys and values."""
        return project()

    def select(self, rows: Tensor) -> None:
        """Keeps ``rows`` of the batch, in that order: beams in a new order, or only the unfinished sequences."""


NO_ATTENTION_CACHE = AttentionCache()


class Attend(Protocol):
    """Implementation of attention: q (B, H, T, E), k and v (B, K, S, E) → (B, H, T, E).

    Adjacent rows of q may share keys and values, as the beams of a sentence share its source: k and v then have B / n
    rows, each for n rows of q, and the mask depends on the keys alone, (B / n, 1, 1, S).
    """

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float) -> Tensor:
        """Returns softmax(scale · q kᵀ + mask) v."""


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float = 0.0) -> Tensor:
    """Computes softmax(scale · q kᵀ + mask) v by PyTorch's fused kernel; zeros for queries that may attend to nothing.

    ``mask`` is None, "causal" (aligned bottom-right), a boolean tensor (True: may attend) or a float bias. Rows of q
    that share keys become queries of one row, so that the keys are read once for these rows; they raise
    ``HeedfulError`` for "causal". A plan may put another implementation in its place: in training on a CPU,
    ``heedful.kernels.blocked_attention``.

    >>> q, k, v = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    >>> fused_attention(q, k, v, "causal", scale=8**-0.5).shape
    torch.Size([1, 4, 3, 8])
    """
    if len(q) > len(k):
        if isinstance(mask, str):
            raise HeedfulError(
                f"{len(q)} rows of queries share {len(k)} rows of keys, which takes a mask of the keys alone, not "
                f"{mask!r}; give each row of queries its own keys"
            )
        shape = (len(k), -1, *q.shape[1:])  # (B / n, n, H, T, E)
        y = fused_attention(q.view(shape).transpose(1, 2).flatten(2, 3), k, v, mask, scale, dropout)
        return y.unflatten(2, (-1, q.size(2))).transpose(1, 2).flatten(0, 1)
    grouped = q.size(1) != k.size(1)
    if grouped and q.size(2) == 1 and not isinstance(mask, str):  # a group's heads become queries of one head
        y = fused_attention(q[:, :, 0].unflatten(1, (k.size(1), -1)), k, v, _by_group(mask, k.size(1)), scale, dropout)
        return y.flatten(1, 2)[:, :, None]
    if isinstance(mask, str) and q.size(-2) == k.size(-2):  # the kernel's own causal mask is aligned top-left
        return F.scaled_dot_product_attention(q, k, v, None, dropout, True, scale=scale, enable_gqa=grouped)
    tensor = tensor_mask(mask, q.size(-2), k.size(-2), q.device)
    if tensor is not None and tensor.is_floating_point():
        tensor = tensor.to(q.dtype)  # the kernel on a CPU misreads a bias of another type
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
    """Returns the mask of one query, (..., H, 1, S), with the heads of a group as queries: (..., K, G, S)."""
    if mask is None or mask.ndim < 3 or mask.size(-3) == 1:
        return mask
    return mask.squeeze(-2).unflatten(-2, (kv_heads, -1))


def attention_weights(q: Tensor, k: Tensor, mask: Mask, scale: float) -> Tensor:
    """Attention weights (B, H, T, S): softmax(scale · q kᵀ + mask) over the keys.

    A query that may attend to nothing gets zeros, where a plain softmax would give NaN.

    >>> q, k = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    >>> attention_weights(q, k, None, scale=1.0)
    tensor([[[[0.7311, 0.2689]]]])
    """
    return weights_of(attention_scores(q, k, mask, scale))


def attention_scores(q: Tensor, k: Tensor, mask: Mask | RelativeMask, scale: float) -> Tensor:
    """Attention scores (B, H, T, S): scale · q kᵀ + mask, −∞ where attention is not allowed."""
    scores = scale * q @ k.repeat_interleave(q.size(1) // k.size(1), dim=1).transpose(-2, -1)
    return scores + (mask.bias(q, k, scale) if isinstance(mask, RelativeMask) else float_mask(mask, scores))


def weights_of(scores: Tensor) -> Tensor:
    """Returns softmax(scores) over the keys; zeros for a query whose scores are all −∞."""
    empty = (scores == float("-inf")).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)  # first 0: the gradient would be NaN too


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float = 0.0) -> Tensor:
    """Reference implementation of attention: softmax(scale · q kᵀ + mask) v, written out.

    >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
    >>> torch.allclose(explicit_attention(q, k, v, None, 1.0), fused_attention(q, k, v, None, 1.0), atol=1e-6)
    True
    """
    weights = F.dropout(attention_weights(q, k, mask, scale), dropout)
    return weights @ v.repeat_interleave(q.size(1) // v.size(1), dim=1)


# ------------------------------------------------------------------- positions that depend on the queries and keys


BIASED: dict[Any, Attend] = {}  # kernel → the kernel that takes its place for a bias (B, H, T, S) with a gradient


def attend_by(attend: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float, dropout: float) -> Tensor:
    """Computes attention by a kernel; a ``RelativeMask`` becomes a bias on the scores, a block of queries at a time.

    So every kernel that takes a bias takes positions that depend on the queries and keys, and no tensor of all scores
    is made. In training the scores of up to ``STORED`` queries are stored for the backward pass; those of more are
    computed again there.
    """
    if not isinstance(mask, RelativeMask):
        return attend(q, k, v, mask, scale, dropout)
    attend = BIASED.get(attend, attend)
    sequences, queries = block_sizes(q, k)
    if (sequences, queries) == q.shape[:3:2] or isinstance(attend, CustomAttention):
        return _attend_block(attend, q, k, v, mask, scale, dropout, slice(None), slice(None))
    recomputes = torch.is_grad_enabled() and q.size(2) > STORED
    rows, row = [], 0
    for own_q, own_k, own_v in zip(*(x.split(sequences) for x in (q, k, v)), strict=True):  # whose gradient is one cat
        own, blocks, first = slice(row, row := row + sequences), [], 0
        for block_q in own_q.split(queries, 2):
            part = slice(first, first := first + queries)
            arguments = (attend, block_q, own_k, own_v, mask, scale, dropout, own, part)
            y = checkpoint(_attend_block, *arguments, use_reentrant=False) if recomputes else _attend_block(*arguments)
            blocks.append(y)
        rows.append(torch.cat(blocks, 2))
    return torch.cat(rows)


def _attend_block(
    attend: Attend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: RelativeMask,
    scale: float,
    dropout: float,
    sequences: slice,
    queries: slice,
) -> Tensor:
    """Computes attention of a part of the sequences and queries, q (b, H, t, E): (b, H, t, E)."""
    bias = mask.bias(q, k, scale, sequences=sequences, queries=queries)
    if mask.terms.value_rows is None:
        return attend(q, k, v, bias, scale, dropout)
    weights = F.dropout(attention_weights(q, k, bias, scale), dropout)
    y = weights @ v.repeat_interleave(q.size(1) // v.size(1), dim=1)
    return y + mask.values(weights, sequences, queries)


def add_value_rows(y: Tensor, weights: Tensor, mask: Any) -> Tensor:
    """Returns the mixed values ``y`` (B, H, T, E) with the value rows of a ``RelativeMask``, if it has any."""
    return y + mask.values(weights) if isinstance(mask, RelativeMask) and mask.terms.value_rows is not None else y


class CustomAttention:
    """Calls a registered attention function, with keys and values for each query head and row, and a bias as the mask.

    Args:
        name: the registered name.
        function: (q, k, v, bias, scale, dropout) → (B, H, T, E), all of q, k and v (B, H, ·, E); ``bias`` broadcasts to
            the scores (B, H, T, S), −∞ where attention is not allowed. Its attribute ``weights``, a function (q, k,
            bias, scale) → (B, H, T, S), gives the weights with which it mixes the values; without it the pattern
            cannot be recorded or changed.
    """

    def __init__(self, name: str, function: Callable[..., Tensor]) -> None:
        self.__name__, self.function = name, function

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float) -> Tensor:
        """Returns the output of the function (B, H, T, E); raises ``HeedfulError`` for another shape."""
        k, v, mask = repeat_shared_rows(q, k, v, mask)
        group = q.size(1) // k.size(1)
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        y = self.function(q, k, v, self._bias(q, k, mask), scale, dropout)
        self._check_shape("output", y, (*q.shape[:3], v.size(3)))
        return y

    def weights(self, q: Tensor, k: Tensor, mask: Mask, scale: float) -> Tensor:
        """Returns the weights (B, H, T, S); raises ``HeedfulError`` for a function that does not give them, and for
        another shape.
        """
        weights = getattr(self.function, "weights", None)
        if weights is None:
            raise HeedfulError(
                f"the attention {self.__name__!r} does not give its weights, so that its pattern cannot be recorded or "
                "changed; add them: function.weights = lambda q, k, bias, scale: ..."
            )
        k = k.repeat_interleave(q.size(1) // k.size(1), dim=1)
        pattern: Tensor = weights(q, k, self._bias(q, k, mask), scale)
        self._check_shape("weights", pattern, (*q.shape[:3], k.size(2)))
        return pattern

    def _check_shape(self, what: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        if tensor.shape != shape:
            raise HeedfulError(
                f"the attention {self.__name__!r} returned {what} of shape {tuple(tensor.shape)}, not {tuple(shape)}; "
                f"correct the function{'' if what == 'output' else '.weights'}"
            )

    @staticmethod
    def _bias(q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return float_mask(mask, q.new_empty(1).expand(q.size(0), q.size(1), q.size(2), k.size(2)))


ATTENTIONS: dict[str, CustomAttention] = {}  # registered attention functions


def float_mask(mask: Mask, scores: Tensor) -> Tensor:
    """Returns the bias of ``scores`` (B, H, T, S) for a mask: 0 where attention is allowed, −∞ elsewhere."""
    tensor = tensor_mask(mask, scores.size(-2), scores.size(-1), scores.device)
    if tensor is None:
        return scores.new_zeros(1, 1)
    if tensor.dtype == torch.bool:
        return torch.where(tensor, 0.0, float("-inf")).to(scores)
    return tensor


def _is_plain(mask: Any) -> bool:
    return mask is None or isinstance(mask, str | Tensor)


BIASES = {"all": (True, True), "qkv": (True, False), "out": (False, True), "none": (False, False)}


class Attention(nn.Module):
    """Multi-head attention: out(concat_h softmax(q_h k_hᵀ / √E) v_h).

    Vaswani et al. 2017, section 3.2; fewer key-value heads: Shazeer 2019, Ainslie et al. 2023.

    Args:
        dim: width of inputs and outputs.
        heads: query heads.
        kv_heads: key-value heads, each shared by heads / kv_heads query heads; default ``heads``.
        head_dim: size of a head; default dim / heads. The scale is 1/√head_dim.
        bias: which projections have a bias: "all", "qkv", "out", "none".
        scale: "sqrt", or "none" for unscaled scores (T5).
        qk_norm: "head" puts an RMS norm on the queries and keys of each head (Qwen3).
        norm_eps: epsilon of that norm.
        dropout: dropout probability of the attention weights in training; PyTorch has no fused CPU kernel with dropout.
        attend: computes softmax(scale · q kᵀ + mask) v, or what a registered attention has in its place.
        relative: the part of positions that depend on queries and keys (``heedful.layers.relative``); the scores of n
            terms are divided by √n too.

    Attributes:
        attend: implementation of softmax(q kᵀ) v, which a plan chooses (``PLANS`` in ``heedful.kernels.plan``).
        probe: callable used in place of ``attend`` while tensors are recorded or changed (``heedful.layers.probe``).

    >>> import torch
    >>> attention = Attention(16, heads=4, kv_heads=2)
    >>> attention(torch.randn(2, 5, 16), mask="causal").shape
    torch.Size([2, 5, 16])
    >>> attention(torch.randn(2, 5, 16), source=torch.randn(2, 7, 16)).shape
    torch.Size([2, 5, 16])
    """

    probe: Attend | None = None

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: str = "all",
        scale: str = "sqrt",
        qk_norm: str = "none",
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        attend: Attend = fused_attention,
        relative: RelativeLayer | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_dim = head_dim or dim // heads
        if head_dim is None and dim % heads:
            raise HeedfulError(f"dim {dim} is not a multiple of {heads} heads; change dim or heads, or give head_dim")
        if heads % self.kv_heads:
            raise HeedfulError(
                f"{heads} heads cannot share {self.kv_heads} key-value heads evenly; give kv_heads that divides {heads}"
            )
        qkv_bias, out_bias = lookup(BIASES, bias, "attention bias")
        self.query = Linear(dim, self.heads * self.head_dim, bias=qkv_bias)
        self.key = Linear(dim, self.kv_heads * self.head_dim, bias=qkv_bias)
        self.value = Linear(dim, self.kv_heads * self.head_dim, bias=qkv_bias)
        self.out = Linear(self.heads * self.head_dim, dim, bias=out_bias)
        self.query_norm, self.key_norm = (
            RMSNorm(self.head_dim, norm_eps) if qk_norm == "head" else Identity() for _ in range(2)
        )
        self.scale = lookup({"sqrt": self.head_dim**-0.5, "none": 1.0}, scale, "attention scale")
        self.dropout = dropout
        self.attend = attend
        self.relative = relative
        if relative is not None:
            self.scale *= relative.score_terms**-0.5
            if isinstance(attend, CustomAttention) and getattr(relative, "value", None) is not None:
                raise HeedfulError(
                    f"the attention {attend.__name__!r} mixes values without rows for their distance; give "
                    "ShawPosition(values=False), or leave attention out"
                )

    @classmethod
    def of(cls, config: StackConfig, *, cross: bool = False) -> Attention:
        """Returns the self-attention, or the cross-attention, of a stack's blocks, from its configuration."""
        return cls(
            config.dim,
            config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            bias=config.attention_bias,
            scale=config.scale,
            qk_norm=config.qk_norm,
            norm_eps=config.norm_eps,
            dropout=config.dropout.attention,
            attend=ATTENTIONS.get(config.attention, fused_attention),
            relative=None if cross else relative_layer_of(config),
        )

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask = None,
        position: PositionEncoding | None = None,
        cache: AttentionCache | None = None,
    ) -> Tensor:
        """Attention from ``x`` (B, T, D) to ``source`` (B, S, D), by default ``x`` itself: (B, T, D).

        ``mask`` is None, "causal", or a tensor that broadcasts to (B, H, T, S), boolean (True: may attend) or a float
        bias. ``position`` is the encoding that a scheme's ``prepare`` returned; ``cache`` stores keys and values.
        Raises ``HeedfulError`` without it, if the scores depend on the distance of query and key (``relative``).
        """
        source = x if source is None else source
        position, cache = position or NO_ENCODING, cache or NO_ATTENTION_CACHE
        q = position.rotate(self.query_norm(self.split(self.query(x))))  # (B, H, T, E)
        k, v = cache.update(lambda: self.project(source, position))  # (B, K, S, E)
        attend, dropout = self.probe or self.attend, self.dropout if self.training else 0.0
        if self.relative is not None:
            attend, mask = self.with_terms(mask, position, q)
        y = attend(q, k, v, mask, self.scale, dropout)  # (B, H, T, E)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, H E) → (B, T, D)

    def extra_repr(self) -> str:
        """Returns the kernel, if it is not the fused one."""
        return "" if self.attend is fused_attention else f"attend={getattr(self.attend, '__name__', self.attend)}"

    def with_terms(self, mask: Any, position: PositionEncoding, q: Tensor) -> tuple[Attend, Any]:
        """Returns the kernel and the mask for positions that depend on the queries (B, H, T, E) and keys.

        A stack has joined its masks with the positions; a plain mask is joined here. Raises ``HeedfulError`` without
        positions.
        """
        assert self.relative is not None  # asked by the caller
        if _is_plain(mask):
            mask = position.join(mask)
        if _is_plain(mask):
            raise HeedfulError(
                f"{type(self.relative).__name__} needs the distances of queries and keys; give position, as the "
                "stack's encoding(queries, keys) returns it, or call the stack"
            )
        mask = mask.bind(self.relative, self.project_rows, q.size(0) * q.size(2))
        return self.probe or partial(attend_by, self.attend), mask

    def project_rows(self, rows: Tensor) -> KeysValues:
        """Returns the queries (H, P, E) and keys (K, P, E) of ``rows`` (P, D)."""
        return self.query_norm(self.split(self.query(rows))), self.key_norm(self.split(self.key(rows)))

    def project(self, source: Tensor, position: PositionEncoding) -> KeysValues:
        """Returns keys and values (B, K, S, E) of ``source`` (B, S, D)."""
        k = position.rotate(self.key_norm(self.split(self.key(source))))
        return k, self.split(self.value(source))

    def split(self, x: Tensor) -> Tensor:
        """Splits heads: (..., T, heads · E) → (..., heads, T, E)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(-3, -2)
