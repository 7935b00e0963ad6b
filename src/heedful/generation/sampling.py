"""Greedy decoding and sampling: one token per row and step.

Shapes: B prompts, n samples of each, R rows at work, N columns of the history.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from heedful.generation.decoder_state import NONE
from heedful.generation.method import Method, Run, Steps
from heedful.generation.processors import process
from heedful.generation.token_choice import choose, draws, log_sums

Pick = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Reads(Protocol):
    """Interface of a source that is read token by token."""

    prompt: Tensor
    counts: Tensor
    given: Tensor

    def remember(self, steps: int | None) -> None:
        """Make a cache with room for ``steps`` more tokens."""

    def prefill(self) -> Tensor:
        """Logits (B, V) after the prompt."""

    def reread(self, history: Tensor, begins: Tensor) -> Tensor:
        """Logits (R, V) after ``history`` (R, N), each row from its column ``begins`` (R,)."""

    def step(self, tokens: Tensor) -> Tensor:
        """Logits (R, V) after ``tokens`` (R,)."""

    def select(self, rows: Tensor) -> None:
        """Work on ``rows`` from now on."""


def picked(scores: Tensor, history: Tensor, numbers: Tensor | None) -> Tensor:
    """The token (R,) of each row of ``scores`` (R, V): the best, or the one drawn by the first of the ``numbers``
    (R, steps to come, 1); ``history`` (R, N) does not matter.
    """
    return choose(scores, None if numbers is None else numbers[:, 0, 0])


def one_by_one(run: Run, pick: Pick = picked, each: int = 1, source: Reads | None = None) -> Steps:
    """Greedy decoding and sampling: a token a row a step, each row until its end token, a stop string or its limit.

    Finished rows leave the batch when the live ones fall to half of it, or at their limit. A row that has more than
    ``context`` tokens goes on from the last half of them, read anew.

    Args:
        run: see there.
        pick: chooses a row's token.
        each: numbers that it needs to draw one.
        source: one that reads ahead, instead of the run's.

    Yields:
        (B · n,) each row's token of the step, −1 for none.

    Returns:
        ids (B · n, N) with what stood before, −1 for none; scores (B · n,) and log p of each new token (B · n, N), both
        zeros unless ``scored``.
    """
    source, options, processors, limits = source or run.source, run.options, run.processors, run.limits
    width, copies, steps = run.width, options.num_return_sequences, run.most
    context = run.context or width + steps
    source.remember(min(steps, context - width) if run.context else steps)
    numbers = None
    if options.do_sample:
        numbers = draws(source.given, copies, steps * each, options.seed).unflatten(1, (steps, each))
    prompt = source.prompt
    begins = shortened(width - source.counts, width, context)
    logits = source.prefill() if width <= context else source.reread(prompt, begins)
    rows = torch.arange(len(prompt), device=prompt.device)
    if copies > 1:
        rows = rows.repeat_interleave(copies)
        source.select(rows)
        logits, prompt, limits, begins = logits[rows], prompt[rows], limits[rows], begins[rows]
        rows = torch.arange(len(rows), device=rows.device)
    ids = prompt.new_full((len(rows), width + steps), NONE)
    ids[:, :width] = prompt
    sums, lengths, nearest = logits.new_zeros(len(rows)), limits.clone(), int(limits.min())
    said = logits.new_zeros(ids.shape)
    done = torch.zeros_like(limits, dtype=torch.bool)
    full = context + int(begins.min())  # so many columns, and the row that reads the most can read no more

    for step in range(1, steps + 1):
        last = width + step
        scores = logits
        if processors:
            scores = process(processors, ids[rows, : last - 1], logits.clone() if run.scored else logits)
        tokens = pick(scores, ids[rows, : last - 1], None if numbers is None else numbers[rows, step - 1 :])
        ids[rows, last - 1] = torch.where(done, NONE, tokens)
        yield ids[:, last - 1]
        if run.scored:
            log_p = logits.gather(1, tokens[:, None]) - log_sums(logits)
            said[rows, last - 1] = torch.where(done, 0.0, log_p[:, 0])
            sums[rows] += said[rows, last - 1]
        ended = torch.isin(tokens, run.end) | (limits[rows] == step)
        if run.stops is not None:
            ended |= run.stops.ended(ids[rows, :last])
        ended &= ~done
        lengths[rows] = torch.where(ended, step, lengths[rows])
        done = done | ended
        alive = len(done) - int(done.sum())
        if not alive:
            break
        if 2 * alive <= len(done) or step == nearest:
            kept = (~done).nonzero()[:, 0]
            source.select(kept)
            rows, done, tokens = rows[kept], done[kept], tokens[kept]
            nearest = int(limits[rows].min())
        if last <= full:
            logits = source.step(tokens)
        else:
            begins[rows] = shortened(begins[rows], last, context)
            logits = source.reread(ids[rows, :last], begins[rows])
            full = context + int(begins[rows].min())
    return ids, sums / lengths, said


def shortened(begins: Tensor, end: int, context: int) -> Tensor:
    """The columns ``begins`` (R,) from which rows that reach to column ``end`` are read: half a context where they
    are longer than one.
    """
    return torch.where(end - begins > context, end - max(1, context // 2), begins)


GREEDY = Method(name="greedy", steps=one_by_one)
SAMPLING = Method(
    name="sampling",
    steps=one_by_one,
    options=("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "num_return_sequences"),
    switches=("do_sample",),
    implied_by=("temperature", "top_k", "top_p", "min_p", "typical_p"),
    remedy="do_sample=True",
)
