"""Decoding options, with transformers' names and meanings: checked, completed and turned into one plan.

What the call says goes over what the folder's generation config says. An option of the call that the chosen method
does not use is an error; one of the folder's is not, since a folder speaks for several methods at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from heedful.errors import HeedfulError, nearest
from heedful.generation.checks import CHECKS, as_list

Method = Literal["greedy", "sampling", "beam", "contrastive"]
Way = Literal["greedy", "sampling", "beam", "contrastive", "assisted", "groups", "words"]

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")
LENGTHS = (
    ("max_length", "max_new_tokens"),
    ("min_length", "min_new_tokens"),
)  # of a folder's two the second goes first
# options that only some methods use; all others serve every method
ONLY: dict[str, tuple[Method, ...]] = {
    **dict.fromkeys((*SAMPLING, "seed"), ("sampling",)),
    "top_k": ("sampling", "contrastive"),
    "penalty_alpha": ("contrastive",),
    **dict.fromkeys(("assistant_model", "num_assistant_tokens", "prompt_lookup_num_tokens"), ("greedy", "sampling")),
    **dict.fromkeys(("num_beam_groups", "diversity_penalty", "force_words_ids"), ("beam",)),
    "length_penalty": ("beam",),
    "early_stopping": ("beam",),
    "renormalize_logits": ("beam",),
    "num_return_sequences": ("sampling", "beam"),
}
REMEDY: dict[tuple[Method, ...], str] = {
    ("sampling",): "do_sample=True",
    ("sampling", "contrastive"): "do_sample=True",
    ("contrastive",): "penalty_alpha above 0 with top_k",
    ("greedy", "sampling"): "num_beams=1",
}  # of others: num_beams
# what says nothing, whatever the method
RESTING = (("num_return_sequences", 1), ("penalty_alpha", 0), ("num_beam_groups", 1), ("prompt_lookup_num_tokens", 0))
# options that say how another one is to act, which must then be there
WITH = {"num_assistant_tokens": "assistant_model", "diversity_penalty": "num_beam_groups"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to decode.

    Attributes:
        max_new_tokens: at most so many tokens a row. Unset: 50 for a decoder; for an encoder-decoder twice the row's
            source tokens and 50; never more than the model has learned positions for.
        max_length: the same limit counted with the row's prompt (a decoder's real tokens, an encoder-decoder's start
            token). Give one of the two.
        min_new_tokens: no end token before so many.
        min_length: the same counted with the row's prompt; a row's limit goes before it. Give one of the two.
        do_sample: draw tokens by their probability. Unset: drawn where the call gives ``temperature``, ``top_k``,
            ``top_p``, ``min_p`` or ``typical_p``, or where the folder's generation config says ``do_sample``.
        seed: makes sampling repeatable. A row draws the same alone and in any batch; the same prompt given twice, or
            ``num_return_sequences`` > 1, draws anew each time. A list has one for each prompt: a prompt draws what it
            would draw alone under its own. Unset: from torch's own random state.
        temperature: logits are divided by it; below 1 sharper, above 1 flatter.
        top_k: only the k most probable tokens; 0 keeps all (so does leaving it unset).
        top_p: only the most probable tokens whose probabilities reach p together (Holtzman et al. 2020).
        min_p: only tokens at least min_p times as probable as the most probable one (Nguyen et al. 2024).
        typical_p: only the tokens whose −log p is nearest to its mean, the entropy, as many as it takes to reach
            probability typical_p together (Meister et al. 2023).
        num_beams: beams of the search; 1 is no search.
        num_return_sequences: so many rows a prompt: samples, or the best of the beams.
        length_penalty: a beam's score is Σ log p / length^length_penalty, the end token counted; above 0 favours long.
        early_stopping: when a sentence is done once it has ``num_beams`` finished ones: True, at once; False, when the
            best running beam, as long as it is now, could not enter; "never", when it could not at the best length.
        repetition_penalty: logits of tokens already there are divided by it (multiplied where negative); 1 is none.
        presence_penalty: is taken from the logits of tokens that were generated already, once; 0 is none. Unlike
            ``repetition_penalty`` it does not look at the prompt.
        frequency_penalty: is taken from them as often as they were generated; 0 is none.
        no_repeat_ngram_size: no n-gram of this size twice; 0 is no rule.
        encoder_no_repeat_ngram_size: no n-gram of this size that stands in the source (a decoder's prompt).
        bad_words_ids: rows of ids, none of which may come.
        suppress_tokens: ids that may not come.
        begin_suppress_tokens: ids that may not come first.
        forced_bos_token_id: the id that must follow a single token: an encoder-decoder's start token.
        forced_eos_token_id: the id, or ids, one of which must be the last token of a row that reaches its limit.
        renormalize_logits: a beam sums log-probabilities of what the other options left, not the model's own.
        stop_strings: a row is over with the token that completes one of these texts, whatever ``min_new_tokens`` says;
            in a beam search it counts as an end token. One string or several. Only generated text counts
            (transformers: also where it begins in the prompt), as the tokenizer shows it, special tokens left out
            (there: by their names); a stop string that names a special token is met as that token. A list without any
            takes back what a folder says.
        prefill_chunk_size: a prompt (an encoder-decoder's ``decoder_input_ids``) is read so many tokens at a time, so
            that a long one needs less memory; 0 is at once. The tokens are the same.
        assistant_model: a smaller model with the same vocabulary, which proposes tokens that this one reads at once and
            keeps as far as they are its own (Leviathan et al. 2023): greedy tokens stay the same, samples keep their
            distribution. Not in a search.
        num_assistant_tokens: it proposes so many at a time.
        prompt_lookup_num_tokens: instead of a model's, so many tokens are proposed that followed the last two, or the
            last one, where they stood before, in the source too; 0 is none. Greedy tokens and samples stay the same.
        penalty_alpha: contrastive search (Su et al. 2022): of the ``top_k`` most probable tokens the one with the
            highest (1 − α) p − α s, where s is the largest cosine of its hidden state with those of all tokens before.
        num_beam_groups: diverse beam search (Vijayakumar et al. 2018): the beams are divided in so many groups.
        diversity_penalty: is taken from a token's log-probability, as often as it was chosen at this step in the groups
            before; above 0 where there are groups. It stays in the score.
        force_words_ids: rows of ids, each of which must be among the new tokens, without a gap; or lists of such rows,
            of each of which one must (Post and Vilar 2018). In a beam search.
    """

    max_new_tokens: int | None = None
    max_length: int | None = None
    min_new_tokens: int = 0
    min_length: int = 0
    do_sample: bool = False
    seed: int | Sequence[int] | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    bad_words_ids: Sequence[Sequence[int]] = ()
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | Sequence[int] | None = None
    renormalize_logits: bool = False
    stop_strings: Sequence[str] = ()
    prefill_chunk_size: int = 0
    assistant_model: Any = None
    num_assistant_tokens: int = 5
    prompt_lookup_num_tokens: int = 0
    penalty_alpha: float = 0.0
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    force_words_ids: Sequence[Sequence[Any]] = ()

    @property
    def method(self) -> Method:
        """What these options amount to."""
        return method_of(self.do_sample, self.num_beams, self.penalty_alpha)

    @property
    def way(self) -> Way:
        """The same, told apart by how it is done."""
        if self.assistant_model is not None or self.prompt_lookup_num_tokens:
            return "assisted"
        if self.num_beam_groups > 1:
            return "groups"
        return "words" if self.force_words_ids else self.method


