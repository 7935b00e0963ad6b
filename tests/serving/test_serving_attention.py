"""``POST /v1/attention``: what the computation gives, over HTTP, with its errors."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from running_server import RELATIVE, Running

import heedful
from answering_folders import saved
from heedful.serving import attention
from heedful.text import Tokenizer
from heedful.views.inspect.inspect import inspect
from test_every_task import MADE
from tolerances import approx

ROUTE = "/v1/attention"


@pytest.fixture(scope="module")
def server(serving: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Running:
    return serving(heedful.pipeline(None, saved("text-generation", tmp_path_factory.mktemp("a") / "tiny")))


def test_it_is_what_the_computation_gives(server: Running) -> None:
    pipe = server.service.pipe
    opened = attention.open_loaded(pipe.model, pipe.model.folder.source)
    for request in (
        {"input": "the apple", "target": " is a tool"},
        {"input": "the apple", "target": " is a tool", "view": "steps", "encoding_format": "base64"},
    ):
        assert server.post(ROUTE, **request) == json.loads(json.dumps(attention.look(opened, request)))
        for name, kind in (("html", "text/html"), ("svg", "image/svg+xml")):
            plain = {key: value for key, value in request.items() if key != "encoding_format"}
            response = server.http.post(ROUTE, json={**plain, "format": name})
            assert response.text == attention.look(opened, {**plain, "format": name})
            assert response.headers["content-type"].startswith(kind)
            assert response.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
    assert server.service.admission.inputs == 0


@pytest.mark.parametrize(("task", "preset"), RELATIVE)
def test_an_encoder_with_distances_in_its_scores(
    task: str, preset: str, serving: Callable[..., Running], folder_of: Callable[..., Path]
) -> None:
    folder, (text, *_) = folder_of(task, preset), MADE[task][2]
    server, theirs = serving(heedful.pipeline(None, folder)), inspect(folder, text)
    answer = server.post(ROUTE, input=text)
    assert answer["title"] == theirs.title
    for ours, map_ in zip(answer["maps"], theirs.data["maps"], strict=True):
        assert (ours["rows"], ours["keys"]) == (map_["rows"], map_["keys"])
        np.testing.assert_allclose(ours["weights"], map_["weights"], atol=2e-6)
    shown = inspect((server.service.pipe.model, folder), text)
    for name, page in {"html": shown.html(), "svg": shown.svg()}.items():
        assert server.http.post(ROUTE, json={"input": text, "format": name}).text == page


def test_the_command_of_the_docs(server: Running) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    (body,) = re.findall(r"/v1/attention -H .*\n +-d '(.*)'", page)
    assert server.post(ROUTE, **json.loads(body))["maps"][0]["rows"] == [0, 4]
    assert f"{attention.MAX_DECIMALS:,} numbers" in page
    assert f"{attention.MAX_PACKED:,} in float16" in page


def test_a_translator_of_several_languages(serving: Callable[..., Running], tmp_path: Path) -> None:
    server = serving(heedful.pipeline(None, saved("translation", tmp_path / "many", length=64, tagged=True)))
    named, tagged = {"source": "the plum", "language": "fr"}, "<2fr> the plum"
    for options in ({}, {"num_beams": 2, "max_new_tokens": 5}):
        found = server.post("/predict", inputs=named, options=options)
        assert found == {**server.post("/predict", inputs=tagged, options=options), "input": named}
    target = {"target": found["output"]}
    assert server.post(ROUTE, input=named, **target) == server.post(ROUTE, input=tagged, **target)
    assert server.post(ROUTE, input=named, **target)["maps"][0]["keys"][0] == "<2fr>"
    assert server.post(ROUTE, input={"source": "the plum"}, **target) == server.post(ROUTE, input="the plum", **target)
    several = server.post(ROUTE, input=[named, {**named, "language": "de"}], view="similarity")
    assert several == server.post(ROUTE, input=[tagged, "<2de> the plum"], view="similarity")
    for path, asked in (
        (ROUTE, {"input": {**named, "language": "it"}}),
        ("/predict", {"inputs": {**named, "language": "it"}}),
    ):
        status, error = server.refused(path, **asked)
        assert status == 400
        assert "no tag for the language 'it'; known: <2de>, <2fr>" in error["message"]
    assert "give a text, or" in server.refused(ROUTE, input={"source": "a", "colour": "b"})[1]["message"]


@pytest.mark.parametrize("task", ["translation", "text-generation"])
def test_choices_are_ranked(task: str, serving: Callable[..., Running], tmp_path: Path) -> None:
    pipe = heedful.pipeline(None, saved(task, tmp_path / task))
    server, choices = serving(pipe), ["fruit", "tool"]
    found = server.post("/predict", inputs=["the plum", "the saw"], options={"choices": choices})
    assert found == close(pipe(["the plum", "the saw"], choices=choices))
    own = {"source": "the plum", "choices": choices}
    assert [server.post("/predict", inputs=own)] == close([{**found[0], "input": own}])
    status, error = server.refused("/predict", inputs="the plum", options={"choices": ["fruit"]})
    assert (status, error["message"].partition(";")[2]) == (400, " give two or more different texts: yes,no")
    long = server.refused("/predict", inputs="the plum", options={"choices": ["a" * 10_000_000, "b"]})
    assert long[0] == 413


def close(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The answers with scores that are close: the texts of a batch may round by how many they are."""
    return [{**answer, "score": approx(answer["score"])} for answer in answers]


