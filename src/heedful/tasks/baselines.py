"""Simple methods to stand beside a model: what they say of the same examples."""

from __future__ import annotations

import lzma
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heedful.data import LazyImage, Row, Rows
from heedful.data.image_transforms import resize
from heedful.errors import HeedfulError

SIDE = 32  # pixels to which a larger image is made smaller
IMAGES = 10_000  # images that are learned from at most
STRENGTH = 10.0  # C, the inverse of the penalty on the weights of words
READ = 1 << 23  # bytes of text that xz has read before at most
CLASSES = 50  # more labels are told apart by naive Bayes where time is short
Classifier = Callable[
    [Any, Sequence[Any], Any], list[Any]
]  # (known vectors, their labels, new vectors) -> labels of these


def linear_text(
    texts: Sequence[str],
    labels: Sequence[tuple[str, ...]],
    asked: Sequence[str],
    several: bool = False,
    classifier: Classifier | None = None,
) -> list[tuple[str, ...]]:
    """The labels that a linear model gives to the texts ``asked``.

    Each text is the weights of its words and pairs of words, tf · (ln((1 + n) / (1 + df)) + 1), brought to length 1,
    and logistic regression with an L2 penalty (C = 10) tells the labels apart (scikit-learn's ``TfidfVectorizer`` and
    ``LogisticRegression``); of several labels each alone.

    Args:
        texts: what is learned from.
        labels: of each text its label, or its labels.
        asked: the texts to label.
        several: whether a text may have several labels, or none.
        classifier: another one than logistic regression.
    """
    classify = classifier or _said
    extraction = _learning("feature_extraction.text")
    words = extraction.TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\w+")
    try:
        known = words.fit_transform(texts)
    except ValueError as error:  # an empty vocabulary
        raise HeedfulError("no training text has a word, so --baseline has nothing to go by; leave it out") from error
    new = words.transform(asked)
    if not several:
        return [(label,) for label in classify(known, [one for (one,) in labels], new)]
    names = sorted({name for own in labels for name in own})
    given = [classify(known, [name in own for own in labels], new) for name in names]
    return [tuple(name for name, holds in zip(names, row, strict=True) if holds) for row in zip(*given, strict=True)]


def ridge_text(texts: Sequence[str], numbers: Sequence[float], asked: Sequence[str]) -> NDArray[np.float64]:
    """The numbers that ridge regression on the weights of words and pairs of words (see ``linear_text``) gives to the
    texts ``asked``; with a penalty of 1 on the weights of standardised numbers (scikit-learn's ``Ridge``).
    """
    words = _learning("feature_extraction.text").TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\w+")
    try:
        known = words.fit_transform(texts)
    except ValueError as error:  # an empty vocabulary
        raise HeedfulError("no training text has a word, so --baseline has nothing to go by; leave it out") from error
    true = np.asarray(numbers, dtype=np.float64)
    mean, deviation = true.mean(), true.std() or 1.0
    model = _learning("linear_model").Ridge(alpha=1.0, solver="lsqr").fit(known, (true - mean) / deviation)
    found: NDArray[np.float64] = model.predict(words.transform(asked)) * deviation + mean
    return found


def word_vectors(texts: Sequence[str], *asked: Sequence[str]) -> list[Any]:
    """For each list of texts that is ``asked`` the rows (N, words), sparse and of length 1, of its texts' weights
    tf · (ln((1 + n) / (1 + df)) + 1), n and df counted among ``texts`` (scikit-learn's ``TfidfVectorizer``).
    """
    words = _learning("feature_extraction.text").TfidfVectorizer(token_pattern=r"(?u)[^\W_]+")
    try:
        words.fit(texts)
    except ValueError as error:  # an empty vocabulary
        raise HeedfulError("no training text has a word, so --baseline has nothing to go by; leave it out") from error
    return [words.transform(part) for part in asked]