def method_of(sample: bool, beams: int, alpha: float) -> Method:
    """The method of ``do_sample``, ``num_beams`` and ``penalty_alpha``."""
    if sample:
        return "sampling"
    if beams > 1:
        return "beam"
    return "contrastive" if alpha else "greedy"


NAMES = tuple(f.name for f in fields(Options))
# a folder's generation config has keys besides: those that change no token (beginnings of names, too) ...
OTHERS = (
    *("_from_model_config", "_commit_hash", "transformers_version", "use_cache", "cache_", "max_cache_len", "output_"),
    *("return_dict_in_generate", "low_memory", "compile_config", "disable_compile"),
    *("assistant_", "is_assistant", "num_assistant_tokens_", "target_lookbehind", "max_matching_"),
)
# ... and those that we do not speak, with the value that changes nothing
NEUTRAL = {
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale"), 1),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), 0),
    **dict.fromkeys(("remove_invalid_values", "token_healing"), False),
    **dict.fromkeys(("exponential_decay_length_penalty", "sequence_bias", "constraints"), None),
    **dict.fromkeys(("max_time", "top_h", "dola_layers", "watermarking_config"), None),
}


def _shown(value: Any) -> str:
    return f"<{type(value).__name__}>" if hasattr(value, "config") else repr(value)


