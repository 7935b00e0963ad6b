"""Logits processors: callables that change scores before a token is chosen, with the ecosystem's names and meanings.

Each is called ``processor(history, scores)``: all tokens so far (R, T), −1 where there is none (padding), and the
scores of the next (R, V), logits or log-probabilities. It returns new scores and leaves its arguments as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.decoder_state import NONE, Source
from heedful.generation.token_choice import log_sums, top

if TYPE_CHECKING:
    from heedful.generation.options import Options

Processor = Callable[[Tensor, Tensor], Tensor]
NEVER = float("-inf")


def marked(tokens: Tensor, size: int) -> Tensor:
    """Marks which of ``size`` tokens occur in each row of ``tokens`` (R, N); −1 is none: (R, size) boolean."""
    marks = torch.zeros(len(tokens), size + 1, dtype=torch.bool, device=tokens.device)
    return marks.scatter_(1, tokens.where((tokens >= 0) & (tokens < size), size), True)[:, :size]


def again(tokens: Tensor, suffix: Tensor) -> Tensor:
    """Tokens that follow occurrences of ``suffix`` (R, n − 1) in ``tokens`` (R, N): (R, N − n + 1), elsewhere −1."""
    windows = tokens.unfold(1, suffix.size(1) + 1, 1)  # (R, N − n + 1, n)
    return windows[..., -1].where((windows[..., :-1] == suffix[:, None]).all(-1), -1)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Scores of tokens already there: s / penalty where s > 0, s · penalty where s < 0 (Keskar et al. 2019)."""

    penalty: float

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        weaker = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return torch.where(marked(history, scores.size(1)), weaker, scores)


@dataclass(frozen=True)
class CountPenalty:
    """s − presence · [n > 0] − frequency · n, with n how often a token stands after the ``prompt`` (its width).

    As in OpenAI's interface, and in the servers that follow it: what was generated counts, the prompt does not.
    """

    prompt: int
    presence: float
    frequency: float

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        made, size = history[:, self.prompt :], scores.size(1)
        counts = scores.new_zeros(len(scores), size + 1)
        counts.scatter_add_(1, made.where((made >= 0) & (made < size), size), scores.new_ones(made.shape))
        counts = counts[:, :size]
        return scores - self.presence * counts.clamp(max=1) - self.frequency * counts


@dataclass(frozen=True)
class NoRepeatNGram:
    """No token that would complete an n-gram already there (Paulus et al. 2017)."""

    size: int

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        if history.size(1) < self.size:
            return scores
        suffix = history[:, history.size(1) - self.size + 1 :]  # (R, n − 1)
        return scores.masked_fill_(marked(again(history, suffix), scores.size(1)), NEVER)


@dataclass(frozen=True)
class MinNewTokens:
    """No end token before ``least`` tokens stand after the ``prompt`` (its width in the history)."""

    prompt: int
    least: int
    end: Sequence[int]

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        if history.size(1) - self.prompt >= self.least:
            return scores
        return scores.index_fill_(1, torch.tensor(self.end, device=scores.device), NEVER)


@dataclass(frozen=True)
class Temperature:
    """Scores divided by ``value``."""

    value: float

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        return scores / self.value


@dataclass(frozen=True)
class TopK:
    """Only the ``k`` best, and those equal to the last of them."""

    k: int

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        least = top(scores, min(self.k, scores.size(1)))[0][:, -1:]
        return scores.masked_fill(scores < least, NEVER)


@dataclass(frozen=True)
class TopP:
    """Only the most probable tokens, as many as it takes to reach probability ``p`` (Holtzman et al. 2020)."""

    p: float

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        ranked, order = scores.sort(dim=1)  # the least first: they go while their sum stays within 1 − p
        out = ranked.softmax(1).cumsum(1) <= 1 - self.p
        out[:, -1] = False
        return scores.masked_fill(out.scatter(1, order, out), NEVER)


