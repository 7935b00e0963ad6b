"""Tags as labels: the label set of training rows, the tagging scheme (BIO, IO, plain), checks, a baseline."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import chain, groupby, pairwise
from typing import Any

import numpy as np

from heedful.data import Row, Rows
from heedful.data.conll import line_of_word
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError, known_names, misspelled, nearest, plural
from heedful.metrics.entities import OUTSIDE, PARTS, Scheme, entities, parted
from heedful.tasks.baselines import evenly_spaced, sklearn_module

WORDS, WORDS_TIMES_TAGS, MIN_WORDS = 60_000, 1_000_000, 5_000  # limits of the training words of `LinearTagger`
OUTSIDE_SENTENCE, UNKNOWN, KNOWN = 0, 1, 2  # ids of a feature: no neighbour, a new value, the first known value
NEIGHBOUR_FEATURES = (1, 2)  # of `word_features`: lower case and shape
ORDER = {part: index for index, part in enumerate("BIES")}


def scheme_of(labels: Sequence[str]) -> Scheme:
    """Returns the tagging scheme of ``labels``: "BIO", "IO" or "plain".

    It is "BIO" if all tags but ``O`` begin with a part of an entity (B-, I-, ...), else "IO" if there is an ``O``, else
    "plain".

    >>> scheme_of(["O", "B-PER", "I-PER"]), scheme_of(["O", "PER"]), scheme_of(["DET", "NOUN"])
    ('BIO', 'IO', 'plain')
    """
    others = [label for label in labels if label != OUTSIDE]
    if others and all(parted(label)[0] for label in others):
        return "BIO"
    return "IO" if OUTSIDE in labels else "plain"


def tag_labels(rows: Sequence[Row]) -> list[str]:
    """Returns the labels that a model needs for the tags of training rows: ``O`` first, then by kind of entity.

    Every kind of entity gets each part (``B-``, ``I-``, ...) that occurs with any kind. So a model can predict ``I-``
    of a rare kind that no training sentence has.

    Raises ``HeedfulError`` if there is only one tag, or if a few tags have no part while most tags have one, which are
    probably typing errors.
    """
    first: dict[str, tuple[Row, int]] = {}
    for row in rows:
        for index, tag in enumerate(row.values["tags"]):
            first.setdefault(tag, (row, index))
    if len(first) < 2:
        raise HeedfulError(
            f"{rows[0].file}: only the tag {next(iter(first))!r} in {plural(len(rows), 'sentence')}; add "
            "sentences, so that there are two or more different tags"
        )
    others = [tag for tag in first if tag != OUTSIDE]
    bare = [tag for tag in others if not parted(tag)[0]]
    if 0 < len(bare) <= len(others) - len(bare):
        tag = next(tag for tag in first if tag in bare)
        row, index = first[tag]
        word = row.values["words"][index]
        prefixed = {parted(other)[1]: other for other in others if other not in bare}
        close = misspelled(tag, prefixed)
        hint = f"did you mean {prefixed[close]!r}?" if close is not None else known_names({*others} - {*bare})
        header = f", or if this line is a header, name its columns: --data.columns {word},{tag}"
        raise HeedfulError(
            f"{row.file}:{line_of_word(row, index)}: the tag {tag!r} of {word!r} has no prefix B- or I-, but other "
            f"tags have one; {hint}{header if line_of_word(row, index) == 1 else ''}"
        )
    if scheme_of([*first]) != "BIO":
        return sorted(first, key=lambda tag: (tag != OUTSIDE, tag))
    parts = {tag.partition("-")[0] for tag in others}
    kinds = {tag.partition("-")[2] for tag in others}
    labels = [f"{part}-{kind}" if kind else part for kind in kinds for part in parts]
    labels.sort(key=lambda tag: (parted(tag)[1], ORDER[parted(tag)[0]], tag))
    return [*([OUTSIDE] if OUTSIDE in first else []), *labels]


def tag_ids(row: Row, labels: Sequence[str]) -> list[int]:
    """Returns the indices of a row's tags in ``labels``; raises ``HeedfulError`` for an unknown tag."""
    known = {label: index for index, label in enumerate(labels)}
    for index, (word, tag) in enumerate(zip(row.values["words"], row.values["tags"], strict=True)):
        if tag not in known:
            raise HeedfulError(
                f"{row.file}:{line_of_word(row, index)}: the model has no tag {tag!r} (of {word!r}); "
                f"{nearest(tag, labels)}"
            )
    return [known[tag] for tag in row.values["tags"]]


