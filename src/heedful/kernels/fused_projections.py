"""Self-attention for inference, with queries, keys and values from one product."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.kernels.prepacked_linear import PrepackedLinear
from heedful.layers.attention import NO_ATTENTION_CACHE, Attention, AttentionCache, KeysValues
from heedful.layers.linear import Linear
from heedful.layers.mask import Mask
from heedful.layers.position import PositionEncoding
from heedful.layers.row_layout import BATCH, RowLayout

MakeLinear = Callable[[Tensor, Tensor | None], nn.Module]  # weight (out, in), bias (out,) → a linear map


class FusedAttention(Attention):
    """Self-attention with its three projections in one product, (q, k, v) = W x, which reads ``x`` once.

    Args:
        attention: the attention to replace; its norms and ``attend`` are used.
        make_linear: makes a linear map from a weight and a bias.

    >>> attention = Attention(16, heads=4, kv_heads=2).eval()
    >>> fused, x = FusedAttention(attention, plain_linear), torch.randn(2, 5, 16)
    >>> torch.allclose(fused(x, mask="causal"), attention(x, mask="causal"), atol=1e-6)
    True
    """

    def __init__(self, attention: Attention, make_linear: MakeLinear) -> None:
        nn.Module.__init__(self)
        projections = (attention.query, attention.key, attention.value)
        self.heads, self.kv_heads, self.head_dim = attention.heads, attention.kv_heads, attention.head_dim
        self.scale, self.dropout, self.attend = attention.scale, attention.dropout, attention.attend
        self.widths = [part.out_features for part in projections]
        weights: list[Tensor] = [part.weight for part in projections]
        biases: list[Tensor] = [
            part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias for part in projections
        ]
        has_bias = any(part.bias is not None for part in projections)
        self.projections = make_linear(torch.cat(weights), torch.cat(biases) if has_bias else None)
        self.query_norm, self.key_norm, self.relative = attention.query_norm, attention.key_norm, attention.relative
        self.without_stack = attention.without_stack
        self.out = make_linear(attention.out.weight, attention.out.bias)  # type: ignore[assignment]  # any linear map
        self.projected: tuple[Tensor, Tensor, Tensor] | None = None  # the last rows, their queries and keys

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
        """Computes ``Attention.forward`` for self-attention; raises ``HeedfulError`` for another ``source``."""
        if source is not None:
            raise HeedfulError("fused projections compute self-attention only; use an Attention for cross-attention")
        mask, position = self.checked(mask, position, x.size(1), rows)
        cache = cache or NO_ATTENTION_CACHE
        q, k, v = (self.split(part) for part in self.projections(x).split(self.widths, -1))  # (B, heads, T, E)
        k, v = cache.update(lambda: (position.rotate(self.key_norm(k)), v))
        q, dropout = position.rotate(self.query_norm(q)), self.dropout if self.training else 0.0
        attend = self.probe or partial(rows.attend, self.attend)
        y = attend(q, k, v, mask, self.score_bias(position, q), self.scale, dropout)  # (B, H, T, E)
        return self.out(y.transpose(1, 2).flatten(2))

    def project_rows(self, rows: Tensor) -> KeysValues:
        """Returns the queries (H, P, E) and keys (K, P, E) of ``rows`` (P, D)."""
        q, k = self._project_once(rows)
        return self.query_norm(q), self.key_norm(k)

    def _project_once(self, rows: Tensor) -> KeysValues:
        """Projects rows; equal rows of the call before are not projected again, since prepacked weights never change.

        Texts of one length have equal rows, unless the model's table of positions has changed.
        """
        last = None if torch.compiler.is_compiling() or rows.requires_grad else self.projected
        if last is not None and rows.dtype == last[0].dtype and torch.equal(rows, last[0]):
            return last[1:]
        q, k, _ = (self.split(part) for part in self.projections(rows).split(self.widths, -1))
        if isinstance(self.projections, PrepackedLinear) and not torch.compiler.is_compiling():
            self.projected = rows.clone(), q, k
        return q, k


def plain_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """Returns a ``Linear`` with this weight and bias, without gradients."""
    linear = Linear(weight.size(1), weight.size(0), bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return linear
