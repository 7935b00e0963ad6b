"""Classification metrics from counts, per-example scores and the most confident mistakes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heedful.metrics.example_scores import Metrics, Places
from heedful.metrics.registry import Metric

METRICS = (
    Metric("accuracy", "accuracy, %", headline=True),
    Metric("macro_f1", "macro F1, %"),
    Metric("micro_f1", "micro F1, %", headline=True),
    Metric("f1", "F1, %"),
    Metric("matthews", "Matthews correlation × 100"),
    Metric("top5_accuracy", "top-5 accuracy, %"),
)
Counts = NDArray[Any]  # whole numbers


def classified(true: Counts, predicted: Counts, right: Counts) -> dict[str, float]:
    """Returns the metrics of examples with one label each.

    With TP right predictions of a class: precision P = TP / predicted, recall R = TP / true,
    F1 = 2TP / (predicted + true), in percent, 0 where the denominator is 0. Macro F1 is the mean over the classes that
    were true or predicted at least once, as in scikit-learn.

    Args:
        true: (labels,), count of each label among the true ones.
        predicted: (labels,), count of each label among the predictions.
        right: (labels,), count of right predictions of each label.

    Returns:
        ``accuracy`` and ``macro_f1``, in percent, and ``matthews``.

    >>> classified(np.array([3, 1]), np.array([2, 2]), np.array([2, 1]))
    {'accuracy': 75.0, 'macro_f1': 73.33333333333334, 'matthews': 57.73502691896258}
    """
    f1 = _f1(true, predicted, right)[true + predicted > 0]
    return {
        "accuracy": _percent(right.sum(), true.sum()),
        "macro_f1": float(f1.mean()) if len(f1) else 0.0,
        "matthews": matthews(true, predicted, right),
    }


def several_classified(
    true: Counts, predicted: Counts, right: Counts, *, exact: float, examples: float
) -> dict[str, float]:
    """Returns the metrics of examples with any number of labels, in percent.

    ``exact_match`` is the share of ``examples`` with all labels right (``exact``); micro F1 sums the counts of all
    labels first, macro F1 is the mean over all labels, as in scikit-learn. The counts are those of ``classified``.

    >>> several_classified(np.array([2, 1]), np.array([1, 2]), np.array([1, 1]), exact=1, examples=2)
    {'exact_match': 50.0, 'micro_f1': 66.66666666666667, 'macro_f1': 66.66666666666667}
    """
    return {
        "exact_match": _percent(exact, examples),
        "micro_f1": _percent(2 * right.sum(), true.sum() + predicted.sum()),
        "macro_f1": float(_f1(true, predicted, right).mean()),
    }


def matthews(true: Counts, predicted: Counts, right: Counts) -> float:
    """Returns 100 times Matthews' correlation coefficient (Matthews 1975; several classes: Gorodkin 2004).

    100 means that all is right; chance, or one label for all, gives 0. With t_c true and p_c predicted examples of
    class c, n examples and r right predictions it is
    (n r − Σ t_c p_c) / √((n² − Σ p_c²)(n² − Σ t_c²)), and 0 where only one class was true or predicted.

    >>> matthews(np.array([3, 1]), np.array([2, 2]), np.array([2, 1])).__round__(4)
    57.735
    """
    t, p, n = true.astype(float), predicted.astype(float), float(true.sum())
    below = (n * n - p @ p) * (n * n - t @ t)
    return 100.0 * float((n * right.sum() - t @ p) / below**0.5) if below > 0 else 0.0


def by_class(labels: Sequence[str], true: Counts, predicted: Counts, right: Counts) -> list[dict[str, Any]]:
    """Returns ``{"label", "precision", "recall", "f1", "support"}`` of each class, in percent."""
    columns = {
        "precision": 100.0 * right / np.maximum(predicted, 1),
        "recall": 100.0 * right / np.maximum(true, 1),
        "f1": _f1(true, predicted, right),
        "support": true,
    }
    return [
        {"label": label} | {name: column[i].item() for name, column in columns.items()}
        for i, label in enumerate(labels)
    ]


class Mistakes:
    """The ``most`` confident wrong predictions.

    >>> mistakes = Mistakes(most=1)
    >>> mistakes.add(0, "a", "spam", "ham", 0.6)
    >>> mistakes.add(1, "b", "ham", "spam", 0.9)
    >>> [wrong["input"] for wrong in mistakes.surest()]
    ['b']
    """

    def __init__(self, most: int = 50) -> None:
        self.most, self.total = most, 0
        self._heap: list[tuple[float, int, dict[str, Any]]] = []  # the least confident first, of equals the last place

    def add(self, place: int, input: str, expected: Any, output: Any, score: float) -> None:
        """Adds a wrong prediction: the ``place`` of its row (each once), and its probability, ``score``."""
        wrong = {"place": place, "input": input, "expected": expected, "output": output, "score": score}
        self.total += 1
        push = heapq.heappush if len(self._heap) < self.most else heapq.heappushpop
        push(self._heap, (score, -place, wrong))

    def surest(self) -> list[dict[str, Any]]:
        """Returns ``{"place", "input", "expected", "output", "score"}`` of each, the most confident first."""
        return [wrong for _, _, wrong in sorted(self._heap, reverse=True)]

    def details(self) -> dict[str, Any]:
        """Returns ``"mistakes"``, the most confident ones, and ``"mistakes_total"``, their number in all."""
        return {"mistakes": self.surest(), "mistakes_total": self.total}


def among_top(scores: ArrayLike, truth: ArrayLike, k: int) -> NDArray[np.bool_]:
    """Returns (N,), True if the true label is among the ``k`` largest of its row of ``scores`` (N, labels).

    Of equal scores the first counts as larger, as in argmax, so that constant scores are not all right. NaN is never
    right.

    >>> among_top([[0.1, 0.5, 0.4], [0.8, 0.1, 0.1]], [2, 2], k=2).tolist()
    [True, False]
    """
    scores, truth = np.asarray(scores), np.asarray(truth)
    own = np.take_along_axis(scores, truth[:, None], axis=1)
    after = (scores == own) & (np.arange(scores.shape[1]) >= truth[:, None])
    return (~((scores < own) | after)).sum(1) < k


def _f1(true: Counts, predicted: Counts, right: Counts) -> NDArray[np.float64]:
    return 200.0 * right / np.maximum(true + predicted, 1)


def _percent(part: Any, whole: Any) -> float:
    return 100.0 * float(part) / max(1.0, float(whole))


Ids = NDArray[np.int64]


class Labelled:
    """Per-example scores of a classifier: its true and predicted labels.

    Args:
        labels: names of the classes.
        examples: number of examples.
        several: True if an example may have several labels, or none.

    >>> scored = Labelled(["ham", "spam"], 3)
    >>> scored.add([2, 0], truth=[[1, 0], [0, 1]], predicted=[[1, 0], [1, 0]], loss=[0.1, 2.0])
    >>> scored.add([1], truth=[[0, 1]], predicted=[[0, 1]], loss=[0.3])
    >>> scored.metrics_of(np.array([1, 2]))["accuracy"], scored.outputs()
    (100.0, ['ham', 'spam', 'ham'])
    """

    def __init__(self, labels: Sequence[str], examples: int, several: bool = False) -> None:
        self.labels, self.examples, self.several = list(labels), examples, several
        self._pairs: dict[str, list[Ids]] = {"true": [], "predicted": [], "right": []}  # (2, n): places, labels
        self._exact = np.zeros(examples)
        self._means: dict[str, NDArray[np.float64]] = {}

    @classmethod
    def of(
        cls,
        labels: Sequence[str],
        truth: Sequence[Sequence[str]],
        predicted: Sequence[Sequence[str]],
        several: bool = False,
    ) -> Self:
        """Makes scores from names of true and predicted labels; unknown names are added to ``labels``.

        >>> scores = Labelled.of(["ham", "spam"], [["ham"], ["spam"]], [["ham"], ["ham"]])
        >>> scores.metrics_of(np.array([0, 1]))["accuracy"]
        50.0
        """
        names = list(dict.fromkeys([*labels, *(name for own in (*truth, *predicted) for name in own)]))
        both = (np.array([[name in own for name in names] for own in side]) for side in (truth, predicted))
        scored = cls(names, len(truth), several)
        scored.add(np.arange(len(truth)), *both)
        return scored

    def add(self, places: ArrayLike, truth: ArrayLike, predicted: ArrayLike, **means: ArrayLike) -> None:
        """Adds a batch.

        Args:
            places: (B,), places of its examples, each added once.
            truth: (B, labels), 1 or True for each true label.
            predicted: (B, labels), 1 or True for each predicted label.
            **means: (B,) further values to be averaged: the loss.
        """
        at, true, output = np.asarray(places), np.asarray(truth, dtype=bool), np.asarray(predicted, dtype=bool)
        for name, flags in (("true", true), ("predicted", output), ("right", true & output)):
            rows, labels = flags.nonzero()
            self._pairs[name].append(np.stack([at[rows], labels]))
        self._exact[at] = (true == output).all(1)
        for name, values in means.items():
            self._means.setdefault(name, np.zeros(self.examples))[at] = values

    def __len__(self) -> int:
        return self.examples

    def metrics_of(self, places: Places) -> Metrics:
        """Returns the means and the metrics of ``classified``, or with several labels of ``several_classified``."""
        counts = np.bincount(places, minlength=len(self))
        sums = self._sums(counts)
        means = {name: float(counts @ values) / len(places) for name, values in self._means.items()}
        if self.several:
            return {**means, **several_classified(*sums, exact=float(counts @ self._exact), examples=len(places))}
        return {**means, **classified(*sums)}

    def details(self) -> dict[str, Any]:
        """Returns ``by_class`` and, with one label each, ``confusion`` (rows: true, columns: predicted labels)."""
        details: dict[str, Any] = {
            "by_class": by_class(self.labels, *self._sums(np.ones(self.examples, dtype=np.int64)))
        }
        if self.several:
            return details
        truth, predicted = (self._joined(name)[1, np.argsort(self._joined(name)[0])] for name in ("true", "predicted"))
        counts = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)
        np.add.at(counts, (truth, predicted), 1)
        return details | {"confusion": {"labels": list(self.labels), "counts": counts.tolist()}}

    def outputs(self) -> list[Any]:
        """Returns the predicted label of each example, or with several the list of them."""
        predictions: list[list[str]] = [[] for _ in range(self.examples)]
        for place, label in self._joined("predicted").T.tolist():
            predictions[place].append(self.labels[label])
        return predictions if self.several else [labels[0] for labels in predictions]

    def joined(self, other: Self) -> Labelled:
        """Returns these examples followed by the ``other``'s; labels are matched by name."""
        names = list(dict.fromkeys([*self.labels, *other.labels]))
        both = Labelled(names, self.examples + other.examples, self.several)
        renamed = np.array([names.index(name) for name in other.labels], dtype=np.int64)
        for name, parts in both._pairs.items():
            rows, labels = other._joined(name)
            parts += [self._joined(name), np.stack([rows + self.examples, renamed[labels]])]
        both._exact = np.concatenate([self._exact, other._exact])
        shared = self._means.keys() & other._means.keys()
        both._means = {name: np.concatenate([self._means[name], other._means[name]]) for name in sorted(shared)}
        return both

    def _sums(self, counts: Ids) -> list[Ids]:
        """Returns true, predicted and right counts of each label, each example counted ``counts`` times."""
        pairs = map(self._joined, ("true", "predicted", "right"))
        return [np.bincount(label, counts[row], len(self.labels)).astype(np.int64) for row, label in pairs]

    def _joined(self, name: str) -> Ids:
        if len(self._pairs[name]) != 1:
            self._pairs[name] = [np.concatenate([np.zeros((2, 0), dtype=np.int64), *self._pairs[name]], axis=1)]
        return self._pairs[name][0]
