"""The best pieces of a text by the logits of their ends: what is masked, what is compared."""

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
Piece = tuple[float, Span]  # log p(start) + log p(end), and where it is


class Best(NamedTuple):
    """A row of `Spans`, as numbers."""

    scores: list[float]
    starts: list[int]
    ends: list[int]
    best: float
    null: float
    null_score: float


class Spans(NamedTuple):
    """Of each of B windows the K best pieces, best first, and how it stands with no answer at all."""

    scores: Tensor  # (B, K), log p(start) + log p(end); -inf where there are fewer pieces
    starts: Tensor  # (B, K), positions
    ends: Tensor  # (B, K), positions, within the piece
    best: Tensor  # (B,), the sum of the best piece's two logits
    null: Tensor  # (B,), the sum of the class token's two logits
    null_score: Tensor  # (B,), log p(start) + log p(end) of the class token

    def rows(self) -> Iterator[Best]:
        """One window after the other."""
        return (Best(*row) for row in zip(*(tensor.tolist() for tensor in self), strict=True))


def best_spans(logits: Tensor, context: Tensor, seen: Tensor, longest: int, k: int = 1) -> Spans:
    """The pieces of the context that are likeliest to be the answer.

    p(start) and p(end) are softmaxes over the context's tokens and the class token, which stands first and means "not
    here"; a piece begins and ends with a token that can be seen, no longer than ``longest`` tokens. So the probability
    of a piece, p(start) · p(end), is what the question-answering pipeline of transformers 4 gave, before it rounded up
    to words.

    Args:
        logits: (B, T, 2), of the start and of the end.
        context: (B, T), True for a token of the context.
        seen: (B, T), True for those of them that are not blank.
        longest: most tokens of a piece.
        k: how many pieces of each window.

    >>> logits = torch.tensor([[[0.0, 0.0], [9.0, 9.0], [5.0, 0.0], [0.0, 6.0]]])
    >>> context = torch.tensor([[False, False, True, True]])
    >>> found = best_spans(logits, context, context, longest=2)
    >>> found.starts.tolist(), found.ends.tolist(), found.best.tolist()
    ([[2]], [[3]], [11.0])
    """
    allowed = context.clone()
    allowed[:, 0] = True
    log_p = logits.float().masked_fill(~allowed[..., None], NEVER).log_softmax(1)
    starts, ends = log_p.masked_fill(~seen[..., None], NEVER).unbind(2)
    width = min(longest, context.size(1))
    ahead = F.pad(ends, (0, width - 1), value=NEVER).unfold(1, width, 1)  # (B, T, width): the ends from each place on
    pairs = (starts[..., None] + ahead).flatten(1)
    scores, places = pairs.topk(min(k, pairs.size(1)))
    first = places // width
    last = first + places % width
    rows = torch.arange(len(logits), device=logits.device)
    best = logits[rows, first[:, 0], 0] + logits[rows, last[:, 0].clamp(max=context.size(1) - 1), 1]
    return Spans(
        scores,
        first,
        last,
        best.float().masked_fill(scores[:, 0].isinf(), NEVER),
        logits[:, 0].float().sum(1),
        log_p[:, 0].sum(1),
    )


@dataclass
class WindowsResult:
    """Combined result of the windows of one question: the best spans, the logits of the best and of none, the loss."""

    pieces: list[Piece] = field(default_factory=list)
    best: float = NEVER
    null: float = math.inf  # of the window that is surest to hold something
    null_score: float = math.inf  # likewise, by its probability
    loss: float = 0.0
    windows: int = 0

    def add(self, told: Best, pieces: Sequence[Piece], loss: float, k: int) -> None:
        """Take in one more window, of whose ``pieces`` the ``k`` best are kept; two windows may have the same."""
        self.loss, self.windows = self.loss + loss, self.windows + 1
        self.best = max(self.best, told.best)
        self.null, self.null_score = min(self.null, told.null), min(self.null_score, told.null_score)
        known: dict[Span, float] = {}
        for each, span in (*self.pieces, *pieces):
            known[span] = max(each, known.get(span, NEVER))
        self.pieces = sorted(((each, span) for span, each in known.items()), key=lambda piece: -piece[0])[:k]

    @property
    def margin(self) -> float:
        """By how much no answer is better than the best, as logits."""
        return self.null - self.best if self.pieces else math.inf

    def chosen(self, threshold: float | None) -> Piece:
        """The best piece, or none where that is better by more than the threshold (None: it never is)."""
        if not self.pieces or (threshold is not None and self.margin > threshold):
            return self.null_score, NO_ANSWER
        return self.pieces[0]
