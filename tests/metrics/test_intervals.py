"""Bootstrap intervals: against draws one by one, against the normal approximation, and by what they promise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from heedful.errors import HeedfulError
from heedful.metrics.classification import ClassifierScores
from heedful.metrics.example_scores import Metrics, Places, Sums, metrics_of_draws, overall
from heedful.metrics.intervals import caveats, draws, intervals, resampled, standard_error
from heedful.metrics.translation import translation_scores


def rate(right: Any) -> Sums:
    return Sums([[one, 1] for one in right], lambda sums: {"accuracy": 100 * sums[0] / sums[1]})


def test_statistics_with_other_columns_are_not_joined() -> None:
    with_loss = Sums([[1, 0.5, 1]] * 4, lambda sums: {"accuracy": 100 * sums[0] / sums[2]})
    with pytest.raises(
        HeedfulError, match=r"shapes \(3, 2\) and \(4, 3\) cannot be compared; give .* the same columns"
    ):
        rate([1, 0, 1]).joined(with_loss)


class Median:
    """Scores that are no function of sums."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __len__(self) -> int:
        return len(self.values)

    def metrics_of(self, places: Places) -> Metrics:
        return {"median": float(np.median(self.values[places]))}


def test_sums_of_many_draws_are_those_of_each() -> None:
    generator = np.random.default_rng(1)
    statistics = generator.random((40, 3))
    scored = Sums(statistics, lambda sums: {"ratio": sums[0] / sums[1], "sum": sums[2]})
    places = generator.integers(40, size=(11, 25))
    for row, figures in zip(places, metrics_of_draws(scored, places), strict=True):
        a, b, c = statistics[row].sum(0)
        assert figures == {"ratio": pytest.approx(a / b), "sum": pytest.approx(c)}
        assert scored.metrics_of(row) == {"ratio": pytest.approx(a / b), "sum": pytest.approx(c)}
    assert overall(scored)["sum"] == pytest.approx(statistics[:, 2].sum())


def test_an_interval_is_the_middle_of_the_draws() -> None:
    values = np.random.default_rng(2).normal(size=60)
    scored = Median(values)
    drawn = np.sort([np.median(values[row]) for places in draws(60, 1000, 0) for row in places])
    assert len(drawn) == 1000
    (low, high) = intervals(scored)["median"]
    assert low == pytest.approx(np.quantile(drawn, 0.025))
    assert high == pytest.approx(np.quantile(drawn, 0.975))
    (less, more) = intervals(scored, confidence=0.5)["median"]
    assert low < less < np.median(values) < more < high


def test_the_same_draws_again_for_every_model_and_however_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    right = np.random.default_rng(3).random(50) < 0.7
    first = intervals(rate(right))
    assert intervals(rate(right)) == first
    assert intervals(rate(right), seed=1) != first
    one, other = resampled([rate(right), rate(~right)])
    assert np.allclose(one["accuracy"] + other["accuracy"], 100)
    whole = np.concatenate(list(draws(50, 1000, 0)))
    monkeypatch.setattr("heedful.metrics.intervals.MAX_DRAWN", 70)
    parts = list(draws(50, 1000, 0))
    assert len(parts) == 1000
    assert (np.concatenate(parts) == whole).all()
    assert intervals(rate(right)) == first


def test_they_cover_the_truth_as_often_as_they_say() -> None:
    """600 samples of 200 answers, 80 % of them right: about 95 % of the intervals hold the 80."""
    generator = np.random.default_rng(4)
    held = 0
    for _ in range(600):
        low, high = intervals(rate(generator.random(200) < 0.8), times=400)["accuracy"]
        held += low <= 80 <= high
    assert 0.92 <= held / 600 <= 0.975


def test_they_are_as_wide_as_the_normal_approximation_says() -> None:
    """Of 2,000 answers, 88.7 % right: ± 1.96 √(p (1 − p) / N)."""
    right = np.arange(2000) < 1774
    low, high = intervals(rate(right))["accuracy"]
    half = 196 * math.sqrt(0.887 * 0.113 / 2000)
    assert low == pytest.approx(88.7 - half, abs=0.2)
    assert high == pytest.approx(88.7 + half, abs=0.2)


@pytest.mark.parametrize("right", [0.5, 0.8, 0.94])
def test_a_standard_error_is_that_of_the_formula(right: float) -> None:
    """Of a share: 100 √(p (1 − p) / N); 2,000 draws are off by 1.6 %."""
    found = standard_error(rate(np.arange(1000) < 1000 * right), "accuracy", times=2000)
    assert found == pytest.approx(100 * math.sqrt(right * (1 - right) / 1000), rel=0.06)


def test_metrics_without_a_standard_error_have_none() -> None:
    assert standard_error(rate([1]), "accuracy") == 0.0
    assert standard_error(rate([1, 1, 1]), "accuracy") == 0.0
    assert standard_error(rate([1, 0, 1]), "bleu") == 0.0
    lost = Sums([[1, 0], [1, 1]], lambda sums: {"share": sums[0] / sums[1] if sums[1] else math.nan})
    assert standard_error(lost, "share") == 0.0


def test_every_metric_of_a_translation_and_of_a_classifier_has_one() -> None:
    draw = np.random.default_rng(5)
    references = [" ".join(draw.choice(list("abcdef"), 8)) for _ in range(40)]
    outputs = [text if draw.random() < 0.3 else text[:-4] + "x y" for text in references]
    scored = translation_scores(outputs, references)
    found, middle = intervals(scored, times=200), overall(scored)
    assert list(found) == ["bleu", "chrf", "ter", "exact_match"]
    labels = ClassifierScores.of(["a", "b"], [["a"], ["b"]] * 30, [["a"], ["a"]] * 15 + [["a"], ["b"]] * 15)
    found |= intervals(labels, times=200)
    middle |= overall(labels)
    assert {"accuracy", "macro_f1", "matthews"} < set(found)
    for name, (low, high) in found.items():
        assert low < middle[name] < high


def test_a_metric_that_is_not_finite_in_every_draw_has_no_interval() -> None:
    def formula(sums: Any) -> Metrics:
        return {"share": sums[0] / 10, "ratio": sums[0] / sums[1] if sums[1] else math.nan}

    scored = Sums([[1, 0], [2, 0], [0, 1]], formula)
    assert list(intervals(scored)) == ["share"]


def test_few_examples_and_examples_that_are_all_alike_are_told_of() -> None:
    assert intervals(rate([1])) == {}
    assert caveats(rate([1]), {}) == [
        "a single example has no interval (a text counts as one example); give more examples"
    ]
    (few,) = caveats(rate([1, 0] * 6), intervals(rate([1, 0] * 6)))
    assert few == "the interval of 12 examples is too narrow; give 30 examples or more"
    assert caveats(rate([1, 0] * 50), intervals(rate([1, 0] * 50))) == []
    alike = intervals(rate([1] * 60))
    assert alike == {"accuracy": (100.0, 100.0)}
    (told,) = caveats(rate([1] * 60), alike)
    assert told.startswith("the interval of accuracy has width 0")