def tag_summary(rows: Sequence[Row], labels: Sequence[str]) -> str:
    """Returns a summary of the tags of rows for people: ``IOB2 tags of 6 kinds, 1,975 entities``."""
    scheme = scheme_of(labels)
    if scheme == "plain":
        return plural(len(labels), "tag")
    counts = Counter(entity.kind for row in rows for entity in entities(row.values["tags"], scheme))
    kinds = {parted(label)[1] for label in labels} - {""}
    name = "IO" if scheme == "IO" else _scheme_name(rows)
    return f"{name} tags of {plural(len(kinds), 'kind')}, {plural(counts.total(), 'entity', 'entities')}"


def _scheme_name(rows: Sequence[Row]) -> str:
    """Returns the name of the strictest scheme with B and I that all rows follow."""
    letters = {tag.partition("-")[0] for row in rows for tag in row.values["tags"]} & {*PARTS}
    if letters - {"B", "I"}:
        return "BILOU" if letters & {"L", "U"} else "BMES" if "M" in letters else "BIOES"
    if "B" not in letters:
        return "IO"
    stray = needless = 0  # I- without an entity before it; B- without one of the same kind before it
    for row in rows:
        before = ""
        for tag in row.values["tags"]:
            part, kind = parted(tag)
            stray += part == "I" and kind != before
            needless += part == "B" and kind != before
            before = kind
    if not stray:
        return "IOB2"
    return "IOB1" if not needless else f"BIO ({stray:,} begin with I-)"


def with_learnable_tags(train: Rows, held: Rows, same: Same = content_digest) -> tuple[Rows, Rows]:
    """Returns training and validation rows after moving rows with unknown tags from validation to training.

    A tag is unknown if no row of ``train`` has its kind, so a model could never predict it. Rows of the same words move
    together. Raises ``HeedfulError`` if all rows of ``held`` would move.
    """
    known = {kind for row in train for kind in _kinds(row)}
    keys = [same(row.values["words"]) for row in held]
    unknown = {key for row, key in zip(held, keys, strict=True) if not known.issuperset(_kinds(row))}
    moved = [row for row, key in zip(held, keys, strict=True) if key in unknown]
    if len(moved) == len(held):
        where = f"{moved[0].file}: " if moved else ""
        raise HeedfulError(
            f"{where}every kind of tag has too few sentences to hold any out for validation; add sentences, or give "
            "--valid FILE"
        )
    remaining = (row for row, key in zip(held, keys, strict=True) if key not in unknown)
    return Rows([*train, *moved], train.skipped, train.columns), Rows(remaining, 0, held.columns)


def _kinds(row: Row) -> set[str]:
    return {parted(tag)[1] for tag in row.values["tags"]}


