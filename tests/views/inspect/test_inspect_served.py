"""The computation of ``POST /v1/attention``: the same as ``heedful inspect``, of a loaded model, and bounded."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import heedful
from heedful.cli import main
from heedful.errors import HeedfulError
from heedful.serving import attention
from heedful.serving.attention import TooManyNumbers, look, open_loaded
from heedful.views.inspect.inspect import inspect

Make = Callable[[str], Path]
PIXELS = np.arange(0, 288, 2, dtype=np.int64).clip(0, 255).astype(np.uint8).reshape(12, 12)


def png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS).save(file, "PNG")
    return file.getvalue()


PICTURE = base64.b64encode(png()).decode()
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("decoder", {"input": "a small dog", "target": " sees two cats"}),
    ("decoder", {"input": "a small dog", "target": " sees two cats", "view": "steps", "layers": [1], "heads": 0}),
    ("decoder", {"input": "a small dog sees", "view": "lens", "queries": "1:3"}),
    ("decoder", {"input": "a small dog sees", "view": "embeddings"}),
    ("decoder", {"view": "positions"}),
    ("pair", {"input": "two cats", "target": "les chats", "queries": [0, 2], "keys": ":2"}),
    ("pair", {"input": "two cats", "target": [5, 6, 2], "view": "steps"}),
    ("encoder", {"input": "two cats", "view": "matrix"}),
    ("encoder", {"input": {"text": "two cats", "text_pair": "a dog"}, "view": "model", "layers": 0}),
    ("encoder", {"input": ["two cats", "a dog"], "view": "similarity"}),
    ("vision", {"input": PICTURE}),
    ("vision", {"input": f"data:image/png;base64,{PICTURE}", "view": "heads"}),
    ("vision", {"view": "filters"}),
]


def same(ours: Any, theirs: Any) -> None:
    """Asserts that data is equal up to the sixth decimal."""
    if isinstance(theirs, Mapping):
        assert set(ours) == set(theirs)
        for name in theirs:
            same(ours[name], theirs[name])
    elif isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, np.round(theirs.astype(np.float64), 6))
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    else:
        assert ours == (round(theirs, 6) if isinstance(theirs, float) else theirs)


def arguments(request: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``heedful.inspect`` for a request."""
    plain = dict(request)
    if isinstance(plain.get("input"), dict):
        plain["input"] = tuple(plain["input"].values())
    if "data:" in str(plain.get("input")) or plain.get("input") == PICTURE:
        plain["input"] = png()
    return plain


@pytest.mark.parametrize(("kind", "request_"), REQUESTS, ids=lambda value: str(value)[:60])
def test_it_is_what_inspect_gives(made: Make, kind: str, request_: dict[str, Any]) -> None:
    folder = made(kind)
    model = heedful.from_pretrained(folder)
    opened, theirs = open_loaded(model, folder), inspect(folder, **arguments(request_))
    answer = look(opened, request_)
    assert isinstance(answer, dict)
    assert json.loads(json.dumps(answer)) == answer
    same(answer, {"view": theirs.view, "title": theirs.title} | theirs.data)
    assert look(opened, request_ | {"format": "html"}) == theirs.html()
    assert look(opened, request_ | {"format": "svg"}) == theirs.svg()


