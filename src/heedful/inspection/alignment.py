"""Word alignment from cross-attention, and its agreement with human alignments.

A link is (source, target), both numbered from 0. Shapes: T columns of the decoder's input, of which column 0 is the
start token, and S source tokens.
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
    """Links each target token to the source token with the highest weight: argmax_s a_ts.

    Two rows of the pattern belong to target token t: the decoder predicts the token in row t − 1 ("output") and has it
    as input in row t ("input"). Chen et al. 2020, section 3, find "input" more accurate in suitable layers; the
    default here is "output".

    Args:
        pattern: cross-attention of one sentence (T, S): one head, or a mean over heads. Row t belongs to column t of
            the decoder's input; column 0 is the start token, which is never linked.
        when: which of a token's two rows to use.
        source_words: for each source token the number of its word; None for an end token or padding, which is never
            linked. By default each token is a word.
        target_words: the same for the T columns of the decoder's input.

    Returns:
        Links in the order of the target, without repetition. Words are linked if any of their tokens are, as in Zenkel
        et al. 2019. A token whose row is all zeros has no link.

    Raises:
        HeedfulError: for a pattern that is not (T, S), or another number of words than tokens.

    >>> pattern = torch.tensor([[0.1, 0.8, 0.1], [0.7, 0.2, 0.1], [0.0, 0.1, 0.9]])  # of start, "le", "chat"
    >>> align(pattern)
    [(1, 1), (0, 2)]
    >>> align(pattern, when="input", source_words=[0, 1, None], target_words=[None, 0, 1])
    [(0, 0), (1, 1)]
    """
    if pattern.dim() != 2:
        raise HeedfulError(f"a pattern of shape {tuple(pattern.shape)} is not (T, S); give one head, or a mean")
    shift = lookup({"output": 1, "input": 0}, when, "time of alignment")
    queries, keys = pattern.shape
    sources = _word_numbers(source_words, keys, "source")
    targets = _word_numbers(target_words, queries, "target")
    is_word = torch.tensor([word is not None for word in sources], device=pattern.device)
    if not is_word.any():
        return []
    weights = pattern.masked_fill(~is_word, -1.0)
    best, has_weight = weights.argmax(-1).tolist(), (weights.amax(-1) > 0).tolist()
    links = {}
    for column in range(1, queries):
        source, target, row = sources[best[column - shift]], targets[column], column - shift
        if has_weight[row] and source is not None and target is not None:
            links[source, target] = True
    return sorted(links, key=lambda link: (link[1], link[0]))


class Agreement(NamedTuple):
    """Agreement of predicted word links with human alignments: alignment error rate, precision and recall."""

    error: float  # the alignment error rate: 0 is best
    precision: float  # share of predicted links that are possible
    recall: float  # share of sure links that are predicted


def alignment_error_rate(
    links: Sequence[Iterable[Link]],
    sure: Sequence[Iterable[Link]],
    possible: Sequence[Iterable[Link]] | None = None,
) -> Agreement:
    """Returns AER = ``1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)`` over a whole corpus. Och and Ney 2003, section 5.

    Args:
        links: A, the predicted links of each sentence.
        sure: S, the required links of each sentence.
        possible: P, the permitted links; sure links are always permitted. By default only the sure links.

    Raises:
        HeedfulError: for different numbers of sentences, or if there is no predicted or no sure link.

    >>> alignment_error_rate([[(0, 0), (1, 1), (2, 1)]], sure=[[(0, 0), (2, 2)]], possible=[[(1, 1)]])
    Agreement(error=0.4, precision=0.6666666666666666, recall=0.5)
    """
    possible = [()] * len(sure) if possible is None else possible
    if not len(links) == len(sure) == len(possible):
        raise HeedfulError(
            f"links has {len(links)} sentences, sure {len(sure)} and possible {len(possible)}; "
            "give one list for each sentence"
        )
    predicted = required = predicted_possible = predicted_sure = 0
    for a, s, p in zip(map(set, links), map(set, sure), map(set, possible), strict=True):
        predicted, required = predicted + len(a), required + len(s)
        predicted_possible, predicted_sure = predicted_possible + len(a & (s | p)), predicted_sure + len(a & s)
    if not predicted or not required:
        raise HeedfulError(
            f"the alignment error rate needs at least one predicted and one sure link, but there are {predicted} "
            f"predicted and {required} sure links; give more sentences"
        )
    error = 1 - (predicted_sure + predicted_possible) / (predicted + required)
    return Agreement(error, predicted_possible / predicted, predicted_sure / required)


def _word_numbers(words: Words | None, length: int, side: str) -> Words:
    if words is None:
        return range(length)
    if len(words) != length:
        raise HeedfulError(
            f"{len(words)} {side}_words, but the pattern has {length} {side} tokens; give a word number for each token"
        )
    return words
