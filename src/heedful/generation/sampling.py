"""Greedy decoding and sampling: one token per row and step.

Shapes: B prompts, n samples of each, R running rows, N columns of the history.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from heedful.generation.decoded_rows import DecodedRows
from heedful.generation.decoder_state import DecoderState
from heedful.generation.method import Method, MethodInput, Steps
from heedful.generation.processors import MinNewTokens, process
from heedful.generation.token_choice import choose, uniform_numbers
from heedful.kernels.greedy_steps import STEPS, GreedySteps, greedy_steps_of

Chooser = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class StepwiseState(Protocol):
    """Interface of a state that reads one token per row and step."""

    prompt: Tensor
    prompt_lengths: Tensor

    def make_cache(self, steps: int | None) -> None:
        """Creates a cache with room for ``steps`` more tokens; None creates a growing cache."""

    def prefill(self) -> Tensor:
        """Returns the logits (B, V) after the prompt."""

    def reread(self, history: Tensor, starts: Tensor) -> Tensor:
        """Returns the logits (R, V) after ``history`` (R, N), each row from its column ``starts`` (R,)."""

    def step(self, tokens: Tensor) -> Tensor:
        """Returns the logits (R, V) after ``tokens`` (R,)."""

    def select(self, rows: Tensor) -> None:
        """Keeps the rows with the indices ``rows``, in this order."""


def choose_next(scores: Tensor, history: Tensor, numbers: Tensor | None) -> Tensor:
    """Returns a token (R,) for each row of ``scores`` (R, V): the best, or one sampled with the first of the
    uniform ``numbers`` (R, remaining steps, 1). ``history`` (R, N) is not used.
    """
    return choose(scores, None if numbers is None else numbers[:, 0, 0])


def decode_stepwise(
    inputs: MethodInput,
    choose_tokens: Chooser = choose_next,
    numbers_per_token: int = 1,
    state: StepwiseState | None = None,
) -> Steps:
    """Decodes one token per row and step, each row until its end token, a stop string or its limit.

    Finished rows leave the batch when half of its rows are finished, or at their limit; with a static step they stay
    until all are finished. A row of more than ``context`` tokens continues from its last ``context_keep`` tokens, which
    are read again.

    Args:
        inputs: input of the method.
        choose_tokens: chooses a token for each row.
        numbers_per_token: uniform random numbers that ``choose_tokens`` needs to sample a token.
        state: a state that reads ahead, instead of that of ``inputs``.

    Yields:
        (B · n,) each row's token of the step, −1 for a finished row.

    Returns:
        ids (B · n, N) with the prompt, −1 for no token; scores (B · n,) and log p of each new token (B · n, N), both
        zeros unless ``with_scores``.
    """
    state, processors, with_scores = state or inputs.reader, inputs.processors, inputs.with_scores
    width, steps = inputs.width, inputs.max_steps
    context = inputs.context or width + steps
    keep = inputs.options.context_keep or max(1, context // 2)
    state.make_cache(min(steps, context - width) if inputs.context else steps)
    numbers = _sampling_numbers(inputs, numbers_per_token)
    starts = context_starts(width - state.prompt_lengths, width, context, keep)
    logits = state.prefill() if width <= context else state.reread(state.prompt, starts)
    prompt, limits = state.prompt, inputs.limits
    copies = inputs.options.num_return_sequences
    if copies > 1:
        samples = torch.arange(len(prompt), device=prompt.device).repeat_interleave(copies)
        state.select(samples)
        logits, prompt, limits, starts = logits[samples], prompt[samples], limits[samples], starts[samples]
    rows = DecodedRows(inputs, prompt, limits, logits)
    full = context + int(starts.min())  # columns at which the row that reads the most can read no more
    program = _greedy_steps(inputs, state) if choose_tokens is choose_next and numbers is None else None
    ahead: deque[tuple[Tensor, Tensor | None]] = deque()  # tokens and their log p

    for step in inputs.steps():
        log_p = None
        if ahead:
            tokens, log_p = ahead.popleft()
        else:
            history = rows.history
            scores = logits
            if processors:
                scores = process(processors, history, logits.clone() if with_scores else logits)
            tokens = choose_tokens(scores, history, rows.numbers(numbers, step - 1))
        yield rows.append(tokens)
        if log_p is not None:
            rows.add(log_p)
        elif with_scores:
            rows.score(logits, tokens)
        if not rows.end(tokens):
            break
        if ahead:
            continue  # the rows stay until the last token that was read ahead
        remaining = rows.drop_ended()
        if remaining is not None:
            state.select(remaining)
            tokens = tokens[remaining]
        if program is not None:
            ahead.extend(_read_ahead(program, inputs, rows, tokens, full))
        if ahead:
            continue
        if rows.columns <= full:
            logits = state.step(tokens)
        else:
            running = rows.running
            starts[running] = context_starts(starts[running], rows.columns, context, keep)
            logits = state.reread(rows.history, starts[running])
            full = context + int(starts[running].min())
    return rows.ids, rows.sums / rows.lengths, rows.log_p


def _greedy_steps(inputs: MethodInput, state: StepwiseState) -> GreedySteps | None:
    """Returns the program that decodes several tokens in a call, if nobody looks at each, or at its logits."""
    if type(state) is not DecoderState or state.observers or inputs.streams or inputs.stop_strings is not None:
        return None
    if any(type(processor) is not MinNewTokens for processor in inputs.processors):
        return None
    return greedy_steps_of(state.model, inputs.end_ids)


def _read_ahead(
    program: GreedySteps, inputs: MethodInput, rows: DecodedRows, tokens: Tensor, full: int
) -> list[tuple[Tensor, Tensor | None]]:
    """Reads ``tokens`` (R,), and chooses and reads more, until a row reaches its limit or column ``full`` is read.

    Returns the chosen tokens (R,) of each step, with their log p; none if the program does not fit.
    """
    done, cache = rows.columns - rows.width, inputs.state.cache
    count = min(STEPS, rows.next_limit - done, full - rows.columns + 1)
    if count < 2 or not program.fits(inputs.state.model, cache, len(tokens)):
        return []
    return program(
        cache,
        tokens,
        count,
        ends=inputs.end_ids,
        without_end=inputs.options.min_new_tokens - done,
        has_ended=rows.done,
        with_log_p=inputs.with_scores,
    )


def _sampling_numbers(inputs: MethodInput, per_token: int) -> Tensor | None:
    """Returns uniform numbers (B · n, steps, per_token); None for greedy decoding."""
    options, steps = inputs.options, inputs.max_steps
    if not options.do_sample:
        return None
    numbers = uniform_numbers(inputs.state.draw_ids, options.num_return_sequences, steps * per_token, options.seed)
    return numbers.unflatten(1, (steps, per_token))


def context_starts(starts: Tensor, end: int, context: int, keep: int) -> Tensor:
    """Returns the columns (R,) from which rows that end at column ``end`` are read: ``keep`` tokens before the end for
    rows longer than a context, else ``starts``.
    """
    return torch.where(end - starts > context, end - keep, starts)


GREEDY = Method(name="greedy", steps=decode_stepwise)
SAMPLING = Method(
    name="sampling",
    steps=decode_stepwise,
    options=("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "num_return_sequences"),
    switches=("do_sample",),
    implied_by=("temperature", "top_k", "top_p", "min_p", "typical_p"),
    remedy="do_sample=True",
)
