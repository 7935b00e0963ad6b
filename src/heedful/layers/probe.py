"""Probes: what a layer computes, seen without changing what it computes. Knows only torch.

A probe replaces the callable that attends (``Attention.attend``) while it lasts. The fused kernel still makes the
output; the weights are computed again, beside it, from the same q and k, and only for the heads asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Weights = Callable[[Tensor, Tensor, Any, float], Tensor]


class PatternProbe:
    """Attends as ``attend`` does, and keeps the pattern (B, heads, T, S) of its last call, before dropout.

    Args:
        attend: the callable to stand in for.
        weights: ``(q, k, mask, scale) -> softmax weights``.
        heads: which heads, in this order.
        keep: is given the detached pattern at every call.
    """

    def __init__(
        self,
        attend: Callable[..., Tensor],
        weights: Weights,
        heads: Sequence[int],
        keep: Callable[[Tensor], None],
    ) -> None:
        self.attend, self.weights, self.heads, self.keep = attend, weights, list(heads), keep

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float, dropout: float) -> Tensor:
        """The output of ``attend``, untouched."""
        heads = torch.as_tensor(self.heads, device=q.device)
        if isinstance(mask, Tensor):
            own = mask.broadcast_to(len(q), q.size(1), q.size(2), k.size(2))[:, heads]
        else:
            own = mask
        with torch.no_grad():
            keys = k[:, heads // (q.size(1) // k.size(1))]
            self.keep(self.weights(q[:, heads].detach(), keys.detach(), own, scale))
        return self.attend(q, k, v, mask, scale, dropout)
