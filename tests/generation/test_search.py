"""Beam search against exhaustive search, and the rules of scoring and stopping."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

import heedful
from heedful import presets
from heedful.config import SpecialTokens
from heedful.generation import decode
from heedful.generation.beam import beam_search, candidates
from heedful.generation.decoder_state import create_state
from heedful.generation.method import MethodInput
from heedful.generation.options import Options
from tolerances import approx, assert_close

V, END = 5, 4


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


def exhaustive(model, ids, most, penalty):
    """All sequences that end within ``most`` tokens, or are that long, best first: [(score, tokens)]."""
    every = [t for n in range(1, most + 1) for t in product(range(V), repeat=n) if END not in t[:-1]]
    every = [t for t in every if t[-1] == END or len(t) == most]
    scored = []
    for tokens in every:
        tail = torch.tensor(tokens)[None]
        if hasattr(model, "encode"):
            start = torch.full((1, 1), model.config.special.start)
            logits = model(ids, torch.cat((start, tail[:, :-1]), 1))
        else:
            logits = model(torch.cat((ids, tail[:, :-1]), 1))[:, ids.size(1) - 1 :]
        log_p = logits.log_softmax(-1).gather(2, tail[..., None]).sum().item()
        scored.append((log_p / len(tokens) ** penalty, tokens))
    return sorted(scored, reverse=True)


@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("penalty", [0.6, 0.0, 1.0, 2.0])
@pytest.mark.full(keep=2)  # test_grid_exhaustive.py has the other penalties
@torch.no_grad()
def test_wide_beams_find_what_exhaustive_search_finds(toy, family, penalty):
    model = toy(family, seed=int(penalty * 10))
    rows = torch.tensor([[1, 2, 3], [3, 0, 0], [2, 2, 2]])
    real = torch.tensor([[True] * 3, [True, False, False], [True] * 3])
    options = {"num_beams": 400, "num_return_sequences": 6, "length_penalty": penalty, "early_stopping": "never"}
    made = decode(model, rows, real, max_new_tokens=4, **options)
    prompt = [1, 1, 1] if hasattr(model, "encode") else real.sum(1).tolist()
    for i, row in enumerate(rows):
        best = exhaustive(model, row[real[i]][None], 4, penalty)[:6]
        for k, (score, tokens) in enumerate(best):
            found = made.ids[6 * i + k, prompt[i] : made.lengths[6 * i + k]]
            assert made.scores[6 * i + k].item() == approx(score, "layer", dtype=torch.float64)
            assert tuple(found.tolist()) == tokens


@torch.no_grad()
def test_fewer_sequences_than_asked_for_score_minus_infinity(toy):
    made = decode(toy("decoder", 3), torch.tensor([[1, 2]]), max_new_tokens=1, num_beams=8, num_return_sequences=7)
    assert made.lengths.tolist() == [3] * 5 + [2] * 2
    assert made.scores.isneginf().tolist() == [False] * 5 + [True] * 2


def test_candidates_are_the_best_of_all_continuations():
    random = torch.Generator().manual_seed(0)
    log_p = torch.randn(6, 1000, generator=random, dtype=torch.float64).log_softmax(1)
    running = torch.randn(2, 3, generator=random, dtype=torch.float64)
    sums, parents, tokens = candidates(log_p, running, 7)
    every = (log_p.view(2, 3, 1000) + running[:, :, None]).flatten(1).topk(7)
    assert torch.equal(sums, every.values)
    assert torch.equal(parents * 1000 + tokens, every.indices)


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_one_beam_is_greedy(pairs, prompts, family):
    model, (ids, mask) = pairs[family](1).ours.eval(), prompts([5, 8, 2, 8])
    greedy = decode(model, ids, mask, max_new_tokens=12)
    with torch.inference_mode():
        state = create_state(model, ids, mask)
        state.make_cache(None)
        limits, end_ids = torch.full((4,), 12), torch.tensor(model.config.special.end)
        inputs = MethodInput(state=state, options=Options(), processors=[], limits=limits, end_ids=end_ids)
        best, scores, _ = beam_search(inputs)
    assert (best >= 0).sum(1).tolist() == greedy.lengths.tolist()
    for row, mine in zip(best, greedy.ids, strict=True):
        tokens = row[row >= 0].tolist()
        assert tokens == mine[: len(tokens)].tolist()
    assert_close(scores, greedy.scores, "layer")


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@torch.no_grad()
def test_a_score_counts_the_end_and_not_what_stood_before(pairs, prompts, family):
    model, (ids, mask) = pairs[family](0).ours.eval(), prompts([5, 8, 2, 8])
    made = decode(model, ids, mask, max_new_tokens=9, num_beams=4, length_penalty=0.6)
    for i, score in enumerate(made.scores.tolist()):
        tokens = made.ids[i, : made.lengths[i]]
        source = ids[i][mask[i]][None]
        before = 1 if hasattr(model, "encode") else source.size(1)
        own = (source, tokens[None, :-1]) if hasattr(model, "encode") else (tokens[None, :-1],)
        log_p = model(*own)[0, before - 1 :].log_softmax(-1)
        new = tokens[before:]
        assert score == approx(log_p.gather(1, new[:, None]).sum().item() / len(new) ** 0.6, dtype=torch.float64)
