"""Hiding spans of tokens behind sentinels, to be given back in their order: T5's span corruption."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heedful.data.masking import SHARE, Flags, Ids

LENGTH = 3.0  # tokens of a span on average (Raffel et al. 2020, section 3.3.4)


@dataclass(frozen=True)
class Corruption:
    """What is hidden of a text, and behind what (Raffel et al. 2020, section 3.1.4; the counts are their code's).

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
        """Of so many ordinary tokens how many are hidden, and in how many spans; of fewer than two none."""
        if tokens < 2:
            return 0, 0
        hidden = min(max(round(tokens * self.share), 1), tokens - 1)
        return hidden, min(max(round(hidden / self.length), 1), tokens - hidden)

    def hidden(self, row: Ids, random: np.random.Generator) -> Flags:
        """Which tokens of one text (T,) are hidden."""
        flags, places = np.zeros(len(row), dtype=bool), np.flatnonzero(self.ordinary[row])
        hidden, spans = self.counts(len(places))
        if spans:
            lengths = np.stack([_parts(len(places) - hidden, spans, random), _parts(hidden, spans, random)], axis=1)
            flags[places] = np.repeat(np.arange(2 * spans) % 2 == 1, lengths.ravel())
        return flags & (np.cumsum(_begins(flags)) < len(self.sentinels))

    def __call__(self, row: Ids, random: np.random.Generator) -> tuple[list[int], list[int]]:
        """The text with a sentinel for each span, and the sentinels each with its span, after the last one more."""
        return self.split(row, self.hidden(row, random))

    def split(self, row: Ids, hidden: Flags) -> tuple[list[int], list[int]]:
        """As a call, of the tokens that are ``hidden`` (T,)."""
        begins = _begins(hidden)
        places, firsts = np.flatnonzero(hidden), np.flatnonzero(begins)
        named = np.asarray(self.sentinels)[: len(firsts) + 1]
        source = np.where(begins, named[np.cumsum(begins) - 1], row)[~hidden | begins]
        target = np.insert(row[places], np.searchsorted(places, firsts), named[:-1])
        return source.tolist(), [*target.tolist(), int(named[-1])]


def _begins(hidden: Flags) -> Flags:
    """Where a span begins."""
    return hidden & ~np.concatenate([[False], hidden[:-1]])


def _parts(total: int, number: int, random: np.random.Generator) -> Ids:
    """``number`` lengths of at least one that add up to ``total``, all such rows of lengths equally likely."""
    cuts = np.sort(random.permutation(total - 1)[: number - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))
