"""Regression metrics: R², correlations and the mean absolute error."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from heedful.metrics.example_scores import Metrics, Places
from heedful.metrics.ranking import is_varied, pearson_of_rows, ranks_of_draws
from heedful.metrics.registry import Metric

METRICS = (
    Metric("r2", "R² × 100", headline=True),
    Metric("pearson", "Pearson correlation × 100"),
    Metric("mae", "mean absolute error", lower_is_better=True),
)
BLOCK = 1 << 15  # numbers computed at a time, so that they stay in a processor's cache


class Regression:
    """Per-example scores of predicted numbers: R², correlations, mean absolute error and loss.

    ``r2`` is 100 R², R² = 1 − Σ (y − ŷ)² / Σ (y − ȳ)²: 0 if all predictions are the mean ȳ of these examples, negative
    for worse predictions. ``pearson`` and ``spearman`` are 100 times the correlations. All three are 0 if all true
    numbers are equal. ``mae`` is the mean of ``|y − ŷ|``, in the unit of y, and ``loss`` the mean of
    ((y − ŷ) / factor)².

    Args:
        predicted: (N,) predicted numbers ŷ.
        true: (N,) true numbers y.
        factor: divisor of the errors in the loss.

    >>> scored = Regression([1.0, 2.0, 4.0], [1.0, 2.0, 3.0])
    >>> {name: round(value, 4) for name, value in scored.metrics_of(np.arange(3)).items()}
    {'r2': 50.0, 'pearson': 98.1981, 'spearman': 100.0, 'mae': 0.3333, 'loss': 0.3333}
    """

    def __init__(self, predicted: ArrayLike, true: ArrayLike, factor: float = 1.0) -> None:
        self.predicted, self.true = np.asarray(predicted, dtype=np.float64), np.asarray(true, dtype=np.float64)
        self.factor = factor

    def __len__(self) -> int:
        return len(self.true)

    def joined(self, other: Self) -> Regression:
        """Returns the scores of these examples followed by those of ``other``."""
        predicted = np.concatenate([self.predicted, other.predicted])
        return Regression(predicted, np.concatenate([self.true, other.true]), self.factor)

    def metrics_of(self, places: Places) -> Metrics:
        """Returns the metrics of the examples at the indices ``places``."""
        return self.metrics_of_draws(np.asarray(places)[None])[0]

    def metrics_of_draws(self, places: Places) -> list[Metrics]:
        """Returns the metrics of each of R selections; ``places`` (R, n) has the indices of one in each row."""
        step = max(1, BLOCK // max(1, places.shape[1], len(self)))
        blocks = (self._metrics(places[first : first + step]) for first in range(0, len(places), step))
        return [metrics for block in blocks for metrics in block]

    def _metrics(self, places: Places) -> list[Metrics]:
        predicted, true = self.predicted[places], self.true[places]  # (R, n)
        errors = true - predicted
        squares, spread = (errors**2).sum(1), ((true - true.mean(1, keepdims=True)) ** 2).sum(1)
        unexplained = np.divide(squares, spread, out=np.ones(len(true)), where=is_varied(true) & (spread != 0))
        ranks = (ranks_of_draws(values, places) for values in (self.predicted, self.true))
        columns = {
            "r2": 100 * (1 - unexplained),
            "pearson": 100 * pearson_of_rows(predicted, true),
            "spearman": 100 * pearson_of_rows(*ranks),
            "mae": np.abs(errors).mean(1),
            "loss": ((errors / self.factor) ** 2).mean(1),
        }
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
        return [dict(zip(columns, row, strict=True)) for row in rows]
