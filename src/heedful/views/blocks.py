"""Attention among patches made small enough for a page: which weights are kept, how exactly, and in what blocks.

Letters in shapes: L layers, H heads, P tokens before the patches, N tokens in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.views.parts import scaled

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a page keeps of (L, H, N, N) weights beside the mean of heads and the rows of tokens that are no patches."""

    block: int = 1  # patches a side of what is drawn as one patch
    bits: int = 8  # of a weight that a single head gives from a patch; 0 where these are left out

    def size(self, layers: int, heads: int, prefix: int, grid: tuple[int, int]) -> int:
        """Bytes in a page, in base64."""
        patches = math.prod(-(-side // self.block) for side in grid)
        tokens = prefix + patches
        exact = layers * (tokens + 1 + heads * (prefix + 1)) * (tokens + 4)
        alone = layers * heads * patches * (tokens * self.bits // 8 + 4) if self.bits else 0
        return 4 * (exact + alone) // 3

    def told(self, heads: int) -> str:
        """What is not as the model had it, in sentences."""
        told = ["Weights are kept in 8 bits: within 0.2 % of the largest in their row."]
        if self.bits == 4:
            told.append("Those of single heads from patches are kept in 4 bits, within 7 %, to keep this page small.")
        if self.bits == 0 and heads > 1:
            told.append(f"To keep this page small, what a patch looks at is kept as the mean of {heads} heads only.")
        if self.block > 1:
            told.append(f"Also, {self.block} × {self.block} patches are drawn as one, with the sum of what they get.")
        return " ".join(told)


def plan(layers: int, heads: int, prefix: int, grid: tuple[int, int], most: int) -> Plan:
    """The plan that gives up least and stays within ``most`` bytes, or the smallest there is.

    >>> plan(12, 12, 1, (14, 14), 4_700_000)
    Plan(block=1, bits=4)
    """
    block = 1
    while True:
        for bits in (8, 4, 0) if heads > 1 else (0,):
            found = Plan(block=block, bits=bits)
            if found.size(layers, heads, prefix, grid) <= most:
                return found
        if block >= max(grid):
            return found
        block *= 2


def joined(weights: Array, prefix: int, grid: tuple[int, int], block: int) -> Array:
    """(..., N, N) over blocks of patches: the *sum* over a block's keys and the *mean* over its queries.

    >>> joined(np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]), 1, (1, 2), 2)
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    if block == 1:
        return weights
    belongs = membership(prefix, grid, block).astype(weights.dtype)
    means: Array = (belongs / belongs.sum(0)).T @ (weights @ belongs)
    return means


def membership(prefix: int, grid: tuple[int, int], block: int) -> Array:
    """(N, tokens after joining), 1 where a token belongs to one; those before the patches stay alone."""
    rows, columns = (np.arange(side) // block for side in grid)
    patches = (rows[:, None] * (columns[-1] + 1) + columns).ravel() + prefix
    return np.eye(int(patches[-1]) + 1)[np.concatenate([np.arange(prefix), patches])]


def kept(weights: Array, prefix: int, grid: tuple[int, int], chosen: Plan) -> dict[str, Any]:
    """What the page holds of (L, H, N, N) weights, each part as ``scaled``.

    ``mean`` is the mean of heads, with a last row for the mean over patches (L, N + 1, N); ``tokens`` are single heads'
    rows of the tokens before the patches, and that last row (L, H, P + 1, N); ``heads`` their rows of patches
    (L, H, N − P, N), or None where the plan leaves them out.
    """
    weights = joined(weights, prefix, grid, chosen.block)
    patches = weights[..., prefix:, :]
    last = patches.mean(axis=-2, keepdims=True)
    return {
        "mean": scaled(np.concatenate([weights, last], axis=-2).mean(axis=1)),
        "tokens": scaled(np.concatenate([weights[..., :prefix, :], last], axis=-2)),
        "heads": scaled(patches, chosen.bits) if chosen.bits else None,
    }
