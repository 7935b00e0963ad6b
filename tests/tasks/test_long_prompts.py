"""Prompts longer than a model reads: said, bounded, and the right remedy named."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

import heedful
from answering_folders import made
from heedful.config import AlibiPosition, NoPosition
from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.tasks.text_generation import TextGeneration

LONG = "the saw is a tool, " * 240  # 4,560 characters, as many tokens
HELD = 512  # tokens of a batch here
OPTIONS: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False}


def unlimited(position: Any = None) -> tuple[TextGeneration, Model]:
    """A task and a model neither of which says how much it reads."""
    task, model = made("text-generation")
    assert isinstance(task, TextGeneration)
    config = replace(model.config, decoder=replace(model.config.decoder, position=position or NoPosition()))  # type: ignore[type-var, union-attr]
    return TextGeneration(task.tokenizer, None), heedful.create(config, seed=0).eval()


def test_without_a_limit_as_much_is_read_as_a_batch_holds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.tasks.text_generation.EVALUATED", HELD)
    task, model = unlimited()
    text = LONG[:700]
    with caplog.at_level(logging.WARNING):
        (answer,) = task.predict(model, [text], **OPTIONS)
    assert caplog.messages == [
        "input 0 has 700 tokens, only the last 256 of them are read (a larger batch_tokens reads more)"
    ]
    (tail,) = task.predict(model, [text[-HELD // 2 :]], **OPTIONS)
    assert answer.output[len(text) :] == tail.output[HELD // 2 :]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        (whole,) = task.predict(model, [text], batch_tokens=800, **OPTIONS)
    assert caplog.messages == []
    prompt = torch.tensor(task.tokenizer.encode([text]))
    told = model.generate(prompt, **OPTIONS)[0, prompt.size(1) :]
    assert whole.output[len(text) :] == task.tokenizer.decode([told.tolist()])[0]


def test_the_kept_tokens_of_a_prompt_are_named(caplog: pytest.LogCaptureFixture) -> None:
    task, model = made("text-generation")  # 32 positions
    text = LONG[:40]
    with caplog.at_level(logging.WARNING):
        (answer,) = task.predict(model, [text], context_keep=32, max_new_tokens=9, do_sample=False)
    assert caplog.messages == ["input 0 has 40 tokens, only the last 32 of them are read (the model takes no more)"]
    ids = torch.tensor(task.tokenizer.encode([text]))  # type: ignore[attr-defined]
    for _ in range(9):
        ids = torch.cat((ids, model(ids[:, -32:])[:, -1:].argmax(-1)), 1)
    assert answer.output == task.tokenizer.decode(ids.tolist())[0]  # type: ignore[attr-defined]
    streamed = task.stream(model, text, context_keep=32, max_new_tokens=9, do_sample=False)  # type: ignore[attr-defined]
    assert "".join(streamed) == answer.output


def test_a_table_of_distances_is_bounded(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.tasks.text_generation.EVALUATED", HELD)
    task, model = unlimited(AlibiPosition())
    read: list[int] = []
    model.get_submodule("embedding").register_forward_pre_hook(lambda _, given: read.append(given[0].size(1)))
    with caplog.at_level(logging.WARNING):
        task.predict(model, [LONG, "the saw"], **OPTIONS)
    assert len(caplog.messages) == 1
    assert HELD // 2 <= max(read) < HELD  # so many squared is the table


def test_several_are_told_of_together_and_a_stream_alike(caplog: pytest.LogCaptureFixture) -> None:
    task, model = made("text-generation")
    assert isinstance(task, TextGeneration)
    with caplog.at_level(logging.WARNING):
        answers = task.predict(model, ["the saw", LONG[:50], LONG[:70]], **OPTIONS)
    assert caplog.messages == [
        "2 of 3 inputs have more than 32 tokens, only the last 16 of each are read (the model takes no more)"
    ]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert "".join(task.stream(model, LONG[:50], **OPTIONS)) == answers[1].output
    assert caplog.messages == ["input 0 has 50 tokens, only the last 16 of them are read (the model takes no more)"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "a beam search reads at most the model's 32 tokens; shorten the input, or give num_beams=1"),
        (
            {"penalty_alpha": 0.5, "top_k": 3},
            "contrastive search reads at most the model's 32 tokens; shorten the input, or give penalty_alpha=0",
        ),
    ],
)
def test_each_search_names_its_own_remedy(options: dict[str, Any], message: str) -> None:
    task, model = made("text-generation")
    with pytest.raises(HeedfulError, match=f"^input 1 has 50 tokens, but {message}$"):
        task.predict(model, ["the saw", LONG[:50]], **OPTIONS, **options)
    task, model = unlimited()
    with pytest.raises(HeedfulError, match=r"reads at most 4,096 tokens \(batch_tokens\); shorten the input, or give "):
        task.predict(model, [LONG], **OPTIONS, **options)
