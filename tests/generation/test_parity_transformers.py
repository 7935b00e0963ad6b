"""Equal output to transformers: sequences and scores, in float64, on tiny random models."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from heedful.generation import decode, generate

LENGTHS = [9, 4, 6, 9, 1, 5]
PAD = 3
SIDE = {"gpt2": "left", "marian": "right"}  # as transformers wants them
RULES = [
    {},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"min_new_tokens": 5},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
]


def unpadded(row):
    """The reference cannot tell a generated pad token at the very end from padding."""
    while row[1:] and row[-1] == PAD:
        row = row[:-1]
    return row


def same(pair, plain, ids, mask, **options):
    rows, scores = pair.reference(ids, mask, **options)
    made = decode(pair.ours, ids, mask, **options)
    assert [unpadded(row) for row in plain(made.ids, made.lengths)] == [unpadded(row) for row in rows]
    if scores is not None:
        assert made.scores.dtype == torch.float64
        assert (made.scores - scores).abs().max() < 1e-5
    return rows


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_the_references_are_not_degenerate(pairs, prompts, family):
    rows = [
        row
        for seed in range(4)
        for row in pairs[family](seed).reference(*prompts(LENGTHS, SIDE[family]), max_new_tokens=12)[0]
    ]
    assert len({tuple(row[-3:]) for row in rows}) > 10
    assert len({len(row) for row in rows}) > 4


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_greedy(pairs, plain, prompts, family, rules):
    if family == "gpt2" and "no_repeat_ngram_size" in rules:
        lengths = [7] * 5  # transformers counts padding as a token that must not be repeated
    else:
        lengths = LENGTHS
    for seed in range(3):
        same(pairs[family](seed), plain, *prompts(lengths, SIDE[family], seed), max_new_tokens=12, **rules)


BEAMS, PENALTIES, EARLY = [2, 3, 5], [0.0, 0.6, 1.0, 2.0], [False, True, "never"]
GRID = list(product(BEAMS, PENALTIES, EARLY))
PAIRS = [  # a third of the grid, with each pair of two values
    (beams, penalty, EARLY[(number + other) % 3])
    for number, beams in enumerate(BEAMS)
    for other, penalty in enumerate(PENALTIES)
]


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize(("beams", "penalty", "early"), dict.fromkeys([*PAIRS, *GRID]))
@pytest.mark.full(keep=2 * len(PAIRS))
def test_beams(pairs, plain, prompts, family, beams, penalty, early):
    seed = GRID.index((beams, penalty, early)) % 4
    ids, mask = prompts(LENGTHS, SIDE[family], seed)
    options = {"num_beams": beams, "length_penalty": penalty, "early_stopping": early, "num_return_sequences": 2}
    same(pairs[family](seed), plain, ids, mask, max_new_tokens=12, **options)


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize("rules", RULES[1:], ids=str)
def test_beams_under_rules(pairs, plain, prompts, family, rules):
    for seed in range(2):
        ids, mask = prompts([6] * 4, seed=seed)
        same(pairs[family](seed), plain, ids, mask, max_new_tokens=10, num_beams=3, num_return_sequences=3, **rules)


@pytest.mark.parametrize("family", ["gpt2", "marian"])
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_max_length_counts_the_prompt(pairs, plain, prompts, family, options):
    rows = same(pairs[family](1), plain, *prompts([6] * 4), max_length=14, **options)
    assert max(map(len, rows)) == 14


def test_returned_ids_are_padded_on_the_right(pairs, prompts):
    pair = pairs["gpt2"](0)
    ids, mask = prompts([3, 8, 5], "right")
    made = decode(pair.ours, ids, mask, max_new_tokens=6)
    assert made.ids.dtype == torch.int64
    for row, n, prompt, real in zip(made.ids, made.lengths, ids, mask, strict=True):
        assert (row[n:] == 3).all()
        assert row[: real.sum()].tolist() == prompt[real].tolist()
    assert torch.equal(generate(pair.ours, ids, mask, max_new_tokens=6), made.ids)