class LinearTagger:
    """Linear support vector machine that predicts the tag of a word from a window of words, each word for itself.

    A word's features are the word, its shape, its first and last one to three letters, and the words and shapes of the
    two neighbours on either side; letters are in lower case beside the word itself. The machine is scikit-learn's
    ``LinearSVC``. It is fitted to evenly spaced sentences of at most 60,000 words in total, or fewer for more than 16
    tags, since its time grows with the product.

    Args:
        rows: training rows, with ``words`` and ``tags``.

    >>> row = Row({"words": ("a", "can", "of", "tin"), "tags": ("DET", "NOUN", "ADP", "NOUN")}, "a.conll", 1)
    >>> LinearTagger([row] * 5).tags([("of", "a", "can"), ()])
    [['ADP', 'DET', 'NOUN'], []]
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        labels = sorted({tag for row in rows for tag in row.values["tags"]})
        most = max(MIN_WORDS, min(WORDS, WORDS_TIMES_TAGS // len(labels)))
        words = sum(len(row.values["words"]) for row in rows)
        sample = [rows[i] for i in evenly_spaced(len(rows), max(1, len(rows) * most // words))]
        sentences = [row.values["words"][:most] for row in sample]
        tags = [tag for row in sample for tag in row.values["tags"][:most]]
        self._ids: list[dict[str, int]] = [{} for _ in word_features("")]  # of each feature's values
        self._only = tags[0] if len({*tags}) == 1 else None
        if self._only is None:
            for word in dict.fromkeys(chain.from_iterable(sentences)):
                for ids, value in zip(self._ids, word_features(word), strict=True):
                    ids.setdefault(value, KNOWN + len(ids))
            self._model = sklearn_module("svm").LinearSVC(tol=0.05, max_iter=30, random_state=0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # more steps might gain a little: it is a baseline
                self._model.fit(self._vectors(sentences), tags)

    def tags(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Returns the predicted tag of each word of each sentence."""
        predicted = list[str]()
        if self._only is None:
            blocks = batched_by_words(sentences, WORDS)
            predicted = [str(tag) for block in blocks for tag in self._model.predict(self._vectors(block))]
        else:
            predicted = [self._only] * sum(map(len, sentences))
        ends = np.cumsum([0, *map(len, sentences)]).tolist()
        return [predicted[first:last] for first, last in pairwise(ends)]

    def _vectors(self, sentences: Sequence[Sequence[str]]) -> Any:
        """Returns the features of all words as a sparse array (words, features), a value of 1 for each."""
        types: dict[str, int] = {}
        numbers = [types.setdefault(word, len(types)) for sentence in sentences for word in sentence]
        values = [
            [ids.get(value, UNKNOWN) for ids, value in zip(self._ids, word_features(word), strict=True)]
            for word in types
        ]
        own = np.array(values, dtype=np.int64)[numbers]
        lengths = [len(sentence) for sentence in sentences]
        place = np.concatenate([np.arange(length) for length in lengths])
        left = np.repeat(lengths, lengths) - place - 1  # words that follow in the sentence
        columns, sizes = [*own.T], [KNOWN + len(ids) for ids in self._ids]
        for offset in (-2, -1, 1, 2):
            is_inside = (place >= -offset) & (left >= offset)
            for feature in NEIGHBOUR_FEATURES:
                columns.append(np.where(is_inside, np.roll(own[:, feature], -offset), OUTSIDE_SENTENCE))
                sizes.append(sizes[feature])
        starts = np.cumsum([0, *sizes])
        indices = np.stack(columns, axis=1) + starts[:-1]
        pointers = np.arange(len(own) + 1, dtype=np.int32) * len(columns)
        flat = (np.ones(indices.size), indices.ravel().astype(np.int32), pointers)
        return import_module("scipy.sparse").csr_array(flat, shape=(len(own), int(starts[-1])))


def word_features(word: str) -> list[str]:
    """Returns the features of a word: itself, in lower case, its shape, its beginnings, its endings.

    >>> word_features("McArthur-2")
    ['McArthur-2', 'mcarthur-2', 'XxXx-0', 'm', 'mc', 'mca', '2', '-2', 'r-2']
    """
    small = word.lower()
    shape = "".join("X" if c.isupper() else "x" if c.isalpha() else "0" if c.isdigit() else c for c in word)
    shape = "".join(letter for letter, _ in groupby(shape))
    return [word, small, shape, small[:1], small[:2], small[:3], small[-1:], small[-2:], small[-3:]]


def batched_by_words(sentences: Sequence[Sequence[str]], most: int) -> Iterator[list[Sequence[str]]]:
    """Yields the sentences in blocks of at most ``most`` words, or of one sentence; leaves empty ones out."""
    block, size = list[Sequence[str]](), 0
    for sentence in filter(None, sentences):
        if block and size + len(sentence) > most:
            yield block
            block, size = [], 0
        block.append(sentence)
        size += len(sentence)
    if block:
        yield block
