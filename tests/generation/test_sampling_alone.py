"""Of 200 prompts in float32 at least 199 sample the same alone and in a batch; each miss lies on a border.

A token is drawn where the cumulated distribution passes a number. Batches of other sizes round otherwise, so that a
number within rounding of a border may fall on its other side: a miss counts as such only where the distribution,
computed anew in float64, has its border within 1e-5 of the number that was drawn.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful import presets
from heedful.generation import decode
from heedful.generation.token_choice import uniform_numbers
from heedful.optimize_model import optimize

PROMPTS, STEPS, VOCAB, SEED, BORDER = 200, 5, 1000, 11, 1e-5
CONFIGS = {
    "gpt2": lambda: presets.gpt2(48, 2, 4, VOCAB, 64),
    "llama": lambda: presets.llama(48, 2, 4, 2, 96, VOCAB),
    "encoder-decoder": lambda: presets.transformer(48, 2, 4, 96, VOCAB),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "gpt2": {"do_sample": True},
    "llama": {"temperature": 0.8, "top_p": 0.95},
    "encoder-decoder": {"temperature": 1.3, "top_k": 300, "repetition_penalty": 1.2},
}


def model_of(name: str) -> Any:
    """Random weights, sharp enough that some tokens are probable."""
    model = heedful.create(CONFIGS[name](), seed=3).eval()
    random = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.add_(torch.randn(parameter.shape, generator=random) * 0.12)
    return model


def prompts_of(side: str) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 24, (PROMPTS,), generator=random).tolist()
    ids, mask = torch.full((PROMPTS, 24), 17), torch.zeros(PROMPTS, 24, dtype=torch.bool)
    for row, n in enumerate(lengths):
        where = slice(24 - n, 24) if side == "left" else slice(0, n)
        ids[row, where], mask[row, where] = torch.randint(6, VOCAB, (n,), generator=random), True
    return ids, mask


def sampled(model: Any, ids: Tensor, mask: Tensor | None, **options: Any) -> list[list[int]]:
    """The new tokens of each row."""
    made = decode(model, ids, mask, max_new_tokens=STEPS, seed=SEED, **options)
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    before = torch.ones(len(ids), dtype=torch.int64) if hasattr(model, "encode") else real.sum(1)
    parts = zip(made.ids.tolist(), before.tolist(), made.lengths.tolist(), strict=True)
    return [row[first:last] for row, first, last in parts]


def to_border(model: Any, prompt: Tensor, one: list[int], other: list[int], options: dict[str, Any]) -> float:
    """Distance of the drawn number from the farthest border between the first tokens that differ, in float64."""
    place = next(n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    exact = copy.deepcopy(model).double()
    kept: list[Tensor] = []
    step = 1 + place

    def keep(scores: Tensor, draw: Tensor | None = None) -> Tensor:
        kept.append(scores)
        return torch.tensor([one[min(len(kept) - 1, place)]])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("heedful.generation.sampling.choose", keep)
        decode(exact, prompt, max_new_tokens=step, seed=SEED, **options)
    reached = kept[place][0].softmax(0).cumsum(0)
    number = float(uniform_numbers(prompt, 1, STEPS, SEED)[0, place])
    low, high = sorted((one[place], other[place]))
    return max(abs(float(border) - number) for border in reached[low:high])


@pytest.mark.parametrize("ready", [False, True], ids=["plain", "prepared"])
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.full(keep=2)
def test_two_hundred_prompts_alone_and_in_batches(name: str, ready: bool) -> None:
    plain, options = model_of(name), OPTIONS[name]
    model = optimize(model_of(name)) if ready else plain
    ids, mask = prompts_of("left")
    alone = [sampled(model, row[real][None], None, **options)[0] for row, real in zip(ids, mask, strict=True)]
    assert len({tuple(row) for row in alone}) > 190
    right = prompts_of("right")
    ways = {
        "one batch, left": sampled(model, ids, mask, **options),
        "one batch, right": sampled(model, *right, **options),
        "batches of 16": [
            row for part in torch.arange(PROMPTS).split(16) for row in sampled(model, ids[part], mask[part], **options)
        ],
    }
    for way, rows in ways.items():
        misses = [place for place, (one, row) in enumerate(zip(alone, rows, strict=True)) if one != row]
        print(f"{name}, {way}: {PROMPTS - len(misses)} of {PROMPTS} the same")
        assert len(misses) <= 1, f"{way}: prompts {misses}"
        for place in misses:
            prompt = ids[place][mask[place]][None]
            assert to_border(plain, prompt, alone[place], rows[place], options) < BORDER, f"{way}: prompt {place}"


@pytest.mark.parametrize("name", CONFIGS)
def test_the_distance_to_a_border_is_what_it_says(name: str) -> None:
    """With the draw itself as the witness: a neighbour token is as far away as the cumulated probability says."""
    model, options = model_of(name), OPTIONS[name]
    ids, mask = prompts_of("left")
    prompt = ids[0][mask[0]][None]
    made = sampled(model, prompt, None, **options)[0]
    other = [*made[:2], (made[2] + 200) % VOCAB, *made[3:]]
    assert to_border(model, prompt, made, other, options) > 100 * BORDER
