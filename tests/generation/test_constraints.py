"""Tokens that must or may not come, against transformers: each processor alone, and whole searches in float64."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

import heedful
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.generation import processors as ours
from heedful.generation.processors import LogitNormalization
from heedful.pretrained import load
from tolerances import assert_close

PAD = 3
SIDE = {"gpt2": "left", "marian": "right"}  # as transformers wants them
GIVEN = torch.tensor([[5, 9, 8, 7, 9], [4, 4, 2, 4, 1], [9, 8, 2, 6, 8]])
HISTORY = torch.tensor([[1, 2, 3, 9, 8], [4, 4, 4, 2, 4], [9, 8, 7, 9, 8]])
START = torch.tensor([[0], [7], [9]])
STATE = SimpleNamespace(
    given_ids=GIVEN, prompt_index=torch.arange(3), prompt=START, prompt_lengths=torch.ones(3, dtype=torch.int64)
)
LIMITS = torch.tensor([5, 5, 5])
ENDS = (1, 5)
WORDS = [[3], [9, 8, 2], [4, 6], [4, 4, 4, 2, 4, 7], [5], [8, 11]]
CASES = [
    (ours.MinLength(6, ENDS), "MinLengthLogitsProcessor", {"min_length": 6, "eos_token_id": [1, 5]}),
    (ours.MinLength(5, ENDS), "MinLengthLogitsProcessor", {"min_length": 5, "eos_token_id": [1, 5]}),
    *(
        (
            ours.EncoderNoRepeatNGram(size, STATE),
            "EncoderNoRepeatNGramLogitsProcessor",
            {"encoder_ngram_size": size, "encoder_input_ids": GIVEN},
        )
        for size in (1, 2, 3, 5, 6)
    ),
    (ours.NoBadWords([w for w in WORDS if w != [5]]), "NoBadWordsLogitsProcessor", {"bad_words_ids": WORDS}),
    (ours.SuppressTokens((2, 7)), "SuppressTokensLogitsProcessor", {"suppress_tokens": [2, 7]}),
    (
        ours.SuppressTokensAtBegin((2, 7), False, STATE),
        "SuppressTokensAtBeginLogitsProcessor",
        {"begin_suppress_tokens": [2, 7], "begin_index": 1},
    ),
    (
        ours.SuppressTokensAtBegin((2, 7), True, STATE),
        "SuppressTokensAtBeginLogitsProcessor",
        {"begin_suppress_tokens": [2, 7], "begin_index": 2},
    ),
    (ours.ForcedBOSToken(4), "ForcedBOSTokenLogitsProcessor", {"bos_token_id": 4}),
    (
        ours.ForcedEOSToken((1, 5), LIMITS, STATE),
        "ForcedEOSTokenLogitsProcessor",
        {"max_length": 6, "eos_token_id": [1, 5]},
    ),
    (LogitNormalization(), "LogitNormalization", {}),
]


@pytest.mark.parametrize("history", [START, HISTORY[:, :2], HISTORY[:, :4], HISTORY], ids=["1", "2", "4", "5"])
@pytest.mark.parametrize(("mine", "name", "arguments"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_processors_are_those_of_transformers(mine, name, arguments, history):
    if name in ("MinLengthLogitsProcessor", "ForcedEOSTokenLogitsProcessor"):
        arguments = {**arguments, "device": "cpu"}
    theirs = getattr(pytest.importorskip("transformers"), name)(
        **({**arguments, "eos_token_id": torch.tensor([1, 5])} if "BadWords" in name else arguments)
    )
    scores = 3 * torch.randn(3, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before = scores.clone()
    assert_close(mine(history, scores.clone()), theirs(history, scores.clone()), "layer")
    assert torch.equal(scores, before)


def test_each_processor_changes_something():
    scores = torch.zeros(3, 12, dtype=torch.float64)
    for mine, name, arguments in CASES:
        if arguments.get("min_length") == 5 or arguments.get("encoder_ngram_size", 0) > 3:
            continue
        histories = (START, HISTORY[:, :2], HISTORY[:, :4], HISTORY)
        assert any(not torch.equal(mine(history, scores.clone()), scores) for history in histories), name


def test_padding_and_ids_beyond_the_vocabulary_are_no_tokens():
    scores = torch.randn(1, 6, generator=torch.Generator().manual_seed(0))
    padded, plain = torch.tensor([[-1, -1, 5, 2, 5]]), torch.tensor([[5, 2, 5]])
    processors = [
        ours.MinLength(5, (1,)),
        ours.NoBadWords([[5, 3], [9], [2, 5, 4]]),
        ours.SuppressTokens((2, 99)),
        ours.ForcedBOSToken(1),
    ]
    for size in (1, 2, 3):
        given = torch.tensor([[5, 2, 5, 99, -1, -1]])  # a source's vocabulary may be the larger one
        state = SimpleNamespace(given_ids=given, prompt_index=torch.tensor([0]))
        processors.append(ours.EncoderNoRepeatNGram(size, state))
    for processor in processors:
        assert torch.equal(processor(padded, scores.clone()), processor(plain, scores.clone()))


RULES = [
    {"forced_bos_token_id": 9},
    {"forced_eos_token_id": 5},
    {"forced_eos_token_id": [11, 20]},
    {"bad_words_ids": [[5], [7, 8], [30], [33]]},
    {"suppress_tokens": [8, 12, 31, 5]},
    {"begin_suppress_tokens": [8, 12, 31, 5], "min_length": 9},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_no_repeat_ngram_size": 2, "min_length": 8},
    {
        "forced_bos_token_id": 9,
        "forced_eos_token_id": 5,
        "begin_suppress_tokens": [6, 7, 30],
        "bad_words_ids": [[3]],
        "no_repeat_ngram_size": 2,
        "min_length": 4,
        "suppress_tokens": [10],
    },
]


def unpadded(row, one_of=()):
    """Without padding; of several tokens that are forced alike, any may come."""
    while row[1:] and row[-1] == PAD:
        row = row[:-1]
    return [*row[:-1], one_of[0]] if row[-1] in one_of else row


def same(pair, plain, ids, mask, **options):
    rows, scores = pair.reference(ids, mask, **options)
    made = decode(pair.ours, ids, mask, **options)
    forced = options.get("forced_eos_token_id", 5)
    one_of = forced if isinstance(forced, list) else ()
    found = [unpadded(row, one_of) for row in plain(made.ids, made.lengths)]
    assert found == [unpadded(row, one_of) for row in rows]
    if scores is not None:
        assert (made.scores - scores).abs().max() < 1e-5  # theirs are float32
    return rows


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_greedy(pairs, plain, prompts, family, rules):
    free = []
    alike = family == "gpt2" or "encoder_no_repeat_ngram_size" in rules  # transformers counts padding as tokens
    for seed in range(2):
        given = prompts([6] * 5 if alike else [9, 4, 6, 9, 1, 5], SIDE[family], seed)
        rows = same(pairs[family](seed), plain, *given, max_new_tokens=10, **rules)
        free.append(rows == plain(*decode(pairs[family](seed).ours, *given, max_new_tokens=10)[:2]))
    assert not all(free) or (family == "gpt2" and "forced_bos_token_id" in rules)  # each rule changes a row


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize("rules", [*RULES, {"no_repeat_ngram_size": 1}], ids=str)
@pytest.mark.parametrize(("seed", "renormalize"), [(0, False), (1, True), (0, True), (1, False)])
@pytest.mark.full(keep=2 * 2 * (len(RULES) + 1))
def test_beams(pairs, plain, prompts, family, rules, seed, renormalize):
    ids, mask = prompts([6] * 4, seed=seed)
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 9, **rules}
    same(pairs[family](seed), plain, ids, mask, **options, renormalize_logits=renormalize)


EVERY = [(rules, family, beams) for family in ("gpt2", "marian") for beams in (1, 3) for rules in range(len(RULES))]
FIRST = [(rules, ("gpt2", "marian")[rules // 2 % 2], (1, 3)[rules % 2]) for rules in range(len(RULES))]


@pytest.mark.parametrize(("rules", "family", "beams"), dict.fromkeys([*FIRST, *EVERY]))
@pytest.mark.full(keep=len(FIRST))
def test_a_row_is_the_same_alone_and_beside_others(pairs, plain, prompts, family, rules, beams):
    model, (ids, mask) = pairs[family](0).ours, prompts([9, 1, 6, 3, 1], SIDE[family])
    for limit in ({"max_new_tokens": 7}, {"max_length": 14}, {}):
        asked = {**RULES[rules], **limit, "num_beams": beams}
        together = plain(*decode(model, ids, mask, **asked)[:2])
        for i in range(len(ids)):
            assert plain(*decode(model, ids[i : i + 1], mask[i : i + 1], **asked)[:2]) == [together[i]]


def test_a_forced_token_that_the_model_does_not_have(pairs, prompts):
    with pytest.raises(HeedfulError, match="forced_eos_token_id is 58100, but the model has 40 tokens"):
        decode(pairs["gpt2"](0).ours, *prompts([4]), max_new_tokens=3, forced_eos_token_id=58100)


# ------------------------------------------------------------------------------------------------- folders, old and new


@pytest.mark.parametrize("forbidding", [{"begin_suppress_tokens": [5]}, {"suppress_tokens": [5]}])
@pytest.mark.parametrize("method", [{}, {"num_beams": 3}, {"do_sample": True, "seed": 0}])
def test_a_forced_end_is_written_even_if_it_is_forbidden(pairs, prompts, forbidding, method):
    options = {"max_new_tokens": 1, "forced_eos_token_id": 5, **forbidding, **method}
    ids, *_ = decode(pairs["gpt2"](0).ours, *prompts([4, 4]), **options)
    assert ids[:, -1].tolist() == [5, 5]


OLD = {"num_beams": 3, "max_length": 14, "bad_words_ids": [[3]], "forced_eos_token_id": 5, "no_repeat_ngram_size": 2}


@pytest.fixture
def marian(pairs, tmp_path):
    """A folder as transformers wrote it, without a generation config."""
    pair = pairs["marian"](1)
    pair.hub_name.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    return pair, tmp_path


def keys(folder, **new):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | new))


def test_an_old_folder_says_how_to_generate_in_its_config(marian, prompts, plain):
    transformers = pytest.importorskip("transformers")
    pair, folder = marian
    keys(folder, **OLD, transformers_version="4.0.0", task_specific_params={"translation": {"num_beams": 9}})
    model, theirs = load(folder), transformers.MarianMTModel.from_pretrained(folder).eval()
    assert dict(model.generation) == OLD
    assert theirs.generation_config.num_beams == 3
    assert theirs.generation_config.forced_eos_token_id == 5
    pair = type(pair)(model, theirs)
    made = decode(model, *prompts([6] * 4), defaults=model.generation)
    ids, mask = prompts([6] * 4)
    out = theirs.generate(ids, attention_mask=mask.long())
    ends = [row.tolist() for row in out]
    assert [unpadded(row) for row in plain(made.ids, made.lengths)] == [unpadded(row) for row in ends]
    assert model.generate(ids, mask, num_beams=1).shape[1] <= 14


def test_a_generation_config_goes_before_what_the_config_says(marian):
    _, folder = marian
    keys(folder, **OLD)
    (folder / "generation_config.json").write_text(json.dumps({"num_beams": 2, "decoder_start_token_id": 7}))
    model = load(folder)
    assert dict(model.generation) == {"num_beams": 2}
    assert model.config.special.start == 7


def test_an_older_word_for_a_forced_start(marian):
    transformers = pytest.importorskip("transformers")
    _, folder = marian
    keys(folder, force_bos_token_to_be_generated=True, bos_token_id=9)
    theirs = transformers.MarianMTModel.from_pretrained(folder)
    assert load(folder).generation["forced_bos_token_id"] == theirs.generation_config.forced_bos_token_id == 9


def test_constraints_that_are_read_are_written(marian, tmp_path):
    transformers = pytest.importorskip("transformers")
    _, folder = marian
    keys(folder, **OLD)
    load(folder).save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert dict(again.generation) == OLD
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path / "saved")
    assert {key: getattr(theirs, key) for key in OLD} == OLD


def test_a_folder_that_asks_for_what_is_not_spoken_is_refused_when_it_is_to_generate(marian, prompts):
    _, folder = marian
    keys(folder, exponential_decay_length_penalty=[3, 1.5])
    with pytest.raises(HeedfulError, match="exponential_decay_length_penalty"):
        heedful.from_pretrained(folder).generate(*prompts([4]))
