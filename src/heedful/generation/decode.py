"""Public decoding calls (``generate``, ``decode``, ``stream``) and the length limits of each row."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation.decoder_state import NONE, CrossSource, Source, align, learned, source_of
from heedful.generation.method import Run, answering
from heedful.generation.options import Options, resolve
from heedful.generation.processors import processors_of
from heedful.generation.stopping import Decodes, StopStrings


class Generated(NamedTuple):
    """Generated ids with lengths and scores: ``num_return_sequences`` rows a prompt, prompts in order.

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


@contextmanager
def _observed(source: Source) -> Iterator[None]:
    """Tells the model's observers that a generation begins, and that it is over, however it ends."""
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
    decoding: Options,
    *,
    context: int | None,
    tokenizer: Decodes | None,
    prefix: tuple[Tensor, Tensor | None] | None,
    scored: bool,
    logprobs: bool = False,
) -> Generator[Tensor, None, Generated]:
    """Yields the tokens of each step and returns all rows. Inference mode is off between steps."""
    with answering(model):
        source = source_of(model, ids, mask, prefix)
        source.chunk = decoding.prefill_chunk_size
        check_context(source, decoding, context)
        limits = limits_of(source, decoding, context)
        special = model.config.special
        end = torch.tensor(special.end, dtype=torch.int64, device=limits.device)
        processors = processors_of(decoding, source, limits, special.end)
        texts = decoding.stop_strings
        run = Run(
            source=source,
            options=decoding,
            processors=processors,
            limits=limits,
            end=end,
            stops=StopStrings(texts, tokenizer, source.prompt.size(1)) if texts else None,
            scored=scored,
            logprobs=logprobs,
            context=context,
        )
        with _observed(source):
            rows, scores, log_p = yield from decoding.variant.steps(run)
            for watcher in source.watchers:
                watcher.end(rows, decoding.num_return_sequences)
        is_token = rows != NONE
        rows, real = align(rows, is_token, "left")
        pad = next(number for number in (special.pad, *special.end, 0) if number is not None)
        token_log_p = align(log_p, is_token, "left")[0].masked_fill(~real, 0.0) if logprobs else None
        return Generated(rows.masked_fill(~real, pad), real.sum(1), scores, token_log_p)


