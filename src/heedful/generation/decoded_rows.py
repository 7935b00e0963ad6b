"""Rows of a method that decodes one token for each row and step: tokens, ends and log-probabilities.

Shapes: N rows of the result, R of them present in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heedful.generation.decoder_state import NONE
from heedful.generation.method import MethodInput
from heedful.generation.token_choice import is_any, log_sum_exp


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
        self.live_count = len(prompt)
        # an observer sees each call, and stop strings are read on the host at each token anyway
        reads_each = self.stop_strings is not None or bool(inputs.state.observers)
        self.read_every = 1 if reads_each else inputs.read_every

    @property
    def history(self) -> Tensor:
        """Tokens (R, columns) of the running rows."""
        return self.ids[self.running, : self.columns]

    def numbers(self, numbers: Tensor | None, step: int) -> Tensor | None:
        """Returns the uniform ``numbers`` (N, steps, n) of the running rows from ``step`` on: (R, steps − step, n)."""
        return None if numbers is None else numbers[self.running, step:]

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
        """Ends rows with their last ``tokens`` (R,), by end id, limit or stop string. Returns False if the host sees
        that all rows have ended: it looks at every ``MethodInput.read_every``-th token, and where a row reaches its
        limit.
        """
        step = self.columns - self.width
        ended = self._newly_ended(tokens, self.limits[self.running] == step)
        self.lengths[self.running] = torch.where(ended, step, self.lengths[self.running])
        self.done = self.done | ended
        if step % self.read_every == 0 or step == self.next_limit:
            self.live_count = len(self.done) - int(self.done.sum())
        return self.live_count > 0

    def _newly_ended(self, tokens: Tensor, at_limit: Tensor) -> Tensor:
        ended = is_any(tokens, self.end_ids) | at_limit
        if self.stop_strings is not None:
            ended |= self.stop_strings.ended(self.history)
        return ended & ~self.done

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


class FixedRows(DecodedRows):
    """Tokens of rows that all stay in the batch until every row has ended, as a static step needs it.

    All tensors are changed in place, at columns that the device counts. The host reads ``done`` once in
    ``MethodInput.read_every`` tokens.

    Attributes:
        count: (N,) number of steps so far, the same for every row.
    """

    def __init__(self, inputs: MethodInput, prompt: Tensor, limits: Tensor, logits: Tensor) -> None:
        super().__init__(inputs, prompt, limits, logits)
        self.count, self.max_steps = torch.zeros_like(limits), inputs.max_steps

    @property
    def history(self) -> Tensor:
        """Tokens (N, columns) of all rows."""
        return self.ids[:, : self.columns]

    def numbers(self, numbers: Tensor | None, step: int) -> Tensor | None:
        """Returns the uniform numbers (N, 1, n) of the next token, of ``numbers`` (N, steps, n)."""
        if numbers is None:
            return None
        return numbers.gather(1, self.count[:, None, None].expand(-1, 1, numbers.size(2)))

    def append(self, tokens: Tensor) -> Tensor:
        """Appends ``tokens`` (N,), ``NONE`` to rows that have ended; returns the new column (N,)."""
        new = torch.where(self.done, NONE, tokens)
        self.ids.scatter_(1, self._column, new[:, None])
        self.columns += 1
        return new

    def score(self, logits: Tensor, tokens: Tensor) -> None:
        """Adds log p of the last appended ``tokens`` (N,), computed from ``logits`` (N, V)."""
        log_p = torch.where(self.done[:, None], 0.0, logits.gather(1, tokens[:, None]) - log_sum_exp(logits))
        self.log_p.scatter_(1, self._column, log_p)
        self.sums.add_(log_p[:, 0])

    def end(self, tokens: Tensor) -> bool:
        """Ends rows with their last ``tokens`` (N,), by end id, limit or stop string. Returns False if the host sees
        that all rows have ended.
        """
        self.count.add_(1)
        ended = self._newly_ended(tokens, self.limits == self.count)
        self.lengths.copy_(torch.where(ended, self.count, self.lengths))
        self.done.logical_or_(ended)
        step = self.columns - self.width
        if step == self.max_steps:
            return False
        return step % self.read_every != 0 or not bool(self.done.all())

    def drop_ended(self) -> None:
        """Returns None: all rows stay."""

    @property
    def _column(self) -> Tensor:
        return (self.width + self.count)[:, None]
