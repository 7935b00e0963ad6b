"""Generating: the plan, the rows, the loop that takes a token at a time, and the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.beam import beam_search
from heedful.generation.options import Options, resolve
from heedful.generation.processors import Processor, process, processors_of
from heedful.generation.sampling import choose, draws, log_sums
from heedful.generation.source import NONE, Source, align, source_of


class Generated(NamedTuple):
    """What was generated, ``num_return_sequences`` rows a prompt, one prompt after the other.

    Attributes:
        ids: (rows, N) int64, right-padded with the pad id: a decoder's with the prompt's real tokens first, an
            encoder-decoder's with the start token.
        lengths: (rows,) how many of them are real, end token included.
        scores: (rows,) of a beam Σ log p / length^length_penalty; otherwise the model's own Σ log p / length, before
            any penalty, temperature or cut. Length counts new tokens, the end token too. Float32, or the model's
            float64.
    """

    ids: Tensor
    lengths: Tensor
    scores: Tensor


def limits_of(source: Source, options: Options) -> Tensor:
    """How many new tokens each prompt may have (B,), capped by the model's learned positions.

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
    length = getattr(source.stack.position, "length", None)
    if length is not None:
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


def one_by_one(
    source: Source, options: Options, processors: Sequence[Processor], limits: Tensor, end: Tensor, scored: bool
) -> tuple[Tensor, Tensor]:
    """Greedy decoding and sampling: a token a row a step, each row until its end token or its limit.

    Finished rows leave the batch when the live ones fall to half of it, or at their limit.

    Returns:
        ids (B · n, N) with what stood before, −1 for none; scores (B · n,), zeros unless ``scored``.
    """
    width, copies, steps = source.prompt.size(1), options.num_return_sequences, int(limits.max())
    numbers = draws(source.given, copies, steps, options.seed) if options.do_sample else None
    logits, prompt = source.prefill(), source.prompt
    rows = torch.arange(len(prompt), device=prompt.device)
    if copies > 1:
        rows = rows.repeat_interleave(copies)
        source.select(rows)
        logits, prompt, limits = logits[rows], prompt[rows], limits[rows]
        rows = torch.arange(len(rows), device=rows.device)
    ids = prompt.new_full((len(rows), width + steps), NONE)
    ids[:, :width] = prompt
    sums, lengths, nearest = logits.new_zeros(len(rows)), limits.clone(), int(limits.min())
    done = torch.zeros_like(limits, dtype=torch.bool)

    for step in range(1, steps + 1):
        scores = process(processors, ids[rows, : width + step - 1], logits) if processors else logits
        tokens = choose(scores, None if numbers is None else numbers[rows, step - 1])
        ids[rows, width + step - 1] = torch.where(done, NONE, tokens)
        if scored:
            log_p = logits.gather(1, tokens[:, None]) - log_sums(logits)
            sums[rows] += torch.where(done, 0.0, log_p[:, 0])
        ended = (torch.isin(tokens, end) | (limits[rows] == step)) & ~done
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
        logits = source.step(tokens)
    return ids, sums / lengths


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


def _decode(
    model: Any, ids: Tensor, mask: Tensor | None, defaults: Mapping[str, Any] | None, scored: bool, call: dict[str, Any]
) -> Generated:
    options = resolve(call, defaults)
    with torch.inference_mode(), _evaluating(model):
        source = source_of(model, ids, mask)
        limits = limits_of(source, options)
        source.remember(None if options.method == "beam" else int(limits.max()))
        special = model.config.special
        end = torch.tensor(special.end, dtype=torch.int64, device=limits.device)
        processors = processors_of(options, source.prompt.size(1), special.end)
        if options.method == "beam":
            made, scores = beam_search(source, options, processors, limits, end)
        else:
            made, scores = one_by_one(source, options, processors, limits, end, scored)
        made, real = align(made, made != NONE, "left")
        pad = next(number for number in (special.pad, *special.end, 0) if number is not None)
        made = made.masked_fill(~real, pad)
        lengths = real.sum(1)
    # copies made out here may be used in training; what inference mode made may not
    return Generated(made.clone(), lengths.clone(), scores.clone())


def decode(
    model: Any, ids: Tensor, mask: Tensor | None = None, *, defaults: Mapping[str, Any] | None = None, **options: Any
) -> Generated:
    """``generate`` with lengths and scores: see there, and ``Generated``.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> made = decode(model, torch.tensor([[1, 2, 3]]), num_beams=4, num_return_sequences=2, max_new_tokens=5)
    >>> made.ids.shape, made.lengths.tolist(), made.scores.shape
    (torch.Size([2, 8]), [8, 8], torch.Size([2]))
    """
    return _decode(model, ids, mask, defaults, True, options)


def generate(
    model: Any, ids: Tensor, mask: Tensor | None = None, *, defaults: Mapping[str, Any] | None = None, **options: Any
) -> Tensor:
    """Token ids that follow ``ids``, by greedy decoding, sampling or beam search.

    The options have transformers' names and meanings (``heedful.generation.options.Options`` lists them), but for
    ``do_sample``: left unset it samples where the call gives a sampling option or ``defaults`` says so. A row gives the
    same alone, left-padded, right-padded and beside others; dropout is off.

    Args:
        model: a decoder, or an encoder-decoder, with a language-model head.
        ids: (B, T) prompts, or an encoder-decoder's sources.
        mask: (B, T), True for a real token, either side padded; None: all are real.
        defaults: the folder's generation config; the call's options go before it.
        **options: ``max_new_tokens=50``, ``num_beams=4``, ``temperature=0.8``, ``seed=0``, ...

    Returns:
        int64 ids (B · num_return_sequences, N), right-padded with the pad id (the end id where the model has none): a
        decoder's with the prompt's real tokens first, an encoder-decoder's with the start token.

    Raises:
        HeedfulError: for an unknown option, one without effect or out of range; a model that cannot generate; a prompt
            without tokens, or longer than the model's learned positions.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5).shape
    torch.Size([1, 8])
    """
    return _decode(model, ids, mask, defaults, False, options).ids
