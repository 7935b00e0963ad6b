"""Attention: multi-head, grouped-query and multi-query, self and cross, in one class.

Shapes: B sequences, T queries, S keys, D model width, H query heads, K key-value heads (K divides H), E head size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from heedful.config import LearnedPosition, NoPosition, SinusoidalPosition, StackConfig
from heedful.errors import HeedfulError, lookup
from heedful.layers.linear import Linear
from heedful.layers.mask import Mask, add_bias, check_boolean, tensor_mask
from heedful.layers.norm import Identity, RMSNorm
from heedful.layers.position import NO_ENCODING, PositionEncoding
from heedful.layers.relative import STORED, RelativeLayer, ScoreTerms, SharedTerms, block_sizes, relative_layer_of

OTHER_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
KeysValues = tuple[Tensor, Tensor]
Project = Callable[[], KeysValues]
Bias = Tensor | ScoreTerms | None  # of the scores: broadcasts to (B, H, T, S), or terms of a layer


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

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        """Returns softmax(scale · q kᵀ + bias) v over the keys that ``mask`` allows."""


def is_whole(attend: Attend) -> bool:
    """Returns True for an implementation that is called once for all queries: a registered one, which may not use
    softmax.
    """
    return getattr(attend, "whole", False)


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


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float = 0.0
) -> Tensor:
    """Computes softmax(scale · q kᵀ + bias) v by PyTorch's fused kernel; zeros for queries that may attend to nothing.

    ``mask`` is None, "causal" (aligned bottom-right) or a boolean tensor (True: may attend); ``bias`` is added to the
    scores. Rows of q that share keys become queries of one row, so that the keys are read once for these rows; they
    raise ``HeedfulError`` for "causal". A plan may put another implementation in its place: in training on a CPU,
    ``heedful.kernels.blocked_attention``.

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


# ------------------------------------------------------------------- positions that depend on the queries and keys


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
        if (sequences, queries) == q.shape[:3:2] or is_whole(kernel):
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


ATTENTIONS: dict[str, Attend] = {}  # registered attention functions


