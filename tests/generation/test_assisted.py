"""Tokens proposed by a smaller model, or found in the text: those of the model itself, however poor the proposals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import heedful
from heedful import presets
from heedful.config import RotaryPosition, SpecialTokens
from heedful.errors import HeedfulError
from heedful.generation import decode, generate, stream
from heedful.generation.assisted import accept_or_resample

LENGTHS = [7, 2, 5, 1, 7]
RULES = {
    "plain": {},
    "penalties": {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "no repeats": {"no_repeat_ngram_size": 2, "min_new_tokens": 4, "encoder_no_repeat_ngram_size": 2},
    "forced": {"forced_eos_token_id": 5, "bad_words_ids": [[9], [8, 12]], "begin_suppress_tokens": [10, 30]},
}


def assistant(pairs, family, kind):
    """The model itself, one with other weights, and one that is nearly the model."""
    if kind == "itself":
        return pairs[family](1).ours
    if kind == "stranger":
        return pairs[family](4).ours
    model = heedful.create(pairs[family](1).ours.config).double()
    model.load_state_dict(pairs[family](1).ours.state_dict())
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(3), dtype=p.dtype) * 0.02)
    return model


def proposals(pairs, family, kind, count):
    if kind == "lookup":
        return {"prompt_lookup_num_tokens": count}
    return {"assistant_model": assistant(pairs, family, kind), "num_assistant_tokens": count}


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize("kind", ["itself", "near", "stranger", "lookup"])
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.full(keep=16)
def test_greedy_tokens_are_the_same(pairs, prompts, family, kind, rules, side):
    model, (ids, mask) = pairs[family](1).ours, prompts(LENGTHS, side)
    whole = decode(model, ids, mask, max_new_tokens=15, logprobs=True, **rules)
    for count in (1, 2, 5, 40):
        given = proposals(pairs, family, kind, count)
        made = decode(model, ids, mask, max_new_tokens=15, logprobs=True, **rules, **given)
        assert torch.equal(made.ids, whole.ids)
        assert (made.logprobs - whole.logprobs).abs().max() < 1e-10
        assert (made.scores - whole.scores).abs().max() < 1e-10


def test_the_model_is_called_less_often(prompts):
    model, calls = heedful.create("gpt-micro", seed=0), []
    copy = heedful.create("gpt-micro", seed=0)
    model.decoder.register_forward_hook(lambda *_: calls.append(1))
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    plain = generate(model, ids, max_new_tokens=24)
    assert len(calls) == 24
    calls.clear()
    assert torch.equal(generate(model, ids, max_new_tokens=24, assistant_model=copy, num_assistant_tokens=6), plain)
    assert len(calls) == 5  # the prompt, then 23 tokens of which 6 are chosen at a time


def test_earlier_words_are_proposed_again(prompts):
    """A random model soon says the same again, and what it said is found: fewer calls than tokens."""
    model, calls = heedful.create(presets.gpt2(16, 1, 2, 40, 64), seed=0).double(), []
    ids = torch.arange(10, 30)[None].repeat(1, 2)[:, :22]
    for _ in range(3):  # until the model repeats itself
        ids = generate(model, ids[:, -22:], max_new_tokens=20)
    plain = generate(model, ids[:, -30:], max_new_tokens=20)
    model.decoder.register_forward_hook(lambda *_: calls.append(1))
    found = generate(model, ids[:, -30:], max_new_tokens=20, prompt_lookup_num_tokens=5)
    assert torch.equal(found, plain)
    assert len(calls) < 20


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize("kind", ["near", "stranger"])
def test_samples_are_the_same_alone_and_in_a_batch(pairs, prompts, plain, family, kind):
    model, (ids, mask) = pairs[family](1).ours, prompts(LENGTHS, "right")
    options = {"max_new_tokens": 12, "temperature": 1.5, "top_k": 12, "seed": 7, "num_return_sequences": 2}
    options |= proposals(pairs, family, kind, 4)
    alone = [decode(model, row[real][None], **options) for row, real in zip(ids[:4], mask[:4], strict=True)]
    made = decode(model, ids[:4], mask[:4], **options)
    assert plain(made.ids, made.lengths) == [row for one in alone for row in plain(one.ids, one.lengths)]
    fewer = decode(model, ids[:4], mask[:4], **{**options, "num_assistant_tokens": 2})
    assert torch.equal(fewer.ids, made.ids)  # how many are proposed changes nothing


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_samples_with_text_that_is_found_are_those_without(pairs, prompts, family):
    model, (ids, mask) = pairs[family](1).ours, prompts(LENGTHS)
    options = {"max_new_tokens": 15, "temperature": 1.5, "seed": 7, "num_return_sequences": 3}
    made = decode(model, ids, mask, prompt_lookup_num_tokens=4, **options)
    assert torch.equal(made.ids, decode(model, ids, mask, **options).ids)


def test_a_kept_or_drawn_token_has_the_model_s_distribution():
    """Σ over proposals of q(t) · P(token | t): exactly p, with both uniform numbers on a fine grid."""
    p, q = torch.tensor([0.5, 0.2, 0.3, 0.0]), torch.tensor([0.1, 0.6, 0.2, 0.1])
    grid = (torch.arange(400) + 0.5) / 400
    keep, draw = torch.meshgrid(grid, grid, indexing="ij")
    found = torch.zeros(4, dtype=torch.float64)
    for t in range(4):
        rows = keep.numel()
        tokens = accept_or_resample(
            p.log().expand(rows, -1), q.log().expand(rows, -1), torch.full((rows,), t), keep.flatten(), draw.flatten()
        )
        found += q[t] * torch.bincount(tokens, minlength=4) / rows
    assert torch.allclose(found, p.double(), atol=3e-3)


@pytest.mark.parametrize("kind", ["near", "stranger"])
def test_samples_have_the_model_s_distribution(pairs, kind):
    """χ² of 6,000 samples of two tokens against the model's probabilities (99.9 %), under temperature and top-k."""
    model = pairs["gpt2"](1).ours.eval()
    ids, count = torch.tensor([[8, 30, 12]]), 6000
    made = decode(
        model, ids, do_sample=True, temperature=1.3, top_k=5, seed=11, max_new_tokens=3, num_return_sequences=count,
        **proposals(pairs, "gpt2", kind, 3),
    )  # fmt: skip

    @torch.no_grad()
    def next_one(row):
        logits = model(torch.tensor([row]))[0, -1] / 1.3
        kept = logits >= logits.topk(5).values[-1]
        return logits.where(kept, -torch.inf).softmax(0)

    expected, first = {}, next_one([8, 30, 12])
    for a in first.nonzero()[:, 0].tolist():
        second = next_one([8, 30, 12, a])
        for b in second.nonzero()[:, 0].tolist() if a not in (5, 11, 20) else [None]:
            expected[a, b] = float(first[a] * (1 if b is None else second[b]))
    seen = dict.fromkeys(expected, 0)
    for row in made.ids[:, 3:5].tolist():
        seen[row[0], None if row[0] in (5, 11, 20) else row[1]] += 1
    often = [key for key, p in expected.items() if p * count >= 5]
    chi = sum((seen[key] - expected[key] * count) ** 2 / (expected[key] * count) for key in often)
    freedom = len(often)
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3  # Wilson and Hilferty
    assert freedom > 8
    assert chi < limit


