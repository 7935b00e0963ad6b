"""Generating: the plan, the rows, the limits, and the answer, whole or as it is made."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.config import LearnedPosition, StackConfig
from heedful.errors import HeedfulError
from heedful.generation.beam import beam_search
from heedful.generation.chain import processors_of
from heedful.generation.one_by_one import one_by_one
from heedful.generation.options import Options, resolve
from heedful.generation.source import NONE, CrossSource, Source, align, source_of
from heedful.generation.stopping import Decodes, StopStrings


class Generated(NamedTuple):
    """What was generated, ``num_return_sequences`` rows a prompt, one prompt after the other.

    Attributes:
        ids: (rows, N) int64, right-padded with the pad id: a decoder's with the prompt's real tokens first, an
            encoder-decoder's with the start token.
        lengths: (rows,) how many of them are real, end token included.
        scores: (rows,) of a beam Σ log p / length^length_penalty; otherwise the model's own Σ log p / length, before
            any penalty, temperature or cut. Length counts new tokens, the end token too. Float32, or the model's
            float64.
        logprobs: (rows, N) where asked for: log p of each new token as the model itself says it, before any penalty,
            temperature, cut or force, given all that stood before it (with ``context``: what was read of it); 0 where
            ``ids`` has the prompt, a start token or padding. None otherwise.
    """

    ids: Tensor
    lengths: Tensor
    scores: Tensor
    logprobs: Tensor | None = None


def learned(stack: StackConfig) -> int | None:
    """The number of a stack's learned positions, beyond which it has none; None for every other kind of position."""
    return stack.position.length if isinstance(stack.position, LearnedPosition) else None


def limits_of(source: Source, options: Options, context: int | None = None) -> Tensor:
    """How many new tokens each prompt may have (B,), without a ``context`` capped by the model's learned positions.

    A row of n tokens needs n − 1 positions: the last is never read again. Raises ``HeedfulError`` where the prompt
    leaves no room, or less than the options ask for by number.
    """
    if options.max_new_tokens is not None:
        limits = torch.full_like(source.counts, options.max_new_tokens)
    elif options.max_length is not None:
        limits = options.max_length - source.counts
    else:
        limits = source.usual
    if int(limits.min()) < 1:
        row = int(limits.argmin())
        raise HeedfulError(
            f"max_length={options.max_length}, but prompt {row} has {int(source.counts[row])} tokens already; raise it"
        )
    length = learned(source.stack)
    if length is not None and context is None:
        room = length + 1 - source.counts
        asked = limits if limits is not source.usual else torch.ones_like(limits)
        if bool((asked > room).any()):
            row = int((asked - room).argmax())
            raise HeedfulError(
                f"prompt {row} has {int(source.counts[row])} tokens and is to get {int(asked[row])}, but the model has "
                f"{length} learned positions; shorten the prompt, or set max_new_tokens"
            )
        limits = limits.minimum(room)
    if options.min_new_tokens > int(limits.min()):
        raise HeedfulError(
            f"min_new_tokens={options.min_new_tokens}, but only {int(limits.min())} are allowed; raise max_new_tokens"
        )
    return limits


