"""Labels example by example: equal to scikit-learn's scores, of all examples and of any choice of them."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from heedful.metrics.classification import ClassifierScores
from heedful.metrics.example_scores import metrics_of_draws, overall
from tolerances import approx

scores = pytest.importorskip("sklearn.metrics")
LABELS = [f"class {i}" for i in range(7)]


def one_hot(ids: np.ndarray) -> np.ndarray:
    return np.eye(len(LABELS), dtype=int)[ids]


def in_batches(truth: np.ndarray, said: np.ndarray, several: bool = False, **means: np.ndarray) -> ClassifierScores:
    """Added in batches of any size, in any order."""
    order = np.random.default_rng(0).permutation(len(truth))
    scored = ClassifierScores(LABELS, len(truth), several)
    for places in np.split(order, [1, 1, len(order) // 2]):
        scored.add(places, truth[places], said[places], **{name: of[places] for name, of in means.items()})
    return scored


def by_class(truth: np.ndarray, said: np.ndarray) -> list[dict[str, Any]]:
    columns = scores.precision_recall_fscore_support(truth, said, labels=range(7), zero_division=0)
    names = ("precision", "recall", "f1")
    return [
        {"label": label, **{name: pytest.approx(100 * v) for name, v in zip(names, shares, strict=True)}, "support": s}
        for label, *shares, s in zip(LABELS, *columns, strict=True)
    ]


def single(truth: np.ndarray, said: np.ndarray) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a single class, by the one of theirs
        matthews = scores.matthews_corrcoef(truth, said)
    return {
        "accuracy": pytest.approx(100 * scores.accuracy_score(truth, said)),
        "macro_f1": pytest.approx(100 * scores.f1_score(truth, said, average="macro", zero_division=0)),
        "matthews": approx(100 * matthews, dtype=torch.float64),
    }


def several(truth: np.ndarray, said: np.ndarray) -> dict[str, Any]:
    def f1(average: str) -> Any:
        return pytest.approx(100 * scores.f1_score(truth, said, average=average, zero_division=0))

    exact = pytest.approx(100 * scores.accuracy_score(truth, said))
    return {"exact_match": exact, "micro_f1": f1("micro"), "macro_f1": f1("macro")}


@pytest.mark.parametrize("seed", range(4))
def test_one_label_each_equals_scikit_learn(seed: int) -> None:
    """Class 5 is never true, class 4 never said, class 6 neither."""
    draw = np.random.default_rng(seed)
    truth, said = draw.choice([0, 1, 2, 3, 4], 200), draw.choice([0, 1, 2, 3, 5], 200)
    said[:90] = np.where(truth[:90] == 4, 0, truth[:90])
    losses = draw.random(200)
    scored = in_batches(one_hot(truth), one_hot(said), loss=losses)
    assert overall(scored) == {"loss": pytest.approx(losses.mean()), **single(truth, said)}
    details = scored.details()
    assert details["by_class"] == by_class(truth, said)
    expected = scores.confusion_matrix(truth, said, labels=range(7)).tolist()
    assert details["confusion"] == {"labels": LABELS, "counts": expected}
    assert json.loads(json.dumps(details)) == details
    assert scored.outputs() == [LABELS[i] for i in said]
    for size in (1, 50, 400):
        places = draw.integers(200, size=size)
        told = {"loss": pytest.approx(losses[places].mean()), **single(truth[places], said[places])}
        assert scored.metrics_of(places) == told


@pytest.mark.parametrize("seed", range(4))
def test_several_labels_equal_scikit_learn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth, said = draw.random((60, 7)) < 0.3, draw.random((60, 7)) < 0.4
    said[:30] = truth[:30]
    truth[:, 5] = said[:, 4] = truth[:, 6] = said[:, 6] = False
    truth[0] = said[0] = False  # no label, and none said: right
    scored = in_batches(truth, said, several=True)
    assert overall(scored) == several(truth, said)
    details = scored.details()
    assert list(details) == ["by_class"]
    assert details["by_class"] == by_class(truth, said)
    assert scored.outputs()[:3] == [[LABELS[i] for i in np.flatnonzero(row)] for row in said[:3]]
    places = draw.integers(60, size=90)
    assert scored.metrics_of(places) == several(truth[places], said[places])


@pytest.mark.parametrize("labels_each", ["one", "several"])
def test_many_choices_at_once_have_the_scores_of_each(labels_each: str) -> None:
    """Choices of examples without some classes too: their macro F1 is the mean over fewer."""
    draw = np.random.default_rng(5)
    if labels_each == "one":
        truth, said = one_hot(draw.integers(7, size=30)), one_hot(draw.integers(5, size=30))
    else:
        truth, said = draw.random((30, 7)) < 0.3, draw.random((30, 7)) < 0.4
    losses = draw.random(30)
    scored = in_batches(truth, said, several=labels_each == "several", loss=losses)
    places = draw.integers(30, size=(9, 6))
    found = scored.metrics_of_draws(places)
    assert found == metrics_of_draws(scored, places)
    assert scored.metrics_of_draws(places[:0]) == []
    for row, metrics in zip(places, found, strict=True):
        oracle = several if labels_each == "several" else single
        given = (truth[row], said[row]) if labels_each == "several" else (truth[row].argmax(1), said[row].argmax(1))
        assert metrics == {"loss": pytest.approx(losses[row].mean()), **oracle(*given)}


def test_one_class_alone_and_none_said() -> None:
    ones = np.zeros(5, dtype=int)
    scored = in_batches(one_hot(ones), one_hot(ones))
    assert overall(scored) == {"accuracy": 100.0, "macro_f1": 100.0, "matthews": 0.0} == single(ones, ones)
    empty = in_batches(one_hot(ones).astype(bool), np.zeros((5, 7), dtype=bool), several=True)
    assert overall(empty) == {"exact_match": 0.0, "micro_f1": 0.0, "macro_f1": 0.0}
    assert empty.outputs() == [[]] * 5
    assert overall(in_batches(np.zeros((5, 7)), np.zeros((5, 7)), several=True))["exact_match"] == 100.0


def test_two_models_joined_whose_labels_stand_in_another_order() -> None:
    truth = [["a"], ["b"], ["c"], ["a"]]
    first = ClassifierScores.of(["a", "b", "c"], truth, [["a"], ["b"], ["b"], ["c"]])
    second = ClassifierScores.of(["c", "d", "a", "b"], truth, [["d"], ["b"], ["c"], ["a"]])
    both = first.joined(second)
    assert len(both) == 8
    assert both.outputs() == [*first.outputs(), *second.outputs()]
    assert both.metrics_of(np.arange(4)) == overall(first)
    assert both.metrics_of(np.arange(4, 8)) == overall(second)
    mixed = both.metrics_of(np.array([0, 5, 6, 3]))
    names = np.array([label for (label,) in truth])
    assert mixed == single(names, np.array(["a", "b", "c", "c"]))


def test_of_many_classes_a_few_numbers_an_example_are_held() -> None:
    """2,000 examples of 5,000 classes: 80 MB as probabilities, 10 MB as booleans."""
    scored = ClassifierScores([str(i) for i in range(5000)], 2000)
    for first in range(0, 2000, 100):
        batch = np.zeros((100, 5000), dtype=bool)
        batch[:, 3] = True
        scored.add(np.arange(first, first + 100), batch, batch, loss=np.ones(100))
    held = [array for parts in scored._pairs.values() for array in parts]
    assert sum(array.nbytes for array in held) < 2000 * 3 * 2 * 8 + 1
    assert overall(scored)["accuracy"] == 100.0
