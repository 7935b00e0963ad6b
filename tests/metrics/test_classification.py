"""The surest mistakes, and the labels of the largest scores: by hand and as in scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

from heedful.metrics.classification import Mistakes, is_in_top_k, single_label_metrics

scores_of = pytest.importorskip("sklearn.metrics")


def test_nothing_counted_is_zero_and_not_an_error() -> None:
    nothing = np.zeros(3, dtype=np.int64)
    assert single_label_metrics(nothing, nothing, nothing) == {"accuracy": 0.0, "macro_f1": 0.0, "matthews": 0.0}


def test_the_surest_mistakes_in_order() -> None:
    scores = np.random.default_rng(0).permutation(np.arange(1000)) / 1000
    scores[500:] = scores[:500]  # equals: the earlier place first
    mistakes = Mistakes()
    for place, score in enumerate(scores.tolist()):
        mistakes.add(place, f"text {place}", "yes", "no", score)
    kept = mistakes.most_confident()
    order = np.lexsort((np.arange(1000), -scores))[:50].tolist()
    assert [wrong["place"] for wrong in kept] == order
    place = order[0]
    first = {"place": place, "input": f"text {place}", "expected": "yes", "output": "no", "score": scores[place]}
    assert kept[0] == first


@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k_equals_scikit_learn(k: int) -> None:
    draw = np.random.default_rng(k)
    scores, truth = draw.normal(size=(300, 10)), draw.integers(10, size=300)
    expected = scores_of.top_k_accuracy_score(truth, scores, k=k, labels=range(10), normalize=False)
    assert is_in_top_k(scores, truth, k).sum() == expected


def test_a_model_that_knows_nothing_is_right_for_the_first_labels_alone() -> None:
    assert is_in_top_k(np.zeros((10, 10)), np.arange(10), 5).tolist() == [True] * 5 + [False] * 5
    assert not is_in_top_k(np.full((10, 10), np.nan), np.arange(10), 5).any()