def linear_images(
    learned: Rows, asked: Rows, channels: Literal[1, 3], side: int, classifier: Classifier | None = None
) -> tuple[str, list[str]]:
    """The method's name, and the label that logistic regression on their pixels gives to images.

    Images are brought to ``side`` × ``side`` pixels, 32 at most, and learned from at most 10,000, evenly chosen.
    """
    taken, side = learned[:: -(-len(learned) // IMAGES)], min(side, SIDE)

    def pixels(rows: Sequence[Row]) -> NDArray[np.float32]:
        found = np.empty((len(rows), side * side * channels), dtype=np.float32)
        for row, place in zip(rows, found, strict=True):
            image: LazyImage = row.values["image"]
            place[:] = resize(image.pixels(channels), (side, side)).ravel()
        found /= 255
        return found

    labels = [row.values["label"] for row in taken]
    name = f"{'logistic regression' if classifier is None else 'a linear SVM'} on {side} × {side} pixels"
    classify: Classifier = classifier or partial(_said, strength=1.0)
    if len(taken) < len(learned):
        name += f" of {len(taken):,} images"
    return name, classify(pixels(taken), labels, pixels(asked))


def svm(known: Any, labels: Sequence[Any], new: Any, strength: float = 1.0) -> list[Any]:
    """What a linear support vector machine, fitted to ``known``, says of ``new`` (scikit-learn's ``LinearSVC``): as
    right as logistic regression on texts, and some ten times as quick. Of more than 50 labels complement naive Bayes
    (Rennie et al. 2003), which takes no longer for more of them.
    """
    if len(set(labels)) == 1:
        return [labels[0]] * new.shape[0]
    if len(set(labels)) > CLASSES:
        model = _learning("naive_bayes").ComplementNB(alpha=0.1)
    else:
        model = _learning("svm").LinearSVC(C=strength, max_iter=200, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as of logistic regression
        return list(model.fit(known, labels).predict(new))


class NGrams:
    """An n-gram model of tokens, interpolated as Witten and Bell (1991) do.

    With N(h) the number of times that a history h of tokens was read, T(h) that of the different tokens that followed,
    and h' the history without its first token: p(w | h) = (N(hw) + T(h) p(w | h')) / (N(h) + T(h)); without a history
    p(w | h') is 1 / vocabulary.

    Args:
        tokens: (N,), what is read.
        vocabulary: the number of different tokens that there may be.
        order: the most tokens of an n-gram; fewer of a vocabulary whose n-grams 62 bits cannot number.

    >>> model = NGrams(np.array([0, 1, 0, 1, 0, 1]), vocabulary=2, order=2)
    >>> first, second, _ = model.nats(np.array([0, 1, 0]))
    >>> bool(second < first)
    True
    """

    def __init__(self, tokens: NDArray[Any], vocabulary: int, order: int = 3) -> None:
        self.vocabulary = max(2, vocabulary)
        self.order = max(1, min(order, int(62 / np.log2(self.vocabulary))))
        self._counts: list[tuple[NDArray[np.int64], ...]] = []  # of each order: n-grams, their counts, histories, N, T
        for order in range(1, self.order + 1):
            grams, counts = np.unique(self._codes(tokens, order), return_counts=True)
            histories, first = np.unique(grams // self.vocabulary, return_index=True)
            totals = np.add.reduceat(counts, first) if len(first) else counts
            self._counts.append((grams, counts, histories, totals, np.diff([*first, len(grams)])))

    def nats(self, tokens: NDArray[Any]) -> NDArray[np.float64]:
        """−ln p of each of the tokens (N,), given those before it."""
        p = np.full(len(tokens), 1 / self.vocabulary)
        for size, (grams, counts, histories, total, kinds) in enumerate(self._counts, 1):
            asked = self._codes(tokens, size)
            its, seen = _found(grams, counts, asked), _found(histories, total, asked // self.vocabulary)
            different = _found(histories, kinds, asked // self.vocabulary)
            part = p[size - 1 :]
            known = seen > 0
            part[known] = (its[known] + different[known] * part[known]) / (seen[known] + different[known])
        return -np.log(p)

    def _codes(self, tokens: NDArray[Any], order: int) -> NDArray[np.int64]:
        """The n-grams (N − order + 1,) as numbers to the base of the vocabulary."""
        size = max(0, len(tokens) - order + 1)
        code = np.zeros(size, dtype=np.int64)
        for place in range(order):
            code = code * self.vocabulary + np.asarray(tokens[place : place + size], dtype=np.int64)
        return code


def _found(keys: NDArray[np.int64], values: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.int64]:
    """The value of each key that is ``asked``, 0 of those that are not among the sorted ``keys``."""
    if not len(keys):
        return np.zeros(len(asked), dtype=np.int64)
    places = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[places] == asked, values[places], 0)


def packed(learned: Sequence[str], asked: Sequence[str]) -> float:
    """Bits a byte that xz (LZMA2, preset 9) needs for the texts ``asked``, having read those ``learned``.

    8 (|xz(learned asked)| − |xz(learned)|) / |asked|, of the last 8 MiB of what was learned; a line end closes each
    text, as the end token does for a language model.

    >>> packed(["abc" * 100], ["abc" * 100]) < packed(["xyz" * 100], ["abc" * 100])
    True
    """
    before, new = (
        b"".join(text.encode("utf-8", "surrogatepass") + b"\n" for text in side) for side in (learned, asked)
    )
    before = before[-READ:]
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in asked)
    return 8 * (_size(before + new) - _size(before)) / size


def _size(data: bytes) -> int:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9}]
    return len(lzma.compress(data, format=lzma.FORMAT_RAW, filters=filters))


def _learning(module: str) -> Any:
    """A part of scikit-learn."""
    try:
        return import_module(f"sklearn.{module}")
    except ImportError as error:
        raise HeedfulError("--baseline needs scikit-learn for this task; pip install scikit-learn") from error


def _said(known: Any, labels: Sequence[Any], new: Any, strength: float = STRENGTH) -> list[Any]:
    """What logistic regression, fitted to ``known``, says of ``new``; of one label alone there is nothing to fit."""
    if len(set(labels)) == 1:
        return [labels[0]] * new.shape[0]
    model = _learning("linear_model").LogisticRegression(C=strength, max_iter=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more steps might gain a little: it is a baseline
        return list(model.fit(known, labels).predict(new))
