"""What searches have found: the finished rows of each sentence, and whether more can be hoped for.

Shapes: S sentences, K rows kept of each, C continuations, N columns of the history.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.generation.options import Options

NEVER = float("-inf")


def pick(tensor: Tensor, index: Tensor) -> Tensor:
    """Rows ``index`` (S, k) of ``tensor`` (S, K, N)."""
    return tensor.gather(1, index[:, :, None].expand(-1, -1, tensor.size(2)))


class Finished:
    """The ``count`` best finished rows of each sentence, of rows like ``ids`` (S, 1, N) and ``said`` (S, 1, N).

    Attributes:
        ids: (S, K, N).
        said: (S, K, N) log p of each token, or nothing.
        scores: (S, K), best first; −∞ until there are so many.
        done: (S,) no more is looked for.
    """

    def __init__(self, options: Options, count: int, ids: Tensor, said: Tensor, like: Tensor) -> None:
        self.options = options
        self.ids, self.said = ids.repeat(1, count, 1), said.repeat(1, count, 1)
        self.scores = like.new_full((len(ids), count), NEVER)
        self.done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    def add(self, sums: Tensor, ids: Tensor, said: Tensor, ripe: Tensor, step: int) -> None:
        """Continuations with ``sums`` (S, C), of which the ``ripe`` (S, C) have ended with token ``step``."""
        new = (sums / step**self.options.length_penalty).masked_fill(~ripe | self.done[:, None], NEVER)
        self.scores, place = torch.cat((self.scores, new), 1).topk(self.scores.size(1))
        self.ids, self.said = pick(torch.cat((self.ids, ids), 1), place), pick(torch.cat((self.said, said), 1), place)

    def settle(self, running: Tensor, limits: Tensor, step: int) -> None:
        """Whether the best ``running`` sum (S,) can still enter, as ``early_stopping`` reckons it."""
        worst, penalty = self.scores[:, -1], self.options.length_penalty
        if self.options.early_stopping is True:
            hope = torch.where(worst > NEVER, NEVER, running)
        else:
            longest = limits if self.options.early_stopping == "never" and penalty > 0 else step
            hope = running / longest**penalty
        self.done = self.done | (hope <= worst)

    def put(self, other: Finished, rows: Tensor) -> None:
        """What ``other`` has found, at ``rows`` (S',)."""
        self.ids[rows], self.said[rows], self.scores[rows] = other.ids, other.said, other.scores

    def part(self, rows: Tensor) -> Finished:
        """Of sentences ``rows`` alone."""
        made = Finished(self.options, 0, self.ids[rows, :1], self.said[rows, :1], self.scores)
        made.ids, made.said = self.ids[rows], self.said[rows]
        made.scores, made.done = self.scores[rows], self.done[rows]
        return made
