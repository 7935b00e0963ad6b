"""Tokens that must come or may not: what a published folder's generation config lays down besides the usual rules.

Processors as in ``heedful.generation.processors``, with transformers' names and meanings; two of them know more of a
row than its tokens, and ask the source which prompt a row belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.processors import NEVER, again, marked
from heedful.generation.source import NONE, Source


def _ids(tokens: Sequence[int], scores: Tensor) -> Tensor:
    """Those of ``tokens`` that the scores (R, V) have; others can never come."""
    return torch.tensor([i for i in tokens if 0 <= i < scores.size(1)], dtype=torch.int64, device=scores.device)


def _banned(scores: Tensor, tokens: Tensor, rows: Tensor) -> Tensor:
    """Scores (R, V), −∞ for ``tokens`` in the ``rows`` (R,) where it is True."""
    scores[:, tokens] = scores[:, tokens].masked_fill(rows[:, None], NEVER)
    return scores


@dataclass(frozen=True)
class MinLength:
    """No end token before a row has ``least`` tokens, its prompt counted."""

    least: int
    end: Sequence[int]

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        short = (history != NONE).sum(1) < self.least
        return _banned(scores, _ids(self.end, scores), short)


@dataclass(frozen=True)
class EncoderNoRepeatNGram:
    """No token that would complete an n-gram of what was given: an encoder-decoder's source, a decoder's prompt."""

    size: int
    source: Source

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        given = self.source.given[self.source.origin]
        if min(history.size(1) + 1, given.size(1)) < self.size:
            return scores
        suffix = history[:, history.size(1) - self.size + 1 :]  # (R, n − 1)
        return scores.masked_fill_(marked(again(given, suffix), scores.size(1)), NEVER)


@dataclass(frozen=True)
class NoBadWords:
    """None of these ``words``, each one token or several: its last token never follows the others."""

    words: Sequence[Sequence[int]]

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        for *before, last in self.words:
            if last >= scores.size(1) or len(before) > history.size(1):
                continue
            wanted = torch.tensor(before, dtype=torch.int64, device=history.device)
            there = history[:, history.size(1) - len(before) :].eq(wanted).all(1)
            scores[:, last].masked_fill_(there, NEVER)
        return scores


@dataclass(frozen=True)
class SuppressTokens:
    """None of these ``tokens``."""

    tokens: Sequence[int]

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        return scores.index_fill_(1, _ids(self.tokens, scores), NEVER)


@dataclass(frozen=True)
class SuppressTokensAtBegin:
    """None of these ``tokens`` as the first new one; as the second, where the first is ``forced``."""

    tokens: Sequence[int]
    forced: bool
    source: Source

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        alone = self.source.counts[self.source.origin] == 1  # only there a first token is forced
        begins = (alone & self.forced).long() == history.size(1) - self.source.prompt.size(1)
        return _banned(scores, _ids(self.tokens, scores), begins)


def _forced(name: str, tokens: Sequence[int], rows: Tensor, scores: Tensor) -> Tensor:
    """Scores (R, V): in ``rows`` (R,) boolean 0 for ``tokens`` and −∞ for all others."""
    for token in tokens:
        if token >= scores.size(1):
            raise HeedfulError(f"{name} is {token}, but the model has {scores.size(1)} tokens; set another, or None")
    only = torch.full_like(scores[:1], NEVER).index_fill(1, _ids(tokens, scores), 0.0)
    return torch.where(rows[:, None], only, scores)


@dataclass(frozen=True)
class ForcedBOSToken:
    """After a single token (an encoder-decoder's start token) nothing but ``token``."""

    token: int

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        return _forced("forced_bos_token_id", [self.token], (history != NONE).sum(1) == 1, scores)


@dataclass(frozen=True)
class ForcedEOSToken:
    """As the last token that a row may have (``limits``, (B,), new ones of each prompt) nothing but ``tokens``."""

    tokens: Sequence[int]
    limits: Tensor
    source: Source

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        made = history.size(1) - self.source.prompt.size(1)
        return _forced("forced_eos_token_id", self.tokens, self.limits[self.source.origin] == made + 1, scores)