def test_errors(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    status, error = server.refused(ROUTE, input="the apple", layer=1)
    assert (status, error["message"]) == (400, "layer has no effect on attention; did you mean 'layers'?")
    assert server.refused(ROUTE, input="the apple", view="steps")[0] == 400
    assert server.http.post(ROUTE, content=b"[1]").status_code == 400
    assert server.http.post(ROUTE, content=b"{").status_code == 400
    assert server.refused(ROUTE, input="a" * 10_000)[0] == 413
    monkeypatch.setattr(attention, "MAX_DECIMALS", 3)
    status, error = server.refused(ROUTE, input="the apple")
    assert (status, error["code"]) == (422, "too_many_numbers")
    assert "layers, heads, queries or keys" in error["message"]
    assert server.service.is_alive


def test_an_image(serving: Callable[..., Running], tmp_path: Path) -> None:
    server = serving(heedful.pipeline(None, saved("image-classification", tmp_path / "eye")))
    file = io.BytesIO()
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(file, "PNG")
    assert server.post(ROUTE, input=base64.b64encode(file.getvalue()).decode())["view"] == "image"
    file = io.BytesIO()
    Image.new("1", (5000, 5000)).save(file, "PNG")
    assert server.refused(ROUTE, input=base64.b64encode(file.getvalue()).decode())[0] == 413
    for name in ("http://127.0.0.1/cat.png", "/etc/passwd", str(tmp_path / "cat.png")):
        assert server.refused(ROUTE, input=name)[0] == 400


def test_a_caption(serving: Callable[..., Running], tmp_path: Path) -> None:
    folder, stream, target = saved("image-to-text", tmp_path / "captions"), io.BytesIO(), "the pear is a tool"
    server = serving(heedful.pipeline(None, folder))
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(stream, "PNG")
    file = stream.getvalue()
    asked = {"input": base64.b64encode(file).decode(), "target": target}
    theirs = inspect((server.service.pipe.model, folder), file, target=target)
    answer = server.post(ROUTE, **asked)
    assert (answer["view"], answer["words"], answer["grid"]) == ("words", target.split(), theirs.data["grid"])
    np.testing.assert_array_equal(answer["weights"], np.round(theirs.data["weights"].astype(np.float64), 6))
    packed = server.post(ROUTE, **asked, encoding_format="base64")["weights"]
    assert packed["shape"] == list(theirs.data["weights"].shape)
    pages = {"html": theirs.html(), "svg": theirs.svg()}
    for name, page in pages.items():
        assert server.http.post(ROUTE, json={**asked, "format": name}).text == page
    (ids,) = Tokenizer.load(folder).encode([target])
    assert server.post(ROUTE, **{**asked, "target": ids})["words"] == target.split()

    for wrong in (b"no image", file[:45], b""):
        status, error = server.refused(ROUTE, input=base64.b64encode(wrong).decode(), target=target)
        assert status == 400, error
        assert "image" in error["message"]
    assert server.refused(ROUTE, **{**asked, "input": "unseen.png"})[0] == 400
    assert server.refused(ROUTE, messages=[{"role": "user", "content": "a"}], target=target)[0] == 400
    assert "generate it first" in server.refused(ROUTE, input=asked["input"])[1]["message"]
    assert (
        "40 tokens, but captions takes at most 32"
        in server.refused(ROUTE, **{**asked, "target": [5] * 40})[1]["message"]
    )
    for long in ("a" * 10_000, [5] * 10_000):
        assert server.refused(ROUTE, **{**asked, "target": long})[0] == 413
    assert server.post(ROUTE, **asked) == answer
