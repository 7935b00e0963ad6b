"""Searches and greedy decoding against transformers in float64, over a grid of options, families and seeds.

Sequences must be equal, and beam scores to 1e-9. Where two tokens, or two hypotheses, lie within 1e-5 of each other
either may come: then the gap is computed from both sides' scores. The whole grid is 3,864 cases of four prompts of
mixed lengths, each decoded by us in a batch padded on either side, by transformers alone:

    HEEDFUL_GRID=full pytest -n0 -rP tests/generation/test_grid_transformers.py    # about 25 minutes; else every 23rd

Each test prints how many of its cases were equal and how many diverged, with the largest gap.
"""

from __future__ import annotations

import os
from itertools import product
from typing import Any

import pytest
import torch

from tolerances import approx

pytest.importorskip("transformers")
from grid_models import ENDS, FAMILIES, PAD, ROWS, STEPS, both, ours_together, theirs_alone

FULL = os.environ.get("HEEDFUL_GRID") == "full"
SEEDS = (0, 1, 2)
PART = 23  # without the whole grid every so manieth case, others in each family and seed

SEARCHES: list[dict[str, Any]] = [
    {"num_beams": beams, "length_penalty": penalty, "early_stopping": early, "num_return_sequences": beams}
    for beams, penalty, early in product((2, 4, 8), (0.0, 0.6, 1.0, 2.0), (False, True, "never"))
]
RULES: list[dict[str, Any]] = [
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.8},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7},
    {"presence_penalty": -0.6, "frequency_penalty": 0.9},
    {"min_new_tokens": 6},
    {"min_length": 9},
    {"suppress_tokens": [7, 12, 18, 31, 36]},
    {"begin_suppress_tokens": [5, 11, 9, 18, 31], "min_new_tokens": 2},
    {"bad_words_ids": [[5], [18, 18], [36], [2, 7, 1]]},
    {"forced_eos_token_id": 5},
    {"forced_eos_token_id": 5, "forced_bos_token_id": 9, "no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "min_new_tokens": 3, "suppress_tokens": [30]},
    {"min_length": 7, "bad_words_ids": [[20], [24]], "encoder_no_repeat_ngram_size": 2, "frequency_penalty": 0.3},
]
UNDER_RULES = [
    {},
    {"num_beams": 2, "num_return_sequences": 2},
    {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.6, "early_stopping": True},
    {"num_beams": 4, "length_penalty": 2.0, "early_stopping": "never"},
    {"num_beams": 8, "num_return_sequences": 8, "length_penalty": 0.0},
]
LENGTHS: list[dict[str, Any]] = [{"max_new_tokens": STEPS}, {"max_new_tokens": 1}, {"max_length": 12}]
GRID: list[dict[str, Any]] = [
    {},
    *SEARCHES,
    *({**search, **rule} for rule, search in product(RULES, UNDER_RULES)),
    *({**search, **length} for length, search in product(LENGTHS[1:], UNDER_RULES[1:])),
    *({**search, **rule, "max_length": 14} for rule, search in product(RULES[10:12], UNDER_RULES[:2])),
    *({**UNDER_RULES[2], **rule, **search} for rule, search in product(RULES[:10], SEARCHES[1:36:9])),
]
CLOSE = 1e-5


def gap(index: int, ours: Any, theirs: Any) -> float:
    """Difference of the scores of the two answers at rank ``index``; of greedy decoding, where their tokens part."""
    (our_rows, our_scores), (their_rows, their_scores, steps) = ours, theirs
    if their_scores:
        return abs(our_scores[index] - their_scores[index])
    pairs = enumerate(zip(our_rows[index], their_rows[index], strict=False))
    place, (mine, other) = next(((n, pair) for n, pair in pairs if pair[0] != pair[1]), (0, (0, 0)))
    return abs(float(steps[place][0, mine] - steps[place][0, other])) if mine != other else float("inf")


@pytest.mark.parametrize(("family", "seed"), [*product(FAMILIES, SEEDS)])
@pytest.mark.full(keep=5)
def test_as_transformers(family: str, seed: int) -> None:
    pair, equal, gaps = both(family, seed), 0, []
    first = 5 * SEEDS.index(seed) + 3 * list(FAMILIES).index(family)
    for case in GRID if FULL else GRID[first % PART :: PART]:
        options = {**({} if "max_length" in case else LENGTHS[0]), **case}
        expected = [theirs_alone(pair, row, **options) for row in ROWS]
        for side in ("left", "right"):
            found = ours_together(pair, ROWS, side, **options)
            for place, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
                for index, (mine, other) in enumerate(zip(ours[0], theirs[0], strict=True)):
                    said = f"{family} {seed} {side} prompt {place} rank {index} {options}: {mine}, theirs {other}"
                    if mine != other:
                        gaps.append(gap(index, ours, theirs))
                        assert gaps[-1] < CLOSE, f"{said}, {gaps[-1]} apart"
                        break  # what ranks below depends on it
                    equal += 1
                    if theirs[1]:
                        assert ours[1][index] == approx(theirs[1][index], dtype=torch.float64), said
    print(f"{family} {seed}: {equal} sequences equal, {len(gaps)} diverged, gap at most {max(gaps, default=0.0)}")
    assert equal > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_grid_is_not_degenerate(family: str) -> None:
    """Sentences end at different steps and say different things, or equality would prove little."""
    rows = [row for seed in SEEDS for found in ours_together(both(family, seed), ROWS, "left", num_beams=2,
            num_return_sequences=2, max_new_tokens=STEPS) for row in found[0]]  # fmt: skip
    assert len(set(map(len, rows))) > 3
    assert len({row[-1] for row in rows if row[-1] in ENDS}) > 1
    assert len({token for row in rows for token in row}) > 12
    assert PAD not in ENDS
    assert torch.float64 == both(family).ours.dtype
