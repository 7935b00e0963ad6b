"""Logits processors: callables that change scores before a token is chosen, with transformers' names and meanings.

Each is called ``processor(history, scores)``: all tokens so far (R, T), −1 for padding, and the scores of the next
token (R, V), logits or log-probabilities. It returns new scores, and may overwrite the given scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.decoder_state import NONE, DecoderState
from heedful.generation.token_choice import log_sum_exp, top

if TYPE_CHECKING:
    from heedful.generation.options import Options

Processor = Callable[[Tensor, Tensor], Tensor]
NEVER = float("-inf")


def occurrence_mask(tokens: Tensor, size: int) -> Tensor:
    """Marks which of ``size`` tokens occur in each row of ``tokens`` (R, N), −1 for no token: (R, size) boolean."""
    marks = torch.zeros(len(tokens), size + 1, dtype=torch.bool, device=tokens.device)
    return marks.scatter_(1, tokens.where((tokens >= 0) & (tokens < size), size), True)[:, :size]


def tokens_after(tokens: Tensor, suffix: Tensor) -> Tensor:
    """Returns the tokens that follow ``suffix`` (R, n − 1) in ``tokens`` (R, N): (R, N − n + 1), −1 elsewhere."""
    windows = tokens.unfold(1, suffix.size(1) + 1, 1)  # (R, N − n + 1, n)
    return windows[..., -1].where((windows[..., :-1] == suffix[:, None]).all(-1), -1)


class OnDevice:
    """Base of processors with lists of ids, which are copied to the scores' device at the first call alone."""

    def ids(self, tokens: Sequence[int], scores: Tensor) -> Tensor:
        """Returns the ``tokens`` inside the vocabulary of the scores (R, V)."""
        copies: dict[Any, Tensor] = self.__dict__.setdefault("_copies", {})
        key = tuple(tokens), scores.size(1), scores.device
        if key not in copies:
            ids = [i for i in tokens if 0 <= i < scores.size(1)]
            copies[key] = torch.tensor(ids, dtype=torch.int64, device=scores.device)
        return copies[key]


@dataclass(frozen=True)
class RepetitionPenalty:
    """Weakens tokens of the history: s / penalty where s > 0, s · penalty where s < 0 (Keskar et al. 2019)."""

    penalty: float

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        weaker = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return torch.where(occurrence_mask(history, scores.size(1)), weaker, scores)


@dataclass(frozen=True)
class CountPenalty:
    """s − presence · [n > 0] − frequency · n, where n counts a token after the first ``prompt`` columns.

    As in OpenAI's interface and compatible servers: generated tokens count, the prompt does not.
    """

    prompt: int
    presence: float
    frequency: float

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        new_tokens, size = history[:, self.prompt :], scores.size(1)
        counts = scores.new_zeros(len(scores), size + 1)
        is_counted = (new_tokens >= 0) & (new_tokens < size)
        counts.scatter_add_(1, new_tokens.where(is_counted, size), scores.new_ones(new_tokens.shape))
        counts = counts[:, :size]
        return scores - self.presence * counts.clamp(max=1) - self.frequency * counts


@dataclass(frozen=True)
class NoRepeatNGram:
    """Forbids tokens that would complete an n-gram of the history (Paulus et al. 2017)."""

    size: int

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        if history.size(1) < self.size:
            return scores
        suffix = history[:, history.size(1) - self.size + 1 :]  # (R, n − 1)
        return scores.masked_fill_(occurrence_mask(tokens_after(history, suffix), scores.size(1)), NEVER)


@dataclass(frozen=True)
class MinNewTokens(OnDevice):
    """Forbids end tokens before there are ``least`` new tokens; ``prompt`` is the prompt's width in the history."""

    prompt: int
    least: int
    end: Sequence[int]

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        if history.size(1) - self.prompt >= self.least:
            return scores
        return scores.index_fill_(1, self.ids(self.end, scores), NEVER)


@dataclass(frozen=True)
class Temperature:
    """Divides scores by ``value``."""

    value: float

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        return scores / self.value


@dataclass(frozen=True)
class TopK:
    """Keeps the ``k`` tokens with the highest scores, and tokens that tie with the lowest of these scores."""

    k: int

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        least = top(scores, min(self.k, scores.size(1)))[0][:, -1:]
        return scores.masked_fill(scores < least, NEVER)


