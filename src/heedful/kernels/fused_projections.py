"""Self-attention for answering: queries, keys and values come out of one product."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.layers.attention import NOTHING, Attention, Remembered
from heedful.layers.linear import Linear
from heedful.layers.mask import Mask
from heedful.layers.position import NOWHERE, Place

Pack = Callable[[Tensor, Tensor | None], nn.Module]


class FusedAttention(Attention):
    """Self-attention ``own`` with its three projections in one product: (q, k, v) = [W] x.

    ``pack`` makes a linear map of a weight and a bias. One reading of ``x``, one product instead of three.

    >>> own = Attention(16, heads=4, kv_heads=2).eval()
    >>> fused, x = FusedAttention(own, linear), torch.randn(2, 5, 16)
    >>> torch.allclose(fused(x, mask="causal"), own(x, mask="causal"), atol=1e-6)
    True
    """

    def __init__(self, own: Attention, pack: Pack) -> None:
        nn.Module.__init__(self)
        three = (own.query, own.key, own.value)
        self.heads, self.kv_heads, self.head_dim = own.heads, own.kv_heads, own.head_dim
        self.scale, self.dropout, self.attend = own.scale, own.dropout, own.attend
        self.widths = [part.out_features for part in three]
        weights: list[Tensor] = [part.weight for part in three]
        biases: list[Tensor] = [part.bias for part in three if part.bias is not None]
        self.projections = pack(torch.cat(weights), torch.cat(biases) if biases else None)
        self.query_norm, self.key_norm = own.query_norm, own.key_norm
        self.out = pack(own.out.weight, own.out.bias)  # type: ignore[assignment]  # a map all the same

    def forward(
        self,
        x: Tensor,
        source: Tensor | None = None,
        *,
        mask: Mask = None,
        position: Place | None = None,
        cache: Remembered | None = None,
    ) -> Tensor:
        """As ``Attention``'s, for self-attention alone: another ``source`` is refused."""
        if source is not None:
            raise HeedfulError("a fused attention looks at its own input; cross-attention keeps its projections apart")
        place, memory = position or NOWHERE, cache or NOTHING
        q, k, v = (self.split(part) for part in self.projections(x).split(self.widths, -1))
        k, v = memory.update(lambda: (place.rotate(self.key_norm(k)), v))
        y = (self.probe or self.attend)(
            place.rotate(self.query_norm(q)), k, v, mask, self.scale, self.dropout * self.training
        )
        return self.out(y.transpose(1, 2).flatten(2))


def linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """A plain linear map with these weights."""
    made = Linear(weight.size(1), weight.size(0), bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return made
