"""Words that must occur: against all texts of a toy vocabulary, and in batches of larger models."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch

import heedful
from heedful import presets
from heedful.config import SpecialTokens
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.generation.options import resolve
from tolerances import approx, assert_close

V, END = 5, 4
LENGTHS = [7, 2, 5, 1, 7]
FORCED = {
    "one": [[2]],
    "two tokens": [[2, 3]],
    "two words": [[3], [2, 1]],
    "the same twice in it": [[2, 2, 3]],
    "sharing": [[2, 3], [3, 1]],
    "either": [[[2, 3], [1, 1]]],
    "either and another": [[[2, 3], [1]], [[0]]],
}


@pytest.fixture
def toy():
    """Tiny models over five symbols, one of which ends."""

    def make(family, seed):
        special = SpecialTokens(pad=0, start=1, end=(END,))
        if family == "decoder":
            config = replace(presets.gpt2(16, 1, 2, V, 32), special=special)
        else:
            config = presets.transformer(16, 1, 2, 32, V, special=special)
        model = heedful.create(config, seed=seed).double().eval()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed), dtype=p.dtype) * 0.4)
        return model

    return make


def contains(tokens, word):
    return any(tuple(tokens[i : i + len(word)]) == tuple(word) for i in range(len(tokens)))


def meets(tokens, forced):
    lists = [one if isinstance(one[0], list) else [one] for one in forced]
    return all(any(contains(tokens, word) for word in alternatives) for alternatives in lists)


@torch.no_grad()
def exhaustive(model, ids, most, penalty, forced):
    """All texts with the words that end within ``most`` tokens, or are that long, best first: [(score, tokens)]."""
    every = [t for n in range(1, most + 1) for t in product(range(V), repeat=n) if END not in t[:-1]]
    every = [t for t in every if (t[-1] == END or len(t) == most) and meets(t, forced)]
    scored = []
    for length in range(1, most + 1):
        group = [t for t in every if len(t) == length]
        if not group:
            continue
        tail, rows = torch.tensor(group), ids.expand(len(group), -1)
        if hasattr(model, "encode"):
            start = torch.full((len(group), 1), model.config.special.start)
            logits = model(rows, torch.cat((start, tail[:, :-1]), 1))
        else:
            logits = model(torch.cat((rows, tail[:, :-1]), 1))[:, ids.size(1) - 1 :]
        log_p = logits.log_softmax(-1).gather(2, tail[..., None])[..., 0].sum(1)
        scored += zip((log_p / length**penalty).tolist(), group, strict=True)
    return sorted(scored, reverse=True)


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("forced", FORCED.values(), ids=FORCED)
def test_wide_beams_find_what_exhaustive_search_finds(toy, family, forced):
    rows = torch.tensor([[1, 2, 3], [3, 0, 0], [2, 2, 2]])
    real = torch.tensor([[True] * 3, [True, False, False], [True] * 3])
    for penalty in (0.0, 1.0):
        model = toy(family, seed=int(penalty) + 5)
        options = {"num_beams": 150, "num_return_sequences": 3, "length_penalty": penalty, "early_stopping": "never"}
        made = decode(model, rows, real, max_new_tokens=4, force_words_ids=forced, **options)
        prompt = [1, 1, 1] if hasattr(model, "encode") else real.sum(1).tolist()
        for i, row in enumerate(rows):
            best = exhaustive(model, row[real[i]][None], 4, penalty, forced)[:3]
            for k, (score, tokens) in enumerate(best):
                assert tuple(made.ids[3 * i + k, prompt[i] : made.lengths[3 * i + k]].tolist()) == tokens
                assert made.scores[3 * i + k].item() == approx(score, "layer", dtype=torch.float64)


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("beams", [2, 4, 8])
def test_every_returned_text_has_them_alone_and_in_a_batch(pairs, prompts, plain, family, side, beams):
    model, (ids, mask) = pairs[family](1).ours, prompts(LENGTHS, side)
    forced = [[9, 8, 30], [[17], [16, 15]], [33]]
    options = {"num_beams": beams, "max_new_tokens": 10, "force_words_ids": forced}
    made = decode(model, ids, mask, logprobs=True, **options)
    first = [1 if family == "marian" else n for n in LENGTHS]
    for i, row in enumerate(plain(made.ids, made.lengths)):
        new = row[first[i] :]
        assert meets(new, forced)
        assert not meets(plain(*decode(model, ids[i : i + 1], mask[i : i + 1], num_beams=beams, max_new_tokens=10)[:2])
                         [0][first[i] :], forced)  # fmt: skip
        alone = decode(model, ids[i][mask[i]][None], **options)
        assert plain(alone.ids, alone.lengths) == [row]
        assert_close(made.logprobs[i].sum() / len(new), made.scores[i])


def test_words_that_come_by_themselves_change_nothing(pairs, prompts, plain):
    model, (ids, mask) = pairs["gpt2"](0).ours, prompts([6])
    usual = decode(model, ids, mask, num_beams=4, max_new_tokens=8, early_stopping=True)
    word = plain(usual.ids, usual.lengths)[0][7:9]
    made = decode(model, ids, mask, num_beams=4, max_new_tokens=8, early_stopping="never", force_words_ids=[word])
    assert made.scores[0] >= usual.scores[0] - 1e-12


def test_under_rules(pairs, prompts, plain):
    model, (ids, mask) = pairs["marian"](2).ours, prompts(LENGTHS, "right")
    rules = {"no_repeat_ngram_size": 2, "min_new_tokens": 6, "bad_words_ids": [[30]], "length_penalty": 0.5}
    made = decode(model, ids, mask, num_beams=4, max_new_tokens=12, force_words_ids=[[9, 8], [8, 7]], **rules)
    for row in plain(made.ids, made.lengths):
        new = row[1:]
        assert meets(new, [[9, 8], [8, 7]])
        assert 30 not in new
        pairs_of = list(pairwise(new))
        assert len(set(pairs_of)) == len(pairs_of)
        assert len(new) >= 6


def test_recording(pairs, prompts):
    model, (ids, mask) = pairs["gpt2"](1).ours.eval(), prompts(LENGTHS)
    name = "decoder.block.1.attention.pattern"
    with heedful.record(model, name) as seen:
        made = decode(model, ids, mask, max_new_tokens=6, num_beams=4, force_words_ids=[[9, 8]])
    for i, (row, n) in enumerate(zip(made.ids, made.lengths.tolist(), strict=True)):
        with heedful.record(model, name) as whole:
            model(row[None, : n - 1])
        first = LENGTHS[i] - 1
        assert_close(seen[name][i, :, : n - 1 - first, : n - 1], whole[name][0, :, first:])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"force_words_ids": [[3]]}, "force_words_ids=[[3]] has no effect on greedy decoding; give num_beams"),
        ({"force_words_ids": [[]], "num_beams": 2}, "force_words_ids is [[]]; give a list of lists of token ids"),
        ({"force_words_ids": [3], "num_beams": 2}, "force_words_ids is [3]; give a list of lists"),
        ({"force_words_ids": [[[3], []]], "num_beams": 2}, "none empty"),
        ({"force_words_ids": [[]], "top_p": 0.5}, "force_words_ids is [[]]"),
    ],
)
def test_wrong_words_are_refused(call, words):
    with pytest.raises(HeedfulError) as caught:
        resolve(call)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_words_that_cannot_be(pairs, prompts):
    model, (ids, mask) = pairs["gpt2"](1).ours, prompts([5, 3])
    for options, words in (
        (
            {"force_words_ids": [[7, 8, 9]], "max_new_tokens": 2},
            "prompt 0: no text of 2 tokens with all force_words_ids",
        ),
        ({"force_words_ids": [[70]]}, "force_words_ids has id 70, but the model has 40 tokens"),
        ({"force_words_ids": [[7, 5]]}, "force_words_ids has the end token 5"),
        ({"force_words_ids": [[7]], "suppress_tokens": [7], "max_new_tokens": 4}, "with all force_words_ids was found"),
    ):
        with pytest.raises(HeedfulError) as caught:
            decode(model, ids, mask, num_beams=3, **options)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