@pytest.mark.parametrize("options", [{}, {"temperature": 1.2, "seed": 3, "num_return_sequences": 2}], ids=str)
@pytest.mark.parametrize("kind", ["near", "lookup"])
def test_a_text_longer_than_the_context(pairs, prompts, options, kind):
    model, (ids, mask) = pairs["gpt2"](1).ours, prompts([9, 2, 12, 1, 20])
    given = proposals(pairs, "gpt2", kind, 4)
    made = decode(model, ids, mask, max_new_tokens=40, context=12, **options, **given)
    alone = [decode(model, row[real][None], max_new_tokens=40, context=12, **options, **given)
             for row, real in zip(ids, mask, strict=True)]  # fmt: skip
    assert [n for one in alone for n in one.lengths.tolist()] == made.lengths.tolist()
    if not options or kind == "lookup":
        assert torch.equal(made.ids, decode(model, ids, mask, max_new_tokens=40, context=12, **options).ids)


@pytest.mark.parametrize("window", [5, (None, 5)])
def test_a_sliding_window_and_rows_that_stop(pairs, prompts, window):
    config = presets.gpt2(16, 2, 2, 40, 64)
    stack = replace(config.decoder, position=RotaryPosition(), window=window)
    config = replace(config, decoder=stack, special=SpecialTokens(pad=0, end=(5, 6, 7, 8, 9)))
    models = [heedful.create(config, seed=seed).double() for seed in (0, 0, 1)]
    ids, mask = prompts([9, 2, 12, 1, 20])
    whole = decode(models[0], ids, mask, max_new_tokens=30)
    for other in models[1:]:
        made = decode(models[0], ids, mask, max_new_tokens=30, assistant_model=other)
        assert torch.equal(made.ids, whole.ids)


