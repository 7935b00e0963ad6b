"""Ranking metrics of similarities: correlation with human scores, and retrieval of each text's partner in its pair.

Similarities are computed in blocks, so that memory holds N × D numbers, not N × N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heedful.metrics.example_scores import Metrics, Places, Sums

BLOCK = 1 << 22  # similarities computed at a time
AT = (1, 5, 10)  # the k of recall@k
Floats = NDArray[np.floating]


def unit(vectors: Floats) -> Floats:
    """Returns the vectors (N, D), each scaled to length 1; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Floats = vectors / np.maximum(lengths, np.finfo(vectors.dtype).tiny)
    return scaled


# --------------------------------------------------------------------------------------------------------- correlations


def average_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Returns the rank of each of N numbers, 1 for the smallest; equal numbers get the mean of their ranks.

    >>> average_ranks([10, 30, 20, 20]).tolist()
    [1.0, 4.0, 2.5, 2.5]
    """
    _, group, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[group]
    return ranks


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Returns Pearson's r = Σ (x − x̄)(y − ȳ) / √(Σ (x − x̄)² Σ (y − ȳ)²); 0 if x or y is constant.

    >>> round(pearson([1, 2, 3], [1, 2, 4]), 4)
    0.982
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    return float(pearson_of_rows(a[None], b[None])[0])


def pearson_of_rows(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns Pearson's r (R,) of each row of x (R, n) and y (R, n); 0 where a row of x or y is constant."""
    r = np.zeros(len(x))
    if not x.shape[1]:
        return r
    a, b = (values - values.mean(1, keepdims=True) for values in (x, y))
    norms = np.sqrt((a * a).sum(1)) * np.sqrt((b * b).sum(1))
    defined = is_varied(x) & is_varied(y) & (norms != 0)
    np.divide((a * b).sum(1), norms, out=r, where=defined)
    return np.clip(r, -1.0, 1.0)


