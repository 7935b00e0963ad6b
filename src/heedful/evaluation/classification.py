"""Scores of classifiers, counted as batches come: no answer is kept but the surest mistakes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Counts = NDArray[np.int64]


class Confusion:
    """How often each label was said where each was true.

    Of class c with TP right answers: precision P = TP / said, recall R = TP / true, F1 = 2TP / (said + true), each in
    percent, 0 where nothing stands below the line. Macro F1 is the mean over the classes that were true or said at
    least once, as in scikit-learn.

    >>> confusion = Confusion(["ham", "spam"])
    >>> confusion.add([0, 0, 0, 1], [0, 0, 1, 1])
    >>> confusion.metrics()
    {'accuracy': 75.0, 'macro_f1': 73.33333333333334}
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = list(labels)
        self.counts: Counts = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)  # truth, prediction

    def add(self, truth: ArrayLike, predicted: ArrayLike) -> None:
        """Count a batch: two arrays (N,) of label ids."""
        np.add.at(self.counts, (np.asarray(truth), np.asarray(predicted)), 1)

    def metrics(self) -> dict[str, float]:
        """``accuracy`` and ``macro_f1``, in percent."""
        true, said, right = self._sums()
        f1 = _f1(true, said, right)[true + said > 0]
        return {
            "accuracy": _percent(right.sum(), true.sum()),
            "macro_f1": float(f1.mean()) if len(f1) else 0.0,
        }

    def details(self) -> dict[str, Any]:
        """``by_class``, and ``confusion``: a row for each true label, a column for each that was said."""
        return {
            "by_class": _by_class(self.labels, *self._sums()),
            "confusion": {"labels": list(self.labels), "counts": self.counts.tolist()},
        }

    def _sums(self) -> tuple[Counts, Counts, Counts]:
        return self.counts.sum(1), self.counts.sum(0), self.counts.diagonal()


class MultiLabel:
    """Counts where an example has any number of labels, none included.

    ``exact_match`` is the share of examples all of whose labels are right; micro F1 adds the counts of all labels up
    first, macro F1 is the mean over all labels, as in scikit-learn.

    >>> scores = MultiLabel(["loud", "red"])
    >>> scores.add([[1, 0], [1, 1]], [[1, 0], [0, 1]])
    >>> scores.metrics()
    {'exact_match': 50.0, 'micro_f1': 80.0, 'macro_f1': 83.33333333333334}
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = list(labels)
        self.true, self.said, self.right = (np.zeros(len(self.labels), dtype=np.int64) for _ in range(3))
        self.exact = self.examples = 0

    def add(self, truth: ArrayLike, predicted: ArrayLike) -> None:
        """Count a batch: two arrays (N, labels) of 0 and 1."""
        true, said = np.asarray(truth, dtype=bool), np.asarray(predicted, dtype=bool)
        self.true += true.sum(0)
        self.said += said.sum(0)
        self.right += (true & said).sum(0)
        self.exact += int((true == said).all(1).sum())
        self.examples += len(true)

    def metrics(self) -> dict[str, float]:
        """``exact_match``, ``micro_f1`` and ``macro_f1``, in percent."""
        return {
            "exact_match": _percent(self.exact, self.examples),
            "micro_f1": _percent(2 * self.right.sum(), self.true.sum() + self.said.sum()),
            "macro_f1": float(_f1(self.true, self.said, self.right).mean()),
        }

    def details(self) -> dict[str, Any]:
        """``by_class``."""
        return {"by_class": _by_class(self.labels, self.true, self.said, self.right)}


class Mistakes:
    """The surest wrong answers, ``most`` of them.

    >>> mistakes = Mistakes(most=1)
    >>> mistakes.add(0, "a", "spam", "ham", 0.6)
    >>> mistakes.add(1, "b", "ham", "spam", 0.9)
    >>> [wrong["input"] for wrong in mistakes.surest()]
    ['b']
    """

    def __init__(self, most: int = 50) -> None:
        self.most = most
        self._heap: list[tuple[float, int, dict[str, Any]]] = []  # the least sure first, of equals the last place

    def add(self, place: int, input: str, expected: Any, output: Any, score: float) -> None:
        """Take note of a wrong answer: the ``place`` of its row (each once), and the probability of what was said."""
        wrong = {"place": place, "input": input, "expected": expected, "output": output, "score": score}
        push = heapq.heappush if len(self._heap) < self.most else heapq.heappushpop
        push(self._heap, (score, -place, wrong))

    def surest(self) -> list[dict[str, Any]]:
        """``{"place", "input", "expected", "output", "score"}`` of each, the surest first."""
        return [wrong for _, _, wrong in sorted(self._heap, reverse=True)]


def within_top(scores: ArrayLike, truth: ArrayLike, k: int) -> int:
    """How many of the true labels (N,) are among the ``k`` largest of their row of ``scores`` (N, labels).

    Of equal scores the first label counts as larger, as for argmax: a model that says the same of all is not right;
    NaN never is.

    >>> within_top([[0.1, 0.5, 0.4], [0.8, 0.1, 0.1]], [2, 1], k=2)
    2
    """
    scores, truth = np.asarray(scores), np.asarray(truth)
    own = np.take_along_axis(scores, truth[:, None], axis=1)
    after = (scores == own) & (np.arange(scores.shape[1]) >= truth[:, None])
    return int(((~((scores < own) | after)).sum(1) < k).sum())


def _f1(true: Counts, said: Counts, right: Counts) -> NDArray[np.float64]:
    return 200.0 * right / np.maximum(true + said, 1)


def _percent(part: Any, whole: Any) -> float:
    return 100.0 * float(part) / max(1.0, float(whole))


def _by_class(labels: Sequence[str], true: Counts, said: Counts, right: Counts) -> list[dict[str, Any]]:
    columns = {
        "precision": 100.0 * right / np.maximum(said, 1),
        "recall": 100.0 * right / np.maximum(true, 1),
        "f1": _f1(true, said, right),
        "support": true,
    }
    return [
        {"label": label} | {name: column[i].item() for name, column in columns.items()}
        for i, label in enumerate(labels)
    ]
