"""`heedful.inspect`: what it takes, what it returns, and that it leaves things as they were."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import heedful
from heedful.config import TokenHead
from heedful.presets import get
from heedful.views.inspect.catalogue import VIEWS
from heedful.views.inspect.request import Request, check_request, within
from heedful.views.inspect.result import InspectionResult

Make = Callable[[str], Path]
TEXT = "a small dog sees"


def weights(look: InspectionResult) -> np.ndarray:
    return look.data["maps"][0]["weights"]


def test_a_folder_a_model_and_both(made: Make) -> None:
    folder = made("decoder")
    model = heedful.from_pretrained(folder)
    wanted = weights(heedful.inspect(folder, TEXT))
    for opened in (str(folder), model, (model, folder), (model, str(folder))):
        np.testing.assert_array_equal(weights(heedful.inspect(opened, TEXT)), wanted)
    with pytest.raises(heedful.HeedfulError, match="a model without a folder has no tokenizer"):
        heedful.inspect(heedful.create("gpt-micro"), TEXT)
    for alone in ((model,), (folder, model)):
        with pytest.raises(heedful.HeedfulError, match=r"\(model, folder\)"):
            heedful.inspect(alone, TEXT)  # type: ignore[arg-type]
    with pytest.raises(heedful.HeedfulError, match="move a model in memory"):
        heedful.inspect(model, TEXT, device="cpu")


@pytest.mark.parametrize("view", ["heads", "steps", "lens", "gradient", "importance", "similarity"])
def test_a_model_is_left_as_it_was(made: Make, view: str) -> None:
    """Its mode, its weights and their gradients, what it computes, and no reader left behind."""
    model = heedful.from_pretrained(made("decoder")).train()
    attends = [part.attend for part in model.modules() if hasattr(part, "attend")]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    heedful.inspect(model, [TEXT, "two cats"] if view == "similarity" else TEXT, view=view)
    assert all(part.training for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all((value == before[name]).all() for name, value in model.state_dict().items())
    assert [part.attend for part in model.modules() if hasattr(part, "attend")] == attends


def test_in_half_precision(made: Make) -> None:
    model = heedful.from_pretrained(made("decoder"), dtype="bfloat16")
    exact = weights(heedful.inspect(made("decoder"), TEXT))
    half = weights(heedful.inspect((model, made("decoder")), TEXT))
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, exact, atol=0.05)
    for view in ("steps", "lens", "gradient", "importance"):
        heedful.inspect((model, made("decoder")), TEXT, view=view)


def test_a_notebook_shows_the_page(made: Make) -> None:
    look = heedful.inspect(made("decoder"), "<script>alert(1)</script>")
    frame = look._repr_html_()
    assert re.fullmatch(r'<iframe srcdoc="[^"]+" title="decoder: &lt;script[^"]+" style="[^"]+"></iframe>', frame, re.S)
    assert "<script>alert" not in look.html()
    assert repr(look) == "InspectionResult('decoder: <script>alert(1)</script>', view='heads')"


def test_words_of_decoding(made: Make) -> None:
    with pytest.raises(heedful.HeedfulError, match="unknown option 'layer'; did you mean 'layers'"):
        heedful.inspect(made("encoder"), TEXT, layer=[1])
    with pytest.raises(heedful.HeedfulError, match="unknown option 'num_beam'; did you mean 'num_beams'"):
        heedful.inspect(made("decoder"), TEXT, view="steps", num_beam=2)
    with pytest.raises(heedful.HeedfulError, match="num_return_sequences must be 1"):
        heedful.inspect(made("decoder"), TEXT, view="steps", num_beams=2, num_return_sequences=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queries": (5, 2)}, "queries (5, 2) is not a range"),
        ({"keys": (-3, 2)}, "keys (-3, 2) is not a range"),
        ({"keys": [1, 2, 3]}, "keys [1, 2, 3] is not a range"),
        ({"layers": []}, "layers is empty; give numbers from 0 to 1"),
        ({"heads": [-1]}, "no head -1; the model's heads are 0 to 3"),
    ],
)
def test_wrong_places(made: Make, options: dict[str, object], said: str) -> None:
    with pytest.raises(heedful.HeedfulError, match=re.escape(said)):
        heedful.inspect(made("decoder"), TEXT, **options)


@pytest.mark.parametrize("one", [7, None, ["a"], {"words": "a"}, b"a"])
def test_inputs_without_text_are_refused(made: Make, one: object) -> None:
    for kind in ("encoder", "decoder", "pair"):
        if one == ["a"]:
            continue  # a list of one input is that input
        with pytest.raises(heedful.HeedfulError):
            heedful.inspect(made(kind), one)


@pytest.mark.parametrize("view", ["steps", "embeddings"])
def test_a_translator_takes_no_pair_of_texts(made: Make, view: str) -> None:
    with pytest.raises(heedful.HeedfulError, match="takes a text or a list of texts; got tuple"):
        heedful.inspect(made("pair"), ("two cats", "a dog"), view=view)


def test_who_has_which_view() -> None:
    """The views of every kind of model, by their presets."""

    def views(name: str) -> set[str]:
        return {view for view in VIEWS if VIEWS[view].has(get(name))}

    maps = {"heads", "model", "matrix", "similarity"}
    text = {*maps, "embeddings", "positions"}
    writes = {*text, "steps", "lens", "gradient", "importance"}
    assert views("gpt2") == writes
    assert views("t5-small") == writes
    assert views("bert-base") == text  # a pooler and no head
    assert views("vit-b/16") == {*maps, "positions", "image", "gradient", "importance", "filters"}


def test_the_page_names_the_models_of_each_view_as_messages_do() -> None:
    page = (Path(__file__).parents[3] / "docs" / "inside.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| `\w+` \| [^|]* \| [^|]* \|$", line)
    ]
    assert {row[0].strip("`"): row[2] for row in rows} == {name: view.whose for name, view in VIEWS.items()}
    tagger = replace(get("bert-base"), head=TokenHead(labels=3))
    for view in ("gradient", "importance", "lens"):
        with pytest.raises(
            heedful.HeedfulError, match=r"works only with models that write.*; for tagger .*heads, model"
        ):
            check_request(tagger, "tagger", Request.of("a", view))


def test_the_default_view_suits_the_model() -> None:
    assert check_request(get("vit-b/16"), "vit", Request.of("a.png")).view == "image"
    assert check_request(get("gpt2"), "gpt2", Request.of("a")).view == "heads"


def test_places_within() -> None:
    assert within((3, None), 8, "keys") == (3, 8)
    assert within((3, 99), 8, "keys") == (3, 8)
    assert within(None, 8, "keys") is None
