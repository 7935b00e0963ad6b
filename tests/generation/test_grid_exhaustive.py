"""Wide beams under early_stopping="never" against all there is: every sequence over a toy vocabulary, scored anew.

The oracle writes the rules down as a definition, over whole sequences: nothing of the processors is used.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

import heedful
from heedful import presets
from heedful.config import SpecialTokens
from heedful.generation import decode
from tolerances import approx

V, END, MOST, BEST = 5, 4, 4, 8
LETTERS = "ab.c"  # of the tokens 0 to 3; the end token has no text
Tokens = tuple[int, ...]


class Letters:
    """The least that stop strings need."""

    def decode(self, rows: Any) -> list[str]:
        return ["".join(LETTERS[one] for one in row if one < len(LETTERS)) for row in rows]


def toy(family: str, seed: int) -> Any:
    special = SpecialTokens(pad=0, start=1, end=(END,))
    if family == "decoder":
        config: Any = replace(presets.llama(16, 1, 2, 1, 24, V, length=32), special=special)
    else:
        config = presets.transformer(16, 1, 2, 32, V, special=special)
    model = heedful.create(config, seed=seed).double().eval()
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=random, dtype=p.dtype) * 0.4)
    return model


def allowed(tokens: Tokens, before: Tokens, given: Tokens, options: dict[str, Any]) -> bool:
    """True for a sequence that keeps the rules, ends where it must, and not before it may."""
    stop = any(string in Letters().decode([tokens])[0] for string in options.get("stop_strings", ()))
    early = any(
        string in Letters().decode([tokens[:n]])[0]
        for n in range(len(tokens))
        for string in options.get("stop_strings", ())
    )
    if early or END in tokens[:-1] or not (tokens[-1] == END or stop or len(tokens) == MOST):
        return False
    if tokens[-1] == END and len(tokens) - 1 < options.get("min_new_tokens", 0):
        return False
    if tokens[-1] == END and len(before) + len(tokens) - 1 < options.get("min_length", 0):
        return False
    size = options.get("no_repeat_ngram_size", 0)
    whole = before + tokens
    if size and any(
        whole[n - size : n] in [whole[m : m + size] for m in range(n - size)]
        for n in range(len(before) + 1, len(whole) + 1)
    ):
        return False
    size = options.get("encoder_no_repeat_ngram_size", 0)
    grams = {given[n : n + size] for n in range(len(given) - size + 1)} if size else set()
    if any(whole[n - size : n] in grams for n in range(max(len(before) + 1, size), len(whole) + 1)):
        return False
    return not set(tokens) & set(options.get("suppress_tokens", ()))


def exhaustive(model: Any, given: Tokens, penalty: float, options: dict[str, Any]) -> list[tuple[float, Tokens]]:
    """All sequences that keep the rules, best first, with their scores."""
    ids, cross = torch.tensor([given]), hasattr(model, "encode")
    before = (model.config.special.start,) if cross else given
    every = [
        tokens
        for n in range(1, MOST + 1)
        for tokens in product(range(V), repeat=n)
        if allowed(tokens, before, given, options)
    ]
    scored = []
    for n in range(1, MOST + 1):
        rows = torch.tensor([tokens for tokens in every if len(tokens) == n])
        if not len(rows):
            continue
        read = torch.cat((torch.tensor([before]).expand(len(rows), -1), rows[:, :-1]), 1)
        logits = model(ids.expand(len(rows), -1), read) if cross else model(read)
        log_p = logits[:, len(before) - 1 :].log_softmax(-1).gather(2, rows[..., None]).sum((1, 2))
        scored += zip((log_p / n**penalty).tolist(), map(tuple, rows.tolist()), strict=True)
    return sorted(scored, reverse=True)


RULES: list[dict[str, Any]] = [
    {},
    {"min_new_tokens": 2},
    {"min_length": 4},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"encoder_no_repeat_ngram_size": 2},
    {"stop_strings": [".", "ca"]},
    {"stop_strings": ["bb"], "min_new_tokens": 2, "no_repeat_ngram_size": 3, "suppress_tokens": [3]},
]


FAMILIES, PENALTIES = ("decoder", "encoder-decoder"), (-0.5, 0.0, 0.6, 1.0, 2.0)
FIRST = [  # each rule with both families, each family with all penalties
    (family, PENALTIES[(2 * rule + number) % 5], rule)
    for rule in range(len(RULES))
    for number, family in enumerate(FAMILIES)
]


@pytest.mark.parametrize(
    ("family", "penalty", "rule"), dict.fromkeys([*FIRST, *product(FAMILIES, PENALTIES, range(len(RULES)))])
)
@pytest.mark.full(keep=len(FIRST))
@torch.no_grad()
def test_wide_beams_find_the_best_there_is(family: str, penalty: float, rule: int) -> None:
    rules = RULES[rule]
    model = toy(family, seed=int(penalty * 10) + len(str(rules)))
    rows: tuple[Tokens, ...] = ((1, 2, 3), (3,), (2, 0, 1, 2), (0, 3))
    ids, mask = torch.full((4, 4), 2), torch.zeros(4, 4, dtype=torch.bool)
    for place, row in enumerate(rows):
        ids[place, 4 - len(row) :], mask[place, 4 - len(row) :] = torch.tensor(row), True
    said = {"num_beams": 300, "num_return_sequences": BEST, "length_penalty": penalty, "early_stopping": "never"}
    made = decode(model, ids, mask, max_new_tokens=MOST, tokenizer=Letters(), **said, **rules)
    for place, row in enumerate(rows):
        width = 1 if hasattr(model, "encode") else len(row)
        best = exhaustive(model, row, penalty, rules)[:BEST]
        for rank, (score, tokens) in enumerate(best):
            at = BEST * place + rank
            assert tuple(made.ids[at, width : made.lengths[at]].tolist()) == tokens
            assert made.scores[at].item() == approx(score, "layer", dtype=torch.float64)
        assert made.scores[BEST * place + len(best) : BEST * (place + 1)].isneginf().all()


def test_the_rules_leave_different_sequences() -> None:
    """Or the cases above would be one."""
    model = toy("decoder", 3)
    found = [tuple(tokens for _, tokens in exhaustive(model, (1, 2, 3), 0.6, rules)) for rules in RULES]
    assert len(set(found)) == len(RULES)
