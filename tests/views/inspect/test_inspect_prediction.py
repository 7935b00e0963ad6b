"""The head of a page of ``heedful inspect``: what the model predicts, and the words that its vocabulary lacks."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import heedful
from answering_folders import saved
from heedful.pretrained.preprocessing import read_preprocessing
from heedful.text import Tokenizer
from heedful.views.inspect.inspect import inspect, run_view
from heedful.views.inspect.opened_model import opened_of
from heedful.views.inspect.prediction import _parts, _percent
from heedful.views.inspect.request import Request

Make = Callable[[str], Path]
TEXT = "a small dog sees two cats"


def head(html: str) -> str:
    """The line of the prediction as text, with what is predicted in stars."""
    found = re.search(r'</h1>\n<p class="predicted"><span class="quiet">prediction</span> (.*)</p>', html)
    assert found is not None
    return unescape(re.sub(r"</?b>", "*", found[1]))


def _tags(folder: Path) -> list[str]:
    return list(heedful.from_pretrained(folder).labels)


@pytest.mark.parametrize("view", ["heads", "model", "matrix", "gradient", "embeddings"])
def test_a_classifier_names_its_labels_in_every_view(made: Make, view: str) -> None:
    folder = made("encoder")
    model, tokenizer = heedful.from_pretrained(folder).eval(), Tokenizer.load(folder)
    ids, segments = tokenizer.template().join(*tokenizer.encode([TEXT]))
    with torch.no_grad():
        no, yes = model(torch.tensor([ids]), None, torch.tensor([segments])).softmax(-1)[0].tolist()
    (best, p), (other, q) = sorted({"no": no, "yes": yes}.items(), key=lambda one: -one[1])
    result = inspect(folder, TEXT, view=view)
    assert head(result.html()) == f"*{best}* {round(100 * p)} % · {other} {round(100 * q)} %"
    assert [one["label"] for one in result.prediction] == [best, other]


def test_an_image_classifier_names_its_classes(made: Make) -> None:
    folder, image = made("vision"), np.eye(12, dtype=np.uint8) * 255
    preprocessing, model = read_preprocessing(folder), heedful.from_pretrained(folder).eval()
    with torch.no_grad():
        p = model(torch.from_numpy(preprocessing.normalised(image[None, None])).float()).softmax(-1)[0]
    said = [f"{model.labels[i]} {_percent(float(p[i]))}" for i in p.argsort(descending=True).tolist()]
    said[0] = re.sub(r"^(\w+)", r"*\1*", said[0])
    for view in ("image", "heads"):
        assert head(inspect(folder, image, view=view).html()) == " · ".join(said)


def test_words_are_filled_into_a_mask(made: Make) -> None:
    folder, text = made("filler"), "the <mask> see a ball"
    fills = heedful.pipeline(None, folder)(text, top_k=5)["output"]
    said = head(inspect(folder, text).html())
    assert [part.rpartition(" %")[0].rpartition(" ")[0].strip("*") for part in said.split(" · ")] == [
        one["label"] for one in fills
    ]
    assert said.startswith("*")
    assert "predicted" not in inspect(folder, TEXT).html().partition("<body>")[2]  # no mask, nothing to predict


def test_spans_and_answers_are_those_of_predict(tmp_path: Path) -> None:
    folder = saved("token-classification", tmp_path / "tags")
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"][:] = torch.tensor([30.0 * label.startswith("B-") for label in _tags(folder)])
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    text = "the pear is, and a saw"
    spans = heedful.pipeline(None, folder)(text)["output"]
    assert spans
    assert head(inspect(folder, text).html()) == " · ".join(
        f"*{one['text']}* THING {_percent(one['score'])}" for one in spans
    )
    folder, pair = saved("question-answering", tmp_path / "answers"), ("what is saw?", "the saw is a tool, and saw")
    answers = heedful.pipeline(None, folder)(pair, top_k=5)["output"]
    said = head(inspect(folder, pair).html())
    assert [part.split(" %")[0].rpartition(" ")[0].strip("*") for part in said.split(" · ")] == [
        one["answer"] for one in answers
    ]


def test_numbers_several_labels_and_nothing() -> None:
    assert _parts(1.23456, 1.23456) == [("1.235", "", True)]
    both = [{"label": "a", "score": 0.7}, {"label": "b", "score": 0.6}, {"label": "c", "score": 0.1}]
    assert [(text, best) for text, _, best in _parts(["a", "b"], both)] == [("a", True), ("b", True), ("c", False)]
    assert _parts([], []) == [("nothing is marked", "", False)]
    fills = [[{"label": "x", "score": 0.5}, {"label": "y", "score": 0.2}], [{"label": "z", "score": 0.9}]]
    assert [(text, said, best) for text, said, best in _parts("x z", fills)] == [
        ("x", " 50 % for mask 1", True),
        ("y", " 20 % for mask 1", False),
        ("z", " 90 % for mask 2", True),
    ]
    many = [{"text": str(i), "start": i, "label": "T", "score": 1.0} for i in range(45)]
    assert _parts(many, many)[-1] == ("and 5 more", "", False)


@pytest.mark.parametrize("task", ["feature-extraction", "translation", "text-classification"])
def test_a_watched_run_shows_it_too(tmp_path: Path, task: str) -> None:
    pipe = heedful.pipeline(None, saved(task, tmp_path / task))
    opened = opened_of(pipe.model, tmp_path / task, "tiny")
    result = run_view(opened, Request.of("the saw", "heads"), pipe.task)
    assert ('class="predicted"' in result.html()) == (task == "text-classification")


def test_models_that_generate_have_no_such_line(made: Make) -> None:
    for kind in ("decoder", "pair"):
        result = inspect(made(kind), TEXT)
        assert 'class="predicted"' not in result.html()
        assert result.prediction is None


@pytest.mark.parametrize("width", [1280, 390])
def test_a_word_without_a_token_is_shown_and_marked(tmp_path: Path, open_page: Any, width: int) -> None:
    folder = saved("text-classification", tmp_path / "folder")
    result = inspect(folder, "the Жук is a Ξ, saw")
    pieces = result.data["maps"][0]["queries"]
    assert "<unk>" not in pieces
    assert [piece.strip() for piece in pieces if "⁇" in piece] == ["Жук⁇", "Ξ⁇"]
    page = open_page(result.html(), width=width)
    assert "⁇ marks what is not in the vocabulary: 2 pieces are read as <unk>." in page.locator("main").inner_text()
    assert page.locator(".predicted").is_visible()
    assert "Жук⁇" in page.locator(".words").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert "⁇" not in inspect(folder, "the saw").html().partition("<body>")[2].partition("<script>")[0]


def test_the_words_of_a_source_and_of_a_prompt(tmp_path: Path) -> None:
    pair, decoder = (saved(task, tmp_path / task) for task in ("translation", "text-generation"))
    maps = inspect(pair, "the Ж is", target="a saw").data["maps"]
    encoder = next(one for one in maps if one["name"] == "encoder self-attention")
    assert encoder["queries"][:6] == ["t", "h", "e", " ", "Ж⁇", " "]
    pieces = inspect(decoder, "the Ж", target=" is Ξ").data["maps"][0]["queries"]
    assert [piece.strip() for piece in pieces if "⁇" in piece] == ["Ж⁇", "Ξ⁇"]
