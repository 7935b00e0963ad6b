"""Decoding options, with transformers' names and meanings: validated, completed and resolved into ``Options``.

A call's options override those of the folder's generation config. An option of the call that the chosen method does
not use is an error; such an option of the folder is ignored, since a folder describes several methods at once.

A new method has its own file with a ``Method``; here it gets a line in ``METHODS``, and each new option a field of
``Options``; one with a line of help is an option of the command line and the server too. The command line reads this
file without PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_type_hints

from heedful.errors import HeedfulError, nearest
from heedful.settings.base import Settings, option
from heedful.util.values import BOUNDS

if TYPE_CHECKING:
    from heedful.generation.method import Method


# module:method. The first one whose switch is on decodes, of those that extend no other; then the one that extends it.
METHODS = (
    "heedful.generation.sampling:SAMPLING",
    "heedful.generation.beam:BEAM",
    "heedful.generation.contrastive:CONTRASTIVE",
    "heedful.generation.sampling:GREEDY",
    "heedful.generation.assisted:ASSISTED",
    "heedful.generation.diverse_beam:DIVERSE_BEAM",
    "heedful.generation.constrained_beam:CONSTRAINED_BEAM",
)
LENGTHS = (
    ("max_length", "max_new_tokens"),
    ("min_length", "min_new_tokens"),
)  # in a folder the second overrides the first

MAX_WIDTH = 10_000  # rows of one prompt, and proposed tokens
MAX_INT = 2**31 - 1  # of other whole numbers: lengths, sizes and token ids
MAX_NUMBER = 1e6  # of factors of scores, and of numbers that are subtracted from them
MIN_TEMPERATURE = 1e-20


class Valid(NamedTuple):
    """Test of an option's value, valid values in words, and the bounds of a number (``settings.base.option``)."""

    test: Callable[[Any], bool]
    words: str
    bounds: Mapping[str, float] = MappingProxyType({})


