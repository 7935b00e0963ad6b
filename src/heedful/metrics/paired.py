"""Paired comparison of two models on the same examples: bootstrap intervals and p-values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heedful.metrics.example_scores import Joins, Metrics, Scored, metrics_of_draws, overall
from heedful.metrics.intervals import CONFIDENCE, MAX_DRAWN, SEED, TIMES, columns, interval, resampled
from heedful.metrics.registry import lower_is_better

ROUNDING = 1e-9  # tolerance of differences that are equal but for rounding


@dataclass(frozen=True)
class Difference:
    """Values of one metric for two models, A and B, on the same examples, and their difference."""

    a: float
    b: float
    difference: float  # b − a
    interval: tuple[float, float] | None = None  # of the difference, by the paired bootstrap
    p: float | None = None  # p-value of approximate randomisation
    better: str | None = None  # "a" or "b" if p is below 1 − confidence
    error: float | None = None  # standard error of the difference, by the paired bootstrap


def differences(
    a: Scored, b: Scored, times: int = TIMES, confidence: float = CONFIDENCE, seed: int = SEED
) -> dict[str, Difference]:
    """Returns the difference B − A of each metric, with its interval and p-value.

    The interval is that of the paired bootstrap (Koehn 2004, section 4): examples are drawn with replacement, the
    same for both models, and the difference is computed for each draw. The p-value is that of approximate randomisation
    (Noreen 1989; Riezler & Maxwell 2005). If the models were equally good, their predictions for an example could be
    exchanged. So a coin decides for each example whether to exchange them. This is repeated ``times`` times, and
    p = (1 + repetitions with a difference at least as large in absolute value) / (1 + repetitions). The p-value decides
    which model is better, since it is also valid if few predictions differ. The bootstrap then finds differences too
    often: if three predictions differ and all three are correct in B, p is 1/4, but 95 % of the bootstrap's draws
    favour B.

    Args:
        a, b: scores of the same examples.
        times: number of draws, and of repetitions with exchanged predictions.
        confidence: confidence of the interval; p below 1 − confidence means that one model is better.
        seed: seed of the draws.

    Returns:
        Metric → difference, for the metrics that both models have.

    >>> from heedful.metrics.example_scores import Sums
    >>> rate = lambda sums: {"accuracy": 100 * sums[0] / sums[1]}
    >>> a, b = (Sums([[right, 1] for right in answers], rate) for answers in ([0, 0, 1, 1], [1, 0, 1, 1]))
    >>> accuracy = differences(a, b)["accuracy"]
    >>> accuracy.difference, accuracy.p, accuracy.better
    (25.0, 1.0, None)
    """
    if len(a) != len(b):
        raise ValueError(f"the models were scored on {len(a)} and {len(b)} examples; score both on the same examples")
    first, second = overall(a), overall(b)
    drawn_a, drawn_b = resampled([a, b], times, seed)
    chance = randomised(a, b, times, seed)
    result = {}
    for name in (name for name in first if name in chance and name in drawn_a and name in drawn_b):
        difference = second[name] - first[name]
        least = abs(difference) * (1 - ROUNDING) - ROUNDING
        p = float(1 + (np.abs(chance[name]) >= least).sum()) / (1 + times)
        upper = (difference > 0) != lower_is_better(name)
        better = ("b" if upper else "a") if p < 1 - confidence else None
        drawn = drawn_b[name] - drawn_a[name]
        error = float(drawn.std(ddof=1))
        result[name] = Difference(first[name], second[name], difference, interval(drawn, confidence), p, better, error)
    return result


def randomised(a: Scored, b: Scored, times: int = TIMES, seed: int = SEED) -> dict[str, NDArray[np.float64]]:
    """Returns, for each metric, ``times`` differences B − A under the null hypothesis that both models are equally
    good.

    For each difference, a coin decides for each example whether the two models' predictions are exchanged.
    """
    if not isinstance(a, Joins) or not isinstance(b, Joins):
        raise ValueError(f"{type(a).__name__} has no method 'joined', which p-values need; add the method")
    joined, size = a.joined(b), len(a)
    generator = np.random.default_rng(seed)
    rows, indices = max(1, MAX_DRAWN // (2 * size)), np.arange(size)
    differences: list[Metrics] = []
    for done in range(0, times, rows):
        exchanged = generator.integers(2, size=(min(rows, times - done), size)) * size
        firsts = metrics_of_draws(joined, indices + exchanged)
        seconds = metrics_of_draws(joined, indices + size - exchanged)
        for first, second in zip(firsts, seconds, strict=True):
            differences.append({name: second[name] - first[name] for name in first.keys() & second.keys()})
    return columns(differences)


def comparison_line(name: str, difference: Difference, confidence: float = CONFIDENCE) -> str:
    """Returns the comparison of two models by one metric as one line for people.

    >>> comparison_line("bleu", Difference(31.0, 33.0, 2.0, (0.8, 3.1), 0.001, "b"))
    'B is better at 95 %: bleu 31 → 33, +2 (+0.8 to +3.1), p = 0.001'
    """
    numbers = f"{name} {difference.a:.4g} → {difference.b:.4g}, {difference.difference:+.3g}"
    if difference.interval is None or difference.p is None:
        return f"one example (a text counts as one) cannot show which model is better: {numbers}"
    low, high = difference.interval
    numbers += f" ({low:+.3g} to {high:+.3g}), p = {difference.p:.2g}"
    if difference.better is None:
        return f"no difference shown at {100 * confidence:g} %: {numbers}"
    return f"{difference.better.upper()} is better at {100 * confidence:g} %: {numbers}"
