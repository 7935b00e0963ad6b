"""Classification metrics from counts, per-example scores and the most confident mistakes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
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
Rates = dict[str, NDArray[Any]]  # metrics by name
THRESHOLDS = np.arange(1, 20) / 20  # among which ``best_threshold`` chooses


def single_label_metrics(true_counts: Counts, predicted_counts: Counts, correct_counts: Counts) -> Rates:
    """Returns accuracy, macro F1 and Matthews' correlation of examples with one label each.

    With TP correct predictions of a class: precision P = TP / predicted, recall R = TP / true,
    F1 = 2TP / (predicted + true), in percent, 0 where the denominator is 0. Macro F1 is the mean over the classes that
    are the true or the predicted label of at least one example, as in scikit-learn.

    Matthews' correlation coefficient (Matthews 1975; several classes: Gorodkin 2004) is times 100. 100 means that all
    predictions are correct; predictions by chance, or one label for all examples, give 0. With t_c examples whose true
    class is c, p_c examples predicted as c, n examples and r correct predictions it is
    (n r − Σ t_c p_c) / √((n² − Σ p_c²)(n² − Σ t_c²)), and 0 if there is only one true or only one predicted class.

    Args:
        true_counts: (..., labels), number of examples with each true label, for each of any number of selections.
        predicted_counts: (..., labels), number of examples with each predicted label.
        correct_counts: (..., labels), number of correct predictions of each label.

    Returns:
        ``accuracy`` and ``macro_f1``, in percent, and ``matthews``, (...) each.

    >>> metrics = single_label_metrics(np.array([3, 1]), np.array([2, 2]), np.array([2, 1]))
    >>> {name: value.item().__round__(4) for name, value in metrics.items()}
    {'accuracy': 75.0, 'macro_f1': 73.3333, 'matthews': 57.735}
    """
    t, p = true_counts.astype(float), predicted_counts.astype(float)
    n, correct = t.sum(-1), correct_counts.sum(-1)
    squared = (n * n - (p * p).sum(-1)) * (n * n - (t * t).sum(-1))
    return {
        "accuracy": 100.0 * correct / np.maximum(n, 1),
        "macro_f1": macro_f1(true_counts, predicted_counts, correct_counts),
        "matthews": 100.0 * ((n * correct - (t * p).sum(-1)) / np.sqrt(np.where(squared > 0, squared, np.inf))),
    }


def multi_label_metrics(
    true_counts: Counts, predicted_counts: Counts, correct_counts: Counts, *, exact_count: Counts, example_count: int
) -> Rates:
    """Returns exact match, micro F1 and macro F1, in percent, of examples with any number of labels each.

    ``exact_match`` is the percentage of examples whose predicted labels are exactly the true ones: ``exact_count``
    (...) of ``example_count``. Micro F1 sums the counts of all labels first; macro F1 is the mean over all labels, as
    in scikit-learn. The counts of each label are those of ``single_label_metrics``.

    >>> counts = np.array([2, 1]), np.array([1, 2]), np.array([1, 1])
    >>> metrics = multi_label_metrics(*counts, exact_count=np.array(1), example_count=2)
    >>> {name: value.item().__round__(4) for name, value in metrics.items()}
    {'exact_match': 50.0, 'micro_f1': 66.6667, 'macro_f1': 66.6667}
    """
    return {
        "exact_match": 100.0 * exact_count / max(1, example_count),
        "micro_f1": f1(true_counts.sum(-1), predicted_counts.sum(-1), correct_counts.sum(-1)),
        "macro_f1": f1(true_counts, predicted_counts, correct_counts).mean(-1),
    }


def f1(true_counts: Counts, predicted_counts: Counts, correct_counts: Counts) -> NDArray[np.float64]:
    """Returns F1 = 2TP / (predicted + true) in percent, 0 where the denominator is 0; all arrays have one shape."""
    return 200.0 * correct_counts / np.maximum(true_counts + predicted_counts, 1)


def macro_f1(true_counts: Counts, predicted_counts: Counts, correct_counts: Counts) -> NDArray[np.float64]:
    """Returns the mean F1 (...) over the labels that are true or predicted at least once, from counts (..., labels)."""
    present = (true_counts + predicted_counts > 0).sum(-1)
    return f1(true_counts, predicted_counts, correct_counts).sum(-1) / np.maximum(present, 1)


def by_class(
    labels: Sequence[str], true_counts: Counts, predicted_counts: Counts, correct_counts: Counts
) -> list[dict[str, Any]]:
    """Returns the metrics of each class, as a dictionary.

    The keys are ``label``, ``precision``, ``recall`` and ``f1`` (in percent), and ``support``, the number of examples
    with this true label. The arguments are those of ``single_label_metrics``.
    """
    columns = {
        "precision": 100.0 * correct_counts / np.maximum(predicted_counts, 1),
        "recall": 100.0 * correct_counts / np.maximum(true_counts, 1),
        "f1": f1(true_counts, predicted_counts, correct_counts),
        "support": true_counts,
    }
    return [{"label": label} | row for label, row in zip(labels, _rows(columns), strict=True)]


def best_threshold(batches: Iterable[tuple[ArrayLike, ArrayLike]]) -> float:
    """Returns the threshold of probabilities with the highest micro F1, of 0.05, 0.1, ..., 0.95.

    Of equally good thresholds it is the nearest to 0.5, and of two equally near the lower. With few examples, few
    values are best: a finer grid would fit single examples.

    Args:
        batches: (truth, probabilities), (B, labels) each, of examples with any number of labels.

    >>> best_threshold([(np.array([[1, 1, 0]]), np.array([[0.4, 0.3, 0.1]]))])
    0.3
    """
    true_count, predicted, correct = 0, np.zeros(len(THRESHOLDS)), np.zeros(len(THRESHOLDS))
    for truth, probabilities in batches:
        flags, p = np.asarray(truth, dtype=bool), np.asarray(probabilities, dtype=np.float64)
        true_count += int(flags.sum())
        for counts, values in ((predicted, p.ravel()), (correct, p[flags])):
            counts += len(values) - np.searchsorted(np.sort(values), THRESHOLDS)
    scores = f1(np.array(true_count), predicted, correct)
    order = np.lexsort((THRESHOLDS, np.abs(THRESHOLDS - 0.5).round(2), -scores))
    return float(THRESHOLDS[order[0]])


class Mistakes:
    """Collector of wrong predictions: keeps the ``max_kept`` most confident and counts all.

    >>> mistakes = Mistakes(max_kept=1)
    >>> mistakes.add(0, "a", "spam", "ham", 0.6)
    >>> mistakes.add(1, "b", "ham", "spam", 0.9)
    >>> [mistake["input"] for mistake in mistakes.most_confident()]
    ['b']
    """

    def __init__(self, max_kept: int = 50) -> None:
        self.max_kept, self.total = max_kept, 0
        # (score, −row index, mistake): the least confident first; of equal scores the last row first
        self._heap: list[tuple[float, int, dict[str, Any]]] = []

    def add(self, row_index: int, input: str, expected: Any, output: Any, score: float) -> None:
        """Adds a wrong prediction for the row at ``row_index`` (at most once per row); ``score`` is its probability."""
        mistake = {"place": row_index, "input": input, "expected": expected, "output": output, "score": score}
        self.total += 1
        push = heapq.heappush if len(self._heap) < self.max_kept else heapq.heappushpop
        push(self._heap, (score, -row_index, mistake))

    def most_confident(self) -> list[dict[str, Any]]:
        """Returns the wrong predictions as dictionaries, the most confident first.

        The keys are ``place`` (the index of the row), ``input``, ``expected``, ``output`` and ``score``.
        """
        return [mistake for _, _, mistake in sorted(self._heap, reverse=True)]

    def details(self) -> dict[str, Any]:
        """Returns ``"mistakes"``, the most confident wrong predictions, and ``"mistakes_total"``, the number of all."""
        return {"mistakes": self.most_confident(), "mistakes_total": self.total}


def is_in_top_k(scores: ArrayLike, truth: ArrayLike, k: int) -> NDArray[np.bool_]:
    """Returns booleans (N,): True if the true label is among the ``k`` labels with the largest scores.

    ``scores`` is (N, labels), and ``truth`` (N,) has the indices of the true labels. Of equal scores the first counts
    as larger, as in argmax, so that constant scores are not always correct. A true label with the score NaN is never in
    the top k.

    >>> is_in_top_k([[0.1, 0.5, 0.4], [0.8, 0.1, 0.1]], [2, 2], k=2).tolist()
    [True, False]
    """
    scores, truth = np.asarray(scores), np.asarray(truth)
    true_scores = np.take_along_axis(scores, truth[:, None], axis=1)
    is_later_tie = (scores == true_scores) & (np.arange(scores.shape[1]) >= truth[:, None])
    return (~((scores < true_scores) | is_later_tie)).sum(1) < k


def _rows(columns: Rates) -> list[dict[str, Any]]:
    """Returns a dictionary for each of R rows of the columns (R,)."""
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


Ids = NDArray[np.int64]


class ClassifierScores:
    """Per-example scores of a classifier: its true and predicted labels.

    Args:
        labels: names of the classes.
        examples: number of examples.
        several: True if an example may have several labels, or none.

    >>> scores = ClassifierScores(["ham", "spam"], 3)
    >>> scores.add([2, 0], truth=[[1, 0], [0, 1]], predicted=[[1, 0], [1, 0]], loss=[0.1, 2.0])
    >>> scores.add([1], truth=[[0, 1]], predicted=[[0, 1]], loss=[0.3])
    >>> scores.metrics_of(np.array([1, 2]))["accuracy"], scores.outputs()
    (100.0, ['ham', 'spam', 'ham'])
    """

    def __init__(self, labels: Sequence[str], examples: int, several: bool = False) -> None:
        self.labels, self.examples, self.several = list(labels), examples, several
        # (2, n) each: indices of examples, and numbers of their labels
        self._pairs: dict[str, list[Ids]] = {"true": [], "predicted": [], "correct": []}
        self._is_exact = np.zeros(examples, dtype=bool)  # True for an example with exactly the true labels
        self._values: dict[str, NDArray[np.float64]] = {}  # name: further values to be averaged, one an example

    @classmethod
    def of(
        cls,
        labels: Sequence[str],
        truth: Sequence[Sequence[str]],
        predicted: Sequence[Sequence[str]],
        several: bool = False,
    ) -> Self:
        """Returns the scores of examples from the names of their true and predicted labels.

        Names that are missing in ``labels`` are added to the labels.

        >>> scores = ClassifierScores.of(["ham", "spam"], [["ham"], ["spam"]], [["ham"], ["ham"]])
        >>> scores.metrics_of(np.array([0, 1]))["accuracy"]
        50.0
        """
        all_labels = list(dict.fromkeys([*labels, *(name for names in (*truth, *predicted) for name in names)]))
        true_flags, predicted_flags = (
            np.array([[label in names for label in all_labels] for names in label_lists])
            for label_lists in (truth, predicted)
        )
        scores = cls(all_labels, len(truth), several)
        scores.add(np.arange(len(truth)), true_flags, predicted_flags)
        return scores

    def add(self, places: ArrayLike, truth: ArrayLike, predicted: ArrayLike, **values: ArrayLike) -> None:
        """Adds a batch of examples.

        Args:
            places: (B,), indices of the examples; each example is added once.
            truth: (B, labels), 1 or True for each true label.
            predicted: (B, labels), 1 or True for each predicted label.
            **values: (B,) each, further values to be averaged, such as the loss.
        """
        indices = np.asarray(places)
        true_flags, predicted_flags = np.asarray(truth, dtype=bool), np.asarray(predicted, dtype=bool)
        correct_flags = true_flags & predicted_flags
        for name, flags in (("true", true_flags), ("predicted", predicted_flags), ("correct", correct_flags)):
            rows, labels = flags.nonzero()
            self._pairs[name].append(np.stack([indices[rows], labels]))
        self._is_exact[indices] = (true_flags == predicted_flags).all(1)
        for name, numbers in values.items():
            self._values.setdefault(name, np.zeros(self.examples))[indices] = numbers

    def __len__(self) -> int:
        return self.examples

    def metrics_of(self, places: Places) -> Metrics:
        """Returns the metrics of the examples at the indices ``places``, and the means of other added values.

        The metrics are those of ``single_label_metrics``, or with several labels those of ``multi_label_metrics``.
        """
        return self.metrics_of_draws(np.asarray(places)[None])[0]

    def metrics_of_draws(self, places: Places) -> list[Metrics]:
        """Returns the metrics of each of R selections of examples; ``places`` (R, n) has the indices of one in a row.

        The rates are computed for all selections at once.
        """
        counts = [self._label_counts(np.bincount(selection, minlength=len(self))) for selection in places]
        if not counts:
            return []
        size = places.shape[1]
        metrics: Rates = {name: values[places].sum(1) / max(1, size) for name, values in self._values.items()}
        by_label = np.stack(counts, axis=1)  # (3, R, labels)
        if self.several:
            exact_count = self._is_exact[places].sum(1)
            metrics |= multi_label_metrics(*by_label, exact_count=exact_count, example_count=size)
        else:
            metrics |= single_label_metrics(*by_label)
        return _rows(metrics)

    def details(self) -> dict[str, Any]:
        """Returns ``by_class``, the metrics of each label, and ``confusion``, the confusion matrix.

        The matrix has a row for each true and a column for each predicted label. If an example
        may have several labels, there is no matrix.
        """
        label_counts = self._label_counts(np.ones(self.examples, dtype=np.int64))
        details: dict[str, Any] = {"by_class": by_class(self.labels, *label_counts)}
        if self.several:
            return details
        truth, predicted = (self._concatenated_pairs(name)[1] for name in ("true", "predicted"))  # in the same order
        counts = np.zeros((len(self.labels), len(self.labels)), dtype=np.int64)
        np.add.at(counts, (truth, predicted), 1)
        return details | {"confusion": {"labels": list(self.labels), "counts": counts.tolist()}}

    def outputs(self) -> list[Any]:
        """Returns the name of the predicted label of each example; with several labels, a list of names."""
        predictions: list[list[str]] = [[] for _ in range(self.examples)]
        for index, label in self._concatenated_pairs("predicted").T.tolist():
            predictions[index].append(self.labels[label])
        return predictions if self.several else [labels[0] for labels in predictions]

    def joined(self, other: Self) -> ClassifierScores:
        """Returns the scores of these examples followed by those of ``other``; labels are matched by name."""
        names = list(dict.fromkeys([*self.labels, *other.labels]))
        joined = ClassifierScores(names, self.examples + other.examples, self.several)
        renumbered = np.array([names.index(name) for name in other.labels], dtype=np.int64)
        for name, blocks in joined._pairs.items():
            rows, labels = other._concatenated_pairs(name)
            blocks += [self._concatenated_pairs(name), np.stack([rows + self.examples, renumbered[labels]])]
        joined._is_exact = np.concatenate([self._is_exact, other._is_exact])
        shared = self._values.keys() & other._values.keys()
        joined._values = {name: np.concatenate([self._values[name], other._values[name]]) for name in sorted(shared)}
        return joined

    def _label_counts(self, times: Ids) -> list[Ids]:
        """Returns the counts of each label: true, predicted and correct; example i counts ``times[i]`` times."""
        pairs = map(self._concatenated_pairs, ("true", "predicted", "correct"))
        return [np.bincount(labels, times[rows], len(self.labels)).astype(np.int64) for rows, labels in pairs]

    def _concatenated_pairs(self, name: str) -> Ids:
        if len(self._pairs[name]) != 1:
            self._pairs[name] = [np.concatenate([np.zeros((2, 0), dtype=np.int64), *self._pairs[name]], axis=1)]
        return self._pairs[name][0]