def _all(steps: Generator[Tensor, None, Generated]) -> Generated:
    """Runs all steps and returns the rows. Copies outside of inference mode may be used in training."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            generated: Generated = ended.value
            copies = (None if tensor is None else tensor.clone() for tensor in generated)
            return Generated(*copies)  # type: ignore[arg-type]  # a field is None only where it may be


def _resolved(decoding: Options | None, options: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> Options:
    """Returns ``decoding``, or else the options resolved over the defaults. Raises ``HeedfulError`` for both."""
    if decoding is None:
        return resolve(options, defaults)
    if options:
        raise HeedfulError(f"decoding sets all options, but {', '.join(options)} is given beside it; leave one out")
    return decoding


def _prefix(ids: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor | None] | None:
    if ids is None and mask is not None:
        raise HeedfulError("decoder_attention_mask says which decoder_input_ids are real; give these, too")
    return None if ids is None else (ids, mask)


def decode(
    model: Any,
    ids: Tensor,
    mask: Tensor | None = None,
    *,
    decoding: Options | None = None,
    context: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    tokenizer: Decodes | None = None,
    decoder_input_ids: Tensor | None = None,
    decoder_attention_mask: Tensor | None = None,
    logprobs: bool = False,
    **options: Any,
) -> Generated:
    """Generates as ``generate`` does; returns lengths and scores too, and with ``logprobs`` those of the tokens.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> made = decode(model, torch.tensor([[1, 2, 3]]), num_beams=4, num_return_sequences=2, max_new_tokens=5)
    >>> made.ids.shape, made.lengths.tolist(), made.scores.shape
    (torch.Size([2, 8]), [8, 8], torch.Size([2]))
    >>> made = decode(model, torch.tensor([[1, 2, 3]]), logprobs=True, max_new_tokens=2)
    >>> (made.logprobs < 0).tolist()
    [[False, False, False, True, True]]
    """
    decoding, prefix = _resolved(decoding, options, defaults), _prefix(decoder_input_ids, decoder_attention_mask)
    parts: dict[str, Any] = {"context": context, "tokenizer": tokenizer, "prefix": prefix}
    return _all(_steps(model, ids, mask, decoding, **parts, scored=True, logprobs=logprobs))


def generate(
    model: Any,
    ids: Tensor,
    mask: Tensor | None = None,
    *,
    decoding: Options | None = None,
    context: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    tokenizer: Decodes | None = None,
    decoder_input_ids: Tensor | None = None,
    decoder_attention_mask: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Token ids that follow ``ids``, by greedy decoding, sampling or a search, as the options say.

    The options have transformers' names and meanings (``heedful.generation.options.Options`` lists them), but for
    ``do_sample``: left unset it samples where the call gives a sampling option or ``defaults`` says so. A row gives the
    same alone, left-padded, right-padded and beside others; dropout is off.

    Args:
        model: a decoder, or an encoder-decoder, with a language-model head.
        ids: (B, T) prompts, or an encoder-decoder's sources.
        mask: (B, T), True for a real token, either side padded; None: all are real.
        decoding: resolved options (``heedful.generation.options.resolve``), in place of ``defaults`` and ``options``.
        context: a decoder reads at most so many tokens, and generates any number: before it would read one more, it
            forgets all but the last ``context // 2``, which it reads anew as if nothing stood before them, and goes on
            until ``context`` is full again. A longer prompt begins so. None: all tokens are read, and learned positions
            end a row.
        defaults: the folder's generation config; the call's options go before it.
        tokenizer: the model's, with ``decode(rows of ids) -> texts`` (an encoder-decoder's for its target), for
            ``stop_strings``; they alone need it.
        decoder_input_ids: (B, P) what an encoder-decoder's targets begin with. A row that does not begin with the start
            token gets it. They count as a decoder's prompt does: in ``max_length``, not among the new tokens.
        decoder_attention_mask: (B, P), True for a real one of them, either side padded; None: all are real.
        **options: ``max_new_tokens=50``, ``num_beams=4``, ``temperature=0.8``, ``seed=0``, ...

    Returns:
        int64 ids (B · num_return_sequences, N), right-padded with the pad id (the end id where the model has none): a
        decoder's with the prompt's real tokens first, an encoder-decoder's with the start token.

    Raises:
        HeedfulError: for an unknown option, one without effect or out of range; stop strings without a tokenizer; a
            model that cannot generate; a prompt without tokens, or, without ``context``, longer than the model's
            learned positions; ``context`` for another model than a decoder, or in a search; an assistant that does not
            fit the model, or is recorded; words that could not be forced.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)  # 64 positions
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5).shape
    torch.Size([1, 8])
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=100, context=64).shape
    torch.Size([1, 103])
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5, num_beams=4, force_words_ids=[[7, 8]]).shape
    torch.Size([1, 8])
    """
    decoding, prefix = _resolved(decoding, options, defaults), _prefix(decoder_input_ids, decoder_attention_mask)
    parts: dict[str, Any] = {"context": context, "tokenizer": tokenizer, "prefix": prefix}
    return _all(_steps(model, ids, mask, decoding, **parts, scored=False)).ids


def stream(
    model: Any,
    ids: Tensor,
    mask: Tensor | None = None,
    *,
    decoding: Options | None = None,
    context: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    tokenizer: Decodes | None = None,
    decoder_input_ids: Tensor | None = None,
    decoder_attention_mask: Tensor | None = None,
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
    decoding, prefix = _resolved(decoding, options, defaults), _prefix(decoder_input_ids, decoder_attention_mask)
    if not decoding.variant.streams:
        raise HeedfulError(
            f"num_beams={decoding.num_beams}: a search knows no token before its end; leave it out to stream"
        )
    parts: dict[str, Any] = {"context": context, "tokenizer": tokenizer, "prefix": prefix}
    return (tokens.clone() for tokens in _steps(model, ids, mask, decoding, **parts, scored=False))


def limits_of(source: Source, options: Options, context: int | None = None) -> Tensor:
    """Maximum number of new tokens of each prompt (B,), without ``context`` capped by the learned positions.

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
    what = "an encoder-decoder" if isinstance(source, CrossSource) else options.base.needs_whole_text
    if what:
        raise HeedfulError(
            f"context={context} is for a decoder that samples or is greedy, not for {what}; leave it out"
        )
    most = learned(source.stack) or context
    if not 1 <= context <= most:
        raise HeedfulError(f"context is {context}; give a whole number from 1 to {most}, the model's positions")
