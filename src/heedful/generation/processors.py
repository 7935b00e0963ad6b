"""What changes the scores before a token is chosen: small callables with the ecosystem's names and meanings.

Each is called ``processor(history, scores)``: all tokens so far (R, T), −1 where there is none (padding), and the
scores of the next (R, V), logits or log-probabilities. It returns new scores and leaves its arguments as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.generation.token_choice import log_sums, top

Processor = Callable[[Tensor, Tensor], Tensor]
NEVER = float("-inf")


def marked(tokens: Tensor, size: int) -> Tensor:
    """Which of ``size`` tokens occur in each row of ``tokens`` (R, N); −1 is none: (R, size) boolean."""
    marks = torch.zeros(len(tokens), size + 1, dtype=torch.bool, device=tokens.device)
    return marks.scatter_(1, tokens.where((tokens >= 0) & (tokens < size), size), True)[:, :size]


def again(tokens: Tensor, suffix: Tensor) -> Tensor:
    """What followed ``suffix`` (R, n − 1) each time it stood in ``tokens`` (R, N): (R, N − n + 1), elsewhere −1."""
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
