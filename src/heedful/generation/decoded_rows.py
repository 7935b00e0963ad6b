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

    With a static step all rows stay until every row has ended, and their tensors are changed in place.

    Attributes:
        ids: (N, columns) prompt and new tokens, ``NONE`` where there is no token.
        log_p: (N, columns) log p of each new token, 0 elsewhere.
        sums: (N,) Σ log p.
        columns: number of columns that are filled.
        running: (R,) index of each row that is present.
        done: (R,) True for a row that is present and has ended.
    """

    def __init__(self, inputs: MethodInput, prompt: Tensor, limits: Tensor, logits: Tensor) -> None:
        self.end_ids, self.stop_strings = inputs.end_ids, inputs.stop_strings
        self.limits, self.max_steps = limits, inputs.max_steps
        self.width = self.columns = inputs.width
        self.ids = prompt.new_full((len(prompt), self.width + inputs.max_steps), NONE)
        self.ids[:, : self.width] = prompt
        self.log_p, self.sums = logits.new_zeros(self.ids.shape), logits.new_zeros(len(prompt))
        self.running = torch.arange(len(prompt), device=prompt.device)
        self.done = torch.zeros_like(limits, dtype=torch.bool)
        self.stays = inputs.static is not None
        self.limit_steps = set(limits.tolist())  # read once: each reading makes the host wait for a GPU
        self.next_limit, self.live_count = min(self.limit_steps), len(prompt)
        # an observer sees each call, and stop strings are read on the host at each token anyway
        reads_each = self.stop_strings is not None or bool(inputs.state.observers)
        self.read_every = 1 if reads_each else inputs.read_every

    @property
    def lengths(self) -> Tensor:
        """Number (N,) of new tokens of each row."""
        return (self.ids[:, self.width :] != NONE).sum(1)

    @property
    def history(self) -> Tensor:
        """Tokens (R, columns) of the rows that are present."""
        return self._present(self.ids)[:, : self.columns]

    def numbers(self, numbers: Tensor | None, step: int) -> Tensor | None:
        """Returns the uniform ``numbers`` (N, steps, n) of the present rows from ``step`` on: (R, steps − step, n)."""
        return None if numbers is None else self._present(numbers)[:, step:]

    def append(self, tokens: Tensor) -> Tensor:
        """Appends ``tokens`` (R,) to the present rows, ``NONE`` to the other rows; returns the new column (N,)."""
        self._write(self.ids, self.columns, torch.where(self.done, NONE, tokens))
        self.columns += 1
        return self.ids[:, self.columns - 1]

    def score(self, logits: Tensor, tokens: Tensor) -> None:
        """Adds log p of the last appended ``tokens`` (R,), computed from ``logits`` (R, V)."""
        self.add((logits.gather(1, tokens[:, None]) - log_sum_exp(logits))[:, 0])

    def add(self, log_p: Tensor) -> None:
        """Adds log p (R,) of the last appended tokens."""
        self._write(self.log_p, self.columns - 1, torch.where(self.done, 0.0, log_p))
        self.sums.add_(self.log_p[:, self.columns - 1])

    def end(self, tokens: Tensor) -> bool:
        """Ends rows with their last ``tokens`` (R,), by end id, limit or stop string. Returns False if the host sees
        that all rows have ended: it looks at every ``MethodInput.read_every``-th token, and where rows that may leave
        reach their limit.
        """
        step = self.columns - self.width
        if step == self.max_steps:
            return False
        if len(self.end_ids):
            self.done.logical_or_(is_any(tokens, self.end_ids))
        if step in self.limit_steps:
            self.done.logical_or_(self._present(self.limits) == step)
        if self.stop_strings is not None:
            self.done.logical_or_(self.stop_strings.ended(self.history))
        if step % self.read_every == 0 or (step == self.next_limit and not self.stays):
            self.live_count = len(self.done) - int(self.done.sum())
        return self.live_count > 0

    def drop_ended(self) -> Tensor | None:
        """Drops ended rows once they are half of the present rows, or when rows reach their limit.

        Returns the indices of the remaining rows among the rows before the call, or None if all rows stay.
        """
        at_limit = self.columns - self.width == self.next_limit
        if self.stays or (2 * self.live_count > len(self.done) and not at_limit):
            return None
        remaining = (~self.done).nonzero()[:, 0]
        self.running, self.done = self.running[remaining], self.done[remaining]
        self.next_limit = int(self.limits[self.running].min())
        return remaining

    def _present(self, tensor: Tensor) -> Tensor:
        """Returns the rows of ``tensor`` (N, ...) that are present."""
        return tensor if len(self.running) == len(tensor) else tensor[self.running]

    def _write(self, table: Tensor, column: int, values: Tensor) -> None:
        """Writes ``values`` (R,) of the present rows into a column of ``table`` (N, columns)."""
        if len(values) == len(table):
            table[:, column] = values
        else:
            table[self.running, column] = values
