"""Attention: multi-head, grouped-query and multi-query, self and cross, in one class.

Shapes: B sequences, T queries, S keys, D model width, H query heads, K key-value heads (K divides H), E head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from heedful.config import LearnedPosition, NoPosition, SinusoidalPosition, StackConfig
from heedful.errors import HeedfulError, lookup
from heedful.layers.attention_kernels import Attend, Bias, SoftCappedAttention, fused_attention, is_registered
from heedful.layers.linear import Linear
from heedful.layers.mask import Mask, check_boolean
from heedful.layers.norm import HeadsNorm, Identity, RMSNorm
from heedful.layers.position import NO_ENCODING, PositionEncoding
from heedful.layers.relative import RelativeLayer, SharedTerms, relative_layer_of
from heedful.layers.row_layout import BATCH, AttendWithTerms, RowLayout

KeysValues = tuple[Tensor, Tensor]
Project = Callable[[], KeysValues]
ATTENTIONS: dict[str, Attend] = {}  # registered attention functions
BIASES = {  # of queries and values, of keys, of the output
    "all": (True, True, True),
    "all-but-key": (True, False, True),
    "qkv": (True, True, False),
    "out": (False, False, True),
    "none": (False, False, False),
}


class AttentionCache:
    """Base class of the caches of an attention (``heedful.cache``). It stores nothing: each call has its own keys."""

    def update(self, project: Project) -> KeysValues:
        """Returns the keys and values (B, K, S, E) to attend to; ``project`` computes the new keys and values."""
        return project()

    def select(self, rows: Tensor) -> None:
        """Keeps the stored ``rows`` of the batch, in that order: beams in a new order, or the unfinished sequences."""


NO_ATTENTION_CACHE = AttentionCache()


class WithoutStack(NamedTuple):
    """Properties of a stack's configuration that an attention needs when it is called without the stack."""

    is_causal: bool = False  # such an attention is causal too
    has_window: bool = False  # it needs the mask that the stack makes
    has_position: bool = False  # it needs the positions that the stack prepares; they act in attention


