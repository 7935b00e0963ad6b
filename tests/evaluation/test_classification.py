"""Scores of classifiers: equal to scikit-learn's, batch by batch, absent classes included."""

from __future__ import annotations

import json

import numpy as np
import pytest

from heedful.evaluation.classification import Confusion, Mistakes, MultiLabel, within_top

sklearn_metrics = pytest.importorskip("sklearn.metrics")
LABELS = [f"class {i}" for i in range(7)]


def by_class(truth: np.ndarray, predicted: np.ndarray) -> list[dict[str, object]]:
    columns = sklearn_metrics.precision_recall_fscore_support(truth, predicted, labels=range(7), zero_division=0)
    return [
        {"label": label, "precision": 100 * p, "recall": 100 * r, "f1": 100 * f, "support": s}
        for label, p, r, f, s in zip(LABELS, *columns, strict=True)
    ]


def same(rows: list[dict[str, object]], expected: list[dict[str, object]]) -> bool:
    return [{**row, "f1": pytest.approx(row["f1"])} for row in rows] == [
        {k: pytest.approx(v) if isinstance(v, float) else v for k, v in row.items()} | {"f1": row["f1"]}
        for row in expected
    ]


@pytest.mark.parametrize("seed", range(5))
def test_confusion_equals_scikit_learn(seed: int) -> None:
    """Class 5 is never true, class 4 never said, class 6 neither; the batches are of any size."""
    draw = np.random.default_rng(seed)
    truth, predicted = draw.choice([0, 1, 2, 3, 4], 200), draw.choice([0, 1, 2, 3, 5], 200)
    predicted[:90] = np.where(truth[:90] == 4, 0, truth[:90])
    confusion = Confusion(LABELS)
    for first, last in [(0, 1), (1, 1), (1, 150), (150, 200)]:
        confusion.add(truth[first:last], predicted[first:last])
    assert confusion.metrics() == {
        "accuracy": pytest.approx(100 * sklearn_metrics.accuracy_score(truth, predicted)),
        "macro_f1": pytest.approx(100 * sklearn_metrics.f1_score(truth, predicted, average="macro", zero_division=0)),
    }
    details = confusion.details()
    assert same(details["by_class"], by_class(truth, predicted))
    expected = sklearn_metrics.confusion_matrix(truth, predicted, labels=range(7)).tolist()
    assert details["confusion"] == {"labels": LABELS, "counts": expected}
    assert json.loads(json.dumps(details)) == details


@pytest.mark.parametrize("seed", range(5))
def test_several_labels_equal_scikit_learn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth, predicted = draw.random((60, 7)) < 0.3, draw.random((60, 7)) < 0.4
    predicted[:30] = truth[:30]
    truth[:, 5] = predicted[:, 4] = truth[:, 6] = predicted[:, 6] = False
    truth[0] = predicted[0] = False  # no label, and none said: right
    scores = MultiLabel(LABELS)
    for batch in (slice(0, 13), slice(13, 60)):
        scores.add(truth[batch], predicted[batch])

    def f1(average: str) -> object:
        return pytest.approx(100 * sklearn_metrics.f1_score(truth, predicted, average=average, zero_division=0))

    assert scores.metrics() == {
        "exact_match": pytest.approx(100 * sklearn_metrics.accuracy_score(truth, predicted)),
        "micro_f1": f1("micro"),
        "macro_f1": f1("macro"),
    }
    assert same(scores.details()["by_class"], by_class(truth, predicted))
    assert json.loads(json.dumps(scores.details())) == scores.details()


def test_nothing_counted_is_zero_and_not_an_error() -> None:
    assert Confusion(LABELS).metrics() == {"accuracy": 0.0, "macro_f1": 0.0}
    assert MultiLabel(LABELS).metrics() == {"exact_match": 0.0, "micro_f1": 0.0, "macro_f1": 0.0}
    assert {row["precision"] for row in Confusion(LABELS).details()["by_class"]} == {0.0}


def test_the_surest_mistakes_in_order() -> None:
    scores = np.random.default_rng(0).permutation(np.arange(1000)) / 1000
    scores[500:] = scores[:500]  # equals: the earlier place first
    mistakes = Mistakes()
    for place, score in enumerate(scores.tolist()):
        mistakes.add(place, f"text {place}", "yes", "no", score)
    kept = mistakes.surest()
    order = np.lexsort((np.arange(1000), -scores))[:50].tolist()
    assert [wrong["place"] for wrong in kept] == order
    place = order[0]
    first = {"place": place, "input": f"text {place}", "expected": "yes", "output": "no", "score": scores[place]}
    assert kept[0] == first


@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k_equals_scikit_learn(k: int) -> None:
    draw = np.random.default_rng(k)
    scores, truth = draw.normal(size=(300, 10)), draw.integers(10, size=300)
    expected = sklearn_metrics.top_k_accuracy_score(truth, scores, k=k, labels=range(10), normalize=False)
    assert within_top(scores, truth, k) == expected


def test_a_model_that_knows_nothing_is_right_for_the_first_labels_alone() -> None:
    assert within_top(np.zeros((10, 10)), np.arange(10), 5) == 5
    assert within_top(np.full((10, 10), np.nan), np.arange(10), 5) == 0