@dataclass(frozen=True)
class TopP:
    """Keeps the fewest most probable tokens that reach probability ``p`` together (Holtzman et al. 2020)."""

    p: float

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        ascending, order = scores.sort(dim=1)  # the least are dropped while their sum stays within 1 − p
        dropped = ascending.softmax(1).cumsum(1) <= 1 - self.p
        dropped[:, -1] = False
        return scores.masked_fill(dropped.scatter(1, order, dropped), NEVER)


@dataclass(frozen=True)
class MinP:
    """Keeps tokens at least ``p`` times as probable as the most probable one (Nguyen et al. 2024)."""

    p: float

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        probabilities = scores.softmax(1)
        return scores.masked_fill(probabilities < self.p * probabilities.amax(1, keepdim=True), NEVER)


@dataclass(frozen=True)
class TypicalP:
    """Keeps tokens of typical surprise: the fewest with the smallest |−log q − H|, H = −Σ q log q, that reach
    probability ``p`` together (Meister et al. 2023, section 4).
    """

    p: float

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        log_q = scores - log_sum_exp(scores)
        q = log_q.exp()
        deviation = (log_q - (q * log_q).nansum(1, keepdim=True)).abs()
        ascending, order = deviation.sort(1)
        last = (q.gather(1, order).cumsum(1) < self.p).sum(1, keepdim=True).clamp(max=scores.size(1) - 1)
        return scores.masked_fill(deviation > ascending.gather(1, last), NEVER)


@dataclass(frozen=True)
class LogitNormalization:
    """Normalises scores, which earlier processors may have changed, to log-probabilities."""

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        log_total = log_sum_exp(scores)
        return torch.where(log_total > NEVER, scores - log_total, NEVER)


def process(processors: Sequence[Processor], history: Tensor, scores: Tensor) -> Tensor:
    """Returns the scores (R, V) after all ``processors``, in order. Some processors overwrite ``scores``."""
    for processor in processors:
        scores = processor(history, scores)
    return scores


def _mask_tokens(scores: Tensor, tokens: Tensor, rows: Tensor) -> Tensor:
    """Sets the scores (R, V) of ``tokens`` to −∞ in the ``rows`` (R,) that are True."""
    scores[:, tokens] = scores[:, tokens].masked_fill(rows[:, None], NEVER)
    return scores


@dataclass(frozen=True)
class MinLength(OnDevice):
    """Forbids end tokens before a row has ``least`` tokens, counting the prompt."""

    least: int
    end: Sequence[int]

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        is_short = (history != NONE).sum(1) < self.least
        return _mask_tokens(scores, self.ids(self.end, scores), is_short)


@dataclass(frozen=True)
class EncoderNoRepeatNGram:
    """Forbids tokens that would complete an n-gram of an encoder-decoder's source or a decoder's prompt."""

    size: int
    state: DecoderState

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        given_ids = self.state.given_ids[self.state.prompt_index]
        if min(history.size(1) + 1, given_ids.size(1)) < self.size:
            return scores
        suffix = history[:, history.size(1) - self.size + 1 :]  # (R, n − 1)
        return scores.masked_fill_(occurrence_mask(tokens_after(given_ids, suffix), scores.size(1)), NEVER)


@dataclass(frozen=True)
class NoBadWords(OnDevice):
    """Forbids ``words`` of one or more tokens: the last token of a word never follows its other tokens."""

    words: Sequence[Sequence[int]]

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        for *before, last in self.words:
            if max((*before, last)) >= scores.size(1) or len(before) > history.size(1):
                continue
            prefix = self.ids(before, scores)
            matches = history[:, history.size(1) - len(before) :].eq(prefix).all(1)
            scores[:, last].masked_fill_(matches, NEVER)
        return scores


@dataclass(frozen=True)
class SuppressTokens(OnDevice):
    """Forbids ``tokens``."""

    tokens: Sequence[int]

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        return scores.index_fill_(1, self.ids(self.tokens, scores), NEVER)


@dataclass(frozen=True)
class SuppressTokensAtBegin(OnDevice):
    """Forbids ``tokens`` as the first new token, or as the second new token if the first is ``forced``."""

    tokens: Sequence[int]
    forced: bool
    state: DecoderState

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        is_single = self.state.prompt_lengths[self.state.prompt_index] == 1  # a first token is forced only there
        is_begin = (is_single & self.forced).long() == history.size(1) - self.state.prompt.size(1)
        return _mask_tokens(scores, self.ids(self.tokens, scores), is_begin)