def _given(options: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    for name, value in options.items():
        if name not in NAMES:
            raise HeedfulError(f"unknown decoding option {name!r}; {nearest(name, NAMES)}")
        test, words = CHECKS[name]
        if value is not None and not test(value):
            raise HeedfulError(f"{where}{name} is {_shown(value)}; give {words}")
    given = {name: value for name, value in options.items() if value is not None}
    if "stop_strings" in given:
        given["stop_strings"] = tuple(as_list(given["stop_strings"]))
    return given


def _told(folder: Mapping[str, Any]) -> dict[str, Any]:
    """What a folder's generation config says of the options; what is neither obeyed nor without effect is refused."""
    told = {}
    for name, value in folder.items():
        if name in NAMES:
            told[name] = value
        elif value is None or name.startswith(OTHERS) or (name in NEUTRAL and value == NEUTRAL[name]):
            continue
        else:
            what = "it is not supported, take it out there" if name in NEUTRAL else nearest(name, NAMES)
            raise HeedfulError(f"the folder's generation config says {name}={value!r}; {what}")
    return _given(told, "generation_config.json: ")


def part(options: Mapping[str, Any], rows: Iterable[int], count: int) -> dict[str, Any]:
    """The options of a call for ``rows`` of its ``count`` prompts: of seeds, one a prompt, theirs.

    >>> part({"seed": [5, 6, 7], "top_k": 9}, [2, 0], 3)
    {'seed': [7, 5], 'top_k': 9}
    """
    seeds = options.get("seed")
    if not isinstance(seeds, list | tuple):
        return dict(options)
    if len(seeds) != count:
        raise HeedfulError(f"seed has {len(seeds)} numbers, but there are {count} prompts; give one for each")
    return {**options, "seed": [seeds[row] for row in rows]}


def resolve(call: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Options:
    """One plan from the ``call``'s options over the ``defaults`` of a folder; None is unset in both.

    Raises ``HeedfulError`` for an unknown option (naming the nearest), a value out of range, two options of the call
    that contradict each other, and one that has no effect under the method chosen.

    >>> resolve({"top_p": 0.9}).method, resolve({"num_beams": 4}).method
    ('sampling', 'beam')
    """
    call, folder = _given(call), _told(defaults or {})
    alpha = call.get("penalty_alpha", folder.get("penalty_alpha", 0.0))
    contrasts = bool(call.get("penalty_alpha"))
    drawn = [name for name in SAMPLING if name in call and not (name == "top_k" and contrasts)]
    searched = call.get("num_beams", 1) > 1
    sample = call.get("do_sample", bool(drawn) or (folder.get("do_sample", False) and not searched and not contrasts))
    if drawn and call.get("do_sample") is False:
        raise HeedfulError(f"do_sample=False, but {drawn[0]}={call[drawn[0]]} only acts on sampling; leave one out")
    if sample and searched:
        raise HeedfulError(f"num_beams={call['num_beams']} searches, but {[*drawn, 'do_sample'][0]} samples; give one")
    for one, other in LENGTHS:
        if one in call and other in call:
            raise HeedfulError(f"{one} and {other} both set the length; give one")

    beams = call.get("num_beams", 1 if sample or contrasts else folder.get("num_beams", 1))
    method = method_of(sample, beams, alpha)
    for name, value in call.items():
        if method not in ONLY.get(name, (method,)) and (name, value) not in RESTING:
            remedy = REMEDY.get(ONLY[name], "num_beams")
            raise HeedfulError(
                f"{name}={_shown(value)} has no effect on {method} decoding; give {remedy}, or leave it out"
            )
    unused = {name for name in folder if method not in ONLY.get(name, (method,))}
    for one, other in LENGTHS:
        if one in call or other in call:
            unused |= {one, other}
        elif other in folder:
            unused |= {one}
    if "assistant_model" in call:
        unused.add("prompt_lookup_num_tokens")
    kept = {name: value for name, value in folder.items() if name not in unused}
    for name, other in WITH.items():
        if getattr(Options(), other) == {**kept, **call}.get(other, getattr(Options(), other)):
            kept.pop(name, None)
            if name in call:
                raise HeedfulError(f"{name}={call[name]!r} has no effect without {other}; give it, or leave this out")
    made = Options(**{**kept, **call, "do_sample": sample, "num_beams": beams})
    _agree(made)
    if "min_length" in call and made.max_length is not None and made.min_length > made.max_length:
        raise HeedfulError(f"min_length={made.min_length}, but max_length={made.max_length}; raise it")
    return made


def _agree(made: Options) -> None:
    """``HeedfulError`` for options of one method that contradict each other."""
    beams, groups = made.num_beams, made.num_beam_groups
    if made.num_return_sequences > beams and made.method != "sampling":
        raise HeedfulError(f"num_return_sequences={made.num_return_sequences}, but num_beams={beams}; raise it")
    if made.method == "contrastive" and made.top_k < 2:
        raise HeedfulError(f"penalty_alpha={made.penalty_alpha} chooses among top_k tokens; give top_k of 2 or more")
    if beams % groups:
        raise HeedfulError(f"num_beams={beams} cannot be divided in num_beam_groups={groups}; give a multiple of it")
    if groups > 1 and not made.diversity_penalty:
        raise HeedfulError(f"num_beam_groups={groups} would all find the same; give diversity_penalty above 0")
    if groups > 1 and made.force_words_ids:
        raise HeedfulError(f"force_words_ids cannot be searched for in num_beam_groups={groups}; leave one out")
    if made.assistant_model is not None and made.prompt_lookup_num_tokens:
        raise HeedfulError("assistant_model and prompt_lookup_num_tokens both propose tokens; give one")