class Attention(nn.Module):
    """Multi-head attention: out(concat_h softmax(scale · q_h k_hᵀ + bias) v_h), scale = 1/√E.

    Vaswani et al. 2017, section 3.2; fewer key-value heads: Shazeer 2019, Ainslie et al. 2023.

    Args:
        dim: width of inputs and outputs.
        heads: query heads.
        kv_heads: key-value heads, each shared by heads / kv_heads query heads; default ``heads``.
        head_dim: size of a head; default dim / heads.
        bias: which projections have a bias: "all", "all-but-key", "qkv", "out", "none".
        scale: "sqrt", "none" for unscaled scores (T5), or the factor of the scores.
        qk_norm: "head" puts an RMS norm on the queries and keys of each head (Qwen3), "all" one on all heads of a token
            together (OLMo 2).
        norm_eps: epsilon of that norm.
        dropout: dropout probability of the attention weights in training.
        attend: computes softmax(scale · q kᵀ + bias) v. A registered attention may compute something else, and a plan
            (``PLANS`` in ``heedful.kernels.plan``) may put another kernel in its place.
        relative: the layer's part of positions that depend on queries and keys (``heedful.layers.relative``). Scores
            that are the sum of n terms are divided by √n too.

    An attention made by ``Attention.of(config)`` can be called outside its stack: it is causal if ``config`` is. It
    raises ``HeedfulError`` if it needs positions, or the mask of a window, which only the stack prepares.

    Attributes:
        probe: used in place of ``attend`` while tensors are recorded or changed (``heedful.inspection.probe``).
        without_stack: what ``Attention.of`` keeps of the configuration for such calls.

    >>> import torch
    >>> attention = Attention(16, heads=4, kv_heads=2)
    >>> attention(torch.randn(2, 5, 16), mask="causal").shape
    torch.Size([2, 5, 16])
    >>> attention(torch.randn(2, 5, 16), source=torch.randn(2, 7, 16)).shape
    torch.Size([2, 5, 16])
    """

    probe: AttendWithTerms | None = None
    without_stack = WithoutStack()

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: str = "all",
        scale: str | float = "sqrt",
        qk_norm: str = "none",
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        attend: Attend = fused_attention,
        relative: RelativeLayer[Any] | None = None,
    ) -> None:
        super().__init__()
        if head_dim is None and dim % heads:
            raise HeedfulError(f"dim {dim} is not a multiple of {heads} heads; change dim or heads, or give head_dim")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads or heads, head_dim or dim // heads
        if heads % self.kv_heads:
            raise HeedfulError(
                f"{heads} heads cannot share {self.kv_heads} key-value heads evenly; give kv_heads that divides {heads}"
            )
        qv_bias, key_bias, out_bias = lookup(BIASES, bias, "attention bias")
        self.query = Linear(dim, self.heads * self.head_dim, bias=qv_bias)
        self.key = Linear(dim, self.kv_heads * self.head_dim, bias=key_bias)
        self.value = Linear(dim, self.kv_heads * self.head_dim, bias=qv_bias)
        self.out = Linear(self.heads * self.head_dim, dim, bias=out_bias)
        self.query_norm = _qk_norm(qk_norm, self.heads, self.head_dim, norm_eps)
        self.key_norm = _qk_norm(qk_norm, self.kv_heads, self.head_dim, norm_eps)
        scales = {"sqrt": self.head_dim**-0.5, "none": 1.0}
        self.scale = lookup(scales, scale, "attention scale") if isinstance(scale, str) else scale
        self.dropout = dropout
        self.attend = attend
        self.relative = relative
        if relative is not None:
            self.scale *= relative.score_terms**-0.5
            if is_registered(attend) and getattr(relative, "value", None) is not None:
                raise HeedfulError(
                    f"the attention {getattr(attend, '__name__', '')!r} mixes values without rows for their distance; "
                    "give ShawPosition(values=False), or leave attention out"
                )

    @classmethod
    def of(cls, config: StackConfig, *, cross: bool = False) -> Attention:
        """Returns the self-attention, or the cross-attention, of a stack's blocks, from its configuration."""
        attend: Attend = ATTENTIONS.get(config.attention, fused_attention)
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
            attend=attend if config.score_cap is None else SoftCappedAttention(config.score_cap),
            relative=None if cross else relative_layer_of(config),
        )
        if not cross:
            position = config.position
            has_position = not isinstance(position, NoPosition | SinusoidalPosition | LearnedPosition)
            has_position |= isinstance(position, LearnedPosition) and position.buckets > 0
            attention.without_stack = WithoutStack(config.causal, config.window is not None, has_position)
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
            position: the encoding that a scheme's ``prepare`` returned, with the bias of the scores if there is one. A
                rotation is that of the queries and of the new keys alike; a cache holds rotated keys.
            cache: stores keys and values.
            rows: how the tokens lie in memory; by default as a batch. A layout of a plan has others.

        Raises:
            HeedfulError: for a mask that is not boolean, and without the ``position`` or ``mask`` that the
                configuration of the stack asks for.
        """
        source = x if source is None else source
        mask, position = self.checked(mask, position, x.size(1), rows)
        cache = cache or NO_ATTENTION_CACHE
        q = position.rotate(self.query_norm(self.split(self.query(x))))  # (B, H, T, E)
        k, v = cache.update(lambda: self.project(source, position))  # (B, K, S, E)
        attend = self.probe or partial(rows.attend, self.attend)  # with a probe, layouts compute the whole batch
        dropout = self.dropout if self.training else 0.0
        y = attend(q, k, v, mask, self.score_bias(position, q), self.scale, dropout)  # (B, H, T, E)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, H E) → (B, T, D)

    def split(self, x: Tensor) -> Tensor:
        """Splits heads: (..., T, heads · E) → (..., heads, T, E)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(-3, -2)

    def project(self, source: Tensor, position: PositionEncoding) -> KeysValues:
        """Returns keys and values (B, K, S, E) of ``source`` (B, S, D), without those that a cache holds."""
        k = position.rotate(self.key_norm(self.split(self.key(source))))
        return k, self.split(self.value(source))

    def checked(
        self, mask: Mask, position: PositionEncoding | None, queries: int, rows: RowLayout
    ) -> tuple[Mask, PositionEncoding]:
        """Returns the mask and positions of a call, with defaults for a call without a stack. Raises as ``forward``.

        Called so, a causal attention without a mask is "causal". A single query needs no mask: no key is after it.
        """
        check_boolean(mask)
        if position is None and (self.without_stack.has_position or self.relative is not None):
            raise HeedfulError(
                "the attention's configuration has positions, which are prepared by its stack; give position, as "
                "the stack's encoding(queries, keys) returns it, or call the stack"
            )
        position = position or NO_ENCODING
        has_mask = mask is not None or position.has_mask or rows is not BATCH
        if has_mask or queries == 1 or not (self.without_stack.is_causal or self.without_stack.has_window):
            return mask, position
        if self.without_stack.has_window:
            raise HeedfulError("the attention's window is known to its stack; give mask, or call the stack")
        return "causal", position

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
        queries = q.size(0) * q.size(2)  # of all sequences: they decide in which order a layer computes its products
        return shared.bound(self.relative, self.project_rows, queries)

    def project_rows(self, rows: Tensor) -> KeysValues:
        """Returns the queries (H, P, E) and keys (K, P, E) of a scheme's ``rows`` (P, D), one for each distance."""
        return self.query_norm(self.split(self.query(rows))), self.key_norm(self.split(self.key(rows)))

    def extra_repr(self) -> str:
        """Returns the kernel, if it is not the fused one."""
        return "" if self.attend is fused_attention else f"attend={getattr(self.attend, '__name__', self.attend)}"


def _qk_norm(kind: str, heads: int, head_dim: int, eps: float) -> nn.Module:
    """Returns the norm of queries or keys (..., H, T, E)."""
    made: dict[str, Callable[[], nn.Module]]
    made = {"head": partial(RMSNorm, head_dim, eps), "all": partial(HeadsNorm, heads * head_dim, eps), "none": Identity}
    return lookup(made, kind, "qk_norm")()
