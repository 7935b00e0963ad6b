"""Which values a decoding option may have, and how that is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Check = tuple[Callable[[Any], bool], str]


WIDEST = 10_000  # rows at once of one prompt, and tokens proposed
MOST = 2**31 - 1  # of other whole numbers: lengths, sizes and token ids
HIGHEST = 1e6  # of numbers that scores are multiplied or divided by, or that are taken from them
COLDEST = 1e-20  # a temperature by which logits can be divided


def _whole(least: int, most: int = MOST) -> Check:
    words = f"a whole number from {least} to {most:,}"
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and least <= v <= most, words


def _number(test: Callable[[float], bool], words: str) -> Check:
    return lambda v: isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < HIGHEST and test(v), words


def _id(value: Any) -> bool:
    return _natural(value) and value <= MOST


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _ids(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_id, value))


def _words(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(_ids(word) and word for word in value)


def as_list(value: Any) -> Sequence[Any]:
    """One or several as a list."""
    return value if isinstance(value, list | tuple) else [value]


CHECKS: dict[str, Check] = {
    "max_new_tokens": _whole(1),
    "max_length": _whole(1),
    "min_new_tokens": _whole(0),
    "min_length": _whole(0),
    "do_sample": (lambda v: isinstance(v, bool), "True or False"),
    "seed": (
        lambda v: all(_natural(one) and one < 2**64 for one in as_list(v)) and v not in ([], ()),
        "a whole number from 0 below 2**64, or a list of them, one a prompt",
    ),
    "temperature": _number(lambda v: v >= COLDEST, "above 0 (the most probable token each time is do_sample=False)"),
    "top_k": _whole(0),
    "top_p": _number(lambda v: 0 < v <= 1, "above 0 and at most 1"),
    "min_p": _number(lambda v: 0 <= v <= 1, "from 0 to 1"),
    "typical_p": _number(lambda v: 0 < v <= 1, "above 0 and at most 1"),
    "num_beams": _whole(1, WIDEST),
    "num_return_sequences": _whole(1, WIDEST),
    "length_penalty": _number(lambda v: abs(v) <= 10, "a number from -10 to 10"),
    "early_stopping": (lambda v: isinstance(v, bool) or v == "never", 'True, False or "never"'),
    "repetition_penalty": _number(lambda v: v >= 1 / HIGHEST, "above 0"),
    "presence_penalty": _number(lambda v: True, "a finite number"),
    "frequency_penalty": _number(lambda v: True, "a finite number"),
    "no_repeat_ngram_size": _whole(0),
    "encoder_no_repeat_ngram_size": _whole(0),
    "bad_words_ids": (_words, "a list of lists of token ids, none empty"),
    "suppress_tokens": (_ids, "a list of token ids"),
    "begin_suppress_tokens": (_ids, "a list of token ids"),
    "forced_bos_token_id": (_id, "a token id"),
    "forced_eos_token_id": (lambda v: _id(v) or (_ids(v) and v), "a token id or a list of them"),
    "renormalize_logits": (lambda v: isinstance(v, bool), "True or False"),
    "stop_strings": (lambda v: all(isinstance(one, str) and one for one in as_list(v)), "texts, none empty"),
    "prefill_chunk_size": _whole(0),
    "assistant_model": (
        lambda v: hasattr(v, "config") and hasattr(v, "decoder"),
        "a model that generates, as heedful.from_pretrained makes it",
    ),
    "num_assistant_tokens": _whole(1, WIDEST),
    "prompt_lookup_num_tokens": _whole(0, WIDEST),
    "penalty_alpha": _number(lambda v: 0 <= v <= 1, "from 0 to 1"),
    "num_beam_groups": _whole(1, WIDEST),
    "diversity_penalty": _number(lambda v: v >= 0, "0 or more"),
    "force_words_ids": (
        lambda v: isinstance(v, list | tuple) and all((_ids(one) or _words(one)) and one for one in v),
        "a list of lists of token ids, or of lists of such lists, none empty",
    ),
}
