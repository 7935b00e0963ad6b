"""Bootstrap confidence intervals of metrics (Efron 1979; for BLEU, Koehn 2004)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from heedful.metrics.example_scores import Metrics, Places, Scored, metrics_of_draws

TIMES, SEED, CONFIDENCE = 1000, 0, 0.95
MAX_DRAWN = 1 << 21  # indices drawn at a time
FEW = 30  # number of examples below which a percentile interval is notably too narrow
Interval = tuple[float, float]
Values = dict[str, NDArray[np.float64]]


def intervals(
    scored: Scored, times: int = TIMES, confidence: float = CONFIDENCE, seed: int = SEED
) -> dict[str, Interval]:
    """Returns the bootstrap confidence interval of each metric.

    N examples are drawn from the N with replacement, ``times`` times, and the metric is computed for each draw; the
    interval reaches from the (1 − confidence) / 2 quantile of these values to the (1 + confidence) / 2 quantile (the
    percentile bootstrap: Efron & Tibshirani 1993, chapter 13). It accounts for the random choice of examples, not for
    the randomness of training.

    Args:
        scored: the scores of N examples.
        times: number of draws.
        confidence: share of the draws inside the interval.
        seed: seed of the draws.

    Returns:
        Metric → (low, high), for each metric that is finite in every draw; empty for fewer than two examples.

    >>> from heedful.metrics.example_scores import Sums
    >>> right = Sums([[1, 1]] * 80 + [[0, 1]] * 20, lambda sums: {"accuracy": 100 * sums[0] / sums[1]})
    >>> intervals(right)
    {'accuracy': (72.0, 88.0)}
    """
    if len(scored) < 2:
        return {}
    return {name: interval(drawn, confidence) for name, drawn in resampled([scored], times, seed)[0].items()}


def standard_error(scored: Scored, name: str, times: int = 200, seed: int = SEED) -> float:
    """Returns the bootstrap estimate of a metric's standard error.

    It is the standard deviation of the metric over draws of the examples with replacement (Efron & Tibshirani 1993,
    algorithm 6.1; 200 draws are enough).

    Args:
        scored: the scores of N examples.
        name: name of the metric.
        times: number of draws.
        seed: seed of the draws.

    Returns:
        The error in units of the metric; 0 for fewer than two examples, or if a draw's metric is not finite.

    >>> from heedful.metrics.example_scores import Sums
    >>> right = Sums([[1, 1]] * 80 + [[0, 1]] * 20, lambda sums: {"accuracy": 100 * sums[0] / sums[1]})
    >>> round(standard_error(right, "accuracy"), 1)  # √(80 × 20 / 100) = 4, and 5 % of chance in 200 draws
    4.4
    """
    drawn = resampled([scored], times, seed)[0].get(name) if len(scored) > 1 else None
    return 0.0 if drawn is None else float(drawn.std(ddof=1))


def interval(drawn: NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval:
    """Returns (low, high), the central interval that contains the fraction ``confidence`` of the values ``drawn``."""
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def resampled(scored: Sequence[Scored], times: int = TIMES, seed: int = SEED) -> list[Values]:
    """Returns, for each of several scores, the values (times,) of its metrics over draws of examples with replacement.

    All of ``scored`` must be scores of the same examples, and get the same draws. A metric that is not finite in every
    draw is left out.
    """
    metrics: list[list[Metrics]] = [[] for _ in scored]
    for places in draws(len(scored[0]), times, seed):
        for scores, values in zip(scored, metrics, strict=True):
            values += metrics_of_draws(scores, places)
    return [columns(values) for values in metrics]


def draws(examples: int, times: int, seed: int) -> Iterator[Places]:
    """Yields random draws of examples with replacement, in blocks: arrays of indices with one draw in each row.

    A draw has ``examples`` indices from 0 to ``examples`` − 1; all blocks together have ``times`` rows.
    """
    generator = np.random.default_rng(seed)
    rows = max(1, MAX_DRAWN // examples)
    for done in range(0, times, rows):
        yield generator.integers(examples, size=(min(rows, times - done), examples))


def columns(metrics: Sequence[Metrics]) -> Values:
    """Returns the values of each metric over all draws, for metrics that are finite in every draw.

    ``metrics`` has the metrics of each draw.
    """
    names = [name for name in metrics[0] if all(name in draw for draw in metrics)]
    values = {name: np.array([draw[name] for draw in metrics]) for name in names}
    return {name: column for name, column in values.items() if np.isfinite(column).all()}


def caveats(scored: Scored, bounds: Mapping[str, Interval]) -> list[str]:
    """Returns caveats about confidence intervals for people, a line each: few examples, or a metric that never varies.

    ``scored`` are the scores from which the intervals ``bounds`` were computed.
    """
    number = len(scored)
    if number < 2:
        return ["a single example has no interval (a text counts as one example); give more examples"]
    lines = [f"the interval of {number} examples is too narrow; give {FEW} examples or more"] if number < FEW else []
    constant = [name for name, (low, high) in bounds.items() if low == high]
    if constant:
        lines.append(
            f"the interval of {', '.join(constant)} has width 0, since all examples give the same result; {number:,} "
            f"examples may miss results with a rate up to 1 in {max(1, number // 3):,} (rule of three); give more"
        )
    return lines