def check_context(source: Source, options: Options, context: int | None) -> None:
    """Raise ``HeedfulError`` where the model cannot go on from a part of what it has, or has fewer positions."""
    if context is None:
        return
    if isinstance(source, CrossSource) or options.method == "beam":
        what = "an encoder-decoder" if isinstance(source, CrossSource) else "a beam search"
        raise HeedfulError(
            f"context={context} is for a decoder that samples or is greedy, not for {what}; leave it out"
        )
    most = learned(source.stack) or context
    if not 1 <= context <= most:
        raise HeedfulError(f"context is {context}; give a whole number from 1 to {most}, the model's positions")


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """No dropout inside; every part is afterwards in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _watched(source: Source) -> Iterator[None]:
    """Those who watch the model are told that a generation begins, and that it is over, however it ends."""
    begun = []
    try:
        for watcher in source.watchers:
            watcher.begin(source.counts, source.prompt.size(1), isinstance(source, CrossSource))
            begun.append(watcher)
        yield
    finally:
        for watcher in begun:
            watcher.over()


@torch.inference_mode()
def _steps(
    model: Any,
    ids: Tensor,
    mask: Tensor | None,
    options: Options,
    scored: bool,
    context: int | None,
    tokenizer: Decodes | None,
    logprobs: bool = False,
) -> Generator[Tensor, None, Generated]:
    """The tokens of each step; then all that was made. While others are at work, inference mode is off."""
    with _evaluating(model):
        source = source_of(model, ids, mask)
        check_context(source, options, context)
        limits = limits_of(source, options, context)
        special = model.config.special
        end = torch.tensor(special.end, dtype=torch.int64, device=limits.device)
        processors = processors_of(options, source, limits, special.end)
        texts, width = options.stop_strings, source.prompt.size(1)
        stops = StopStrings(texts, tokenizer, width) if texts else None
        with _watched(source):
            if options.method == "beam":
                source.remember(None)
                made, scores, log_p = beam_search(source, options, processors, limits, end, stops, logprobs)
            else:
                most = int(limits.max())
                source.remember(most if context is None else min(most, context - width))
                made, scores, log_p = yield from one_by_one(
                    source, options, processors, limits, end, scored, context, stops
                )
            for watcher in source.watchers:
                watcher.end(made, options.num_return_sequences)
        there = made != NONE
        made, real = align(made, there, "left")
        pad = next(number for number in (special.pad, *special.end, 0) if number is not None)
        said = align(log_p, there, "left")[0].masked_fill(~real, 0.0) if logprobs else None
        return Generated(made.masked_fill(~real, pad), real.sum(1), scores, said)


def _decode(
    model: Any,
    ids: Tensor,
    mask: Tensor | None,
    defaults: Mapping[str, Any] | None,
    scored: bool,
    context: int | None,
    tokenizer: Decodes | None,
    logprobs: bool,
    call: dict[str, Any],
) -> Generated:
    steps = _steps(model, ids, mask, resolve(call, defaults), scored, context, tokenizer, logprobs)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            # copies made out here may be used in training; what inference mode made may not
            made: Generated = ended.value
            said = None if made.logprobs is None else made.logprobs.clone()
            return Generated(made.ids.clone(), made.lengths.clone(), made.scores.clone(), said)


def decode(
    model: Any,
    ids: Tensor,
    mask: Tensor | None = None,
    *,
    context: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    tokenizer: Decodes | None = None,
    logprobs: bool = False,
    **options: Any,
) -> Generated:
    """``generate`` with lengths and scores, and where asked for ``logprobs`` of the tokens: see ``Generated``.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> made = decode(model, torch.tensor([[1, 2, 3]]), num_beams=4, num_return_sequences=2, max_new_tokens=5)
    >>> made.ids.shape, made.lengths.tolist(), made.scores.shape
    (torch.Size([2, 8]), [8, 8], torch.Size([2]))
    >>> made = decode(model, torch.tensor([[1, 2, 3]]), logprobs=True, max_new_tokens=2)
    >>> (made.logprobs < 0).tolist()
    [[False, False, False, True, True]]
    """
    return _decode(model, ids, mask, defaults, True, context, tokenizer, logprobs, options)


def generate(
    model: Any,
    ids: Tensor,
    mask: Tensor | None = None,
    *,
    context: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    tokenizer: Decodes | None = None,
    **options: Any,
) -> Tensor:
    """Token ids that follow ``ids``, by greedy decoding, sampling or beam search.

    The options have transformers' names and meanings (``heedful.generation.options.Options`` lists them), but for
    ``do_sample``: left unset it samples where the call gives a sampling option or ``defaults`` says so. A row gives the
    same alone, left-padded, right-padded and beside others; dropout is off.

    Args:
        model: a decoder, or an encoder-decoder, with a language-model head.
        ids: (B, T) prompts, or an encoder-decoder's sources.
        mask: (B, T), True for a real token, either side padded; None: all are real.
        context: a decoder reads at most so many tokens, and generates any number: before it would read one more, it
            forgets all but the last ``context // 2``, which it reads anew as if nothing stood before them, and goes on
            until ``context`` is full again. A longer prompt begins so. None: all tokens are read, and learned positions
            end a row.
        defaults: the folder's generation config; the call's options go before it.
        tokenizer: the model's, with ``decode(rows of ids) -> texts`` (an encoder-decoder's for its target), for
            ``stop_strings``; they alone need it.
        **options: ``max_new_tokens=50``, ``num_beams=4``, ``temperature=0.8``, ``seed=0``, ...

    Returns:
        int64 ids (B · num_return_sequences, N), right-padded with the pad id (the end id where the model has none): a
        decoder's with the prompt's real tokens first, an encoder-decoder's with the start token.

    Raises:
        HeedfulError: for an unknown option, one without effect or out of range; stop strings without a tokenizer; a
            model that cannot generate; a prompt without tokens, or, without ``context``, longer than the model's
            learned positions; ``context`` for another model than a decoder, or in a beam search.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)  # 64 positions
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5).shape
    torch.Size([1, 8])
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=100, context=64).shape
    torch.Size([1, 103])
    """
    return _decode(model, ids, mask, defaults, False, context, tokenizer, False, options).ids


def stream(
    model: Any,
    ids: Tensor,
    mask: Tensor | None = None,
    *,
    context: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    tokenizer: Decodes | None = None,
    **options: Any,
) -> Iterator[Tensor]:
    """The tokens that ``generate`` would give, as they are made: at each step (B · num_return_sequences,) int64.

    A row that has ended says −1. The model is in evaluation mode until the last step, or until the iterator is gone.
    Arguments and errors are those of ``generate``; a beam search is refused, since it knows no token before its end.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> tokens = list(stream(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5))
    >>> torch.equal(torch.stack(tokens, 1), generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5)[:, 3:])
    True
    """
    plan = resolve(options, defaults)
    if plan.method == "beam":
        raise HeedfulError(
            f"num_beams={plan.num_beams}: a search knows no token before its end; leave it out to stream"
        )
    return (tokens.clone() for tokens in _steps(model, ids, mask, plan, False, context, tokenizer))
