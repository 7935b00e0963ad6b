from __future__ import annotations

from dataclasses import fields

import pytest
import torch

import heedful
from heedful.errors import HeedfulError
from heedful.generation import generate
from heedful.generation.options import FIELDS, NAMES, NEUTRAL, Options, check_option, resolve
from heedful.pretrained.configuration import GENERATION_KEYS, IDS


@pytest.mark.parametrize(
    ("call", "folder", "method"),
    [
        ({}, {}, "greedy"),
        ({"temperature": 0.7}, {}, "sampling"),
        ({"top_k": 5}, {}, "sampling"),
        ({"top_p": 0.5, "do_sample": None}, {}, "sampling"),
        ({"min_p": 0.1}, {"num_beams": 4, "length_penalty": 0.6}, "sampling"),
        ({"do_sample": True, "seed": 1}, {}, "sampling"),
        ({}, {"do_sample": True, "temperature": 0.6}, "sampling"),
        ({}, {"temperature": 0.6, "top_p": 0.9}, "greedy"),
        ({"do_sample": False}, {"do_sample": True, "temperature": 0.6}, "greedy"),
        ({"num_beams": 4}, {"do_sample": True, "top_k": 9}, "beam"),
        ({"num_beams": 4, "length_penalty": 0.6, "early_stopping": "never"}, {}, "beam"),
        ({}, {"num_beams": 4, "early_stopping": True}, "beam"),
        ({"num_beams": 1}, {"num_beams": 4, "length_penalty": 2.0}, "greedy"),
        ({"num_return_sequences": 1}, {}, "greedy"),
    ],
)
def test_the_method_follows_from_the_options(call, folder, method):
    made = resolve(call, folder)
    assert made.method == method
    for name in ("temperature", "top_k", "top_p", "seed"):  # what the method does not use is at rest
        assert method == "sampling" or getattr(made, name) == getattr(Options(), name)
    for name in ("length_penalty", "early_stopping"):
        assert method == "beam" or getattr(made, name) == getattr(Options(), name)


def test_the_call_goes_over_the_folder():
    made = resolve({"num_beams": 2, "max_new_tokens": 9}, {"num_beams": 4, "max_length": 5, "length_penalty": 0.6})
    assert (made.num_beams, made.max_new_tokens, made.max_length, made.length_penalty) == (2, 9, None, 0.6)
    assert resolve({"max_length": 9}, {"max_new_tokens": 4}).max_new_tokens is None
    assert resolve({}, {"max_new_tokens": 4, "max_length": 512}).max_length is None
    assert resolve({"max_length": None}, {"max_length": 7, "top_k": None}).max_length == 7


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"num_beem": 4}, "unknown decoding option 'num_beem'; did you mean 'num_beams'"),
        ({"temprature": 1.0}, "did you mean 'temperature'"),
        ({"do_sample": False, "top_p": 0.9}, "do_sample=False, but top_p=0.9"),
        ({"num_beams": 4, "temperature": 0.9}, "num_beams=4 is for beam search, temperature for sampling"),
        ({"num_beams": 4, "do_sample": True}, "num_beams=4 is for beam search, do_sample for sampling"),
        ({"length_penalty": 0.6}, "length_penalty=0.6 has no effect on greedy decoding"),
        ({"early_stopping": True}, "early_stopping=True has no effect on greedy decoding"),
        ({"length_penalty": 1.0}, "length_penalty=1.0 has no effect on greedy decoding"),
        ({"early_stopping": "never", "top_k": 3}, "early_stopping='never' has no effect on sampling"),
        ({"seed": 3}, "seed=3 has no effect on greedy decoding"),
        ({"seed": 1}, "seed=1 has no effect on greedy decoding"),
        ({"seed": 3, "num_beams": 2}, "seed=3 has no effect on beam decoding"),
        ({"num_return_sequences": 2}, "num_return_sequences=2 has no effect on greedy decoding"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences=3 is more than num_beams=2"),
        ({"max_length": 5, "max_new_tokens": 4}, "max_length and max_new_tokens"),
        ({"temperature": 0}, "temperature is 0; give a number from"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": 1.5}, "top_k is 1.5; give a whole number"),
        ({"num_beams": True}, "num_beams is True"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"early_stopping": "always", "num_beams": 2}, "early_stopping is 'always'"),
        ({"repetition_penalty": -1.0}, "repetition_penalty is -1.0"),
        ({"do_sample": 1}, "do_sample is 1"),
    ],
)
def test_wrong_options_are_refused(call, words):
    with pytest.raises(HeedfulError) as caught:
        resolve(call)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_option_of_the_folder_is_named_too():
    with pytest.raises(HeedfulError, match="did you mean 'num_beams'"):
        resolve({}, {"num_beam": 4})


