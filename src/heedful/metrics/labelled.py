"""Labels that were given, example by example, and the figures of any choice of the examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heedful.metrics.classification import by_class, classified, several_classified
from heedful.metrics.example_scores import Figures, Places

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