def test_the_command_prints_the_same_numbers(made: Make, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made("pair")
    assert main(["inspect", str(folder), "two cats", "--target", "les chats", "--layers", "1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    ours = look(
        open_loaded(heedful.from_pretrained(folder), folder), {"input": "two cats", "target": "les chats", "layers": 1}
    )
    assert isinstance(ours, dict)
    for one, other in zip(ours["maps"], printed["maps"], strict=True):
        np.testing.assert_allclose(one["weights"], other["weights"], atol=6e-7)


@pytest.mark.parametrize("dtype", [None, "bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["decoder", "pair", "encoder"])
def test_an_optimised_model_is_looked_into(made: Make, kind: str, dtype: str | None) -> None:
    folder = made(kind)
    target = {} if kind == "encoder" else {"target": "les chats"}
    theirs = inspect(folder, "two cats", **target).data["maps"]
    model = heedful.optimize(heedful.from_pretrained(folder), dtype)
    ours = look(open_loaded(model, folder), {"input": "two cats", **target, "encoding_format": "base64"})
    assert isinstance(ours, dict)
    for one, other in zip(ours["maps"], theirs, strict=True):
        weights = array_of(one["weights"])
        assert weights.shape == other["weights"].shape
        np.testing.assert_allclose(weights, other["weights"], atol=5e-4 if dtype is None else 0.3)
        np.testing.assert_allclose(weights.astype(np.float64).sum(-1), 1, atol=0.01)


def array_of(stored: Mapping[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(stored["base64"]), stored["dtype"]).reshape(stored["shape"])


def test_an_optimised_model_shows_an_image_without_its_gradient(made: Make) -> None:
    folder = made("vision")
    theirs = inspect(folder, png()).data
    opened = open_loaded(heedful.optimize(heedful.from_pretrained(folder)), folder)
    ours = look(opened, {"input": PICTURE})
    assert isinstance(ours, dict)
    assert ours["gradient"] is None
    assert "Gradient × input is left out" in ours["note"]
    np.testing.assert_allclose(ours["weights"], theirs["weights"], atol=1e-5)
    assert "gradient × input</option>" not in str(look(opened, {"input": PICTURE, "format": "html"}))


def test_the_model_stays_as_it_was(made: Make) -> None:
    model = heedful.from_pretrained(made("encoder")).train()
    look(open_loaded(model, made("encoder")), {"input": "two cats"})
    assert model.training


def test_an_answer_is_bounded(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_loaded(heedful.from_pretrained(made("decoder")), made("decoder"))
    request = {"input": "two cats"}
    answer = look(opened, request)
    assert isinstance(answer, dict)
    count = int(np.prod(np.shape(answer["maps"][0]["weights"])))
    limits = {"MAX_DECIMALS": {}, "MAX_PACKED": {"encoding_format": "base64"}, "MAX_WEIGHTS": {"format": "html"}}
    for limit, form in limits.items():
        with monkeypatch.context() as patched:
            patched.setattr(attention, limit, count)
            look(opened, request | form)
            patched.setattr(attention, limit, count - 1)
            with pytest.raises(TooManyNumbers, match="fewer with layers, heads, queries or keys"):
                look(opened, request | form)
            assert look(opened, request | form | {"layers": [0]})
    assert (attention.MAX_DECIMALS, attention.MAX_PACKED) == (262_144, 3_000_000)


@pytest.mark.parametrize(
    ("kind", "request_", "message"),
    [
        ("decoder", {"input": "a", "layer": 1}, "layer has no effect on attention; did you mean 'layers'"),
        ("decoder", {"input": "a", "max_new_tokens": 3}, "max_new_tokens has no effect"),
        ("decoder", {"input": "a", "view": "steps"}, "generate it first, and give it as target"),
        ("decoder", {"input": "a", "view": "gradient"}, "needs backward passes"),
        ("decoder", {"input": "a", "format": "png"}, "unknown format 'png'"),
        ("decoder", {"input": "a", "format": []}, "format is .*; give a text"),
        ("decoder", {"input": "a", "view": ["heads"]}, "view is .*; give a text"),
        ("decoder", {"input": "a", "queries": 3}, "queries is 3; give START:END"),
        ("decoder", {"input": "a", "queries": "1" * 5000 + ":"}, "is not a range"),
        ("decoder", {"input": "a", "encoding_format": "hex"}, "unknown encoding_format 'hex'"),
        ("decoder", {"input": "a", "format": "svg", "encoding_format": "base64"}, "no effect on a page or figure"),
        ("decoder", {"input": "a", "messages": [{"role": "user", "content": "b"}]}, "give input, or messages"),
        ("decoder", {"messages": "hello"}, "give input, or messages"),
        ("decoder", {"messages": [{"role": "user", "content": "b"}]}, "has no chat template"),
        ("decoder", {"input": 5}, "the input is 5; give a text"),
        ("decoder", {"input": {"text": 5}}, "give a text, or two"),
        ("decoder", {}, "give a text, not nothing"),
        ("decoder", {"input": ""}, "the input is empty"),
        ("decoder", {"input": "a", "target": {"a": 1}}, "are not whole numbers"),
        ("decoder", {"input": "a", "heads": {"a": 1}}, "are not whole numbers"),
        ("pair", {"input": "a"}, "generate it first, and give it as target"),
        ("encoder", {"input": "a", "view": "steps"}, "works only with models that write text"),
        ("vision", {"input": "unseen.png"}, "not an image in base64"),
        ("vision", {"input": "/etc/passwd"}, "not an image in base64"),
        ("vision", {"input": "file:///etc/passwd"}, "not an image in base64"),
        ("vision", {"input": "http://127.0.0.1/cat.png"}, "not an image in base64"),
        ("vision", {"input": {"text": "a"}}, "not an image in base64"),
        ("vision", {"input": "QUJD"}, "is not an image|cannot be read|unreadable"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_wrong_requests_are_refused(made: Make, kind: str, request_: dict[str, Any], message: str) -> None:
    opened = open_loaded(heedful.from_pretrained(made(kind)), made(kind))
    with pytest.raises(HeedfulError, match=message) as caught:
        look(opened, request_)
    assert "\n" not in str(caught.value)
