"""Log-probabilities of given continuations of a prompt, or of given targets of a source, which is read once for all.

Shapes: B prompts, C choices of each, R = B · C rows, t tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from heedful.errors import HeedfulError, plural
from heedful.generation.decoder_state import DecoderState, create_state, learned_positions
from heedful.generation.method import decoding_mode

ABSENT = -1  # in choices: no token here


@torch.inference_mode()
def choice_logprobs(model: Any, ids: Tensor, mask: Tensor | None, choices: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """Returns Σ_t log p(y_t | x, y_<t) of each choice y after its prompt x: (B, C), in float32 at least.

    A prompt is read once, and its cache serves all of its choices; an encoder-decoder encodes a source once and
    projects its keys and values once. The number is the same alone, padded on either side, and in any batch. C is the
    largest number of choices of a prompt; a choice that a prompt lacks has −∞.

    Args:
        model: a decoder, or an encoder-decoder, with a language-model head.
        ids: (B, T) prompts or sources.
        mask: (B, T), False for padding; None: no padding.
        choices: for each prompt the token ids of its choices, none empty. Those of an encoder-decoder do not have the
            start token, and end with the end token if it is to be counted.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> choice_logprobs(model, torch.tensor([[1, 2, 3]]), None, [[[4], [5, 6]]]).shape
    torch.Size([1, 2])
    """
    most = max(map(len, choices))
    if min(map(len, choices)) == 0 or not all(map(len, chain.from_iterable(choices))):
        raise HeedfulError("a prompt has no choice, or a choice has no token; give each at least one")
    padded = [[*own, *[own[0]] * (most - len(own))] for own in choices]  # every prompt has equally many rows
    with decoding_mode(model):
        state = create_state(model, ids, mask)
        state.keeps_all = True  # tokens of choices are padded on the right, which a sliding cache does not take
        targets = _targets(padded, state)
        _check_room(state, targets)
        state.make_cache(None)
        first = state.prefill().log_softmax(-1)  # (B, V)
        rows = torch.arange(len(ids), device=first.device).repeat_interleave(most)
        total = first[rows, targets[:, 0]]
        if targets.size(1) > 1:
            state.select(rows, torch.arange(len(ids), device=first.device))
            total = total + _later_tokens(state, targets)
    counts = torch.tensor(list(map(len, choices)), device=total.device)
    exists = torch.arange(most, device=total.device) < counts[:, None]
    return total.view(-1, most).masked_fill(~exists, -torch.inf)


def _targets(choices: Sequence[Sequence[Sequence[int]]], state: DecoderState) -> Tensor:
    """Returns the tokens of all choices, (R, t), ``ABSENT`` after the end of each."""
    rows = list(chain.from_iterable(choices))
    width = max(map(len, rows))
    ids = torch.tensor([[*row, *[ABSENT] * (width - len(row))] for row in rows])
    wrong = (ids >= state.vocab_size) | (ids < ABSENT)
    if bool(wrong.any()):
        raise HeedfulError(
            f"a choice has the token {int(ids[wrong][0])}, but the model's tokens are 0 to {state.vocab_size - 1}; use "
            "the model's own tokenizer"
        )
    return ids.to(state.prompt.device)


def _check_room(state: DecoderState, targets: Tensor) -> None:
    """Raises ``HeedfulError`` if a prompt and a choice have more tokens than the model has learned positions."""
    positions = learned_positions(state.stack)
    if positions is None:
        return
    lengths = state.prompt_lengths + (targets != ABSENT).sum(1).view(len(state.prompt), -1).amax(1) - 1
    if bool((lengths > positions).any()):
        row = int(lengths.argmax())
        raise HeedfulError(
            f"prompt {row} and its longest choice have {plural(int(lengths[row]) + 1, 'token')}, but the model has "
            f"{positions} learned positions; shorten the prompt"
        )


def _later_tokens(state: DecoderState, targets: Tensor) -> Tensor:
    """Returns Σ log p of all tokens but the first of each choice, (R,); the head is not computed for padding."""
    inputs, labels = targets[:, :-1], targets[:, 1:]
    real, counted = inputs != ABSENT, labels != ABSENT
    hidden = state.read(inputs.clamp(min=0), None if bool(real.all()) else real)
    logits = state.all_logits(hidden[counted][None])[0]  # (tokens, V)
    log_p = logits.log_softmax(-1).gather(1, labels[counted][:, None])[:, 0]
    return log_p.new_zeros(counted.shape).masked_scatter(counted, log_p).sum(1)
