"""Bootstrap confidence intervals of metrics (Efron 1979; for BLEU, Koehn 2004)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from heedful.metrics.example_scores import Figures, Places, Scored, each

TIMES, SEED, CONFIDENCE = 1000, 0, 0.95
HELD = 1 << 21  # places drawn at a time
FEW = 30  # below so many examples a percentile interval is notably too narrow
Interval = tuple[float, float]
Values = dict[str, NDArray[np.float64]]


def intervals(
    scored: Scored, times: int = TIMES, confidence: float = CONFIDENCE, seed: int = SEED
) -> dict[str, Interval]:
    """The interval of every metric: where the middle 95 % of it lie when the examples are drawn anew.

    N examples are drawn from the N with replacement, ``times`` times, and the metric computed of each draw; the
    interval reaches from the (1 − confidence) / 2 quantile of these to the (1 + confidence) / 2 quantile (the
    percentile bootstrap: Efron & Tibshirani 1993, chapter 13). It tells what other examples of the same kind would
    give, not what another training run would.

    Args:
        scored: N examples' scores.
        times: draws.
        confidence: the share of the draws within.
        seed: of the draws.

    Returns:
        name → (low, high), for each metric that has a finite value in every draw; nothing of fewer than two examples,
        which have nothing to be drawn anew.

    >>> from heedful.metrics.example_scores import Sums
    >>> right = Sums([[1, 1]] * 80 + [[0, 1]] * 20, lambda sums: {"accuracy": 100 * sums[0] / sums[1]})
    >>> intervals(right)
    {'accuracy': (72.0, 88.0)}
    """
    if len(scored) < 2:
        return {}
    return {name: interval(drawn, confidence) for name, drawn in resampled([scored], times, seed)[0].items()}


def standard_error(scored: Scored, name: str, times: int = 200, seed: int = SEED) -> float:
    """The bootstrap estimate of a metric's standard error: the standard deviation of the values it takes when the
    examples are drawn anew (Efron & Tibshirani 1993, algorithm 6.1, where 200 draws are found to be enough).

    Args:
        scored: N examples' scores.
        name: of the metric.
        times: draws.
        seed: of the draws.

    Returns:
        In units of the metric; 0 of fewer than two examples, and of a metric that is not finite in every draw.

    >>> from heedful.metrics.example_scores import Sums
    >>> right = Sums([[1, 1]] * 80 + [[0, 1]] * 20, lambda sums: {"accuracy": 100 * sums[0] / sums[1]})
    >>> round(standard_error(right, "accuracy"), 1)  # √(80 × 20 / 100) = 4, and 5 % of chance in 200 draws
    4.4
    """
    drawn = resampled([scored], times, seed)[0].get(name) if len(scored) > 1 else None
    return 0.0 if drawn is None else float(drawn.std(ddof=1))


def interval(drawn: NDArray[np.float64], confidence: float = CONFIDENCE) -> Interval:
    """The middle ``confidence`` of the values that were drawn."""
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def resampled(scored: Sequence[Scored], times: int = TIMES, seed: int = SEED) -> list[Values]:
    """The metrics of ``times`` draws of the examples, (times,) each; the same draws for all of ``scored``, which are
    the scores of the same examples. What is not finite in every draw is left out.
    """
    found: list[list[Figures]] = [[] for _ in scored]
    for places in draws(len(scored[0]), times, seed):
        for one, figures in zip(scored, found, strict=True):
            figures += each(one, places)
    return [columns(figures) for figures in found]


def draws(examples: int, times: int, seed: int) -> Iterator[Places]:
    """``times`` rows of ``examples`` places, drawn with replacement, so many at once as memory is to be given."""
    generator = np.random.default_rng(seed)
    rows = max(1, HELD // examples)
    for done in range(0, times, rows):
        yield generator.integers(examples, size=(min(rows, times - done), examples))


def columns(figures: Sequence[Figures]) -> Values:
    """Metric by metric what each draw gave, where all of it is finite."""
    names = [name for name in figures[0] if all(name in one for one in figures)]
    values = {name: np.array([one[name] for one in figures]) for name in names}
    return {name: column for name, column in values.items() if np.isfinite(column).all()}


def doubts(scored: Scored, found: Mapping[str, Interval]) -> list[str]:
    """What a person should know about these intervals: too few examples, or examples that are all alike."""
    number = len(scored)
    if number < 2:
        return ["a single example has no interval, and a text counts as one"]
    told = [f"of {number} examples an interval is too narrow; give {FEW} or more"] if number < FEW else []
    alike = [name for name, (low, high) in found.items() if low == high]
    if alike:
        told.append(
            f"{', '.join(alike)}: the same in every draw, so the interval tells nothing; what befalls one example in "
            f"{max(1, number // 3):,} may well be missing from {number:,} (the rule of three)"
        )
    return told
