"""Absurd inputs: every task answers them or refuses them in one line, and loses no other input."""

from __future__ import annotations

import copy
import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from answering_folders import made
from heedful.errors import HeedfulError
from heedful.inference.pipeline import Pipeline
from heedful.models import Model
from heedful.tasks import TASKS
from heedful.tasks.task import Task
from tolerances import approx

NO_TEXTS: dict[str, Any] = {
    "None": None,
    "a number": 3,
    "not a number": float("nan"),
    "nothing in it": {},
    "nested": [["a"]],
    "nothing under its name": {"text": None},
    "a number under its name": {"question": None, "context": 3},
    "another name": {"a": "b"},
    "half a pair": ("a", None),
    "words that are none": {"words": ["a", 3]},
    "bytes": b"abc",
    "a path": Path("nowhere.png"),
    "messages without a template": [{"role": "user", "content": None}],
    "messages of nobody": [{"role": 3}],
    "half of a character": "a\ud800b",
    "no more than that": "\ud83d",
}
TEXTS = {
    "fifty thousand words": "the saw " * 25_000,
    "one word": "a" * 50_000,
    "NUL": "a\0b",
    "control": "\x01\x1b[31mx",
    "special tokens": "<pad></s><s>[MASK][CLS]<unk> x",
    "accents": "e" + "\u0301" * 500,
    "a family": "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}" * 20,
    "right to left": "\u202eabc\u202c",
    "line ends": "a\r\n\u2028b",
}
GOOD = "the pear is a fruit"


ASKED = ("question-answering", "generative-question-answering")  # of a text


@cache
def its(name: str) -> tuple[Task, Model]:
    return made(name, length=256) if name in ASKED else made(name)  # thousands of windows teach nothing more


IMAGES = ("image-classification", "image-to-text")  # tasks whose inputs are images


def asked(name: str, text: str) -> Any:
    """The text as an input of the task."""
    if name in IMAGES:
        return np.zeros((28, 28), dtype=np.uint8)
    return {
        "fill-mask": f"{text} <mask>",
        **{key: {"question": "what is it?", "context": text} for key in ASKED},
    }.get(name, text)


def answers(name: str, inputs: list[Any]) -> list[dict[str, Any]]:
    task, model = its(name)
    options = {"max_new_tokens": 3, "do_sample": False} if "max_new_tokens" in task.options else {}
    return Pipeline(task, model)(inputs, **options)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("what", NO_TEXTS)
def test_values_that_are_no_inputs_are_refused_in_one_line(name: str, what: str) -> None:
    one = NO_TEXTS[what]
    if name in ASKED and isinstance(one, str):
        one = {"question": one, "context": one}
    if name == "fill-mask" and isinstance(one, str):
        one = f"<mask> {one}"
    with pytest.raises(HeedfulError) as caught:
        answers(name, [asked(name, GOOD), one])
    assert "\n" not in str(caught.value)
    assert 20 < len(str(caught.value)) < 400


@pytest.mark.parametrize("name", [name for name in TASKS if name not in IMAGES])
def test_any_text_is_answered_and_changes_no_other(name: str, caplog: pytest.LogCaptureFixture) -> None:
    good = asked(name, GOOD)
    (alone,) = answers(name, [good])
    with caplog.at_level(logging.WARNING):
        told = answers(name, [good, *(asked(name, text) for text in TEXTS.values()), good])
    assert len(told) == len(TEXTS) + 2
    for answer, text in zip(told[1:-1], TEXTS.values(), strict=True):
        assert answer["input"] == asked(name, text)
        assert answer["output"] is not None
    for one in (told[0], told[-1]):
        assert one["input"] == good
        assert one["score"] == (None if alone["score"] is None else approx(alone["score"]))
        if name == "feature-extraction":
            assert one["output"] == approx(alone["output"])
        elif isinstance(alone["output"], str):
            assert one["output"] == alone["output"]
    if name not in ("token-classification", *ASKED):  # which read it all, in windows
        assert any("tokens" in message for message in caplog.messages)  # what is cut is said


EMPTY: dict[str, Any] = {
    "token-classification": [],
    "feature-extraction": [],
    "question-answering": {"answer": "", "start": 0, "end": 0},
}


@pytest.mark.parametrize("name", [name for name in TASKS if name not in (*IMAGES, "text-generation")])
@pytest.mark.parametrize("blank", ["", " \n\t ", "\u3000"])
def test_nothing_has_an_empty_answer(name: str, blank: str) -> None:
    good = asked(name, GOOD)
    nothing: Any = {"question": "what?", "context": blank} if name in ASKED else blank
    for inputs in ([nothing], [good, nothing, good]):
        (answer,) = (one for one in answers(name, inputs) if one["input"] == nothing)
        assert answer == {"input": nothing, "output": EMPTY.get(name, ""), "score": None}


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("path", ["", " ", "a\0b", "\ud800", "x" * 50_000, "\n"])
def test_a_path_of_no_image(path: str, name: str) -> None:
    with pytest.raises(HeedfulError) as caught:
        answers(name, [path])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", TASKS)
def test_no_inputs_have_no_answers(name: str) -> None:
    task, model = its(name)
    assert task.predict(model, []) == []
    assert Pipeline(task, model)([]) == []
    assert list(Pipeline(task, model)(iter([]))) == []


@pytest.mark.parametrize("name", TASKS)
def test_an_answer_that_is_not_a_number_is_one_line(name: str) -> None:
    """Weights in memory may hold what no file may; a score of NaN is never an answer."""
    task, model = its(name)
    spoilt = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in spoilt.parameters():
            parameter.fill_(float("nan"))
    good = asked(name, GOOD)
    with pytest.raises(HeedfulError, match=r"input 1 is NaN or infinite.*other weights") as error:
        Pipeline(task, spoilt)([good, good])
    assert "\n" not in str(error.value)
    with pytest.raises(HeedfulError, match="NaN or infinite"):
        list(Pipeline(task, spoilt)(iter([good])))
