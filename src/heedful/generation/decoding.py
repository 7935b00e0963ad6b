"""Public decoding calls (``generate``, ``decode``, ``stream``) and the length limits of each row."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from heedful.errors import HeedfulError, plural
from heedful.generation.captured_step import fixed_step
from heedful.generation.decoder_state import (
    NONE,
    DecoderState,
    EncoderDecoderState,
    ImageDecoderState,
    PermutationState,
    align,
    create_state,
    learned_positions,
)
from heedful.generation.method import MethodInput, decoding_mode
from heedful.generation.options import Options, resolve
from heedful.generation.processors import processors_of
from heedful.generation.stopping import SHOULD_STOP, Detokenizer, StopStrings

if TYPE_CHECKING:
    from typing import Unpack

    from heedful.settings.typed_dicts import DecodingOptions


class Generated(NamedTuple):
    """Generated ids with lengths and scores: ``num_return_sequences`` rows per prompt, in the order of the prompts.

    Attributes:
        ids: (rows, N) int64, right-padded with the pad id: a decoder's with the prompt's non-padding tokens first, an
            encoder-decoder's with the start token.
        lengths: (rows,) number of non-padding tokens, the end token included.
        scores: (rows,) in a beam search Σ log p / length^length_penalty; otherwise the model's own Σ log p / length,
            before any penalty, temperature or filter. Length counts new tokens, the end token too. Float32, or
            float64 for a float64 model.
        logprobs: (rows, N) log p of each new token under the model itself, given all tokens before it (with
            ``context``: those that the model read), before any penalty, temperature, filter or forced token; 0 at the
            prompt, a start token or padding. None if not requested.
    """

    ids: Tensor
    lengths: Tensor
    scores: Tensor
    logprobs: Tensor | None = None


@contextmanager
def _observed(state: DecoderState) -> Iterator[None]:
    """Notifies the model's observers when generation begins, and when it ends, also after an error."""
    started = []
    try:
        for observer in state.observers:
            observer.begin(state.prompt_lengths, state.prompt.size(1), isinstance(state, EncoderDecoderState))
            started.append(observer)
        yield
    finally:
        for observer in started:
            observer.over()


@torch.inference_mode()
def _steps(
    model: Any,
    ids: Tensor,
    mask: Tensor | None,
    options: Options,
    *,
    context: int | None,
    tokenizer: Detokenizer | None,
    prefix: tuple[Tensor, Tensor | None] | None,
    with_scores: bool,
    with_logprobs: bool = False,
    streams: bool = False,
) -> Generator[Tensor, None, Generated]:
    """Yields the tokens of each step and returns all rows. Inference mode is off between steps."""
    with decoding_mode(model):
        state = create_state(model, ids, mask, prefix, options.decoder_start_token_id)
        state.prefill_chunk_size = options.prefill_chunk_size
        context = checked_context(state, options, context)
        check_whole_prompt(state, options, context)
        check_source(state, options)
        check_permutation(state, options)
        limits = limits_of(state, options, context)
        special = model.config.special
        texts = options.stop_strings
        with fixed_step(state, options, limits, context) as static, _observed(state):
            inputs = MethodInput(
                state=state,
                options=options,
                processors=processors_of(options, state, limits, special.end),
                limits=limits,
                end_ids=torch.tensor(special.end, dtype=torch.int64, device=limits.device),
                stop_strings=StopStrings(texts, tokenizer, state.prompt.size(1)) if texts else None,
                with_scores=with_scores,
                with_logprobs=with_logprobs,
                context=context,
                static=static,
                streams=streams,
                read_every=1 if streams else tokens_between_reads(limits.device),
                should_stop=SHOULD_STOP.get(),
            )
            rows, scores, log_p = yield from options.variant.steps(inputs)
            for observer in state.observers:
                observer.end(rows, options.num_return_sequences)
        is_token = rows != NONE
        rows, real = align(rows, is_token, "left")
        pad = next(number for number in (special.pad, *special.end, 0) if number is not None)
        token_log_p = align(log_p, is_token, "left")[0].masked_fill(~real, 0.0) if with_logprobs else None
        return Generated(rows.masked_fill(~real, pad), real.sum(1), scores, token_log_p)


