"""Word alignment from cross-attention, and its agreement with human alignments.

A link is (source, target), both numbered from 0. Shapes: T columns of the decoder's input, the start token being column
0, and S source tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from heedful.errors import HeedfulError, lookup

Link = tuple[int, int]
Words = Sequence[int | None]


def align(
    pattern: Tensor,
    *,
    when: Literal["output", "input"] = "output",
    source_words: Words | None = None,
    target_words: Words | None = None,
) -> list[Link]:
    """Each target token linked to the source token that it looks at most: argmax_s a_ts.

    The decoder handles a token twice. Row t − 1 of the pattern chooses it ("output"; the token is not known yet), row t
    reads it ("input"). Chen et al. 2020, section 3, find the second the more accurate in the layers that suit it.

    Args:
        pattern: cross-attention of one sentence (T, S): one head, or a mean over heads. Row t belongs to column t of
            the decoder's input, of which column 0 is the start token, never linked.
        when: which row of a token is read.
        source_words: for each source token the number of its word, None for what is no word (end mark, padding), which
            then is never linked; by default each token is a word.
        target_words: the same for the T columns of the decoder's input.

    Returns:
        Links in order of the target, each once. Words are linked where any of their tokens are, as Zenkel et al.
        2019 count them. A token whose row is all zeros has no link.

    Raises:
        HeedfulError: a pattern that is not (T, S), or words that are not as many.

    >>> pattern = torch.tensor([[0.1, 0.8, 0.1], [0.7, 0.2, 0.1], [0.0, 0.1, 0.9]])  # of start, "le", "chat"
    >>> align(pattern)
    [(1, 1), (0, 2)]
    >>> align(pattern, when="input", source_words=[0, 1, None], target_words=[None, 0, 1])
    [(0, 0), (1, 1)]
    """
    if pattern.dim() != 2:
        raise HeedfulError(f"a pattern of shape {tuple(pattern.shape)}; give (T, S), one head's or a mean over heads")
    back = lookup({"output": 1, "input": 0}, when, "time of alignment")
    queries, keys = pattern.shape
    sources = _numbered(source_words, keys, "source")
    targets = _numbered(target_words, queries, "target")
    words = torch.tensor([word is not None for word in sources], device=pattern.device)
    if not words.any():
        return []
    weights = pattern.masked_fill(~words, -1.0)
    best, looks = weights.argmax(-1).tolist(), (weights.amax(-1) > 0).tolist()
    links = {}
    for column in range(1, queries):
        source, target, row = sources[best[column - back]], targets[column], column - back
        if looks[row] and source is not None and target is not None:
            links[source, target] = True
    return sorted(links, key=lambda link: (link[1], link[0]))


class Agreement(NamedTuple):
    """Agreement of links with human alignments."""

    error: float  # the alignment error rate: 0 is best
    precision: float  # the share of links that are possible
    recall: float  # the share of sure links that were found


def alignment_error_rate(
    links: Sequence[Iterable[Link]],
    sure: Sequence[Iterable[Link]],
    possible: Sequence[Iterable[Link]] | None = None,
) -> Agreement:
    """AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|) over a whole corpus. Och and Ney 2003, section 5.

    Args:
        links: A, of each sentence.
        sure: S, the links that must be there, of each sentence.
        possible: P, those that may be there; S belongs to it whether it is repeated or not. By default S alone.

    Raises:
        HeedfulError: different numbers of sentences, or no link at all on a side.

    >>> alignment_error_rate([[(0, 0), (1, 1), (2, 1)]], sure=[[(0, 0), (2, 2)]], possible=[[(1, 1)]])
    Agreement(error=0.4, precision=0.6666666666666666, recall=0.5)
    """
    possible = [()] * len(sure) if possible is None else possible
    if not len(links) == len(sure) == len(possible):
        raise HeedfulError(
            f"links of {len(links)} sentences, sure ones of {len(sure)}, possible ones of {len(possible)}; "
            "give one list a sentence"
        )
    made = must = right = found = 0
    for own, needed, allowed in zip(map(set, links), map(set, sure), map(set, possible), strict=True):
        made, must = made + len(own), must + len(needed)
        right, found = right + len(own & (needed | allowed)), found + len(own & needed)
    if not made or not must:
        raise HeedfulError(f"{made} links and {must} sure ones cannot be compared; there must be some of both")
    return Agreement(1 - (found + right) / (made + must), right / made, found / must)


def _numbered(words: Words | None, length: int, side: str) -> Words:
    if words is None:
        return range(length)
    if len(words) != length:
        raise HeedfulError(f"{len(words)} {side}_words, but the pattern has {length} {side} tokens; give one for each")
    return words
