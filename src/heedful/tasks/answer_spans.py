"""Most likely answer spans in windows of a context, computed from the logits of start and end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.data.rows import Span

NEVER = float("-inf")
NO_ANSWER = Span("", 0)
ScoredSpan = tuple[float, Span]  # log p(start) + log p(end), and the span


class WindowSpans(NamedTuple):
    """Best answer spans of one window as numbers, best first: one row of the tensors of `Spans`."""

    scores: list[float]
    starts: list[int]
    ends: list[int]
    best: float
    null: float
    null_score: float


class Spans(NamedTuple):
    """Best answer spans of B windows, K for each window, best first; and the scores of "no answer"."""

    scores: Tensor  # (B, K), log p(start) + log p(end); -inf if there are fewer spans
    starts: Tensor  # (B, K), position of the first token
    ends: Tensor  # (B, K), position of the last token
    best: Tensor  # (B,), the sum of the best span's two logits
    null: Tensor  # (B,), the sum of the class token's two logits
    null_score: Tensor  # (B,), log p(start) + log p(end) of the class token

    def rows(self) -> Iterator[WindowSpans]:
        """Yields the spans of one window after the other."""
        return (WindowSpans(*row) for row in zip(*(tensor.tolist() for tensor in self), strict=True))


def best_spans(
    logits: Tensor, context: Tensor, visible: Tensor, longest: int, k: int = 1, class_tokens: Tensor | None = None
) -> Spans:
    """Returns the spans of the context that are most likely the answer.

    The logits score each token as the start and as the end of the answer. p(start) and p(end) are their softmaxes over
    the context's tokens and the class token, which means "no answer in this window". A span begins and ends with a
    visible token and has at most ``longest`` tokens. Its probability p(start) · p(end) equals that of the
    question-answering pipeline of transformers 4 before that pipeline widens spans to whole words.

    Args:
        logits: (B, T, 2), of start and end, for B windows of T tokens.
        context: (B, T), True for tokens of the context.
        visible: (B, T), True for tokens of the context that are not white space alone.
        longest: maximum number of tokens of a span.
        k: number of spans of each window.
        class_tokens: (B,) position of the class token of each window; None: it comes first.

    >>> logits = torch.tensor([[[0.0, 0.0], [9.0, 9.0], [5.0, 0.0], [0.0, 6.0]]])
    >>> context = torch.tensor([[False, False, True, True]])
    >>> spans = best_spans(logits, context, context, longest=2)
    >>> spans.starts.tolist(), spans.ends.tolist(), spans.best.tolist()
    ([[2]], [[3]], [11.0])
    """
    rows = torch.arange(len(logits), device=logits.device)
    null = torch.zeros_like(rows) if class_tokens is None else class_tokens
    allowed = context.clone()
    allowed[rows, null] = True
    log_p = logits.float().masked_fill(~allowed[..., None], NEVER).log_softmax(1)
    starts, ends = log_p.masked_fill(~visible[..., None], NEVER).unbind(2)
    width = min(longest, context.size(1))
    ahead = F.pad(ends, (0, width - 1), value=NEVER).unfold(1, width, 1)  # (B, T, width): the ends from each start on
    pairs = (starts[..., None] + ahead).flatten(1)
    scores, indices = pairs.topk(min(k, pairs.size(1)))
    first = indices // width
    last = first + indices % width
    best = logits[rows, first[:, 0], 0] + logits[rows, last[:, 0].clamp(max=context.size(1) - 1), 1]
    return Spans(
        scores,
        first,
        last,
        best.float().masked_fill(scores[:, 0].isinf(), NEVER),
        logits[rows, null].float().sum(1),
        log_p[rows, null].sum(1),
    )


@dataclass
class WindowsResult:
    """Combined result of all windows of one question.

    It has the best spans, the logits of the best span and of "no answer", and the summed loss of the windows.
    """

    spans: list[ScoredSpan] = field(default_factory=list)
    best: float = NEVER
    null: float = math.inf  # the least logit of no answer over the windows
    null_score: float = math.inf  # the least log-probability of no answer
    loss: float = 0.0
    windows: int = 0

    def add(self, window: WindowSpans, spans: Sequence[ScoredSpan], loss: float, k: int) -> None:
        """Adds the ``spans`` and the ``loss`` of a window; keeps the ``k`` best spans of all windows.

        A span that is found in two windows is kept once, with its higher score.
        """
        self.loss, self.windows = self.loss + loss, self.windows + 1
        self.best = max(self.best, window.best)
        self.null, self.null_score = min(self.null, window.null), min(self.null_score, window.null_score)
        scores: dict[Span, float] = {}
        for score, span in (*self.spans, *spans):
            scores[span] = max(score, scores.get(span, NEVER))
        self.spans = sorted(((score, span) for span, score in scores.items()), key=lambda scored: -scored[0])[:k]

    @property
    def margin(self) -> float:
        """The summed logits of "no answer" minus the summed logits of the best span; infinite if there is no span."""
        return self.null - self.best if self.spans else math.inf

    def chosen(self, threshold: float | None) -> ScoredSpan:
        """Returns the score and the span of the answer: the best span, or "no answer" if ``margin`` exceeds
        ``threshold``.

        With a threshold of None it is always the best span, if there is one.
        """
        if not self.spans or (threshold is not None and self.margin > threshold):
            return self.null_score, NO_ANSWER
        return self.spans[0]