def float_mask(mask: Mask, scores: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns what is added to ``scores`` (B, H, T, S): 0 or ``bias`` where a mask allows attention, −∞ elsewhere."""
    if bias is not None:
        return add_bias(mask, bias, scores.size(-2), scores.size(-1))
    tensor = tensor_mask(mask, scores.size(-2), scores.size(-1), scores.device)
    return scores.new_zeros(1, 1) if tensor is None else torch.where(tensor, 0.0, float("-inf")).to(scores)


BIASES = {"all": (True, True), "qkv": (True, False), "out": (False, True), "none": (False, False)}


class StackNeeds(NamedTuple):
    """Requirements that a stack's configuration sets for an attention that is called without its stack."""

    is_causal: bool = False
    has_window: bool = False
    has_position: bool = False  # in attention: not only in the embedding


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
        attend: computes softmax(scale · q kᵀ + bias) v, or what a registered attention has in its place.
        relative: the part of positions that depend on queries and keys (``heedful.layers.relative``); the scores of n
            terms are divided by √n too.

    The attention ``of`` a stack's configuration computes what the configuration says without its stack too, or raises
    ``HeedfulError`` for what is missing.

    Attributes:
        attend: implementation of softmax(q kᵀ) v, which a plan chooses (``PLANS`` in ``heedful.kernels.plan``).
        probe: used in place of ``attend`` while tensors are recorded or changed (``heedful.inspection.probe``).
        alone: what a stack's configuration asks of an attention without its stack.

    >>> import torch
    >>> attention = Attention(16, heads=4, kv_heads=2)
    >>> attention(torch.randn(2, 5, 16), mask="causal").shape
    torch.Size([2, 5, 16])
    >>> attention(torch.randn(2, 5, 16), source=torch.randn(2, 7, 16)).shape
    torch.Size([2, 5, 16])
    """

    probe: AttendWithTerms | None = None
    alone = StackNeeds()

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
        relative: RelativeLayer[Any] | None = None,
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
            if is_whole(attend) and getattr(relative, "value", None) is not None:
                raise HeedfulError(
                    f"the attention {getattr(attend, '__name__', '')!r} mixes values without rows for their distance; "
                    "give ShawPosition(values=False), or leave attention out"
                )

    @classmethod
    def of(cls, config: StackConfig, *, cross: bool = False) -> Attention:
        """Returns the self-attention, or the cross-attention, of a stack's blocks, from its configuration."""
        attention = cls(
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
        if not cross:
            has_position = not isinstance(config.position, NoPosition | SinusoidalPosition | LearnedPosition)
            attention.alone = StackNeeds(config.causal, config.window is not None, has_position)
        return attention

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask = None,
        position: PositionEncoding | None = None,
        cache: AttentionCache | None = None,
        rows: RowLayout = BATCH,
    ) -> Tensor:
        """Attention from ``x`` (B, T, D) to ``source`` (B, S, D), by default ``x`` itself: (B, T, D).

        Args:
            x: of the queries.
            source: of the keys and values.
            mask: None, "causal", or a boolean tensor that broadcasts to (B, H, T, S), True where a query may attend to
                a key.
            position: the encoding that a scheme's ``prepare`` returned, with the bias of the scores if there is one.
            cache: stores keys and values.
            rows: how the tokens lie in memory; by default as a batch. A layout of a plan has others.

        Raises:
            HeedfulError: for a mask that is not boolean, and without the ``position`` or ``mask`` that the
                configuration of the stack asks for.
        """
        source = x if source is None else source
        mask = self.own_mask(mask, position, x.size(1), rows)
        position, cache = position or NO_ENCODING, cache or NO_ATTENTION_CACHE
        q = position.rotate(self.query_norm(self.split(self.query(x))))  # (B, H, T, E)
        k, v = cache.update(lambda: self.project(source, position))  # (B, K, S, E)
        attend, dropout = self.probe or partial(rows.attend, self.attend), self.dropout if self.training else 0.0
        y = attend(q, k, v, mask, self.score_bias(position, q), self.scale, dropout)  # (B, H, T, E)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, H E) → (B, T, D)

    def extra_repr(self) -> str:
        """Returns the kernel, if it is not the fused one."""
        return "" if self.attend is fused_attention else f"attend={getattr(self.attend, '__name__', self.attend)}"

    def own_mask(self, mask: Mask, position: PositionEncoding | None, queries: int, rows: RowLayout) -> Mask:
        """Returns the mask of a call, by default that of the stack's configuration. Raises as ``forward``."""
        check_boolean(mask)
        if position is None:
            if self.alone.has_position or self.relative is not None:
                raise HeedfulError(
                    "the attention's configuration has positions, which are prepared by its stack; give position, as "
                    "the stack's encoding(queries, keys) returns it, or call the stack"
                )
            position = NO_ENCODING
        if mask is not None or position.has_mask or rows is not BATCH or not self.alone.is_causal or queries == 1:
            return mask
        if self.alone.has_window:
            raise HeedfulError("the attention's window is known to its stack; give mask, or call the stack")
        return "causal"

    def score_bias(self, position: PositionEncoding, q: Tensor) -> Bias:
        """Returns what is added to the scores of the queries (B, H, T, E); raises as ``forward``."""
        shared = position.bias
        if self.relative is None and not isinstance(shared, SharedTerms):
            return shared
        if self.relative is None or not isinstance(shared, SharedTerms):
            raise HeedfulError(
                f"the attention has {type(self.relative).__name__ if self.relative else 'no relative positions'}, but "
                f"position is {type(position).__name__}; give position, as its stack's encoding(queries, keys) "
                "returns it, or call the stack"
            )
        return shared.bound(self.relative, self.project_rows, q.size(0) * q.size(2))

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
