"""Masked-token selection for masked language models and T5's span corruption.

Shapes: B windows, T tokens of the longest with its padding, V tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from heedful.util.values import check

Unit = Literal["token", "word", "span"]
Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]

SHARE = 0.15  # fraction of tokens that are chosen (Devlin et al. 2019, section 3.1)
MASKED, OTHER = 0.8, 0.1  # fractions of chosen tokens: replaced by the mask, replaced by another; the rest is kept
STOP, LONGEST = 0.2, 10  # probability that a span ends after a word; maximum words of a span (SpanBERT)
SPANS = np.arange(1, LONGEST + 1)


def span_length_probabilities(stop: float) -> NDArray[np.float64]:
    """Returns the probabilities of span lengths 1 to 10, if a span ends after each word with probability ``stop``.

    >>> round(float(span_length_probabilities(STOP) @ SPANS), 1)
    3.8
    """
    weights = stop * (1 - stop) ** (SPANS - 1)
    return weights / weights.sum()


def stop_probability(length: float) -> float:
    """Returns the probability that a span ends after a word, for a mean length of ``length`` words (1 to below 5.5).

    >>> round(stop_probability(3.797), 3), round(stop_probability(1), 3)
    (0.2, 1.0)
    """
    check("the mean length of a span", length, float, least=1, below=float(SPANS.mean()))
    low, high = 0.0, 1.0  # a larger probability gives shorter spans
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if span_length_probabilities(middle) @ SPANS > length else (low, middle)
    return high


@dataclass(frozen=True)
class Masking:
    """Token masking for masked language models.

    In each window, the fraction ``share`` of ordinary tokens is chosen, at least one. The number is rounded at random
    so that its mean is exact. The tokens are chosen by ``unit``:

    - ``token``: single tokens (Devlin et al. 2019, section 3.1)
    - ``word``: whole words with all their tokens, as long as the number allows (whole-word masking of the same authors,
      2019)
    - ``span``: consecutive whole words from a random one, with a geometric number of words (p = ``stop``, at most 10;
      Joshi et al. 2020, section 3.1)

    A chosen token becomes the mask with probability 0.8, becomes a random ordinary token with 0.1, and stays unchanged
    with 0.1. With ``span``, this is drawn once for all tokens of a span. Special tokens and padding are neither chosen
    nor inserted.

    Args:
        mask: the id of the mask token.
        ordinary: (V,) boolean, True for ids that represent text.
        before: (V,) boolean, True for ids that may continue a word (``heedful.text.word_boundaries.word_joints``).
        after: (V,) boolean, True for ids after which a word may continue.
        share: fraction of ordinary tokens that are chosen.
        unit: token, word or span.
        masked: probability that a chosen token becomes the mask.
        other: probability that a chosen token becomes a random ordinary token.
        stop: probability that a span ends after a word.

    >>> every = np.ones(10, dtype=bool)
    >>> ordinary = every & (np.arange(10) > 4)
    >>> masking = Masking(4, ordinary, ~every, ~every, share=0.5)
    >>> hidden, chosen = masking(np.array([[1, 7, 8, 9, 6, 2]]), np.random.default_rng(0))
    >>> int(chosen.sum()), bool(chosen[0, 0])
    (2, False)
    """

    mask: int
    ordinary: Flags
    before: Flags
    after: Flags
    share: float = SHARE
    unit: Unit = "token"
    masked: float = MASKED
    other: float = OTHER
    stop: float = STOP

    def __call__(self, ids: Ids, random: np.random.Generator) -> tuple[Ids, Flags]:
        """Returns ``ids`` (B, T) with the chosen tokens replaced, and a boolean array of these tokens.

        The padding must be a special id."""
        groups = np.stack([self.groups(row, random) for row in ids])
        chosen, draws = groups >= 0, random.random(groups.shape)
        if self.unit == "span":
            draws = np.take_along_axis(draws, np.maximum(groups, 0), axis=1)
        texts = np.flatnonzero(self.ordinary)
        others = texts[random.integers(len(texts), size=ids.shape)]
        hidden = np.where(chosen & (draws < self.masked), self.mask, ids)
        return np.where(chosen & (draws >= self.masked) & (draws < self.masked + self.other), others, hidden), chosen

    def groups(self, row: Ids, random: np.random.Generator) -> Ids:
        """Returns for each token of one window (T,) the number of its span or word; -1 if it is not chosen."""
        groups = np.full(len(row), -1)
        words = self.words(row)
        if words:
            count = int(self.share * int(self.ordinary[row].sum()) + random.random())
            order = random.permutation(len(words))
            lengths = (
                random.choice(SPANS, size=len(words), p=span_length_probabilities(self.stop))
                if self.unit == "span"
                else order
            )
            CHOOSE[self.unit](groups, words, order, count, lengths)
            if (groups < 0).all():
                groups[words[order[0]]] = 0
        return groups

    def words(self, row: Ids) -> list[NDArray[np.int64]]:
        """Returns the positions of each word of a window, in order; if the unit is "token", of each token."""
        positions = np.flatnonzero(self.ordinary[row])
        if self.unit == "token":
            return list(positions[:, None])
        joined = self.after[row[:-1]] & self.before[row[1:]] & self.ordinary[row[:-1]] & self.ordinary[row[1:]]
        is_start = np.concatenate([[True], ~joined])[positions]
        return np.split(positions, np.flatnonzero(is_start)[1:])


def _choose_words(groups: Ids, words: Sequence[Ids], order: Ids, count: int, lengths: Ids) -> None:
    """Writes the numbers of chosen words into ``groups``: those that fit the remaining ``count`` of tokens."""
    for number, index in enumerate(order):
        if count <= 0:
            return
        if len(words[index]) <= count:
            groups[words[index]] = number
            count -= len(words[index])


def _choose_spans(groups: Ids, words: Sequence[Ids], order: Ids, count: int, lengths: Ids) -> None:
    """Writes the numbers of chosen spans into ``groups``.

    A span starts at each word in ``order`` with the words of ``lengths``. It ends before a chosen word, a special token
    and a word beyond the remaining ``count`` of tokens.
    """
    for number, (first, length) in enumerate(zip(order, lengths, strict=True)):
        if count <= 0:
            return
        next_position = words[first][0]
        for word in words[first : first + length]:
            if groups[word[0]] >= 0 or word[0] != next_position or len(word) > count:
                break
            groups[word] = number
            count, next_position = count - len(word), word[-1] + 1


CHOOSE: dict[str, Callable[[Ids, Sequence[Ids], Ids, int, Ids], None]] = {
    "token": _choose_words,
    "word": _choose_words,
    "span": _choose_spans,
}


LONGEST_PREDICTED = 5  # maximum number of tokens of a predicted span (Yang et al. 2019, section 3.1)


@dataclass(frozen=True)
class Factorisation:
    """Orders of prediction for permutation language models, of which the last part is predicted (Yang et al. 2019).

    As in section 3.1, spans of L tokens are predicted, L uniform from 1 to 5, each at a random place in a context of
    K L tokens with K = 1 / ``share``. The other tokens, special ones too, come first in the order and know one another;
    the predicted tokens follow in random order.

    Args:
        ordinary: (V,) boolean, True for ids that represent text.
        share: 1/K, the fraction of ordinary tokens that are predicted.

    >>> order = Factorisation(np.ones(60, dtype=bool))(np.arange(60), np.random.default_rng(1))
    >>> predicted = order[order > 0]
    >>> sorted(predicted.tolist()) == list(range(1, len(predicted) + 1))
    True
    """

    ordinary: Flags
    share: float = 1 / 6

    def __call__(self, row: Ids, random: np.random.Generator) -> Ids:
        """Returns for each token of a window (T,) its place among the predicted ones, 1, 2, ...; 0 for the others."""
        order, positions = np.zeros(len(row), dtype=np.int64), np.flatnonzero(self.ordinary[row])
        if not len(positions):
            return order
        starts, first = [], 0
        while first < len(positions):
            length = int(random.integers(1, LONGEST_PREDICTED + 1))
            context = max(length, round(length / self.share))
            start = first + int(random.integers(context - length + 1))
            starts.append(positions[start : start + length])
            first += context
        chosen = np.concatenate(starts)
        chosen = chosen if len(chosen) else random.choice(positions, 1)
        order[chosen] = random.permutation(len(chosen)) + 1
        return order


LENGTH = 3.0  # mean number of tokens of a span (Raffel et al. 2020, section 3.3.4)


@dataclass(frozen=True)
class Corruption:
    """Span corruption: hides spans of a text, and makes them the target (Raffel et al. 2020, section 3.1.4).

    Of n ordinary tokens round(n · ``share``) are hidden, at least one and at most n − 1, in round(hidden / ``length``)
    spans, at least one. These numbers follow the authors' code. The lengths of the spans and of the pieces between them
    are drawn uniformly from all lengths with these sums. A text begins with visible tokens and ends with a hidden span.
    Special tokens are never hidden: they split a span in two. The last sentinel is reserved for the end of the target;
    spans for which no other sentinel is left stay visible.

    Args:
        sentinels: the ids that replace the first span, the second, ...
        ordinary: (V,) boolean, True for ids that represent text.
        share: fraction of ordinary tokens that are hidden.
        length: mean length of a span, in tokens.

    >>> hide = Corruption([9, 8], np.arange(10) < 8, share=0.5, length=2)
    >>> hide(np.array([0, 1, 2, 3]), np.random.default_rng(0))
    ([0, 1, 9], [9, 2, 3, 8])
    """

    sentinels: Sequence[int]
    ordinary: Flags
    share: float = SHARE
    length: float = LENGTH

    def counts(self, tokens: int) -> tuple[int, int]:
        """Returns how many of ``tokens`` ordinary tokens are hidden, and in how many spans: (0, 0) for 0 or 1 token."""
        if tokens < 2:
            return 0, 0
        hidden = min(max(round(tokens * self.share), 1), tokens - 1)
        return hidden, min(max(round(hidden / self.length), 1), tokens - hidden)

    def hidden(self, row: Ids, random: np.random.Generator) -> Flags:
        """Returns a boolean array (T,), True for the hidden tokens of one text."""
        flags, positions = np.zeros(len(row), dtype=bool), np.flatnonzero(self.ordinary[row])
        hidden, spans = self.counts(len(positions))
        if spans:
            lengths = np.stack(
                [_random_lengths(len(positions) - hidden, spans, random), _random_lengths(hidden, spans, random)],
                axis=1,
            )
            flags[positions] = np.repeat(np.arange(2 * spans) % 2 == 1, lengths.ravel())
        return flags & (np.cumsum(_span_starts(flags)) < len(self.sentinels))

    def __call__(self, row: Ids, random: np.random.Generator) -> tuple[list[int], list[int]]:
        """Returns the text with sentinels for spans, and the target: each sentinel with its span, and a last one."""
        return self.split(row, self.hidden(row, random))

    def split(self, row: Ids, hidden: Flags) -> tuple[list[int], list[int]]:
        """Returns the ids of the source and of the target, for a text (T,) and its ``hidden`` tokens, boolean (T,).

        The source is the text with a sentinel in place of each hidden span. The target has each sentinel with the
        tokens of its span, and a last sentinel.
        """
        is_start = _span_starts(hidden)
        positions, firsts = np.flatnonzero(hidden), np.flatnonzero(is_start)
        sentinels = np.asarray(self.sentinels)[: len(firsts) + 1]
        source = np.where(is_start, sentinels[np.cumsum(is_start) - 1], row)[~hidden | is_start]
        target = np.insert(row[positions], np.searchsorted(positions, firsts), sentinels[:-1])
        return source.tolist(), [*target.tolist(), int(sentinels[-1])]


def _span_starts(hidden: Flags) -> Flags:
    """Returns a boolean array, True for the first tokens of spans."""
    return hidden & ~np.concatenate([[False], hidden[:-1]])


def _random_lengths(total: int, number: int, random: np.random.Generator) -> Ids:
    """Draws ``number`` lengths of at least one with the sum ``total``, uniformly."""
    bounds = np.sort(random.permutation(total - 1)[: number - 1]) + 1
    return np.diff(np.concatenate([[0], bounds, [total]]))