@dataclass(frozen=True)
class MinP:
    """Only tokens at least ``p`` times as probable as the most probable one (Nguyen et al. 2024)."""

    p: float

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        probabilities = scores.softmax(1)
        return scores.masked_fill(probabilities < self.p * probabilities.amax(1, keepdim=True), NEVER)


@dataclass(frozen=True)
class TypicalP:
    """Only tokens of typical surprise: those with the smallest |−log q − H|, H = −Σ q log q, as many as it takes to
    reach probability ``p`` (Meister et al. 2023, section 4).
    """

    p: float

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        log_q = scores - log_sums(scores)
        q = log_q.exp()
        odd = (log_q - (q * log_q).nansum(1, keepdim=True)).abs()
        ranked, order = odd.sort(1)
        last = (q.gather(1, order).cumsum(1) < self.p).sum(1, keepdim=True).clamp(max=scores.size(1) - 1)
        return scores.masked_fill(odd > ranked.gather(1, last), NEVER)


@dataclass(frozen=True)
class LogitNormalization:
    """Log-probabilities again, of what the processors before left."""

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Scores (R, V)."""
        left = log_sums(scores)
        return torch.where(left > NEVER, scores - left, NEVER)


def process(processors: Sequence[Processor], history: Tensor, scores: Tensor) -> Tensor:
    """Scores (R, V) after all ``processors``, one after the other. ``scores`` are given away: some write into them."""
    for processor in processors:
        scores = processor(history, scores)
    return scores


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


def processors_of(options: Options, source: Source, limits: Tensor, end: Sequence[int]) -> list[Processor]:
    """Those that change something; ``limits`` (B,) are the new tokens each prompt may have, ``end`` the end ids."""
    prompt = source.prompt.size(1)
    words = [word for word in options.bad_words_ids if list(word) not in [[number] for number in end]]
    first, last = options.forced_bos_token_id, options.forced_eos_token_id
    late = () if last is None else (last,) if isinstance(last, int) else tuple(last)
    begin = options.begin_suppress_tokens
    alone = [word[0] for word in words if len(word) == 1]
    banned = {"bad_words_ids": alone, "suppress_tokens": options.suppress_tokens, "begin_suppress_tokens": begin}
    if source.vocabulary and {*range(source.vocabulary)} <= set().union(*banned.values()):
        names = " and ".join(name for name, tokens in banned.items() if tokens)
        raise HeedfulError(f"{names} leaves none of the {source.vocabulary} tokens that could come; take some out")
    wanted: list[tuple[object, Processor]] = [
        (options.repetition_penalty != 1, RepetitionPenalty(options.repetition_penalty)),
        (
            options.presence_penalty or options.frequency_penalty,
            CountPenalty(prompt, options.presence_penalty, options.frequency_penalty),
        ),
        (options.no_repeat_ngram_size, NoRepeatNGram(options.no_repeat_ngram_size)),
        (
            options.encoder_no_repeat_ngram_size,
            EncoderNoRepeatNGram(options.encoder_no_repeat_ngram_size, source),
        ),
        (words, NoBadWords(words)),
        (options.min_length and end, MinLength(options.min_length, end)),
        (options.min_new_tokens and end, MinNewTokens(prompt, options.min_new_tokens, end)),
        (first is not None, ForcedBOSToken(first or 0)),
        (late, ForcedEOSToken(late, limits, source)),
        (options.suppress_tokens, SuppressTokens(options.suppress_tokens)),
        (begin, SuppressTokensAtBegin(begin, first is not None, source)),
        (options.temperature != 1, Temperature(options.temperature)),
        (options.top_k and options.method == "sampling", TopK(options.top_k)),
        (options.top_p < 1, TopP(options.top_p)),
        (options.min_p, MinP(options.min_p)),
        (options.typical_p < 1, TypicalP(options.typical_p)),
        (options.renormalize_logits, LogitNormalization()),
    ]
    return [processor for wanting, processor in wanted if wanting]
