"""Samples are as frequent as transformers' processors, in their order, say.

A G-test (Sokal and Rohlf 1995): G = 2 Σ n log(n / e) over the tokens expected at least five times, rarer ones together,
is chi-squared with one degree of freedom less than there are classes. Seeds are fixed, so a case either always passes
or never does; with a right sampler a seed would fail one with probability ALARM. That a wrong order of processors would
be found is tested as well.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from grid_models import CountPenalty, both
from torch import Tensor

from heedful.generation import decode

ALARM = 1e-6
COUNT = 6000
PROMPTS = {"gpt2": (9, 30, 12, 30, 33), "llama": (14, 7, 7, 31), "t5": (31, 22, 22, 6, 17)}
CASES: list[dict[str, Any]] = [
    {"do_sample": True},
    {"temperature": 2.5},
    {"top_k": 7, "temperature": 1.7},
    {"top_p": 0.9, "temperature": 3.0},
    {"min_p": 0.05, "temperature": 2.0},
    {"typical_p": 0.85, "temperature": 2.5},
    {"top_k": 12, "top_p": 0.8, "temperature": 3.0},
    {"top_k": 20, "top_p": 0.95, "min_p": 0.08, "temperature": 3.0},
    {"top_p": 0.9, "typical_p": 0.8, "temperature": 3.0},
    {"repetition_penalty": 1.5, "top_p": 0.85, "temperature": 2.5},
    {"no_repeat_ngram_size": 1, "top_k": 9, "temperature": 2.0},
    {"suppress_tokens": [18, 34, 5, 11, 20], "top_p": 0.8, "temperature": 2.5},
    {"presence_penalty": 2.0, "frequency_penalty": 1.0, "top_k": 10, "temperature": 2.0},
    {"bad_words_ids": [[10], [30, 12]], "repetition_penalty": 0.7, "top_k": 15, "min_p": 0.02, "temperature": 2.0},
]


def expected(scores: Tensor, ids: Tensor, given: Tensor, prompt: int, options: dict[str, Any]) -> Tensor:
    """Probabilities (V,) of the token after ``ids``, by their processors in their order."""
    options = dict(options)
    counts = options.pop("presence_penalty", 0.0), options.pop("frequency_penalty", 0.0)
    more = transformers.LogitsProcessorList([CountPenalty(prompt, *counts)] if any(counts) else [])
    said = {"top_k": 0, **options, "do_sample": True}  # theirs takes 50 where nobody says
    config = transformers.GenerationConfig(**said)
    model = both("gpt2").hub_name
    model._prepare_special_tokens(config, device="cpu")
    processors = model._get_logits_processor(
        config, prompt, encoder_input_ids=given, prefix_allowed_tokens_fn=None, logits_processor=more, device="cpu"
    )
    return processors(ids, scores.clone()[None])[0].softmax(0)


def tail(counts: Tensor, p: Tensor) -> float:
    """Probability of a G at least as large as that of ``counts`` (V,), under the probabilities ``p``."""
    wanted = p * counts.sum()
    often = wanted >= 5
    seen = torch.cat((counts[often], counts[~often].sum()[None]))
    wanted = torch.cat((wanted[often], wanted[~often].sum()[None]))
    if wanted[-1] < 5:  # too rare even together: beside the rarest of the others
        place = int(wanted[:-1].argmin())
        seen[place], wanted[place] = seen[place] + seen[-1], wanted[place] + wanted[-1]
        seen, wanted = seen[:-1], wanted[:-1]
    assert len(seen) > 2, f"{len(seen)} classes would prove little"
    g = 2 * torch.xlogy(seen, seen / wanted).sum()
    return float(torch.special.gammaincc(torch.tensor((len(seen) - 1) / 2, dtype=torch.float64), g / 2))


@torch.no_grad()
def logits_after(pair: Any, given: Tensor, ids: Tensor) -> Tensor:
    out = pair.ours(given, ids) if pair.prefix else pair.ours(ids)
    return out[0, -1]


EVERY = [(family, case) for case in range(len(CASES)) for family in PROMPTS]
FIRST = [([*PROMPTS][case % len(PROMPTS)], case) for case in range(len(CASES))]


@pytest.mark.parametrize(("family", "case"), dict.fromkeys([*FIRST, *EVERY]))
@pytest.mark.full(keep=len(FIRST))
def test_the_first_token_and_the_second_after_the_most_frequent_first(family: str, case: int) -> None:
    options = CASES[case]
    pair, given = both(family), torch.tensor([PROMPTS[family]])
    free = {"suppress_tokens": [5, 11, 20], **options}  # no row ends with its first token
    call = {"max_new_tokens": 2, "num_return_sequences": COUNT, "seed": 7, **free}
    made = decode(pair.ours, given, **call).ids
    prompt = given if pair.prefix is None else made[:1, :1]
    width = prompt.size(1)
    p = expected(logits_after(pair, given, prompt), prompt, given, width, free)
    counts = torch.bincount(made[:, width], minlength=len(p)).double()
    assert counts[p == 0].sum() == 0
    assert tail(counts, p) > ALARM
    first = int(counts.argmax())
    rows = made[made[:, width] == first]
    ids = rows[:1, : width + 1]
    p = expected(logits_after(pair, given, ids), ids, given, width, free)
    counts = torch.bincount(rows[:, width + 1], minlength=len(p)).double()
    assert counts[p == 0].sum() == 0
    assert tail(counts, p) > ALARM


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"temperature": 3.0}, {"top_p": 0.8}),
        ({"temperature": 3.0}, {"min_p": 0.05}),
        ({"repetition_penalty": 1.5}, {"top_p": 0.85, "temperature": 2.5}),
        ({"temperature": 2.5}, {"typical_p": 0.85}),
        ({"top_p": 0.9, "temperature": 2.5}, {"min_p": 0.15}),
    ],
    ids=str,
)
def test_another_order_would_be_found(one: dict[str, Any], other: dict[str, Any]) -> None:
    """The power of the test: what comes in the right order is refused as a sample of the wrong one."""
    pair, given = both("gpt2"), torch.tensor([PROMPTS["gpt2"]])
    made = decode(
        pair.ours, given, max_new_tokens=1, num_return_sequences=COUNT, seed=7, do_sample=True, **one, **other
    )
    scores = logits_after(pair, given, given)
    for turned in (False, True):
        parts = [other, one] if turned else [{**one, **other}]
        p = scores
        for part in parts:
            p = expected(p, given, given, given.size(1), part).log()
        counts = torch.bincount(made.ids[:, -1], minlength=len(p)).double()
        found = 0.0 if (counts[p.isneginf()] > 0).any() else tail(counts, p.exp())
        assert (found < ALARM) == turned