def is_varied(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns for each row of ``values`` (R, n) whether its numbers differ."""
    varied: NDArray[np.bool_] = (values != values[:, :1]).any(1)
    return varied


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Returns Spearman's ρ, Pearson's r of the average ranks (Spearman 1904); 0 if x or y is constant.

    >>> round(spearman([1, 2, 3], [1, 2, 40]), 6)
    1.0
    """
    return pearson(average_ranks(x), average_ranks(y))


def ranks_of_draws(values: NDArray[np.float64], places: Places) -> NDArray[np.float64]:
    """Returns the average ranks (R, n) within each of R selections of N numbers, without sorting each of them.

    Row i equals ``average_ranks(values[places[i]])``. The numbers are counted by their index among all distinct
    ones, in O(R (n + N)) time and memory.

    >>> ranks_of_draws(np.array([10.0, 30.0, 20.0]), np.array([[0, 1, 2], [2, 1, 2]])).tolist()
    [[1.0, 3.0, 2.0], [1.5, 3.0, 1.5]]
    """
    distinct, codes = np.unique(values, return_inverse=True)
    keys = codes[places] + len(distinct) * np.arange(len(places))[:, None]
    counts = np.bincount(keys.ravel(), minlength=len(places) * len(distinct)).reshape(len(places), len(distinct))
    ranks: NDArray[np.float64] = (np.cumsum(counts, axis=1) - (counts - 1) / 2).ravel()[keys]
    return ranks


def cosent(cosines: ArrayLike, scores: ArrayLike, temperature: float) -> float:
    """Returns the CoSENT loss log(1 + Σ_{i,j: score_i > score_j} exp((cos_j − cos_i) / τ)) in nats.

    cos_i is the cosine of pair i, and τ the ``temperature``. Su 2022, "CoSENT"; Li and Li 2024, "AoE: Angle-optimized
    Embeddings", section 3.2. It takes O(N log N) time: sorted by score, the sum is Σ_i exp(−cos_i / τ) Σ_{j: score_j <
    score_i} exp(cos_j / τ).

    >>> round(cosent([0.9, 0.1], [5, 1], 0.1), 6), round(cosent([0.1, 0.9], [5, 1], 0.1), 3)
    (0.000335, 8.0)
    """
    logits, true = np.asarray(cosines, dtype=np.float64) / temperature, np.asarray(scores, dtype=np.float64)
    order = np.argsort(true, kind="stable")
    logits, true = logits[order], true[order]
    below = np.concatenate([[-np.inf], np.logaddexp.accumulate(logits)])[np.searchsorted(true, true)]
    return float(np.logaddexp.reduce(np.concatenate([[0.0], below - logits])))


class Correlations:
    """Per-example scores of pairs of texts: ``spearman`` and ``pearson`` (each × 100), and ``loss``, the CoSENT loss.

    Args:
        cosines: (N,) cosines of the pairs' vectors.
        scores: (N,) human similarity scores.
        temperature: τ of the loss.

    >>> round(Correlations([0.1, 0.5, 0.4], [1, 2, 3], 0.05).metrics_of(np.arange(3))["spearman"], 6)
    50.0
    """

    def __init__(self, cosines: ArrayLike, scores: ArrayLike, temperature: float) -> None:
        self.cosines, self.scores = np.asarray(cosines, dtype=np.float64), np.asarray(scores, dtype=np.float64)
        self.temperature = temperature

    def __len__(self) -> int:
        return len(self.scores)

    def joined(self, other: Self) -> Correlations:
        """Returns the scores of these pairs followed by those of ``other``."""
        cosines = np.concatenate([self.cosines, other.cosines])
        return Correlations(cosines, np.concatenate([self.scores, other.scores]), self.temperature)

    def metrics_of(self, places: Places) -> Metrics:
        """Returns the metrics of the pairs at the indices ``places``."""
        cosines, true = self.cosines[places], self.scores[places]
        return {
            "spearman": 100 * spearman(cosines, true),
            "pearson": 100 * pearson(cosines, true),
            "loss": cosent(cosines, true, self.temperature),
        }


# ------------------------------------------------------------------------------------------------------------ retrieval


class Retrieval(NamedTuple):
    """Results of a retrieval with N queries: ranks, losses and nearest candidates."""

    ranks: NDArray[np.int64]  # (N,), 1 if the query's own candidate is more similar than every wrong one
    losses: NDArray[np.float64]  # (N,), −log softmax of the own candidate, among it and the wrong ones, in nats
    nearest: NDArray[np.int64]  # (N,), index of the most similar candidate: the query's own or a wrong one


def rank_candidates(
    similarities: Callable[[slice], Floats],
    candidates: int,
    own: Sequence[int] | NDArray[np.int64],
    right: Sequence[NDArray[np.int64]],
    temperature: float,
) -> Retrieval:
    """Ranks each query's own candidate among all candidates by similarity.

    Other correct candidates of a query are left out of its rank and loss (the filtered setting of Bordes et al. 2013,
    section 4.2). A wrong candidate that is as similar as the own candidate ranks before it, so constant vectors
    retrieve nothing.

    Args:
        similarities: returns the similarities (n, C) of a slice of n queries to all C candidates, which are distinct
            texts.
        candidates: C, the number of candidates.
        own: (N,), index of each query's own candidate.
        right: indices of all correct candidates of each query, including its own.
        temperature: divisor of the similarities in the loss.
    """
    own = np.asarray(own, dtype=np.int64)
    ranks, losses, nearest = np.ones(len(own), np.int64), np.zeros(len(own)), np.zeros(len(own), np.int64)
    step = max(1, BLOCK // max(1, candidates))
    for first in range(0, len(own), step):
        part = slice(first, first + step)
        values = similarities(part)
        own_values = values[np.arange(len(values)), own[part]]
        before = ~(values < own_values[:, None])  # not "≥", so that NaN is never right
        for row, places in enumerate(right[part]):
            values[row, places], before[row, places] = -np.inf, False
        ranks[part] += before.sum(1)
        nearest[part] = np.where(ranks[part] == 1, own[part], values.argmax(1))
        top = np.maximum(own_values, values.max(1))
        wrong = np.exp((values - top[:, None]) / temperature).sum(1, dtype=np.float64)
        losses[part] = np.log(wrong + np.exp((own_values - top) / temperature)) + (top - own_values) / temperature
    return Retrieval(ranks, losses, nearest)


def retrieval(ranks: NDArray[np.int64], losses: NDArray[np.float64]) -> Sums:
    """Returns the scores of N queries: recall, mean reciprocal rank and mean ``loss``.

    ``recall_at_1``, ``recall_at_5`` and ``recall_at_10`` are the percentages of queries whose own candidate is among
    the 1, 5 and 10 most similar. ``mrr`` is 100 × the mean of 1 / rank (Voorhees 1999).

    >>> retrieval(np.array([1, 4]), np.zeros(2)).metrics_of(np.arange(2))
    {'recall_at_1': 50.0, 'recall_at_5': 100.0, 'recall_at_10': 100.0, 'mrr': 62.5, 'loss': 0.0}
    """
    hits = [ranks <= k for k in AT]
    names = [*(f"recall_at_{k}" for k in AT), "mrr", "loss"]
    scales = np.array([*(100.0 for _ in hits), 100.0, 1.0])

    def formula(sums: NDArray[np.float64]) -> Metrics:
        return dict(zip(names, scales * sums[:-1] / max(1.0, sums[-1]), strict=True))

    return Sums(np.stack([*hits, 1 / ranks, losses, np.ones(len(ranks))], axis=1), formula)
