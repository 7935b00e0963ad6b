"""Rows of a method that decodes one token for each row and step: tokens, ends and log-probabilities.

Shapes: N rows of the result, R of them present in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.generation.decoder_state import NONE
from heedful.generation.method import MethodInput
from heedful.generation.token_choice import log_sum_exp


class DecodedRows:
    """Tokens of all rows, and the rows that are present in the batch.

    Attributes:
        ids: (N, columns) prompt and new tokens, ``NONE`` where there is no token.
        log_p: (N, columns) log p of each new token, 0 elsewhere.
        sums: (N,) Σ log p.
        lengths: (N,) number of new tokens.
        columns: number of columns that are filled.
        running: (R,) index of each running row.
        done: (R,) True for a running row that has ended.
    """

    def __init__(self, inputs: MethodInput, prompt: Tensor, limits: Tensor, logits: Tensor) -> None:
        self.end_ids, self.stop_strings, self.limits = inputs.end_ids, inputs.stop_strings, limits
        self.width = self.columns = inputs.width
        self.ids = prompt.new_full((len(prompt), self.width + inputs.max_steps), NONE)
        self.ids[:, : self.width] = prompt
        self.log_p, self.sums = logits.new_zeros(self.ids.shape), logits.new_zeros(len(prompt))
        self.lengths, self.next_limit = limits.clone(), int(limits.min())
        self.running = torch.arange(len(prompt), device=prompt.device)
        self.done = torch.zeros_like(limits, dtype=torch.bool)

    @property
    def history(self) -> Tensor:
        """Tokens (R, columns) of the running rows."""
        return self.ids[self.running, : self.columns]

    def append(self, tokens: Tensor) -> Tensor:
        """Appends ``tokens`` (R,) to the running rows, ``NONE`` to the other rows; returns the new column (N,)."""
        self.ids[self.running, self.columns] = torch.where(self.done, NONE, tokens)
        self.columns += 1
        return self.ids[:, self.columns - 1]

    def score(self, logits: Tensor, tokens: Tensor) -> None:
        """Adds log p of the last appended ``tokens`` (R,), computed from ``logits`` (R, V)."""
        log_p = (logits.gather(1, tokens[:, None]) - log_sum_exp(logits))[:, 0]
        log_p = torch.where(self.done, 0.0, log_p)
        self.log_p[self.running, self.columns - 1] = log_p
        self.sums[self.running] += log_p

    def end(self, tokens: Tensor) -> bool:
        """Ends rows with their last ``tokens`` (R,), by end id, limit or stop string. Returns False if all rows have
        ended.
        """
        step = self.columns - self.width
        ended = torch.isin(tokens, self.end_ids) | (self.limits[self.running] == step)
        if self.stop_strings is not None:
            ended |= self.stop_strings.ended(self.history)
        ended &= ~self.done
        self.lengths[self.running] = torch.where(ended, step, self.lengths[self.running])
        self.done = self.done | ended
        self.live_count = len(self.done) - int(self.done.sum())
        return self.live_count > 0

    def drop_ended(self) -> Tensor | None:
        """Drops ended rows once they are half of the running rows, or when rows reach their limit.

        Returns the indices of the remaining rows among the rows before the call, or None if all rows stay.
        """
        if 2 * self.live_count > len(self.done) and self.columns - self.width != self.next_limit:
            return None
        remaining = (~self.done).nonzero()[:, 0]
        self.running, self.done = self.running[remaining], self.done[remaining]
        self.next_limit = int(self.limits[self.running].min())
        return remaining
