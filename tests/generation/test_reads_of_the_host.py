"""A host that looks at every eighth token alone which rows have ended changes no token, length, score or call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import heedful
from heedful.generation import decoding
from heedful.generation.processors import NoBadWords
from tolerances import assert_close

IDS = torch.tensor([[9, 14, 33, 7], [8, 30, 11, 47], [55, 6, 24, 13], [3, 3, 4, 4]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]]).bool()


def model_with_many_ends(name: str) -> Any:
    model = heedful.create(name, seed=0).eval()
    ends = tuple(range(0, 65 if name == "gpt-micro" else 512, 13))
    model.config = replace(model.config, special=replace(model.config.special, end=ends))
    return model


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True, "seed": 3},
        {"do_sample": True, "seed": 1, "num_return_sequences": 3, "max_length": 17},
        {"do_sample": True, "seed": 2, "context": 9},
        {"repetition_penalty": 1.5},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"do_sample": True, "seed": 4, "max_new_tokens": 1},
    ],
)
@pytest.mark.parametrize("name", ["gpt-micro", "stories260k"])
def test_nothing_changes(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with_many_ends(name)
    options = {**({} if "max_length" in options else {"max_new_tokens": 30}), **options}
    each = decoding.decode(model, IDS, MASK, logprobs=True, **options)
    monkeypatch.setattr(decoding, "tokens_between_reads", lambda device: 8)
    eighth = decoding.decode(model, IDS, MASK, logprobs=True, **options)
    assert torch.equal(eighth.ids, each.ids)
    assert torch.equal(eighth.lengths, each.lengths)
    if options.get("do_sample") and options.get("max_new_tokens") != 1:
        assert len(set(each.lengths.tolist())) > 1, "all rows end together"
    assert each.logprobs is not None
    assert eighth.logprobs is not None
    assert_close(eighth.scores, each.scores, "gradient")  # other rows stay longer: products round otherwise
    assert_close(eighth.logprobs, each.logprobs, "gradient")


def test_recorded_calls_are_those_of_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shapes = model_with_many_ends("gpt-micro"), []
    for count in (1, 8):
        monkeypatch.setattr(decoding, "tokens_between_reads", lambda device, count=count: count)
        with heedful.record(model, "logits") as seen:
            ids = model.generate(IDS[:1], do_sample=True, seed=3, max_new_tokens=30)
        assert ids.size(1) < 34, "ends before its limit"
        shapes.append({name: tensor.shape for name, tensor in seen.items()})
    assert shapes[0] == shapes[1]


def test_a_stream_ends_with_its_last_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with_many_ends("gpt-micro")
    options = {"do_sample": True, "seed": 3, "max_new_tokens": 30}
    expected = torch.stack(list(decoding.stream(model, IDS, MASK, **options)))
    monkeypatch.setattr(decoding, "tokens_between_reads", lambda device: 8)
    assert torch.equal(torch.stack(list(decoding.stream(model, IDS, MASK, **options))), expected)


def test_a_word_outside_the_vocabulary_is_never_forbidden() -> None:
    history, scores = torch.tensor([[1, 2]]), torch.zeros(1, 5)
    words = [[9, 2, 3], [4], [2, 1]]
    expected = torch.tensor([[0.0, float("-inf"), 0.0, 0.0, float("-inf")]])
    assert torch.equal(NoBadWords(words)(history, scores), expected)
