"""Diverse beam search against the same search written out with lists, a sentence at a time."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

import heedful
from heedful.errors import HeedfulError
from heedful.generation import decode, stream
from heedful.generation.options import resolve
from tolerances import approx, assert_close

LENGTHS = [7, 2, 5, 1, 7]
ENDS = (5, 11, 20)


@torch.no_grad()
def by_hand(model, prompt, steps, beams, groups, strength, penalty, early):
    """[(score, tokens)], best first: every beam a whole forward pass."""
    model.eval()
    size = beams // groups

    def log_p(tokens):
        if hasattr(model, "encode"):
            logits = model(torch.tensor([prompt]), torch.tensor([[3, *tokens]]))
        else:
            logits = model(torch.tensor([[*prompt, *tokens]]))
        return logits[0, -1].log_softmax(0)

    running = [[(0.0, ())] for _ in range(groups)]
    found = [[] for _ in range(groups)]
    over = [False] * groups
    for step in range(1, steps + 1):
        said = Counter()
        for g in range(groups):
            if over[g]:
                continue
            every = []
            for total, tokens in running[g]:
                scores = log_p(tokens)
                every += [(total + float(scores[v]) - strength * said[v], (*tokens, v)) for v in range(len(scores))]
            every.sort(reverse=True)
            every = every[: (1 + len(ENDS)) * size]
            ended = [t[-1] in ENDS or step == steps for _, t in every]
            found[g] += [(s / step**penalty, t) for (s, t), e in list(zip(every, ended, strict=True))[:size] if e]
            found[g] = sorted(found[g], reverse=True)[:size]
            running[g] = [one for one, e in zip(every, ended, strict=True) if not e][:size]
            said.update(t[-1] for _, t in running[g])
            worst = found[g][-1][0] if len(found[g]) == size else -math.inf
            if not running[g]:
                over[g] = True
            elif early is True:
                over[g] = worst > -math.inf
            else:
                longest = steps if early == "never" and penalty > 0 else step
                over[g] = running[g][0][0] / longest**penalty <= worst
    return sorted((one for group in found for one in group), reverse=True)


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize(
    ("beams", "groups", "strength", "penalty", "early"),
    [(4, 2, 0.5, 1.0, False), (6, 3, 2.0, 0.6, True), (3, 3, 1.0, 2.0, "never"), (4, 2, 5.0, 0.0, False)],
)
def test_as_written_out(pairs, prompts, plain, family, beams, groups, strength, penalty, early):
    for seed in range(2):
        model, (ids, mask) = pairs[family](seed).ours, prompts(LENGTHS, "right", seed)
        options = {"num_beams": beams, "num_beam_groups": groups, "diversity_penalty": strength}
        options |= {"length_penalty": penalty, "early_stopping": early, "num_return_sequences": beams}
        made = decode(model, ids, mask, max_new_tokens=6, **options)
        rows, first = plain(made.ids, made.lengths), [1 if family == "marian" else n for n in LENGTHS]
        for i, (row, real) in enumerate(zip(ids, mask, strict=True)):
            best = by_hand(model, row[real].tolist(), 6, beams, groups, strength, penalty, early)
            assert [tuple(one[first[i] :]) for one in rows[i * beams : (i + 1) * beams]] == [t for _, t in best]
            assert made.scores[i * beams : (i + 1) * beams].tolist() == approx(
                [s for s, _ in best], dtype=torch.float64
            )


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_a_row_is_the_same_alone_under_rules_and_on_either_side(pairs, prompts, plain, family):
    model = pairs[family](1).ours
    options = {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.7, "num_return_sequences": 4}
    options |= {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2, "max_new_tokens": 9}
    options |= {"begin_suppress_tokens": [4], "forced_eos_token_id": 5, "encoder_no_repeat_ngram_size": 3}  # by prompt
    left, right = (decode(model, *prompts(LENGTHS, side), logprobs=True, **options) for side in ("left", "right"))
    assert torch.equal(left.ids, right.ids)
    assert_close(left.logprobs, right.logprobs)
    ids, mask = prompts(LENGTHS)
    for i in range(len(ids)):
        alone = decode(model, ids[i][mask[i]][None], **options)
        assert plain(alone.ids, alone.lengths) == plain(left.ids, left.lengths)[4 * i : 4 * i + 4]


def test_the_log_probabilities_are_the_model_s(pairs, prompts):
    model, (ids, mask) = pairs["gpt2"](1).ours.eval(), prompts(LENGTHS)
    options = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 3.0, "num_return_sequences": 4}
    made = decode(model, ids, mask, logprobs=True, max_new_tokens=6, **options)
    for i, (row, n) in enumerate(zip(made.ids, made.lengths.tolist(), strict=True)):
        with torch.no_grad():
            log_p = model(row[None, : n - 1])[0].log_softmax(1).gather(1, row[1:n, None])[:, 0]
        first = LENGTHS[i // 4]
        assert_close(made.logprobs[i, first:n], log_p[first - 1 :])


def test_groups_differ_more_than_beams(pairs, prompts):
    model, (ids, mask) = pairs["gpt2"](2).ours, prompts([6] * 4)
    asked = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 8}
    firsts = [
        len({int(row[6]) for row in decode(model, ids[:1], mask[:1], **asked, **more).ids})
        for more in ({"num_beam_groups": 4, "diversity_penalty": 50.0}, {})
    ]
    assert firsts[0] == 4 > firsts[1]


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_recording(pairs, prompts, family):
    model, (ids, mask) = pairs[family](1).ours.eval(), prompts(LENGTHS)
    name = "decoder.block.1.attention.pattern"
    with heedful.record(model, name) as seen:
        made = decode(
            model, ids, mask, max_new_tokens=6, num_beams=4, num_beam_groups=2, diversity_penalty=1.0,
            num_return_sequences=3,
        )  # fmt: skip
    for i, (row, n) in enumerate(zip(made.ids, made.lengths.tolist(), strict=True)):
        text, k = row[None, : n - 1], i // 3
        with heedful.record(model, name) as whole:
            model(*((ids[k][mask[k]][None], text) if family == "marian" else (text,)))
        first = 0 if family == "marian" else LENGTHS[k] - 1
        assert_close(seen[name][i, :, : n - 1 - first, : n - 1], whole[name][0, :, first:])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"num_beam_groups": 2}, "num_beam_groups=2 has no effect on greedy decoding; give num_beams"),
        ({"num_beams": 5, "num_beam_groups": 2, "diversity_penalty": 1.0}, "num_beams=5 is not a multiple of"),
        ({"num_beams": 4, "num_beam_groups": 2}, "would all choose the same tokens; give diversity_penalty above 0"),
        ({"num_beams": 4, "diversity_penalty": 1.0}, "diversity_penalty=1.0 has no effect without num_beam_groups"),
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": -1.0},
            "diversity_penalty is -1.0; give a number of 0 or more",
        ),
        (
            {"num_beams": 4, "num_beam_groups": 2, "do_sample": True},
            "num_beams=4 is for beam search, do_sample for sampling",
        ),
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0, "force_words_ids": [[7]]},
            "force_words_ids and num_beam_groups=2 cannot be used together",
        ),
    ],
)
def test_wrong_options_are_refused(call, words):
    with pytest.raises(HeedfulError) as caught:
        resolve(call)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_s_groups_are_for_a_search():
    folder = {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}
    assert resolve({}, folder).variant.name == "diverse beam"
    assert resolve({"num_beams": 1}, folder).variant.name == "greedy"
    assert resolve({"num_beam_groups": 1}, folder).variant.name == "beam"
    with pytest.raises(HeedfulError, match="num_beams=4"):
        stream(heedful.create("gpt-micro", seed=0), torch.tensor([[1]]), defaults=folder)
