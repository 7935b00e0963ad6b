"""Entities in tag sequences, and their precision, recall and F1 as CoNLL's scorer counts them.

A predicted entity is correct if its kind, start and end are those of a true entity (Tjong Kim Sang and De Meulder 2003,
section 2.3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from heedful.errors import HeedfulError
from heedful.metrics.classification import by_class, macro_f1
from heedful.metrics.example_scores import Metrics, Places, overall

OUTSIDE = "O"
# prefix of a tag: B begins, I inside, E ends, S is a whole entity
PARTS = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S"}
NAMELESS = "_"  # kind of an entity whose tags are only B, I
ALLOWED = {"IOB2": "BI", "BIOES": "BIES"}

# How tags are read:
#   "BIO": any tags with parts (IOB1, IOB2, BIOES, BILOU, BMES), as conlleval: I without an entity before it begins one;
#   "IOB2", "BIOES": strict, only well-formed entities;
#   "IO": tags without parts, a run of equal ones is an entity;
#   "plain": each word for itself, "O" like any other tag, as for parts of speech.
Scheme = Literal["BIO", "IOB2", "BIOES", "IO", "plain"]


class Entity(NamedTuple):
    """Entity: its kind, and the indices of its words, from ``start`` to ``end`` (exclusive)."""

    kind: str
    start: int
    end: int


def parted(tag: str) -> tuple[str, str]:
    """Returns the prefix of a tag (B, I, E or S) and its kind: ("", "") for "O", ("", tag) for a tag without a prefix.

    >>> parted("B-creative-work"), parted("U-PER"), parted("I"), parted("O"), parted("NOUN")
    (('B', 'creative-work'), ('S', 'PER'), ('I', '_'), ('', ''), ('', 'NOUN'))
    """
    part, hyphen, kind = tag.partition("-")
    if part in PARTS and (hyphen or not kind):
        return PARTS[part], kind or NAMELESS
    return "", "" if tag == OUTSIDE else tag


def entities(tags: Sequence[str], scheme: Scheme = "BIO") -> list[Entity]:
    """Returns the entities in the tags of a sentence, in order.

    >>> entities(["B-PER", "I-PER", "O", "I-LOC"])
    [Entity(kind='PER', start=0, end=2), Entity(kind='LOC', start=3, end=4)]
    >>> entities(["B-PER", "I-PER", "O", "I-LOC"], "IOB2")
    [Entity(kind='PER', start=0, end=2)]
    >>> entities(["DET", "NOUN", "NOUN"], "plain")[1:]
    [Entity(kind='NOUN', start=1, end=2), Entity(kind='NOUN', start=2, end=3)]

    With the scheme "BIO" an entity begins at B and S, where the kind changes, and after O, E and S. It ends after E and
    S and before the next entity. `seqeval` does the same with B, I, E and S; it does not know L and U, and removes the
    first letter of tags without a prefix. In the strict schemes an entity begins at B or S and continues with I of the
    same kind, in BIOES up to an E; other sequences are not entities, as in `seqeval`'s strict mode. There is no strict
    IOB1, where a B may follow O (`seqeval` drops the first word of such an entity).

    Raises ``HeedfulError`` for a tag that a strict scheme does not have.
    """
    if scheme == "plain":
        return [Entity(tag, index, index + 1) for index, tag in enumerate(tags)]
    pairs = [("", "" if tag == OUTSIDE else tag) for tag in tags] if scheme == "IO" else [parted(tag) for tag in tags]
    if scheme in ALLOWED:
        for (part, kind), tag in zip(pairs, tags, strict=True):
            if (part or kind) and part not in tuple(ALLOWED[scheme]):
                raise HeedfulError(f"{scheme} has no tag {tag!r}; use the scheme 'BIO' for such tags")
        return _strict(pairs, closed=scheme == "BIOES")
    return _lenient(pairs)


def _lenient(pairs: Sequence[tuple[str, str]]) -> list[Entity]:
    spans: list[Entity] = []
    kind, start = "", 0  # of the entity that is open
    for index, (part, tag_kind) in enumerate([*pairs, ("", "")]):
        begins = tag_kind != kind or part in ("B", "S")
        if kind and begins:
            spans.append(Entity(kind, start, index))
            kind = ""
        if tag_kind and not kind:
            kind, start = tag_kind, index
        if kind and part in ("E", "S"):
            spans.append(Entity(kind, start, index + 1))
            kind = ""
    return spans


def _strict(pairs: Sequence[tuple[str, str]], closed: bool) -> list[Entity]:
    """Returns the well-formed entities. If ``closed``, entities end with E, and a single word has S."""
    spans: list[Entity] = []
    kind, start = "", 0
    for index, (part, tag_kind) in enumerate([*pairs, ("", "")]):
        is_inside = bool(kind) and tag_kind == kind and part in ("I", "E")
        if kind and not is_inside:
            if not closed:
                spans.append(Entity(kind, start, index))
            kind = ""
        if part == "B":
            kind, start = tag_kind, index
        elif part == "S" or (part == "E" and is_inside):
            spans.append(Entity(tag_kind, start if is_inside else index, index + 1))
            kind = ""
    return spans


class EntityScores:
    """Precision, recall and F1 of the entities of sentences.

    With TP correct entities: precision P = TP / predicted, recall R = TP / true, F1 = 2TP / (predicted + true), in
    percent, 0 if the denominator is 0. ``precision``, ``recall`` and ``f1`` are over all entities (micro), ``macro_f1``
    is the mean of F1 over the kinds with at least one true or predicted entity. ``accuracy`` is the percentage of words
    with the correct tag. Plain tags have ``accuracy`` and ``macro_f1`` only. ``loss`` is the mean loss per word, if
    losses are given.

    >>> scores = EntityScores()
    >>> scores.add(["O", "B-MISC", "I-MISC", "O"], ["B-MISC", "I-MISC", "I-MISC", "O"])
    >>> scores.add(["B-PER", "I-PER", "O"], ["B-PER", "I-PER", "O"])
    >>> scores.metrics()["f1"], scores.metrics()["macro_f1"]
    (50.0, 50.0)
    """

    def __init__(self, scheme: Scheme = "BIO") -> None:
        self.scheme = scheme
        self._counts: list[dict[str, list[int]]] = []  # of each sentence: kind → [true, predicted, correct]
        self._words: list[tuple[float, ...]] = []  # of each sentence: words, correct tags, loss

    def add(self, truth: Sequence[str], predicted: Sequence[str], loss: float | None = None) -> None:
        """Adds a sentence: the true and the predicted tag of each word, and the loss summed over its words.

        Either all sentences or none have a loss.
        """
        true_entities, predicted_entities = (set(entities(tags, self.scheme)) for tags in (truth, predicted))
        counts: dict[str, list[int]] = {}
        for column, counted in enumerate((true_entities, predicted_entities, true_entities & predicted_entities)):
            for kind, number in Counter(entity.kind for entity in counted).items():
                counts.setdefault(kind, [0, 0, 0])[column] = number
        correct = sum(tag == other for tag, other in zip(truth, predicted, strict=True))
        self._counts.append(counts)
        self._words.append((len(truth), correct) if loss is None else (len(truth), correct, loss))
        self.__dict__.pop("_statistics", None)

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def kinds(self) -> list[str]:
        """Kinds of the entities added so far, in alphabetical order."""
        return sorted({kind for counts in self._counts for kind in counts})

    @cached_property
    def _statistics(self) -> NDArray[np.float64]:
        """Counts (N, 3K + 2 or 3) of each sentence: true, predicted and correct entities of each of K kinds, words,
        correct tags, and the loss.
        """
        kind_index = {kind: index for index, kind in enumerate(self.kinds)}
        counts = np.zeros((len(self), 3, len(kind_index)))
        for row, sentence_counts in enumerate(self._counts):
            for kind, numbers in sentence_counts.items():
                counts[row, :, kind_index[kind]] = numbers
        words = np.array(self._words or np.zeros((0, 2)), dtype=float)
        return np.concatenate([counts.reshape(len(self), 3 * len(kind_index)), words], axis=1)

    def metrics_of(self, places: Places) -> Metrics:
        """Returns the metrics of the sentences at the indices ``places``; a repeated index counts repeatedly."""
        sums = np.bincount(places, minlength=len(self)) @ self._statistics
        size = 3 * len(self.kinds)
        return self._metrics(sums[:size].reshape(3, -1), *sums[size:].tolist())

    def joined(self, other: Self) -> EntityScores:
        """Returns the scores of these sentences followed by those of ``other``."""
        joined = EntityScores(self.scheme)
        joined._counts, joined._words = self._counts + other._counts, self._words + other._words
        return joined

    def metrics(self) -> Metrics:
        """Returns the metrics of all sentences."""
        return overall(self)

    def details(self) -> dict[str, Any]:
        """Returns ``by_class``: precision, recall, F1 and ``support`` (the number of true entities) of each kind."""
        sums = self._statistics.sum(0)[: 3 * len(self.kinds)]
        return {"by_class": by_class(self.kinds, *sums.astype(np.int64).reshape(3, -1))}

    def _metrics(self, kinds: NDArray[Any], words: float = 0, correct: float = 0, loss: float | None = None) -> Metrics:
        """Returns the metrics; ``kinds`` (3, K) are the counts of true, predicted and correct entities."""
        metrics = {} if loss is None else {"loss": loss / max(1.0, words)}
        if self.scheme != "plain":
            (together,) = by_class(["all kinds"], *kinds.sum(1, keepdims=True))
            metrics |= {name: together[name] for name in ("f1", "precision", "recall")}
        return metrics | {"macro_f1": macro_f1(*kinds).item(), "accuracy": 100 * correct / max(1.0, words)}