def test_lengths_that_cannot_be():
    model, ids = heedful.create("gpt-micro", seed=0), torch.tensor([[1, 2, 3]])
    with pytest.raises(HeedfulError, match="prompt 0 already has 3 tokens"):
        generate(model, ids, max_length=3)
    with pytest.raises(HeedfulError, match="min_new_tokens=9, but only 4 are allowed"):
        generate(model, ids, max_new_tokens=4, min_new_tokens=9)
    assert generate(model, ids, max_length=5).shape == (1, 5)
    assert generate(model, ids, defaults={"max_new_tokens": 4}).shape == (1, 7)
    assert model.generate(ids, max_new_tokens=4, num_beams=2).shape == (1, 7)


def test_stop_strings_are_one_or_several():
    assert resolve({"stop_strings": "\n"}).stop_strings == ("\n",)
    assert resolve({}, {"stop_strings": ["a", "b"]}).stop_strings == ("a", "b")
    assert resolve({"stop_strings": []}, {"stop_strings": ["a"]}).stop_strings == ()
    assert resolve({"stop_strings": None}, {"stop_strings": None}).stop_strings == ()


def test_keys_that_transformers_writes_for_itself_are_no_options():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9)
    written = transformers.GPT2LMHeadModel(config).generation_config.to_diff_dict()
    own = {key: value for key, value in written.items() if not key.endswith("token_id")}
    assert own
    assert resolve({}, {**own, "num_beams": 2}).num_beams == 2
    assert resolve({}, {**own, "bad_words_ids": [[7]]}).bad_words_ids == [[7]]


def test_a_folder_without_a_generation_config_is_asked_for_all_that_is_obeyed_or_refused():
    own = {"decoder_start_token_id", "seed", "presence_penalty", "frequency_penalty", "context_keep"}
    newer = {
        "cache_implementation",
        "assistant_model",
        "num_assistant_tokens",
        "prompt_lookup_num_tokens",
        "prefill_chunk_size",
    }
    assert {*GENERATION_KEYS} == {*NAMES, *NEUTRAL} - own - newer


def test_every_default_of_transformers_is_understood():
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GenerationConfig()
    written = {**theirs.to_dict(), **theirs._get_default_generation_params()}
    own = {key: value for key, value in written.items() if key not in IDS}
    made = resolve({}, own)
    assert made == Options(max_length=20, top_k=0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("exponential_decay_length_penalty", [10, 1.2]),
        ("epsilon_cutoff", 0.1),
        ("remove_invalid_values", True),
        ("encoder_repetition_penalty", 1.1),
        ("sequence_bias", [[[4], -1.0]]),
        ("guidance_scale", 1.5),
    ],
)
def test_unsupported_options_of_a_folder_are_refused_by_name(key, value):
    with pytest.raises(HeedfulError, match=f"generation config sets {key}=.*; {key} is not supported") as caught:
        resolve({}, {key: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("bad_words_ids", [[]]),
        ("bad_words_ids", [3]),
        ("suppress_tokens", [-1]),
        ("begin_suppress_tokens", 4),
        ("forced_bos_token_id", True),
        ("forced_eos_token_id", []),
        ("min_length", -1),
        ("encoder_no_repeat_ngram_size", 1.5),
        ("renormalize_logits", "yes"),
    ],
)
def test_a_folder_s_wrong_value_is_an_error_too(key, value):
    with pytest.raises(HeedfulError, match=f"{key} is .*; give "):
        resolve({}, {key: value})