def test_as_it_comes(pairs, prompts):
    model, (ids, mask) = pairs["gpt2"](1).ours, prompts([7, 2, 5])
    given = proposals(pairs, "gpt2", "near", 3)
    steps = list(stream(model, ids, mask, max_new_tokens=9, **given))
    assert torch.equal(torch.stack(steps, 1), torch.stack(list(stream(model, ids, mask, max_new_tokens=9)), 1))


def test_the_assistant_is_left_as_it_was(pairs, prompts):
    model, (ids, mask) = pairs["gpt2"](1).ours, prompts([7, 2])
    other = assistant(pairs, "gpt2", "near").train()
    generate(model, ids, mask, max_new_tokens=4, assistant_model=other)
    assert all(part.training for part in other.modules())


def test_wrong_assistants_are_refused(pairs, prompts):
    model, (ids, mask) = pairs["gpt2"](1).ours, prompts([7, 2])
    marian = pairs["marian"](1).ours
    small = heedful.create(presets.gpt2(16, 1, 2, 40, 12), seed=0).double()
    wrong = heedful.create("gpt-micro", seed=0)
    cases = [
        (
            {"assistant_model": wrong},
            "the assistant's vocabulary has 65 tokens, the model's 40; give an assistant with the same",
        ),
        ({"assistant_model": marian}, "the assistant is of kind 'encoder-decoder', the model of kind 'decoder'"),
        ({"assistant_model": small}, "the assistant has 12 learned positions, but 36 may be needed"),
        ({"assistant_model": "gpt2"}, "assistant_model is 'gpt2'; give a model that generates"),
        ({"assistant_model": small, "num_beams": 2}, "assistant_model=<Decoder> has no effect on beam decoding"),
        ({"assistant_model": small, "prompt_lookup_num_tokens": 2}, "both propose tokens; give only one"),
        ({"num_assistant_tokens": 2}, "num_assistant_tokens=2 has no effect without assistant_model"),
        ({"prompt_lookup_num_tokens": 2, "num_beams": 2}, "prompt_lookup_num_tokens=2 has no effect on beam decoding"),
    ]
    for options, words in cases:
        with pytest.raises(HeedfulError) as caught:
            decode(model, ids, mask, max_new_tokens=30, **options)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_it_cannot_be_recorded(pairs, prompts):
    model, (ids, mask) = pairs["gpt2"](1).ours, prompts([7, 2])
    other = assistant(pairs, "gpt2", "near")
    for watched, options in ((model, {"assistant_model": other}), (other, {"assistant_model": other}),
                             (model, {"prompt_lookup_num_tokens": 2})):  # fmt: skip
        with pytest.raises(HeedfulError, match="computes several tokens in one forward pass"), heedful.record(watched):
            decode(model, ids, mask, max_new_tokens=3, **options)
    with heedful.record(model) as seen:
        decode(model, ids, mask, max_new_tokens=3)
    assert seen
