"""Choosing tokens: distributions, repeatability, and the processors against transformers' own."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful.errors import HeedfulError
from heedful.generation import decode, generate
from heedful.generation import processors as ours
from heedful.generation.token_choice import choose, top, uniform_numbers
from tolerances import approx, assert_close


def chi_square(counts, expected):
    return ((counts - expected) ** 2 / expected).sum().item()


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1}, {"typical_p": 0.7}], ids=str
)
@pytest.mark.parametrize("way", ["copies", "rows"])
def test_tokens_come_as_often_as_they_are_probable(pairs, options, way):
    model, n = pairs["gpt2"](0).ours.eval(), 8000
    prompt = torch.tensor([[9, 30, 12, 8]])
    with torch.no_grad():
        scores = model(prompt)[:, -1]
    wanted = {"temperature": ours.Temperature, "top_k": ours.TopK, "top_p": ours.TopP, "min_p": ours.MinP}
    wanted["typical_p"] = ours.TypicalP
    for name, value in options.items():
        scores = wanted[name](value)(prompt, scores.clone())
    p = scores.softmax(1)[0]
    call = {"do_sample": True, "seed": 11, "max_new_tokens": 1, **options}
    if way == "copies":
        ids = generate(model, prompt, num_return_sequences=n, **call)
    else:
        ids = generate(model, prompt.expand(n, -1), **call)
    counts = torch.bincount(ids[:, -1], minlength=len(p)).double()
    assert counts[p == 0].sum() == 0
    often = p * n >= 5  # rarer ones together, as the test wants them
    seen = torch.cat((counts[often], counts[~often].sum()[None]))
    expected = torch.cat((p[often], p[~often].sum()[None])) * n
    seen, expected = seen[expected > 0], expected[expected > 0]
    freedom = len(seen) - 1
    assert chi_square(seen, expected) < freedom + 4 * (2 * freedom) ** 0.5


def test_later_tokens_are_drawn_independently(pairs):
    model = pairs["gpt2"](0).ours
    ids = generate(model, torch.tensor([[9, 30]]), do_sample=True, seed=1, max_new_tokens=2, num_return_sequences=4000)
    first, second = ids[:, 2].mode().values, ids[ids[:, 2] == ids[:, 2].mode().values][:, 3]
    with torch.no_grad():
        p = model(torch.tensor([[9, 30, first]]))[0, -1].softmax(0)
    expected = p * len(second)
    seen = torch.bincount(second, minlength=len(p)).double()
    often = expected >= 5
    assert chi_square(seen[often], expected[often]) < often.sum() + 4 * (2 * often.sum()) ** 0.5


def test_a_seed_repeats_and_another_does_not(pairs, prompts):
    model, batch = pairs["gpt2"](1).ours, prompts([5, 3, 4])
    first = generate(model, *batch, temperature=1.0, seed=1, max_new_tokens=10)
    assert torch.equal(first, generate(model, *batch, temperature=1.0, seed=1, max_new_tokens=10))
    assert not torch.equal(first, generate(model, *batch, temperature=1.0, seed=2, max_new_tokens=10))


def test_without_a_seed_torch_s_own_state_decides(pairs, prompts):
    model, batch = pairs["gpt2"](1).ours, prompts([5, 3, 4])
    made = []
    for state in (5, 5, 6):
        torch.manual_seed(state)
        made.append(generate(model, *batch, temperature=1.0, max_new_tokens=10))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_a_seed_leaves_torch_s_own_state_alone(pairs, prompts):
    state = torch.random.get_rng_state()
    generate(pairs["gpt2"](1).ours, *prompts([5]), temperature=1.0, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())


def test_fp32_rows_sample_the_same_alone_and_in_a_batch(prompts):
    model = heedful.create("gpt-micro", seed=0)
    ids, mask = prompts([3 + i % 7 for i in range(40)])
    together = generate(model, ids, mask, do_sample=True, seed=4, max_new_tokens=12)
    alone = [
        generate(model, row[real][None], do_sample=True, seed=4, max_new_tokens=12)[0]
        for row, real in zip(ids, mask, strict=True)
    ]
    assert [row[: len(one)].tolist() for row, one in zip(together, alone, strict=True)] == [r.tolist() for r in alone]


def test_draws_depend_on_content_seed_and_turn_only():
    rows = torch.tensor([[4, 5], [-1, 6], [4, 5]])
    made = uniform_numbers(rows, 2, 3, 0)
    assert made.shape == (6, 3)
    assert len({tuple(row.tolist()) for row in made}) == 6
    assert torch.equal(made[:2], uniform_numbers(rows[:1], 2, 3, 0))
    assert torch.equal(made[2:4], uniform_numbers(torch.tensor([[6, -1, -1]]), 2, 3, 0))
    assert not torch.equal(made[:2], uniform_numbers(rows[:1], 2, 3, 1))


def test_choose_never_takes_what_is_excluded():
    scores = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0, float("-inf")]])
    for number, token in ((0.0, 1), (0.4999, 1), (0.5001, 3), (1 - 2**-53, 3)):
        assert choose(scores, torch.tensor([number], dtype=torch.float64)).tolist() == [token]


@pytest.mark.parametrize("size", [5, 128, 257, 3000, 58101])
@pytest.mark.parametrize("count", [1, 4, 10])
def test_top_is_topk(size, count):
    count = min(count, size)
    scores = torch.randn(7, size, generator=torch.Generator().manual_seed(size))
    values, tokens = top(scores, count)
    assert torch.equal(values, scores.topk(count).values)
    assert torch.equal(tokens, scores.topk(count).indices)
    scores[:] = float("-inf")
    scores[:, size - 1] = 0.0
    assert top(scores, count)[1][:, 0].eq(size - 1).all()


HISTORY = torch.tensor([[1, 2, 3, 1, 2], [4, 4, 4, 4, 4], [9, 8, 7, 9, 8]])
CASES = [
    (ours.RepetitionPenalty(1.7), "RepetitionPenaltyLogitsProcessor", {"penalty": 1.7}),
    (ours.NoRepeatNGram(1), "NoRepeatNGramLogitsProcessor", {"ngram_size": 1}),
    (ours.NoRepeatNGram(3), "NoRepeatNGramLogitsProcessor", {"ngram_size": 3}),
    (ours.NoRepeatNGram(6), "NoRepeatNGramLogitsProcessor", {"ngram_size": 6}),
    (
        ours.MinNewTokens(2, 4, (1, 5)),
        "MinNewTokensLengthLogitsProcessor",
        {"prompt_length_to_skip": 2, "min_new_tokens": 4, "eos_token_id": [1, 5]},
    ),
    (
        ours.MinNewTokens(2, 3, (1, 5)),
        "MinNewTokensLengthLogitsProcessor",
        {"prompt_length_to_skip": 2, "min_new_tokens": 3, "eos_token_id": [1, 5]},
    ),
    (ours.Temperature(0.3), "TemperatureLogitsWarper", {"temperature": 0.3}),
    (ours.TopK(3), "TopKLogitsWarper", {"top_k": 3}),
    (ours.TopK(99), "TopKLogitsWarper", {"top_k": 99}),
    (ours.TopP(0.6), "TopPLogitsWarper", {"top_p": 0.6}),
    (ours.TopP(0.01), "TopPLogitsWarper", {"top_p": 0.01}),
    (ours.MinP(0.3), "MinPLogitsWarper", {"min_p": 0.3}),
    (ours.MinP(1.0), "MinPLogitsWarper", {"min_p": 1.0}),
    (ours.TypicalP(0.2), "TypicalLogitsWarper", {"mass": 0.2}),
    (ours.TypicalP(0.6), "TypicalLogitsWarper", {"mass": 0.6}),
    (ours.TypicalP(0.999), "TypicalLogitsWarper", {"mass": 0.999}),
]


@pytest.mark.parametrize(("mine", "name", "arguments"), CASES, ids=lambda x: repr(x) if callable(x) else "")
def test_processors_are_those_of_transformers(mine, name, arguments):
    theirs = getattr(pytest.importorskip("transformers"), name)(**arguments)
    scores = 3 * torch.randn(3, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before = scores.clone()
    assert torch.equal(mine(HISTORY, scores.clone()), theirs(HISTORY, scores.clone()))
    assert torch.equal(scores, before)


def test_penalties_count_what_was_generated():
    """By hand: the prompt counts nothing, nor does padding; every time counts for the frequency, once for presence."""
    history = torch.tensor([[-1, 4, 2, 2, 5, 2], [1, 4, 3, 3, 4, 4]])
    scores = torch.randn(2, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = scores.clone()
    for row, made in enumerate(([2, 2, 5, 2], [3, 3, 4, 4])):
        for token in set(made):
            expected[row, token] -= 0.5 + 0.25 * made.count(token)
    assert_close(ours.CountPenalty(2, 0.5, 0.25)(history, scores), expected)


@pytest.mark.parametrize("options", [{"presence_penalty": 50.0}, {"frequency_penalty": 50.0}], ids=str)
@pytest.mark.parametrize("search", [{}, {"num_beams": 3}], ids=str)
def test_a_strong_penalty_lets_no_token_come_twice(pairs, options, search):
    model, prompt = pairs["gpt2"](0).ours, torch.tensor([[9, 9, 9, 30]])
    made = generate(model, prompt, max_new_tokens=12, suppress_tokens=[5, 11, 20], **search, **options)[0, 4:].tolist()
    assert len(made) == len(set(made)) == 12
    plain = generate(model, prompt, max_new_tokens=12, suppress_tokens=[5, 11, 20], **search)[0, 4:].tolist()
    assert len(plain) > len(set(plain))


def test_padding_is_no_token_to_processors():
    scores = torch.randn(1, 6, generator=torch.Generator().manual_seed(0))
    padded, plain = torch.tensor([[-1, -1, 5, 2, 5]]), torch.tensor([[5, 2, 5]])
    for processor in (ours.RepetitionPenalty(2.0), ours.NoRepeatNGram(1), ours.NoRepeatNGram(2), ours.NoRepeatNGram(3)):
        assert torch.equal(processor(padded, scores.clone()), processor(plain, scores.clone()))


def test_a_sampled_row_scores_the_model_s_own_probability(pairs):
    model, prompt = pairs["gpt2"](0).ours.eval(), torch.tensor([[9, 30, 12]])
    made = decode(model, prompt, temperature=0.5, top_k=4, seed=0, max_new_tokens=5)
    tokens = made.ids[:, : made.lengths[0]]
    with torch.no_grad():
        log_p = model(tokens[:, :-1])[0, 2:].log_softmax(-1).gather(1, tokens[0, 3:, None])
    assert made.scores.item() == approx(log_p.mean().item(), dtype=torch.float64)


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_each_prompt_may_have_its_own_seed(pairs, prompts, plain, family):
    model = pairs[family](0).ours
    ids, mask = prompts([6, 3, 6, 1, 4])
    ids[2], mask[2] = ids[0], mask[0]  # the same prompt twice
    options = {"max_new_tokens": 12, "do_sample": True, "num_return_sequences": 2}

    def made(ids, mask, seed):
        found = decode(model, ids, mask, seed=seed, **options)
        return plain(found.ids, found.lengths)

    seeds = [5, 7, 11, 5, 7]
    together = made(ids, mask, seeds)
    for i, seed in enumerate(seeds):
        alone = made(ids[i : i + 1], mask[i : i + 1], seed)
        assert together[2 * i : 2 * i + 2] == alone == made(ids[i : i + 1], mask[i : i + 1], [seed])
    assert together[:2] != together[4:6]
    order = [3, 1, 4, 0, 2]
    turned = made(ids[order], mask[order], [seeds[i] for i in order])
    assert turned == [together[2 * i + copy] for i in order for copy in range(2)]
    assert made(ids, mask, [5] * 5) == made(ids, mask, 5)  # and of one prompt given twice the second draws anew
    with pytest.raises(HeedfulError, match="seed has 2 numbers, but there are 5 prompts; give one seed for each"):
        made(ids, mask, [1, 2])


@pytest.mark.parametrize("seed", [[], [1, -1], [True], "one", 2**64, [1.5]])
def test_a_seed_is_a_whole_number_or_several(seed):
    model = heedful.create("gpt-micro", seed=0)
    with pytest.raises(HeedfulError, match=r"seed is .*; give a whole number from 0 below"):
        decode(model, torch.tensor([[1]]), do_sample=True, seed=seed)