def tokens_between_reads(device: torch.device) -> int:
    """Returns the number of tokens after which the host reads which rows have ended.

    A GPU runs ahead of the host in between; reading costs nothing on a CPU.
    """
    return 1 if device.type == "cpu" else 8


def _all(steps: Generator[Tensor, None, Generated]) -> Generated:
    """Runs all steps and returns the rows, copied outside of inference mode so that training may use them."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            generated: Generated = ended.value
            copies = (None if tensor is None else tensor.clone() for tensor in generated)
            return Generated(*copies)  # type: ignore[arg-type]  # a field is None only where it may be


def _resolved(decoding: Options | None, options: Mapping[str, Any], defaults: Mapping[str, Any] | None) -> Options:
    """Returns ``decoding``, or else the options resolved over the defaults; giving both is an error."""
    if decoding is None:
        return resolve(options, defaults)
    if options:
        raise HeedfulError(f"decoding already sets all options; leave out either decoding or {', '.join(options)}")
    return decoding


def _prefix(ids: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor | None] | None:
    if ids is None and mask is not None:
        raise HeedfulError("decoder_attention_mask has no effect without decoder_input_ids; give both")
    return None if ids is None else (ids, mask)


def decode(
    model: Any,
    ids: Tensor,
    mask: Tensor | None = None,
    *,
    decoding: Options | None = None,
    context: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    tokenizer: Detokenizer | None = None,
    decoder_input_ids: Tensor | None = None,
    decoder_attention_mask: Tensor | None = None,
    logprobs: bool = False,
    **options: Unpack[DecodingOptions],
) -> Generated:
    """Generates as ``generate`` does; also returns lengths and scores, and with ``logprobs`` the log-probability of
    each token.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> generated = decode(model, torch.tensor([[1, 2, 3]]), num_beams=4, num_return_sequences=2, max_new_tokens=5)
    >>> generated.ids.shape, generated.lengths.tolist(), generated.scores.shape
    (torch.Size([2, 8]), [8, 8], torch.Size([2]))
    >>> generated = decode(model, torch.tensor([[1, 2, 3]]), logprobs=True, max_new_tokens=2)
    >>> (generated.logprobs < 0).tolist()
    [[False, False, False, True, True]]
    """
    decoding, prefix = _resolved(decoding, options, defaults), _prefix(decoder_input_ids, decoder_attention_mask)
    parts: dict[str, Any] = {"context": context, "tokenizer": tokenizer, "prefix": prefix}
    return _all(_steps(model, ids, mask, decoding, **parts, with_scores=True, with_logprobs=logprobs))


def generate(
    model: Any,
    ids: Tensor,
    mask: Tensor | None = None,
    *,
    decoding: Options | None = None,
    context: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    tokenizer: Detokenizer | None = None,
    decoder_input_ids: Tensor | None = None,
    decoder_attention_mask: Tensor | None = None,
    **options: Unpack[DecodingOptions],
) -> Tensor:
    """Generates the token ids that follow ``ids``, by greedy decoding, sampling or a search, as the options say.

    The options have transformers' names and meanings (``heedful.generation.Options`` lists them), except
    ``do_sample``: unset, it samples if the call gives a sampling option or ``defaults`` say so. A row's result is
    the same alone, left-padded, right-padded and in a batch; dropout is off.

    Args:
        model: a decoder, an encoder-decoder or an XLNet, with a language-model head. An XLNet reads the whole text at
            each step, which assisted and contrastive decoding, a static cache and prompts in parts do not.
        ids: (B, T) prompts, or an encoder-decoder's sources, ids or the pixels of images (B, channels, height, width).
        mask: (B, T), False for padding, on either side; None: no padding. Or (B, T, T), boolean, True where the first
            token of the prompt (or source) may attend to the second, as ``heedful.layers.prefix_mask``; new tokens
            attend to all tokens before them, within the decoder's window.
        decoding: resolved options (``heedful.generation.resolve``), in place of ``defaults`` and ``options``.
        context: maximum number of tokens that a decoder reads; it generates any number. When ``context`` is full, the
            decoder drops all but the last ``context_keep`` tokens (an option; by default ``context // 2``), reads these
            again as the beginning of a text, and continues until ``context`` is full again. A longer prompt is cut in
            the same way. None: the learned positions with ``context_keep``; without it all tokens are read, and a row
            ends at the last learned position.
        defaults: the folder's generation config; the call's options override it.
        tokenizer: the model's, with ``decode(rows of ids) -> texts`` (an encoder-decoder's for its target); only
            ``stop_strings`` need it.
        decoder_input_ids: (B, P) first tokens of an encoder-decoder's targets. The start token is put before a row that
            does not begin with it. They count as a prompt: in ``max_length``, not as new tokens.
        decoder_attention_mask: (B, P), False for padding, on either side; None: no padding.
        **options: ``max_new_tokens=50``, ``num_beams=4``, ``temperature=0.8``, ``seed=0``, ...

    Returns:
        int64 ids (B · num_return_sequences, N), right-padded with the pad id (the end id where the model has none), a
        decoder's with the prompt's non-padding tokens first, an encoder-decoder's with the start token.

    Raises:
        HeedfulError: for an option that is unknown, without effect or out of range; stop strings without a tokenizer; a
            model that cannot generate; a prompt without tokens, or, without ``context``, longer than the model's
            learned positions; ``context`` for an encoder-decoder, or in a search; an assistant that does not
            fit the model, or while the model is recorded; forced words that no beam contains.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)  # 64 positions
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5).shape
    torch.Size([1, 8])
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=100, context=64).shape
    torch.Size([1, 103])
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=100, context_keep=64).shape  # slides by a token
    torch.Size([1, 103])
    >>> generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5, num_beams=4, force_words_ids=[[7, 8]]).shape
    torch.Size([1, 8])
    """
    decoding, prefix = _resolved(decoding, options, defaults), _prefix(decoder_input_ids, decoder_attention_mask)
    parts: dict[str, Any] = {"context": context, "tokenizer": tokenizer, "prefix": prefix}
    return _all(_steps(model, ids, mask, decoding, **parts, with_scores=False)).ids


def stream(
    model: Any,
    ids: Tensor,
    mask: Tensor | None = None,
    *,
    decoding: Options | None = None,
    context: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    tokenizer: Detokenizer | None = None,
    decoder_input_ids: Tensor | None = None,
    decoder_attention_mask: Tensor | None = None,
    **options: Unpack[DecodingOptions],
) -> Iterator[Tensor]:
    """Yields the tokens that ``generate`` would return, step by step: (B · num_return_sequences,) int64.

    A row that has ended yields −1. The model is in evaluation mode until the last step, or until the iterator is
    closed. Arguments and errors are those of ``generate``; a beam search raises ``HeedfulError``, since no token is
    final before its end.

    >>> import heedful
    >>> model = heedful.create("gpt-micro", seed=0)
    >>> tokens = list(stream(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5))
    >>> torch.equal(torch.stack(tokens, 1), generate(model, torch.tensor([[1, 2, 3]]), max_new_tokens=5)[:, 3:])
    True
    """
    decoding, prefix = _resolved(decoding, options, defaults), _prefix(decoder_input_ids, decoder_attention_mask)
    if not decoding.variant.streams:
        raise HeedfulError(
            f"num_beams={decoding.num_beams}: a beam search cannot stream, because no token is final before its end; "
            "leave num_beams out"
        )
    parts: dict[str, Any] = {"context": context, "tokenizer": tokenizer, "prefix": prefix}
    steps = _steps(model, ids, mask, decoding, **parts, with_scores=False, streams=True)
    return (tokens.clone() for tokens in steps)


def limits_of(state: DecoderState, options: Options, context: int | None = None) -> Tensor:
    """Returns the maximum number of new tokens of each prompt (B,); without ``context`` it is capped by the learned
    positions.

    A row of n tokens needs n − 1 positions: the last token is never read. Raises ``HeedfulError`` if a prompt leaves no
    room for new tokens, or less than the number in the options.
    """
    if options.max_new_tokens is not None:
        limits = torch.full_like(state.prompt_lengths, options.max_new_tokens)
    elif options.max_length is not None:
        limits = options.max_length - state.prompt_lengths
    else:
        limits = state.default_limits
    if int(limits.min()) < 1:
        row = int(limits.argmin())
        length = int(state.prompt_lengths[row])
        raise HeedfulError(
            f"max_length={options.max_length}, but prompt {row} already has {length} tokens; raise max_length"
        )
    positions = learned_positions(state.stack)
    if positions is not None and context is None:
        room = positions + 1 - state.prompt_lengths
        required = limits if limits is not state.default_limits else torch.ones_like(limits)
        if bool((required > room).any()):
            row = int((required - room).argmax())
            read = plural(int(state.prompt_lengths[row]), "token")
            may_slide = not isinstance(state, EncoderDecoderState) and not options.base.needs_whole_text
            slide = f", or go on with context={positions}, which reads the last context_keep tokens again"
            raise HeedfulError(
                f"prompt {row} has {read} and needs {int(required[row])} new ones, but the model has {positions} "
                f"learned positions; lower max_new_tokens, or shorten the prompt{slide if may_slide else ''}"
            )
        limits = limits.minimum(room)
    if options.min_new_tokens > int(limits.min()):
        raise HeedfulError(
            f"min_new_tokens={options.min_new_tokens}, but only {int(limits.min())} are allowed; raise max_new_tokens"
        )
    return limits


def check_whole_prompt(state: DecoderState, options: Options, context: int | None) -> None:
    """Raises ``HeedfulError`` if a prompt with a mask (B, T, T) would be read in parts."""
    if state.whole_mask is None or isinstance(state, EncoderDecoderState):
        return
    name = "context" if context is not None else "prefill_chunk_size" if options.prefill_chunk_size else ""
    if name:
        raise HeedfulError(f"a prompt with a mask of shape (B, T, T) is read at once; leave {name} out")


def check_source(state: DecoderState, options: Options) -> None:
    """Raises ``HeedfulError`` for options that need the tokens of a source if it is an image."""
    if isinstance(state, ImageDecoderState) and options.encoder_no_repeat_ngram_size:
        raise HeedfulError("encoder_no_repeat_ngram_size needs a source of tokens, not an image; leave it out")


def check_permutation(state: DecoderState, options: Options) -> None:
    """Raises ``HeedfulError`` for options that a model without a cache of keys and values, such as XLNet, lacks."""
    if not isinstance(state, PermutationState):
        return
    unsupported = {
        options.variant.name: not options.variant.is_static,
        "cache_implementation='static'": options.cache_implementation == "static",
        "prefill_chunk_size": bool(options.prefill_chunk_size),
        "a mask of shape (B, T, T)": state.whole_mask is not None,
        "recording": bool(state.observers),
    }
    if names := [name for name, is_given in unsupported.items() if is_given]:
        raise HeedfulError(
            "this model generates by its query stream, which reads the whole text at each step; it has no "
            f"{' and no '.join(names)}: leave it out"
        )


def checked_context(state: DecoderState, options: Options, context: int | None) -> int | None:
    """Returns the maximum number of tokens that the decoder reads: ``context``, or with ``context_keep`` its learned
    positions.

    Raises ``HeedfulError`` if the method needs the whole text, ``context`` exceeds the model's positions, or
    ``context_keep`` exceeds ``context``. A folder's ``context_keep`` has no effect where it cannot.
    """
    keep, positions = options.context_keep, learned_positions(state.stack)
    unsupported = "an encoder-decoder" if isinstance(state, EncoderDecoderState) else options.base.needs_whole_text
    if context is None and (not keep or ("context_keep" not in options.given and (unsupported or not positions))):
        return None
    name = "context_keep" if context is None else "context"
    if unsupported:
        raise HeedfulError(
            f"{name}={context or keep} works only for greedy decoding or sampling by a decoder, not for {unsupported}; "
            f"leave {name} out"
        )
    context = positions if context is None else context
    if context is None:
        raise HeedfulError(f"context_keep={keep}, but the model's positions have no limit; give context too")
    limit = positions or context
    if not 1 <= context <= limit:
        raise HeedfulError(f"context is {context}, but the model has {limit} positions; give 1 to {limit}")
    if keep > context:
        raise HeedfulError(f"context_keep={keep} is more than the context of {context} tokens; give 1 to {context}")
    return context