def test_of_two_lengths_the_call_s_counts_then_the_new_tokens():
    assert resolve({}, {"min_length": 5, "min_new_tokens": 2}).min_length == 0
    assert resolve({"min_length": 5}, {"min_new_tokens": 2}).min_new_tokens == 0
    assert resolve({"min_new_tokens": 2}, {"min_length": 5}).min_length == 0
    with pytest.raises(HeedfulError, match="min_length and min_new_tokens both"):
        resolve({"min_length": 5, "min_new_tokens": 2})
    with pytest.raises(HeedfulError, match="min_length=5 is more than max_length=4; raise max_length"):
        resolve({"min_length": 5, "max_length": 4})
    assert resolve({"max_length": 4}, {"min_length": 5}).min_length == 5  # a folder's; no end token at all, then


def test_the_command_line_s_options_are_these():
    from heedful.generation.options import DecodingSettings

    given = {f.name for f in fields(DecodingSettings)} - {"batch_tokens"}
    assert given <= {*NAMES}
    numbers = {f.name for f in fields(Options) if isinstance(f.default, int | float)}
    assert numbers - given == {"renormalize_logits", "encoder_no_repeat_ngram_size", "num_assistant_tokens"}


@pytest.mark.parametrize("value", [-11, -1, 0, 1, 2, 10**5, 2**40, 2**65, -1.5, 1e-30, 1e-3, 0.5, 1.5, 9e5])
def test_the_command_line_has_the_bounds_of_the_options(value):
    """Both refuse the same values, except numbers from 1e6 on, which have one bound together."""
    from heedful.generation.options import DecodingSettings

    def is_taken(check, *arguments, **options):
        try:
            check(*arguments, **options)
        except HeedfulError:
            return False
        return True

    compared = 0
    for f in fields(DecodingSettings):
        if f.name in FIELDS and (abs(value) < 1e6 or "whole" in FIELDS[f.name].metadata["check"].words):
            compared += 1
            assert is_taken(DecodingSettings, **{f.name: value}) == is_taken(check_option, f.name, value), f.name
    assert compared > 10


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"num_beams": 10**9}, "num_beams is 1000000000; give a whole number from 1 to 10,000"),
        ({"num_return_sequences": 10**9, "do_sample": True}, "num_return_sequences is 1000000000; give"),
        ({"num_beams": 3, "length_penalty": 1e308}, "length_penalty is 1e\\+308; give a number from -10 to 10"),
        ({"num_beams": 3, "length_penalty": float("nan")}, "length_penalty is nan; give"),
        ({"temperature": float("inf")}, "temperature is inf; give"),
        ({"temperature": 1e-300}, "temperature is 1e-300; give"),
        ({"repetition_penalty": 1e300}, "repetition_penalty is 1e\\+300; give"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan; give"),
        ({"max_new_tokens": 10**30}, "max_new_tokens is 10{30}; give"),
        ({"bad_words_ids": [[10**30, 1]]}, "bad_words_ids is"),
    ],
)
def test_numbers_that_nothing_can_be_reckoned_with(call, words):
    with pytest.raises(HeedfulError, match=words):
        resolve(call)
    with pytest.raises(HeedfulError, match=f"^generation_config.json: {words}"):
        resolve({}, call)


@pytest.mark.parametrize("name", ["suppress_tokens", "begin_suppress_tokens", "bad_words_ids"])
def test_a_vocabulary_of_which_nothing_is_left(name):
    model = heedful.create("gpt-micro", seed=0)
    size = model.config.embedding.vocab_size
    every = [[number] for number in range(size)] if name == "bad_words_ids" else list(range(size))
    with pytest.raises(HeedfulError, match=f"{name} forbid all {size} tokens"):
        generate(model, torch.tensor([[1, 2]]), max_new_tokens=2, **{name: every})
    assert generate(model, torch.tensor([[1, 2]]), max_new_tokens=2, **{name: every[1:]})[0, 2] == 0
