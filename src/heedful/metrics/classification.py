"""Classification metrics from counts, per-example scores and the most confident mistakes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heedful.metrics.example_scores import Figures, Places

Counts = NDArray[Any]  # whole numbers


def classified(true: Counts, said: Counts, right: Counts) -> dict[str, float]:
    """Metrics of examples that have one label each.

    Of class c with TP right answers: precision P = TP / said, recall R = TP / true, F1 = 2TP / (said + true), each in
    percent, 0 where nothing stands below the line. Macro F1 is the mean over the classes that were true or said at
    least once, as in scikit-learn.

    Args:
        true: (labels,), how often each was true.
        said: (labels,), how often each was said.
        right: (labels,), how often it was said where it was true.

    Returns:
        ``accuracy`` and ``macro_f1``, in percent, and ``matthews``.

    >>> classified(np.array([3, 1]), np.array([2, 2]), np.array([2, 1]))
    {'accuracy': 75.0, 'macro_f1': 73.33333333333334, 'matthews': 57.73502691896258}
    """
    f1 = _f1(true, said, right)[true + said > 0]
    return {
        "accuracy": _percent(right.sum(), true.sum()),
        "macro_f1": float(f1.mean()) if len(f1) else 0.0,
        "matthews": matthews(true, said, right),
    }


def several_classified(true: Counts, said: Counts, right: Counts, *, exact: float, examples: float) -> dict[str, float]:
    """Metrics of examples that may have any number of labels, in percent.

    ``exact_match`` is the share of ``examples`` all of whose labels are right, ``exact`` many; micro F1 adds the counts
    of all labels up first, macro F1 is the mean over all labels, as in scikit-learn. ``true``, ``said`` and ``right``
    are as of ``classified``.

    >>> several_classified(np.array([2, 1]), np.array([1, 2]), np.array([1, 1]), exact=1, examples=2)
    {'exact_match': 50.0, 'micro_f1': 66.66666666666667, 'macro_f1': 66.66666666666667}
    """
    return {
        "exact_match": _percent(exact, examples),
        "micro_f1": _percent(2 * right.sum(), true.sum() + said.sum()),
        "macro_f1": float(_f1(true, said, right).mean()),
    }


def matthews(true: Counts, said: Counts, right: Counts) -> float:
    """100 times the correlation of truth and answer (Matthews 1975; of several classes Gorodkin 2004): 100 where all is
    right, 0 for what chance or always the same label would give.

    With t_c and p_c how often class c was true and said, n examples and r right answers it is
    (n r − Σ t_c p_c) / √((n² − Σ p_c²)(n² − Σ t_c²)), and 0 where one class alone was true or said.

    >>> matthews(np.array([3, 1]), np.array([2, 2]), np.array([2, 1])).__round__(4)
    57.735
    """
    t, p, n = true.astype(float), said.astype(float), float(true.sum())
    below = (n * n - p @ p) * (n * n - t @ t)
    return 100.0 * float((n * right.sum() - t @ p) / below**0.5) if below > 0 else 0.0


def by_class(labels: Sequence[str], true: Counts, said: Counts, right: Counts) -> list[dict[str, Any]]:
    """``{"label", "precision", "recall", "f1", "support"}`` of each class, in percent."""
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


class Mistakes:
    """The surest wrong answers, ``most`` of them.

    >>> mistakes = Mistakes(most=1)
    >>> mistakes.add(0, "a", "spam", "ham", 0.6)
    >>> mistakes.add(1, "b", "ham", "spam", 0.9)
    >>> [wrong["input"] for wrong in mistakes.surest()]
    ['b']
    """

    def __init__(self, most: int = 50) -> None:
        self.most, self.total = most, 0
        self._heap: list[tuple[float, int, dict[str, Any]]] = []  # the least sure first, of equals the last place

    def add(self, place: int, input: str, expected: Any, output: Any, score: float) -> None:
        """Take note of a wrong answer: the ``place`` of its row (each once), and the probability of what was said."""
        wrong = {"place": place, "input": input, "expected": expected, "output": output, "score": score}
        self.total += 1
        push = heapq.heappush if len(self._heap) < self.most else heapq.heappushpop
        push(self._heap, (score, -place, wrong))

    def surest(self) -> list[dict[str, Any]]:
        """``{"place", "input", "expected", "output", "score"}`` of each, the surest first."""
        return [wrong for _, _, wrong in sorted(self._heap, reverse=True)]

    def details(self) -> dict[str, Any]:
        """``"mistakes"``, the surest of them, and ``"mistakes_total"``, the number of wrong answers."""
        return {"mistakes": self.surest(), "mistakes_total": self.total}


def among_top(scores: ArrayLike, truth: ArrayLike, k: int) -> NDArray[np.bool_]:
    """Which of the true labels (N,) are among the ``k`` largest of their row of ``scores`` (N, labels): (N,).

    Of equal scores the first label counts as larger, as for argmax: a model that says the same of all is not right;
    NaN never is.

    >>> among_top([[0.1, 0.5, 0.4], [0.8, 0.1, 0.1]], [2, 2], k=2).tolist()
    [True, False]
    """
    scores, truth = np.asarray(scores), np.asarray(truth)
    own = np.take_along_axis(scores, truth[:, None], axis=1)
    after = (scores == own) & (np.arange(scores.shape[1]) >= truth[:, None])
    return (~((scores < own) | after)).sum(1) < k


def _f1(true: Counts, said: Counts, right: Counts) -> NDArray[np.float64]:
    return 200.0 * right / np.maximum(true + said, 1)


def _percent(part: Any, whole: Any) -> float:
    return 100.0 * float(part) / max(1.0, float(whole))


Ids = NDArray[np.int64]


class Labelled:
    """What a classifier said of each example, beside the truth: a few numbers an example, whatever comes of them.

    Args:
        labels: the names of the classes.
        examples: how many there are.
        several: whether an example may have several labels, or none.

    >>> scored = Labelled(["ham", "spam"], 3)
    >>> scored.add([2, 0], truth=[[1, 0], [0, 1]], said=[[1, 0], [1, 0]], loss=[0.1, 2.0])
    >>> scored.add([1], truth=[[0, 1]], said=[[0, 1]], loss=[0.3])
    >>> scored.figures(np.array([1, 2]))["accuracy"], scored.outputs()
    (100.0, ['ham', 'spam', 'ham'])
    """

    def __init__(self, labels: Sequence[str], examples: int, several: bool = False) -> None:
        self.labels, self.examples, self.several = list(labels), examples, several
        self._pairs: dict[str, list[Ids]] = {"true": [], "said": [], "right": []}  # (2, n): places, labels
        self._exact = np.zeros(examples)
        self._means: dict[str, NDArray[np.float64]] = {}

    @classmethod
    def of(
        cls, labels: Sequence[str], truth: Sequence[Sequence[str]], said: Sequence[Sequence[str]], several: bool = False
    ) -> Self:
        """From the names of the labels of each example, and of those that were said of it; a name that is none of
        ``labels`` becomes one.

        >>> Labelled.of(["ham", "spam"], [["ham"], ["spam"]], [["ham"], ["ham"]]).figures(np.array([0, 1]))["accuracy"]
        50.0
        """
        names = list(dict.fromkeys([*labels, *(name for own in (*truth, *said) for name in own)]))
        both = (np.array([[name in own for name in names] for own in side]) for side in (truth, said))
        scored = cls(names, len(truth), several)
        scored.add(np.arange(len(truth)), *both)
        return scored

    def add(self, places: ArrayLike, truth: ArrayLike, said: ArrayLike, **means: ArrayLike) -> None:
        """Take a batch.

        Args:
            places: (B,), of its examples, each of them once in all.
            truth: (B, labels), 1 or True for each label that holds.
            said: the same, for what was said.
            **means: (B,) of what is to be averaged besides: the loss.
        """
        at, true, spoken = np.asarray(places), np.asarray(truth, dtype=bool), np.asarray(said, dtype=bool)
        for name, held in (("true", true), ("said", spoken), ("right", true & spoken)):
            rows, labels = held.nonzero()
            self._pairs[name].append(np.stack([at[rows], labels]))
        self._exact[at] = (true == spoken).all(1)
        for name, values in means.items():
            self._means.setdefault(name, np.zeros(self.examples))[at] = values

    def __len__(self) -> int:
        return self.examples

    def figures(self, places: Places) -> Figures:
        """The means, and what ``classified`` gives of these examples, or with several labels ``several_classified``."""
        counts = np.bincount(places, minlength=len(self))
        sums = self._sums(counts)
        means = {name: float(counts @ values) / len(places) for name, values in self._means.items()}
        if self.several:
            return {**means, **several_classified(*sums, exact=float(counts @ self._exact), examples=len(places))}
        return {**means, **classified(*sums)}

    def details(self) -> dict[str, Any]:
        """``by_class``; of one label each also ``confusion``: a row for each true label, a column for each said."""
        told: dict[str, Any] = {"by_class": by_class(self.labels, *self._sums(np.ones(self.examples, dtype=np.int64)))}
        if self.several:
            return told
        truth, said = (self._joined(name)[1, np.argsort(self._joined(name)[0])] for name in ("true", "said"))
        counts = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)
        np.add.at(counts, (truth, said), 1)
        return told | {"confusion": {"labels": list(self.labels), "counts": counts.tolist()}}

    def outputs(self) -> list[Any]:
        """What was said of each example: its label, or with several the list of them."""
        given: list[list[str]] = [[] for _ in range(self.examples)]
        for place, label in self._joined("said").T.tolist():
            given[place].append(self.labels[label])
        return given if self.several else [one[0] for one in given]

    def joined(self, other: Self) -> Labelled:
        """These examples, and behind them the ``other``'s; labels of the same name are the same."""
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
        """How often each label was true, said, and right, each example counted so many times."""
        pairs = map(self._joined, ("true", "said", "right"))
        return [np.bincount(label, counts[row], len(self.labels)).astype(np.int64) for row, label in pairs]

    def _joined(self, name: str) -> Ids:
        if len(self._pairs[name]) != 1:
            self._pairs[name] = [np.concatenate([np.zeros((2, 0), dtype=np.int64), *self._pairs[name]], axis=1)]
        return self._pairs[name][0]