def _whole(least: int, most: int = MAX_INT) -> Valid:
    def test(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most

    return Valid(test, f"a whole number from {least} to {most:,}", {"least": least, "most": most})


def _number(words: str, **bounds: float) -> Valid:
    def test(value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER
        return is_number and all(BOUNDS[name][0](value, limit) for name, limit in bounds.items())

    return Valid(test, words, bounds)


def _id(value: Any) -> bool:
    return _natural(value) and value <= MAX_INT


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _ids(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_id, value))


def _words(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(_ids(word) and word for word in value)


def as_list(value: Any) -> Sequence[Any]:
    """Returns a list or tuple unchanged, and any other value in a list."""
    return value if isinstance(value, list | tuple) else [value]


SEEDS = Valid(
    lambda v: all(_natural(seed) and seed < 2**64 for seed in as_list(v)) and v not in ([], ()),
    "a whole number from 0 below 2**64, or a list of such numbers, one per prompt",
    {"least": 0, "below": 2**64},
)
ONE_OR_MORE_IDS = Valid(lambda v: _id(v) or (_ids(v) and v), "a token id or a list of token ids")
TEXTS = Valid(lambda v: all(isinstance(text, str) and text for text in as_list(v)), "a text or texts, none empty")
ASSISTANT = Valid(
    lambda v: hasattr(v, "config") and hasattr(v, "decoder"),
    "a model that generates, loaded with heedful.from_pretrained",
)
FORCED_WORDS = Valid(
    lambda v: isinstance(v, list | tuple) and all((_ids(word) or _words(word)) and word for word in v),
    "a list of lists of token ids, or of lists of such lists, none empty",
)
CACHES = Valid(lambda v: v in ("dynamic", "static"), "'dynamic' or 'static'")
STOPPING = Valid(lambda v: isinstance(v, bool) or v == "never", 'True, False or "never"')
TEMPERATURE = _number(
    f"a number from {MIN_TEMPERATURE:g} (do_sample=False takes the most probable token)", least=MIN_TEMPERATURE
)


ABOVE_0_TO_1 = _number("a number above 0 and at most 1", above=0, most=1)
FROM_0_TO_1 = _number("a number from 0 to 1", least=0, most=1)
FINITE = _number("a finite number")
SWITCH = Valid(lambda v: isinstance(v, bool), "True or False")


def _checked(
    default: Any,
    check: Valid,
    help: str = "",
    *,
    neutral: bool = False,
    needs: str | None = None,
    type: Any = None,
) -> Any:
    """Returns a dataclass field of ``Options`` with its default and check.

    Args:
        default: its value if neither the call nor the folder sets it.
        check: a test of a value, and a description of valid values for messages.
        help: a line of help; options without one are those of Python alone.
        neutral: True if the default may be given with every method.
        needs: another option without which this option has no effect.
        type: the type on the command line, if it differs from the field's.
    """
    metadata = {"check": check, "help": help, "neutral": neutral, "needs": needs, "type": type}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Resolved decoding options.

    Attributes:
        max_new_tokens: maximum number of new tokens of a row. Unset: 50 for a decoder; for an encoder-decoder 50 plus
            twice the row's source tokens; never more than the model has learned positions for.
        max_length: the same limit, but counting the row's prompt too (a decoder's tokens without padding, an
            encoder-decoder's start token). Give only ``max_new_tokens`` or ``max_length``.
        min_new_tokens: minimum number of new tokens before an end token.
        min_length: the same minimum, but counting the row's prompt too; a row's maximum overrides it. Give only
            ``min_new_tokens`` or ``min_length``.
        do_sample: samples tokens by their probability. Unset: True if the call gives ``temperature``, ``top_k``,
            ``top_p``, ``min_p`` or ``typical_p``, or if the folder's generation config says ``do_sample``.
        seed: makes sampling repeatable. A row gets the same sample alone and in any batch; repeated prompts,
            and the rows of ``num_return_sequences`` > 1, get different samples. A list has a seed for each prompt: it
            then gets the sample that it would get alone. Unset: torch's own random state is used.
        temperature: divides the logits; below 1 sharper, above 1 flatter.
        top_k: keeps the k most probable tokens; 0 keeps all, as if unset.
        top_p: keeps the most probable tokens whose probabilities reach p together (Holtzman et al. 2020).
        min_p: keeps tokens at least min_p times as probable as the most probable one (Nguyen et al. 2024).
        typical_p: keeps the tokens whose −log p is nearest to its mean, the entropy, until they reach probability
            typical_p together (Meister et al. 2023).
        num_beams: number of beams; 1 turns beam search off.
        num_return_sequences: number of rows per prompt: samples, or the best beams.
        length_penalty: a beam's score is Σ log p / length^length_penalty, with the end token; values above 0 favour
            long beams.
        early_stopping: when a sentence with ``num_beams`` finished beams is done. True: at once; False: if the best
            running beam, scored at its current length, is no better than the worst of these; "never": if it is no
            better at any possible length.
        repetition_penalty: divides the logits of tokens in the text (multiplies negative ones); 1 is none.
        presence_penalty: subtracted once from the logits of generated tokens; 0 is none. Unlike ``repetition_penalty``
            it ignores the prompt.
        frequency_penalty: subtracted from the logits of generated tokens once for each occurrence; 0 is none.
        no_repeat_ngram_size: forbids a second n-gram of this size; 0 forbids none.
        encoder_no_repeat_ngram_size: forbids n-grams of this size that occur in the source (a decoder's prompt).
        bad_words_ids: rows of ids that are forbidden.
        suppress_tokens: forbidden ids.
        begin_suppress_tokens: ids that are forbidden as the first.
        decoder_start_token_id: the id that begins an encoder-decoder's targets. Unset: the model's start token.
        forced_bos_token_id: the id that must follow a single token: an encoder-decoder's start token, even if it is
            forbidden.
        forced_eos_token_id: the id, or ids, one of which must be the last token of a row that reaches its limit, even
            if it is forbidden.
        renormalize_logits: normalises log-probabilities again after the other options, before beams sum them.
        stop_strings: texts that end a row with the token that completes one, whatever ``min_new_tokens`` says; in a
            beam search it counts as an end token. One string or several. Only generated text counts, decoded without
            special tokens (transformers also matches text that begins in the prompt, and the names of special tokens);
            a stop string that names a special token matches that token. An empty list overrides a folder's.
        prefill_chunk_size: number of tokens of a prompt (an encoder-decoder's ``decoder_input_ids``) that are read at a
            time, so that a long prompt needs less memory; 0 reads all at once. The result is the same.
        cache_implementation: "static" decodes with fixed shapes: keys and values stand in buffers with room for all
            tokens of the call, rows stay in the batch until all have ended, and a step neither waits for the device nor
            copies to or from it (``heedful.generation.StaticStep``). A GPU may decode 7 tokens too many after
            the last row's end. Unset: "dynamic". The result is the same. Not with contrastive search or proposed
            tokens, and not while the model is recorded. A folder's value is ignored, since it changes no token.
        context_keep: number of last tokens that are read again when the decoder's ``context`` is full; 0 is half of it.
            As many as ``context`` slides the window by a token a step, as nanoGPT does: every token is predicted from
            the last ``context`` tokens, for the time of reading them all. Without ``context`` in the call, it is the
            number of learned positions.
        assistant_model: a smaller model with the same vocabulary, which proposes tokens. This model reads them at
            once and accepts them as long as they are its own choice (Leviathan et al. 2023): greedy tokens stay the
            same, samples keep their distribution. Not in a search.
        num_assistant_tokens: number of tokens that the assistant proposes at a time.
        prompt_lookup_num_tokens: number of tokens that are proposed without a model: those that followed an earlier
            occurrence of the last two tokens, or of the last token, in the text or the source; 0 is none. Greedy tokens
            and samples stay the same.
        penalty_alpha: contrastive search (Su et al. 2022): of the ``top_k`` most probable tokens chooses the token
            with the highest (1 − α) p − α s, α = ``penalty_alpha``; s is the largest cosine of its hidden state with
            those of earlier tokens.
        num_beam_groups: diverse beam search (Vijayakumar et al. 2018): number of groups of beams.
        diversity_penalty: subtracted from a token's log-probability for each beam of an earlier group that chose it at
            this step; above 0 if there are groups. It stays subtracted in the beam's score.
        force_words_ids: rows of ids, each of which must occur in the new tokens without a gap; or lists of such rows,
            one row of each of which must occur (Post and Vilar 2018). In a beam search.
        given: names of the options that the call itself set; not an option.
    """

    max_new_tokens: int | None = _checked(None, _whole(1), "maximum length of an output, in tokens")
    max_length: int | None = _checked(None, _whole(1), "maximum length with the prompt, in tokens")
    min_new_tokens: int = _checked(0, _whole(0), "minimum length of an output, in tokens")
    min_length: int = _checked(0, _whole(0), "minimum length with the prompt, in tokens")
    do_sample: bool = _checked(False, SWITCH, "sample tokens (=false: take the most likely)", neutral=True)
    seed: int | Sequence[int] | None = _checked(None, SEEDS, "seed of the sampling", type=int)
    temperature: float = _checked(1.0, TEMPERATURE, "divisor of the logits: below 1 less random, above 1 more")
    top_k: int = _checked(0, _whole(0), "sample from this many most likely tokens; for labels, show this many")
    top_p: float = _checked(1.0, ABOVE_0_TO_1, "sample from the most likely tokens with this total probability")
    min_p: float = _checked(0.0, FROM_0_TO_1, "sample from tokens with at least this share of the highest probability")
    typical_p: float = _checked(1.0, ABOVE_0_TO_1, "sample from typical tokens with this total probability")
    num_beams: int = _checked(1, _whole(1, MAX_WIDTH), "beams; 1 is greedy", neutral=True)
    num_return_sequences: int = _checked(
        1, _whole(1, MAX_WIDTH), "outputs of each input: samples, or the best beams", neutral=True
    )
    length_penalty: float = _checked(
        1.0,
        _number("a number from -10 to 10", least=-10, most=10),
        "a beam's score is divided by its length to this power",
    )
    early_stopping: bool | Literal["never"] = _checked(False, STOPPING, "stop when num-beams outputs are finished")
    repetition_penalty: float = _checked(
        1.0, _number("a number above 0", least=1 / MAX_NUMBER), "above 1: tokens that occurred are less likely"
    )
    presence_penalty: float = _checked(0.0, FINITE, "subtracted from the scores of generated tokens")
    frequency_penalty: float = _checked(
        0.0, FINITE, "subtracted from a token's score for each time that it was generated"
    )
    no_repeat_ngram_size: int = _checked(0, _whole(0), "n-grams of this size occur only once; 0 for no limit")
    encoder_no_repeat_ngram_size: int = _checked(0, _whole(0))
    bad_words_ids: Sequence[Sequence[int]] = _checked((), Valid(_words, "a list of lists of token ids, none empty"))
    suppress_tokens: Sequence[int] = _checked((), Valid(_ids, "a list of token ids"))
    begin_suppress_tokens: Sequence[int] = _checked((), Valid(_ids, "a list of token ids"))
    decoder_start_token_id: int | None = _checked(None, Valid(_id, "a token id"))
    forced_bos_token_id: int | None = _checked(None, Valid(_id, "a token id"))
    forced_eos_token_id: int | Sequence[int] | None = _checked(None, ONE_OR_MORE_IDS)
    renormalize_logits: bool = _checked(False, SWITCH)
    stop_strings: Sequence[str] = _checked(
        (), TEXTS, "end an output after one of these texts; write inputs before this option", type=tuple[str, ...]
    )
    prefill_chunk_size: int = _checked(0, _whole(0), "read a long prompt in chunks of this many tokens; 0 for at once")
    cache_implementation: Literal["dynamic", "static"] = _checked("dynamic", CACHES, neutral=True)
    context_keep: int = _checked(0, _whole(0), "last tokens read again when the context is full; 0 for half of it")
    assistant_model: Any = _checked(None, ASSISTANT)  # noqa: RUF009 (immutable)
    num_assistant_tokens: int = _checked(5, _whole(1, MAX_WIDTH), needs="assistant_model")
    prompt_lookup_num_tokens: int = _checked(
        0,
        _whole(0, MAX_WIDTH),
        "prompt lookup: propose this many tokens that followed the same text earlier",
        neutral=True,
    )
    penalty_alpha: float = _checked(
        0.0, FROM_0_TO_1, "contrastive search: factor of the similarity penalty, 0 to 1", neutral=True
    )
    num_beam_groups: int = _checked(
        1, _whole(1, MAX_WIDTH), "groups of beams that differ from each other", neutral=True
    )
    diversity_penalty: float = _checked(
        0.0,
        _number("a number of 0 or more", least=0),
        "penalty for tokens that another group chose, above 0",
        needs="num_beam_groups",
    )
    force_words_ids: Sequence[Sequence[Any]] = _checked((), FORCED_WORDS)
    given: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def base(self) -> Method:
        """Basic method that these options choose; ``variant`` may extend it."""
        return _base(vars(self))

    @property
    def method(self) -> str:
        """Name of ``base``, "greedy", "sampling", "beam" or "contrastive"."""
        return self.base.name

    @property
    def variant(self) -> Method:
        """Method that decodes, one that extends ``base`` and has a switch that is on, otherwise ``base``."""
        base = self.base
        return next((m for m in methods() if base.name in m.extends and _is_on(m, vars(self))), base)

    def for_rows(self, rows: Iterable[int], count: int) -> Options:
        """Returns the options for the prompts with the indices ``rows``, of ``count`` prompts: a list of seeds, one
        per prompt, is reduced to the seeds of these prompts.

        >>> Options(do_sample=True, seed=[5, 6, 7]).for_rows([2, 0], 3).seed
        [7, 5]
        """
        if self.seed is None or isinstance(self.seed, int):
            return self
        if len(self.seed) != count:
            raise HeedfulError(
                f"seed has {len(self.seed)} numbers, but there are {count} prompts; give one seed for each"
            )
        return replace(self, seed=[self.seed[row] for row in rows])


def _settings_class() -> type[Settings]:
    """Returns the class of the options that the command line and the server take: those of ``Options`` with a help."""
    hints = get_type_hints(Options)
    taken = [
        (f.name, (f.metadata["type"] or hints[f.name]) | None, option(f.metadata["help"], **f.metadata["check"].bounds))
        for f in fields(Options)
        if f.metadata.get("help")
    ]
    taken.append(("batch_tokens", int | None, option("maximum tokens of a batch, with padding", least=1)))
    text = "Decoding options, with names and meanings as in transformers; None: the value in the model folder."
    namespace = {"__doc__": text, "__module__": __name__}
    return make_dataclass("DecodingSettings", taken, bases=(Settings,), namespace=namespace, frozen=True, kw_only=True)


if TYPE_CHECKING:
    DecodingSettings = Settings
else:
    DecodingSettings = _settings_class()


FIELDS = {f.name: f for f in fields(Options) if f.metadata}


@cache
def methods() -> tuple[Method, ...]:
    """Returns all decoding methods, in the order of ``METHODS``; this imports PyTorch."""
    names = (entry.partition(":") for entry in METHODS)
    return tuple(getattr(import_module(module), name) for module, _, name in names)


def _named(name: str) -> Method:
    return next(method for method in methods() if method.name == name)


def _is_on(method: Method, values: Mapping[str, Any]) -> bool:
    return any(values.get(name) and values[name] != FIELDS[name].default for name in method.switches)


def _base(values: Mapping[str, Any]) -> Method:
    return next((m for m in methods() if not m.extends and _is_on(m, values)), _named("greedy"))


def _users(name: str) -> list[Method]:
    """Returns the methods that use an option; no methods if the option applies to every method."""
    return [method for method in methods() if name in method.options]


def _applies(name: str, base: Method) -> bool:
    users = _users(name)
    return not users or any(base is method or base.name in method.extends for method in users)


NAMES = tuple(FIELDS)
# other keys of a folder's generation config: those that change no token, or their prefixes ...
OTHERS = (
    *("_from_model_config", "_commit_hash", "transformers_version", "use_cache", "cache_", "max_cache_len", "output_"),
    *("return_dict_in_generate", "low_memory", "compile_config", "disable_compile"),
    *("assistant_", "is_assistant", "num_assistant_tokens_", "target_lookbehind", "max_matching_"),
)
# ... and unsupported ones, with the value that changes nothing
NEUTRAL = {
    **dict.fromkeys(("encoder_repetition_penalty", "guidance_scale"), 1),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff"), 0),
    **dict.fromkeys(("remove_invalid_values", "token_healing"), False),
    **dict.fromkeys(("exponential_decay_length_penalty", "sequence_bias", "constraints"), None),
    **dict.fromkeys(("max_time", "top_h", "dola_layers", "watermarking_config"), None),
}


def _shown(value: Any) -> str:
    return f"<{type(value).__name__}>" if hasattr(value, "config") else repr(value)


def check_option(name: str, value: Any, where: str = "") -> None:
    """Raises ``HeedfulError`` for an unknown option or a value out of range; None is unset."""
    if name not in NAMES:
        raise HeedfulError(f"unknown decoding option {name!r}; {nearest(name, NAMES)}")
    check: Valid = FIELDS[name].metadata["check"]
    if value is not None and not check.test(value):
        raise HeedfulError(f"{where}{name} is {_shown(value)}; give {check.words}")


def _options_not_none(options: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Checks the options and returns those that are not None."""
    for name, value in options.items():
        check_option(name, value, where)
    not_none = {name: value for name, value in options.items() if value is not None}
    if "stop_strings" in not_none:
        not_none["stop_strings"] = tuple(as_list(not_none["stop_strings"]))
    return not_none


def _folder_options(folder: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the decoding options of a folder's generation config; raises for unsupported options with an effect."""
    options = {}
    for name, value in folder.items():
        if name in NAMES and name != "cache_implementation":
            options[name] = value
        elif value is None or name.startswith(OTHERS) or (name in NEUTRAL and value == NEUTRAL[name]):
            continue
        else:
            remedy = f"{name} is not supported, remove it there" if name in NEUTRAL else nearest(name, NAMES)
            raise HeedfulError(f"the folder's generation config sets {name}={value!r}; {remedy}")
    return _options_not_none(options, "generation_config.json: ")


def resolve(call: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Options:
    """Resolves the ``call``'s options over the ``defaults`` of a folder into one ``Options``; None is unset in both.

    Raises ``HeedfulError`` for an unknown option (naming the nearest), a value out of range, two options of the call
    that contradict each other, and an option without effect on the chosen method.

    >>> resolve({"top_p": 0.9}).method, resolve({"num_beams": 4}).method
    ('sampling', 'beam')
    """
    call, folder = _options_not_none(call), _folder_options(defaults or {})
    sampling, beam = _named("sampling"), _named("beam")
    switched = [m for m in methods() if not m.extends and m is not sampling and _is_on(m, call)]
    drawn = [n for n in sampling.implied_by if n in call and not any(n in m.options for m in switched)]
    sample = call.get("do_sample", bool(drawn) or (folder.get("do_sample", False) and not switched))
    if drawn and call.get("do_sample") is False:
        raise HeedfulError(f"do_sample=False, but {drawn[0]}={call[drawn[0]]} only affects sampling; leave one out")
    if sample and beam in switched:
        raise HeedfulError(
            f"num_beams={call['num_beams']} is for beam search, {[*drawn, 'do_sample'][0]} for sampling; give only one"
        )
    for total, new in LENGTHS:
        if total in call and new in call:
            raise HeedfulError(f"{total} and {new} both set the length; give only one")

    base = _base({**({} if sample or switched else folder), **call, "do_sample": sample})
    for name, value in call.items():
        option = FIELDS[name]
        if not _applies(name, base) and not (option.metadata["neutral"] and value == option.default):
            remedy = " or ".join(dict.fromkeys(method.remedy for method in _users(name)))
            raise HeedfulError(
                f"{name}={_shown(value)} has no effect on {base.name} decoding; give {remedy}, or leave it out"
            )
    unused = {name for name in folder if not _applies(name, base)}
    for total, new in LENGTHS:
        if total in call or new in call:
            unused |= {total, new}
        elif new in folder:
            unused |= {total}
    for method in methods():
        if method.extends and _is_on(method, call):
            unused |= set(method.switches)
    values = {name: value for name, value in folder.items() if name not in unused} | call
    for name, option in FIELDS.items():
        needed = option.metadata["needs"]
        if name in values and needed and values.get(needed, FIELDS[needed].default) == FIELDS[needed].default:
            if name in call:
                raise HeedfulError(
                    f"{name}={call[name]!r} has no effect without {needed}; give {needed}, or leave {name} out"
                )
            del values[name]
    options = Options(**{**values, "do_sample": sample, "given": frozenset(call)})
    if options.num_return_sequences > options.num_beams and base is not sampling:
        raise HeedfulError(
            f"num_return_sequences={options.num_return_sequences} is more than num_beams={options.num_beams}; raise "
            "num_beams"
        )
    for method in (base, options.variant):
        method.check(options)
    if options.cache_implementation == "static" and not options.variant.is_static:
        raise HeedfulError(
            f"cache_implementation='static' does not work with {options.variant.name} decoding, which reads several "
            "tokens of a row at once; leave it out"
        )
    if "min_length" in call and options.max_length is not None and options.min_length > options.max_length:
        raise HeedfulError(
            f"min_length={options.min_length} is more than max_length={options.max_length}; raise max_length"
        )
    return options
