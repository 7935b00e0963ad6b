"""The processors that the options ask for, in transformers' order; penalties of counts, which it lacks, second."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from heedful.errors import HeedfulError
from heedful.generation import constraints, processors
from heedful.generation.options import Options
from heedful.generation.processors import Processor
from heedful.generation.source import Source


def processors_of(options: Options, source: Source, limits: Tensor, end: Sequence[int]) -> list[Processor]:
    """Those that change something; ``limits`` (B,) are the new tokens each prompt may have, ``end`` the end ids."""
    prompt = source.prompt.size(1)
    words = [word for word in options.bad_words_ids if list(word) not in [[number] for number in end]]
    first, last = options.forced_bos_token_id, options.forced_eos_token_id
    late = () if last is None else (last,) if isinstance(last, int) else tuple(last)
    begin = options.begin_suppress_tokens
    alone = [word[0] for word in words if len(word) == 1]
    banned = {"bad_words_ids": alone, "suppress_tokens": options.suppress_tokens, "begin_suppress_tokens": begin}
    if source.vocabulary and {*range(source.vocabulary)} <= set().union(*banned.values()):
        names = " and ".join(name for name, tokens in banned.items() if tokens)
        raise HeedfulError(f"{names} leaves none of the {source.vocabulary} tokens that could come; take some out")
    wanted: list[tuple[object, Processor]] = [
        (options.repetition_penalty != 1, processors.RepetitionPenalty(options.repetition_penalty)),
        (
            options.presence_penalty or options.frequency_penalty,
            processors.CountPenalty(prompt, options.presence_penalty, options.frequency_penalty),
        ),
        (options.no_repeat_ngram_size, processors.NoRepeatNGram(options.no_repeat_ngram_size)),
        (
            options.encoder_no_repeat_ngram_size,
            constraints.EncoderNoRepeatNGram(options.encoder_no_repeat_ngram_size, source),
        ),
        (words, constraints.NoBadWords(words)),
        (options.min_length and end, constraints.MinLength(options.min_length, end)),
        (options.min_new_tokens and end, processors.MinNewTokens(prompt, options.min_new_tokens, end)),
        (first is not None, constraints.ForcedBOSToken(first or 0)),
        (late, constraints.ForcedEOSToken(late, limits, source)),
        (options.suppress_tokens, constraints.SuppressTokens(options.suppress_tokens)),
        (begin, constraints.SuppressTokensAtBegin(begin, first is not None, source)),
        (options.temperature != 1, processors.Temperature(options.temperature)),
        (options.top_k and options.method == "sampling", processors.TopK(options.top_k)),
        (options.top_p < 1, processors.TopP(options.top_p)),
        (options.min_p, processors.MinP(options.min_p)),
        (options.typical_p < 1, processors.TypicalP(options.typical_p)),
        (options.renormalize_logits, processors.LogitNormalization()),
    ]
    return [processor for wanting, processor in wanted if wanting]
