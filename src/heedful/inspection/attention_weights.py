"""Attention weights: recomputed beside the fused kernel for observers, or edited and used for the output.

The fused kernel makes the output and keeps no weights. They are computed again from the same q and k, only for the
heads and queries asked for; where they are to be changed, the output is computed from what they became. Weights are in
float32 at least, as they are inside the kernel, whatever the model or autocast computes in.

Shapes: B sequences, H heads, K key-value heads, T queries, S keys, E head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.inspection.attention_maps import precise
from heedful.layers.attention import Attention, attention_scores, weights_of
from heedful.layers.probe import Tap, apart


class Watched(NamedTuple):
    """Who sees which weights: at every call ``receive(weights (B, heads, t, S), first)``.

    Attributes:
        kind: "scores" (−∞ where masked) or "pattern" (before dropout).
        heads: which, in this order; None: all.
        queries: given T, which of them, in order; None: all.
        rows: queries at a time; None: all at once. ``first`` counts those that went before.
        receive: who sees them.
    """

    kind: str
    heads: Sequence[int] | None
    queries: Callable[[int], Sequence[int]] | None
    rows: int | None
    receive: Callable[[Tensor, int], None]

    def parts(self, length: int) -> Iterator[tuple[int, Tensor]]:
        """The queries asked for, of ``length``, so many at a time, and how many went before."""
        queries = torch.as_tensor(list(range(length) if self.queries is None else self.queries(length)))
        rows = self.rows or max(1, len(queries))
        for first in range(0, len(queries), rows):
            yield first, queries[first : first + rows]


class Weights:
    """Attends as an attention does; shows weights to those who watch, and lets them be changed."""

    def __init__(self, part: Attention) -> None:
        self.part = part
        self.taps = {"scores": Tap(), "pattern": Tap()}
        self.watched: list[Watched] = []

    def __bool__(self) -> bool:
        """True if anything observes or edits the weights."""
        return bool(self.watched or any(self.taps.values()))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float, dropout: float) -> Tensor:
        """The output of ``attend`` (B, H, T, E), or where weights are changed what these make of the values."""
        shared = (k, v, mask)
        k, v, mask = apart(q, k, v, mask)
        if not any(self.taps.values()):
            for one in self.watched:
                _computed(one, q.detach(), k.detach(), mask, scale)
            return self.part.attend(q, *shared, scale, dropout)
        scores = self.taps["scores"](_precise_scores(q, k, mask, scale))
        pattern = self.taps["pattern"](weights_of(scores))
        for one in self.watched:
            _shown(one, (scores if one.kind == "scores" else pattern).detach())
        mixed = F.dropout(pattern, dropout) @ precise(v).repeat_interleave(q.size(1) // v.size(1), dim=1)
        return mixed.to(v.dtype)


def _precise_scores(q: Tensor, k: Tensor, mask: Any, scale: float) -> Tensor:
    with torch.autocast(q.device.type, enabled=False):
        return attention_scores(precise(q), precise(k), mask, scale)


@torch.inference_mode(False)  # what is shown may be used in autograd
@torch.no_grad()
def _computed(one: Watched, q: Tensor, k: Tensor, mask: Any, scale: float) -> None:
    """Computes the weights of the heads and queries that one observer asked for."""
    heads = torch.as_tensor(range(q.size(1)) if one.heads is None else one.heads, device=q.device)
    keys = precise(k[:, heads // (q.size(1) // k.size(1))])
    for first, queries in one.parts(q.size(2)):
        queries = queries.to(q.device)
        allowed = _rows(mask, heads, queries, q.size(2), k.size(2))
        scores = _precise_scores(q[:, heads[:, None], queries], keys, allowed, scale)
        one.receive(scores if one.kind == "scores" else weights_of(scores), first)


def _shown(one: Watched, weights: Tensor) -> None:
    """The same, of weights that are there."""
    heads = torch.as_tensor(range(weights.size(1)) if one.heads is None else one.heads, device=weights.device)
    for first, queries in one.parts(weights.size(2)):
        one.receive(weights[:, heads[:, None], queries.to(weights.device)], first)


def _rows(mask: Any, heads: Tensor, queries: Tensor, length: int, keys: int) -> Any:
    """The rows ``queries`` of a mask, for ``heads``; the causal one is aligned bottom-right."""
    if isinstance(mask, str):
        return torch.arange(keys, device=queries.device) <= (keys - length + queries)[:, None]
    if mask is None:
        return None
    mask = mask.reshape(*(1,) * (4 - mask.dim()), *mask.shape)
    mask = mask if mask.size(2) == 1 else mask[:, :, queries]  # first: a bias of all heads and queries is large
    return mask if mask.size(1) == 1 else mask[:, heads]
