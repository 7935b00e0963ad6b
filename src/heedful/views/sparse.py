"""Rows of attention weights made small enough for a page: the largest of each row are kept, and the rest as a sum.

Letters in shapes: L layers, H heads, t queries, s keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.views.parts import scaled, stored

Array = np.ndarray[Any, np.dtype[Any]]
FEW = 6  # weights of a row, below which single heads are left out rather than more of their weights


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What is kept of (L, H, t, s) weights beside the mean of heads."""

    alone: bool  # single heads, not only their mean
    most: int  # weights of a row; s keeps them all
    steps: int  # queries, from the first

    def told(self, heads: int, steps: int, keys: int) -> str:
        """What is left out, in sentences."""
        told = []
        if self.most < keys:
            told.append(f"Of each row the {self.most} largest weights are kept; “all others” is the sum of the rest.")
        if not self.alone and heads > 1:
            told.append(f"Of {heads} heads only the mean is kept.")
        if self.steps < steps:
            told.append(f"Only the first {self.steps:,} of {steps:,} tokens have weights.")
        return " ".join(told)


def cut(shape: tuple[int, int, int, int], room: int) -> Cut:
    """The cut of weights of this shape that gives up least and stays within ``room`` bytes of a page.

    >>> cut((12, 12, 500, 510), 4_000_000)
    Cut(alone=True, most=11, steps=500)
    """
    layers, heads, steps, keys = shape
    for alone in (True, False) if heads > 1 else (False,):
        rows = layers * (heads + 1 if alone else 1)
        bytes_of_a_row = 3 * room / 4 / (rows * steps) - 4
        if bytes_of_a_row >= keys:
            return Cut(alone=alone, most=keys, steps=steps)
        most = int(bytes_of_a_row // 3)
        if most >= min(FEW, keys):
            return Cut(alone=alone, most=min(most, keys), steps=steps)
    most = min(FEW, keys)
    return Cut(alone=False, most=most, steps=max(1, min(steps, int(3 * room / 4 / (layers * (3 * most + 4))))))


def grouped(weights: Array, starts: Sequence[int]) -> Array:
    """(..., s) summed over groups of keys, each from one of ``starts`` to the next; the last to the end.

    >>> grouped(np.array([[0.1, 0.2, 0.3, 0.4]]), [0, 1, 3])
    array([[0.1, 0.5, 0.4]])
    """
    if len(starts) == weights.shape[-1]:
        return weights
    sums: Array = np.add.reduceat(weights, starts, axis=-1)
    return sums


def kept(weights: Array, chosen: Cut) -> dict[str, Any]:
    """The rows that the page holds: (L, H + 1, t, s), the last "head" the mean; or (L, 1, t, s), the mean alone.

    Weights are as ``scaled``. Where not all of a row are kept, ``places`` says which keys they belong to.
    """
    rows = weights[:, :, : chosen.steps].mean(axis=1, keepdims=True)
    if chosen.alone:
        rows = np.concatenate([weights[:, :, : chosen.steps], rows], axis=1)
    places = None
    if chosen.most < rows.shape[-1]:
        places = np.argpartition(rows, -chosen.most, axis=-1)[..., -chosen.most :]
        rows = np.take_along_axis(rows, places, axis=-1)
    return {
        "steps": chosen.steps,
        "alone": chosen.alone,
        "most": chosen.most,
        **scaled(rows),
        "places": None if places is None else stored(places, "<u2"),
    }
