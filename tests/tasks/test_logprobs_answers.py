"""Log-probabilities of generated tokens, against the model's forward pass over the answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from answering_folders import made
from heedful.errors import HeedfulError
from heedful.generation import generate
from heedful.inference.pipeline import Pipeline
from tolerances import approx

TEXTS = ["the saw is a tool", "a", "the quince, the plum and the pear are", "the drill"]
WAYS: list[dict[str, Any]] = [
    {"do_sample": False},
    {"do_sample": True, "seed": 3, "temperature": 1.5, "top_k": 20},
    {"num_beams": 3, "do_sample": False},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "do_sample": False},
    {"penalty_alpha": 0.4, "top_k": 4, "do_sample": False},
    {"do_sample": False, "repetition_penalty": 1.4},
]


def read(task: Any, model: Any, text: str, options: dict[str, Any]) -> list[float]:
    """log p of each new token, by one reading of all of them, in double precision."""
    if task.name == "text-generation":
        prompt = torch.tensor([task.tokenizer.encode([text])[0] or [task.end]])
        row = generate(model, prompt, defaults=model.generation, max_new_tokens=8, **options)[0]
        first = prompt.size(1)
        logits = model.double()(row[None, :-1])[0]
    else:
        source = torch.tensor([[*task.source.encode([text])[0], task.source.end]])
        row = generate(model, source, defaults=model.generation, max_new_tokens=8, **options)[0]
        first = 1
        logits = model.double()(source, row[None, :-1])[0]
    model.float()
    log_p = logits.log_softmax(-1)
    return [float(log_p[place - 1, row[place]]) for place in range(first, len(row))]


@pytest.mark.parametrize("name", ["translation", "text-generation", "summarization"])
@pytest.mark.parametrize("options", WAYS, ids=lambda way: next(iter(way)))
@torch.no_grad()
def test_each_token_as_the_model_says_it(name: str, options: dict[str, Any]) -> None:
    task, model = made(name, length=64)
    for parameter in model.parameters():  # enough that words end
        parameter.mul_(0.5)
    answers = task.predict(model, TEXTS, logprobs=True, max_new_tokens=8, **options)
    plain = task.predict(model, TEXTS, max_new_tokens=8, **options)
    for text, answer, without in zip(TEXTS, answers, plain, strict=True):
        wanted = read(task, model, text, options)
        assert answer.logprobs == approx(wanted)
        assert 0 < len(wanted) <= 8
        assert answer.output == without.output
        assert without.logprobs is None
        assert "logprobs" not in without.as_dict()
        if "num_beams" not in options:
            assert answer.score == approx(sum(wanted) / len(wanted))


def test_shown_where_asked_for_and_empty_for_nothing() -> None:
    pipe = Pipeline(*made("translation"))
    told = pipe(["the saw", " "], logprobs=True, max_new_tokens=3)
    assert list(told[0]) == ["input", "output", "score", "logprobs"]
    assert 1 <= len(told[0]["logprobs"]) <= 3
    assert all(isinstance(one, float) and one < 0 for one in told[0]["logprobs"])
    assert told[1] == {"input": " ", "output": "", "score": None, "logprobs": []}
    assert "logprobs" not in pipe("the saw", logprobs=False)


def test_beams_that_draw_are_refused_and_streams_tell_none() -> None:
    pipe = Pipeline(*made("text-generation"))
    with pytest.raises(HeedfulError, match=r"num_beams=2 is for beam search, do_sample for sampling"):
        pipe("the", logprobs=True, num_beams=2, do_sample=True)
    with pytest.raises(HeedfulError, match=r"stream cannot return logprobs; call the pipeline"):
        pipe.stream("the", logprobs=True)


def test_tasks_that_generate_nothing_have_none() -> None:
    with pytest.raises(HeedfulError, match=r"option logprobs has no effect for text-classification"):
        Pipeline(*made("text-classification"))("the saw", logprobs=True)
