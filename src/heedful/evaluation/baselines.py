"""Simple methods to stand beside a model: what they say of the same examples."""

from __future__ import annotations

import lzma
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heedful.data import Picture, Row, Rows
from heedful.data.augment import fit
from heedful.errors import HeedfulError

SIDE = 32  # pixels to which a larger image is made smaller
IMAGES = 10_000  # images that are learned from at most
STRENGTH = 10.0  # C, the inverse of the penalty on the weights of words
READ = 1 << 23  # bytes of text that xz has read before at most


def linear_text(
    texts: Sequence[str], labels: Sequence[tuple[str, ...]], asked: Sequence[str], several: bool = False
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
    """
    extraction = _learning("feature_extraction.text")
    words = extraction.TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\w+")
    try:
        known = words.fit_transform(texts)
    except ValueError as error:  # an empty vocabulary
        raise HeedfulError("no training text has a word, so --baseline has nothing to go by; leave it out") from error
    new = words.transform(asked)
    if not several:
        return [(label,) for label in _said(known, [one for (one,) in labels], new)]
    names = sorted({name for own in labels for name in own})
    given = [_said(known, [name in own for own in labels], new) for name in names]
    return [tuple(name for name, holds in zip(names, row, strict=True) if holds) for row in zip(*given, strict=True)]


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


def linear_images(learned: Rows, asked: Rows, channels: Literal[1, 3], side: int) -> tuple[str, list[str]]:
    """The method's name, and the label that logistic regression on their pixels gives to images.

    Images are brought to ``side`` × ``side`` pixels, 32 at most, and learned from at most 10,000, evenly chosen.
    """
    taken, side = learned[:: -(-len(learned) // IMAGES)], min(side, SIDE)

    def pixels(rows: Sequence[Row]) -> NDArray[np.float32]:
        found = np.empty((len(rows), side * side * channels), dtype=np.float32)
        for row, place in zip(rows, found, strict=True):
            image: Picture = row.values["image"]
            place[:] = fit(image.pixels(channels), (side, side)).ravel()
        found /= 255
        return found

    labels = [row.values["label"] for row in taken]
    name = f"logistic regression on {side} × {side} pixels"
    if len(taken) < len(learned):
        name += f" of {len(taken):,} images"
    return name, _said(pixels(taken), labels, pixels(asked), strength=1.0)


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
