"""The processors that the options ask for, in transformers' order."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from heedful.generation import constraints as its
from heedful.generation import processors as the
from heedful.generation.options import Options
from heedful.generation.source import Source


def processors_of(options: Options, source: Source, limits: Tensor, end: Sequence[int]) -> list[the.Processor]:
    """Those that change something; ``limits`` (B,) are the new tokens each prompt may have, ``end`` the end ids."""
    prompt, words = (
        source.prompt.size(1),
        [word for word in options.bad_words_ids if list(word) not in [[e] for e in end]],
    )
    first, last = options.forced_bos_token_id, options.forced_eos_token_id
    late = () if last is None else (last,) if isinstance(last, int) else tuple(last)
    begin = options.begin_suppress_tokens
    wanted: list[tuple[object, the.Processor]] = [
        (options.repetition_penalty != 1, the.RepetitionPenalty(options.repetition_penalty)),
        (options.no_repeat_ngram_size, the.NoRepeatNGram(options.no_repeat_ngram_size)),
        (
            options.encoder_no_repeat_ngram_size,
            its.EncoderNoRepeatNGram(options.encoder_no_repeat_ngram_size, source),
        ),
        (words, its.NoBadWords(words)),
        (options.min_length and end, its.MinLength(options.min_length, end)),
        (options.min_new_tokens and end, the.MinNewTokens(prompt, options.min_new_tokens, end)),
        (first is not None, its.ForcedBOSToken(first or 0)),
        (late, its.ForcedEOSToken(late, limits, source)),
        (options.suppress_tokens, its.SuppressTokens(options.suppress_tokens)),
        (begin, its.SuppressTokensAtBegin(begin, first is not None, source)),
        (options.temperature != 1, the.Temperature(options.temperature)),
        (options.top_k, the.TopK(options.top_k)),
        (options.top_p < 1, the.TopP(options.top_p)),
        (options.min_p, the.MinP(options.min_p)),
        (options.renormalize_logits, the.LogitNormalization()),
    ]
    return [processor for wanting, processor in wanted if wanting]
