"""Per-example scores: metrics of any selection of the examples, for intervals and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heedful.errors import HeedfulError

Places = NDArray[np.int64]
Metrics = dict[str, float]


class Scored(Protocol):
    """Protocol of per-example scores: objects that return the metrics of any selection of the examples."""

    def __len__(self) -> int:
        """Returns the number of examples."""

    def metrics_of(self, places: Places) -> Metrics:
        """Returns the metrics of the examples at the indices ``places``; a repeated index counts repeatedly."""


@runtime_checkable
class Draws(Protocol):
    """Protocol of per-example scores that compute the metrics of several selections at once."""

    def metrics_of_draws(self, places: Places) -> list[Metrics]:
        """Returns the metrics of each of R selections; ``places`` (R, n) has the indices of one in each row."""


@runtime_checkable
class Joins(Protocol):
    """Protocol of per-example scores that can be concatenated with another model's, for randomisation tests."""

    def joined(self, other: Any) -> Scored:
        """Returns the scores of these examples followed by those of ``other``."""


class Sums:
    """Per-example scores whose metrics are a function of sums over the examples: accuracy, F1, BLEU, a mean loss.

    Args:
        statistics: (N, K), K summands of each of N examples: for accuracy (1 if correct else 0, 1); for F1 the numbers
            of true positives, predicted and true labels.
        formula: returns the metrics for the sums (K,).

    >>> scores = Sums([[1, 1], [0, 1], [1, 1]], lambda sums: {"accuracy": 100 * sums[0] / sums[1]})
    >>> scores.metrics_of(np.array([0, 2, 2]))
    {'accuracy': 100.0}
    """

    def __init__(self, statistics: ArrayLike, formula: Callable[[NDArray[Any]], Metrics]) -> None:
        self.statistics, self.formula = np.asarray(statistics), formula

    def __len__(self) -> int:
        return len(self.statistics)

    def metrics_of(self, places: Places) -> Metrics:
        """Returns the metrics of the examples at the indices ``places``; a repeated index counts repeatedly."""
        counts = np.bincount(places, minlength=len(self))
        return self._metrics(counts @ self.statistics)

    def metrics_of_draws(self, places: Places) -> list[Metrics]:
        """Returns the metrics of each of R selections of examples, computed by one matrix product.

        ``places`` (R, n) has the indices of a selection in each row.
        """
        times, size = len(places), len(self)
        flat = (places + size * np.arange(times)[:, None]).ravel()
        counts = np.bincount(flat, minlength=times * size).reshape(times, size)
        return [self._metrics(sums) for sums in counts.astype(float) @ self.statistics.astype(float)]

    def joined(self, other: Self) -> Sums:
        """Returns the scores of these examples followed by those of ``other``, which has the same columns.

        Raises ``HeedfulError`` if it has another number of columns.
        """
        own, others = self.statistics.shape, other.statistics.shape
        if own[1:] != others[1:]:
            raise HeedfulError(
                f"statistics of shapes {own} and {others} cannot be compared; give the scores of a model and of its "
                "baseline the same columns, 0 where one has no value"
            )
        return Sums(np.concatenate([self.statistics, other.statistics]), self.formula)

    def _metrics(self, sums: NDArray[Any]) -> Metrics:
        return {name: float(value) for name, value in self.formula(sums).items()}


def overall(scored: Scored) -> Metrics:
    """Returns the metrics of all examples."""
    metrics = scored.metrics_of(np.arange(len(scored)))
    return {name: float(value) for name, value in metrics.items()}  # not NumPy's, which JSON and YAML do not know


def metrics_of_draws(scored: Scored, places: Places) -> list[Metrics]:
    """Returns the metrics of each of R selections of examples; ``places`` (R, n) has the indices of one in each row."""
    if isinstance(scored, Draws):
        return scored.metrics_of_draws(places)
    return [scored.metrics_of(row) for row in places]
