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

SHARE = 0.15  # of the tokens (Devlin et al. 2019, section 3.1)
MASKED, OTHER = 0.8, 0.1  # of the chosen ones: behind the mask token, replaced by any other; the rest stays
STOP, LONGEST = 0.2, 10  # a span of words ends after each with this probability, and has at most so many (SpanBERT)
SPANS = np.arange(1, LONGEST + 1)


def span_length_probabilities(stop: float) -> NDArray[np.float64]:
    """Returns the probabilities of span lengths 1 to 10, where a span ends after each word with probability ``stop``.

    >>> round(float(span_length_probabilities(STOP) @ SPANS), 1)
    3.8
    """
    weights = stop * (1 - stop) ** (SPANS - 1)
    return weights / weights.sum()


def stop_probability(length: float) -> float:
    """Returns the probability ``stop`` with which spans have ``length`` words on average (1 to less than 5.5).

    >>> round(stop_probability(3.797), 3), round(stop_probability(1), 3)
    (0.2, 1.0)
    """
    check("the mean length of a span", length, float, least=1, below=float(SPANS.mean()))
    low, high = 0.0, 1.0  # the likelier it ends, the shorter it is
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if span_length_probabilities(middle) @ SPANS > length else (low, middle)
    return high


@dataclass(frozen=True)
class Masking:
    """Token masking for masked language models.

    Of each window the share ``share`` of its ordinary tokens is chosen, rounded at random so that the mean is exact, at
    least one:

    - ``token``: any of them (Devlin et al. 2019, section 3.1);
    - ``word``: all tokens of whole words, as long as they are no more than are to be chosen (the same authors'
      whole-word masking, 2019);
    - ``span``: whole words in a row, as many as a geometric distribution says (p = ``stop``, at most 10), each span
      from a word chosen at random (Joshi et al. 2020, section 3.1).

    A chosen token becomes the mask with probability 0.8, any ordinary token with 0.1, and stays as it is with 0.1; in
    ``span`` all tokens of a span share that draw. Special tokens and padding are neither chosen nor put in.

    Args:
        mask: the id of the mask token.
        ordinary: (V,) which ids stand for text.
        before: (V,) which ids may go on with a word (``heedful.text.word_boundaries.word_joints``).
        after: (V,) which ids a word may go on after.
        share: of the ordinary tokens.
        unit: what is chosen.
        masked: how likely a chosen token becomes the mask.
        other: how likely any ordinary one.
        stop: how likely a span ends after each of its words.

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
        """Returns ``ids`` (B, T), padded with special ones, as the model reads them, and which were chosen."""
        groups = np.stack([self.groups(row, random) for row in ids])
        chosen, draws = groups >= 0, random.random(groups.shape)
        if self.unit == "span":
            draws = np.take_along_axis(draws, np.maximum(groups, 0), axis=1)
        texts = np.flatnonzero(self.ordinary)
        others = texts[random.integers(len(texts), size=ids.shape)]
        hidden = np.where(chosen & (draws < self.masked), self.mask, ids)
        return np.where(chosen & (draws >= self.masked) & (draws < self.masked + self.other), others, hidden), chosen

    def groups(self, row: Ids, random: np.random.Generator) -> Ids:
        """Returns for each token of one window (T,) the number of its span or word, -1 if not chosen."""
        found = np.full(len(row), -1)
        words = self.words(row)
        if words:
            most = int(self.share * int(self.ordinary[row].sum()) + random.random())
            order = random.permutation(len(words))
            lengths = (
                random.choice(SPANS, size=len(words), p=span_length_probabilities(self.stop))
                if self.unit == "span"
                else order
            )
            CHOOSE[self.unit](found, words, order, most, lengths)
            if (found < 0).all():
                found[words[order[0]]] = 0
        return found

    def words(self, row: Ids) -> list[NDArray[np.int64]]:
        """Returns the places of each word of a window, in order; of each token if the unit is the token."""
        places = np.flatnonzero(self.ordinary[row])
        if self.unit == "token":
            return list(places[:, None])
        joined = self.after[row[:-1]] & self.before[row[1:]] & self.ordinary[row[:-1]] & self.ordinary[row[1:]]
        begins = np.concatenate([[True], ~joined])[places]
        return np.split(places, np.flatnonzero(begins)[1:])


def _choose_words(found: Ids, words: Sequence[Ids], order: Ids, left: int, lengths: Ids) -> None:
    """Words in any order, but for those that are longer than what is still to be chosen; of one word each."""
    for number, place in enumerate(order):
        if left <= 0:
            return
        if len(words[place]) <= left:
            found[words[place]] = number
            left -= len(words[place])


def _choose_spans(found: Ids, words: Sequence[Ids], order: Ids, left: int, lengths: Ids) -> None:
    """Spans of so many words, from words in any order; one ends before what was chosen, a special token, and what would
    be too many.
    """
    for number, (first, length) in enumerate(zip(order, lengths, strict=True)):
        if left <= 0:
            return
        following = words[first][0]
        for word in words[first : first + length]:
            if found[word[0]] >= 0 or word[0] != following or len(word) > left:
                break
            found[word] = number
            left, following = left - len(word), word[-1] + 1


CHOOSE: dict[str, Callable[[Ids, Sequence[Ids], Ids, int, Ids], None]] = {
    "token": _choose_words,
    "word": _choose_words,
    "span": _choose_spans,
}


LENGTH = 3.0  # tokens of a span on average (Raffel et al. 2020, section 3.3.4)


@dataclass(frozen=True)
class Corruption:
    """Span corruption (Raffel et al. 2020, section 3.1.4; the counts are their code's).

    Of n ordinary tokens round(n · ``share``) are hidden, at least one and at most n − 1, in round(hidden / ``length``)
    spans, at least one. How long each span is, and how long each piece of text between them, is drawn with all ways
    of adding up to these numbers equally likely; a text begins with what is shown and ends with what is hidden.
    Special tokens are never hidden: a span that reaches one ends there, and its rest is a span of its own. Of more
    spans than there are sentinels, one kept for the end, the last are shown.

    Args:
        sentinels: the ids that stand for the first span, the second, ...
        ordinary: (V,) which ids stand for text.
        share: of the ordinary tokens.
        length: of a span, on average.

    >>> hide = Corruption([9, 8], np.arange(10) < 8, share=0.5, length=2)
    >>> hide(np.array([0, 1, 2, 3]), np.random.default_rng(0))
    ([0, 1, 9], [9, 2, 3, 8])
    """

    sentinels: Sequence[int]
    ordinary: Flags
    share: float = SHARE
    length: float = LENGTH

    def counts(self, tokens: int) -> tuple[int, int]:
        """Returns the numbers of hidden tokens and of spans among ``tokens`` ordinary ones; (0, 0) below two."""
        if tokens < 2:
            return 0, 0
        hidden = min(max(round(tokens * self.share), 1), tokens - 1)
        return hidden, min(max(round(hidden / self.length), 1), tokens - hidden)

    def hidden(self, row: Ids, random: np.random.Generator) -> Flags:
        """Returns which tokens of one text (T,) are hidden."""
        flags, places = np.zeros(len(row), dtype=bool), np.flatnonzero(self.ordinary[row])
        hidden, spans = self.counts(len(places))
        if spans:
            lengths = np.stack(
                [_random_lengths(len(places) - hidden, spans, random), _random_lengths(hidden, spans, random)], axis=1
            )
            flags[places] = np.repeat(np.arange(2 * spans) % 2 == 1, lengths.ravel())
        return flags & (np.cumsum(_span_starts(flags)) < len(self.sentinels))

    def __call__(self, row: Ids, random: np.random.Generator) -> tuple[list[int], list[int]]:
        """Returns the text with a sentinel a span, and the target: sentinels with their spans, and one more."""
        return self.split(row, self.hidden(row, random))

    def split(self, row: Ids, hidden: Flags) -> tuple[list[int], list[int]]:
        """Returns the same for given ``hidden`` tokens (T,)."""
        begins = _span_starts(hidden)
        places, firsts = np.flatnonzero(hidden), np.flatnonzero(begins)
        named = np.asarray(self.sentinels)[: len(firsts) + 1]
        source = np.where(begins, named[np.cumsum(begins) - 1], row)[~hidden | begins]
        target = np.insert(row[places], np.searchsorted(places, firsts), named[:-1])
        return source.tolist(), [*target.tolist(), int(named[-1])]


def _span_starts(hidden: Flags) -> Flags:
    """Returns where a span begins."""
    return hidden & ~np.concatenate([[False], hidden[:-1]])


def _random_lengths(total: int, number: int, random: np.random.Generator) -> Ids:
    """Draws ``number`` lengths of at least one that add up to ``total``, all such rows equally likely."""
    cuts = np.sort(random.permutation(total - 1)[: number - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))
