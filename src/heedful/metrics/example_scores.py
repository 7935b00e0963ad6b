"""Per-example scores: metrics of any choice of examples, for intervals and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Places = NDArray[np.int64]
Figures = dict[str, float]
# of these the smaller is the better one, of every other metric the larger
LOWER_IS_BETTER = frozenset({"loss", "perplexity", "pseudo_perplexity", "bits_per_byte", "ter", "mae"})


class Scored(Protocol):
    """The scores of a number of examples."""

    def __len__(self) -> int:
        """How many examples were scored."""

    def figures(self, places: Places) -> Figures:
        """The metrics over the examples at these places; one that comes several times counts as often."""


@runtime_checkable
class Joins(Protocol):
    """Scores that can stand in one row with another model's, so that the two may be mixed."""

    def joined(self, other: Any) -> Scored:
        """These examples, and behind them the ``other``'s."""


class Sums:
    """Metrics that are a function of sums over the examples: accuracy, F1, BLEU, a mean loss.

    Args:
        statistics: (N, K), what each example adds: right and 1 for accuracy; found, said and true for F1.
        formula: the sums (K,) as metrics.

    >>> right = Sums([[1, 1], [0, 1], [1, 1]], lambda sums: {"accuracy": 100 * sums[0] / sums[1]})
    >>> right.figures(np.array([0, 2, 2]))
    {'accuracy': 100.0}
    """

    def __init__(self, statistics: ArrayLike, formula: Callable[[NDArray[Any]], Figures]) -> None:
        self.statistics, self.formula = np.asarray(statistics), formula

    def __len__(self) -> int:
        return len(self.statistics)

    def figures(self, places: Places) -> Figures:
        """``formula`` of the sums over these examples."""
        counts = np.bincount(places, minlength=len(self))
        return self._told(counts @ self.statistics)

    def each(self, places: Places) -> list[Figures]:
        """``figures`` of each row of ``places`` (R, n), by one product of matrices."""
        times, size = len(places), len(self)
        flat = (places + size * np.arange(times)[:, None]).ravel()
        counts = np.bincount(flat, minlength=times * size).reshape(times, size)
        return [self._told(sums) for sums in counts.astype(float) @ self.statistics.astype(float)]

    def joined(self, other: Self) -> Sums:
        """These examples, and behind them the ``other``'s, whose statistics are of the same kind."""
        return Sums(np.concatenate([self.statistics, other.statistics]), self.formula)

    def _told(self, sums: NDArray[Any]) -> Figures:
        return {name: float(value) for name, value in self.formula(sums).items()}


def overall(scored: Scored) -> Figures:
    """The metrics over all examples."""
    return scored.figures(np.arange(len(scored)))


def each(scored: Scored, places: Places) -> list[Figures]:
    """The metrics over the examples of each row of ``places`` (R, n)."""
    return scored.each(places) if isinstance(scored, Sums) else [scored.figures(row) for row in places]
