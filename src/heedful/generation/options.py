"""Decoding options, with transformers' names and meanings: checked, completed and turned into one plan.

What the call says goes over what the folder's generation config says. An option of the call that the chosen method
does not use is an error; one of the folder's is not, since a folder speaks for several methods at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from heedful.errors import HeedfulError, nearest

Method = Literal["greedy", "sampling", "beam"]

SAMPLING = ("temperature", "top_k", "top_p", "min_p")
# options that only some methods use; all others serve every method
ONLY: dict[str, tuple[Method, ...]] = {
    **dict.fromkeys((*SAMPLING, "seed"), ("sampling",)),
    "length_penalty": ("beam",),
    "early_stopping": ("beam",),
    "num_return_sequences": ("sampling", "beam"),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to decode.

    Attributes:
        max_new_tokens: at most so many tokens a row. Unset: 50 for a decoder; for an encoder-decoder twice the row's
            source tokens and 50; never more than the model has learned positions for.
        max_length: the same limit counted with the row's prompt (a decoder's real tokens, an encoder-decoder's start
            token). Give one of the two.
        min_new_tokens: no end token before so many.
        do_sample: draw tokens by their probability. Unset: drawn where the call gives ``temperature``, ``top_k``,
            ``top_p`` or ``min_p``, or where the folder's generation config says ``do_sample``.
        seed: makes sampling repeatable. A row draws the same alone and in any batch; the same prompt given twice, or
            ``num_return_sequences`` > 1, draws anew each time. Unset: from torch's own random state.
        temperature: logits are divided by it; below 1 sharper, above 1 flatter.
        top_k: only the k most probable tokens; 0 keeps all (so does leaving it unset).
        top_p: only the most probable tokens whose probabilities reach p together (Holtzman et al. 2020).
        min_p: only tokens at least min_p times as probable as the most probable one (Nguyen et al. 2024).
        num_beams: beams of the search; 1 is no search.
        num_return_sequences: so many rows a prompt: samples, or the best of the beams.
        length_penalty: a beam's score is Σ log p / length^length_penalty, the end token counted; above 0 favours long.
        early_stopping: when a sentence is done once it has ``num_beams`` finished ones: True, at once; False, when the
            best running beam, as long as it is now, could not enter; "never", when it could not at the best length.
        repetition_penalty: logits of tokens already there are divided by it (multiplied where negative); 1 is none.
        no_repeat_ngram_size: no n-gram of this size twice; 0 is no rule.
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int = 0
    do_sample: bool = False
    seed: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0

    @property
    def method(self) -> Method:
        """What these options amount to."""
        if self.do_sample:
            return "sampling"
        return "beam" if self.num_beams > 1 else "greedy"


NAMES = tuple(f.name for f in fields(Options))
# keys of a folder's generation config that change no token: written by transformers for itself
OTHERS = ("_from_model_config", "transformers_version", "use_cache", "cache_implementation", "return_dict_in_generate")


def _whole(least: int) -> tuple[Callable[[Any], bool], str]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= least, f"a whole number from {least}"


def _number(test: Callable[[float], bool], words: str) -> tuple[Callable[[Any], bool], str]:
    return lambda v: isinstance(v, int | float) and not isinstance(v, bool) and test(v), words


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_new_tokens": _whole(1),
    "max_length": _whole(1),
    "min_new_tokens": _whole(0),
    "do_sample": (lambda v: isinstance(v, bool), "True or False"),
    "seed": _whole(0),
    "temperature": _number(lambda v: v > 0, "above 0 (the most probable token each time is do_sample=False)"),
    "top_k": _whole(0),
    "top_p": _number(lambda v: 0 < v <= 1, "above 0 and at most 1"),
    "min_p": _number(lambda v: 0 <= v <= 1, "from 0 to 1"),
    "num_beams": _whole(1),
    "num_return_sequences": _whole(1),
    "length_penalty": _number(lambda v: True, "a number"),
    "early_stopping": (lambda v: isinstance(v, bool) or v == "never", 'True, False or "never"'),
    "repetition_penalty": _number(lambda v: v > 0, "above 0"),
    "no_repeat_ngram_size": _whole(0),
}


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if name not in NAMES:
            raise HeedfulError(f"unknown decoding option {name!r}; {nearest(name, NAMES)}")
        test, words = _CHECKS[name]
        if value is not None and not test(value):
            raise HeedfulError(f"{name} is {value!r}; give {words}")
    return {name: value for name, value in options.items() if value is not None}


def resolve(call: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Options:
    """One plan from the ``call``'s options over the ``defaults`` of a folder; None is unset in both.

    Raises ``HeedfulError`` for an unknown option (naming the nearest), a value out of range, two options of the call
    that contradict each other, and one that has no effect under the method chosen.

    >>> resolve({"top_p": 0.9}).method, resolve({"num_beams": 4}).method
    ('sampling', 'beam')
    """
    told = {k: v for k, v in (defaults or {}).items() if k not in OTHERS and not k.startswith("output_")}
    call, folder = _given(call), _given(told)
    drawn = [name for name in SAMPLING if name in call]
    searched = call.get("num_beams", 1) > 1
    sample = call.get("do_sample", bool(drawn) or (folder.get("do_sample", False) and not searched))
    if drawn and call.get("do_sample") is False:
        raise HeedfulError(f"do_sample=False, but {drawn[0]}={call[drawn[0]]} only acts on sampling; leave one out")
    if sample and searched:
        raise HeedfulError(f"num_beams={call['num_beams']} searches, but {[*drawn, 'do_sample'][0]} samples; give one")
    if "max_length" in call and "max_new_tokens" in call:
        raise HeedfulError("max_length and max_new_tokens both set the length; give one")

    beams = call.get("num_beams", 1 if sample else folder.get("num_beams", 1))
    method: Method = "sampling" if sample else "beam" if beams > 1 else "greedy"
    for name, value in call.items():
        if method not in ONLY.get(name, (method,)) and (name, value) != ("num_return_sequences", 1):
            remedy = "do_sample=True" if ONLY[name] == ("sampling",) else "num_beams"
            raise HeedfulError(f"{name}={value!r} has no effect on {method} decoding; give {remedy}, or leave it out")
    unused = {name for name in folder if method not in ONLY.get(name, (method,))}
    if "max_length" in call or "max_new_tokens" in call:
        unused |= {"max_length", "max_new_tokens"}
    elif "max_new_tokens" in folder:
        unused |= {"max_length"}
    kept = {name: value for name, value in folder.items() if name not in unused}
    made = Options(**{**kept, **call, "do_sample": sample, "num_beams": beams})
    if made.num_return_sequences > made.num_beams and not sample:
        raise HeedfulError(
            f"num_return_sequences={made.num_return_sequences}, but num_beams={made.num_beams}; raise it"
        )
    return made