def _force(forced: OnDevice, tokens: Sequence[int], rows: Tensor, scores: Tensor) -> Tensor:
    """Sets the scores (R, V) to 0 for ``tokens`` and to −∞ for all others, in the ``rows`` (R,) that are True."""
    only = torch.full_like(scores[:1], NEVER).index_fill(1, forced.ids(tokens, scores), 0.0)
    return torch.where(rows[:, None], only, scores)


@dataclass(frozen=True)
class ForcedBOSToken(OnDevice):
    """Forces ``token`` after a single token (an encoder-decoder's start token)."""

    token: int

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        return _force(self, [self.token], (history != NONE).sum(1) == 1, scores)


@dataclass(frozen=True)
class ForcedEOSToken(OnDevice):
    """Forces one of ``tokens`` as the last token that a row may have (``limits`` (B,): new tokens of each prompt)."""

    tokens: Sequence[int]
    limits: Tensor
    state: DecoderState

    def __call__(self, history: Tensor, scores: Tensor) -> Tensor:
        """Returns the new scores (R, V)."""
        new_count = history.size(1) - self.state.prompt.size(1)
        return _force(self, self.tokens, self.limits[self.state.prompt_index] == new_count + 1, scores)


def processors_of(options: Options, state: DecoderState, limits: Tensor, end: Sequence[int]) -> list[Processor]:
    """Returns the processors that the options need, in order.

    ``limits`` (B,) are the new tokens that each prompt may have, ``end`` the end ids.
    """
    prompt = state.prompt.size(1)
    words = [word for word in options.bad_words_ids if list(word) not in [[number] for number in end]]
    first, last = options.forced_bos_token_id, options.forced_eos_token_id
    last_ids = () if last is None else (last,) if isinstance(last, int) else tuple(last)
    forced = {"forced_bos_token_id": () if first is None else (first,), "forced_eos_token_id": last_ids}
    for name, tokens in forced.items():
        for token in tokens:
            if state.vocab_size and token >= state.vocab_size:
                raise HeedfulError(f"{name} is {token}, but the model has {state.vocab_size} tokens; give a smaller id")
    begin = options.begin_suppress_tokens
    single = [word[0] for word in words if len(word) == 1]
    banned = {"bad_words_ids": single, "suppress_tokens": options.suppress_tokens, "begin_suppress_tokens": begin}
    if state.vocab_size and {*range(state.vocab_size)} <= set().union(*banned.values()):
        names = " and ".join(name for name, tokens in banned.items() if tokens)
        raise HeedfulError(f"{names} forbid all {state.vocab_size} tokens of the vocabulary; allow some tokens")
    all_processors: list[tuple[object, Processor]] = [
        (options.repetition_penalty != 1, RepetitionPenalty(options.repetition_penalty)),
        (
            options.presence_penalty or options.frequency_penalty,
            CountPenalty(prompt, options.presence_penalty, options.frequency_penalty),
        ),
        (options.no_repeat_ngram_size, NoRepeatNGram(options.no_repeat_ngram_size)),
        (
            options.encoder_no_repeat_ngram_size,
            EncoderNoRepeatNGram(options.encoder_no_repeat_ngram_size, state),
        ),
        (words, NoBadWords(words)),
        (options.min_length and end, MinLength(options.min_length, end)),
        (options.min_new_tokens and end, MinNewTokens(prompt, options.min_new_tokens, end)),
        (options.suppress_tokens, SuppressTokens(options.suppress_tokens)),
        (begin, SuppressTokensAtBegin(begin, first is not None, state)),
        # after what forbids tokens: a row whose scores are all −∞ would end with an arbitrary one
        (first is not None, ForcedBOSToken(first or 0)),
        (last_ids, ForcedEOSToken(last_ids, limits, state)),
        (options.temperature != 1, Temperature(options.temperature)),
        (options.top_k and options.method == "sampling", TopK(options.top_k)),
        (options.top_p < 1, TopP(options.top_p)),
        (options.min_p, MinP(options.min_p)),
        (options.typical_p < 1, TypicalP(options.typical_p)),
        (options.renormalize_logits, LogitNormalization()),
    ]
    return [processor for is_needed, processor in all_processors if is_needed]
