"""The view of a caption: for each word the patches that the decoder attended to."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from answering_folders import saved
from heedful import cli
from heedful.errors import HeedfulError
from heedful.inspection import record
from heedful.inspection.find_heads import find_heads
from heedful.inspection.image_patches import feature_maps, filters, patch_grid, tokens
from heedful.pretrained.preprocessing import read_preprocessing
from heedful.text import Tokenizer

TARGET = "the pear is a tool"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = saved("image-to-text", tmp_path_factory.mktemp("captions") / "model")
    Image.fromarray(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)).save(made.parent / "x.png")
    return made


def test_the_weights_are_those_of_cross_attention(folder: Path) -> None:
    found = heedful.inspect(folder, str(folder.parent / "x.png"), target=TARGET)
    assert found.view == "words"
    assert found.data["words"] == TARGET.split()
    model, tokenizer = heedful.from_pretrained(folder), Tokenizer.load(folder)
    pixels = np.asarray(Image.open(folder.parent / "x.png")).transpose(2, 0, 1)[None]
    image = torch.from_numpy(read_preprocessing(folder).normalised(pixels))
    (ids,) = tokenizer.encode([TARGET])
    with torch.no_grad(), record(model, "cross_attention.pattern") as seen:
        model(image, torch.tensor([[model.config.special.start, *ids]]))
    (pattern,) = seen.values()  # (1, heads, target, source)
    rows, columns = patch_grid(model)
    pieces = tokenizer.pieces(ids)
    word = np.cumsum([piece[:1].isspace() for piece in pieces])
    expected = [pattern[0, :, :-1][:, word == n, 1:].mean(1).reshape(-1, rows, columns) for n in range(5)]
    assert np.allclose(found.data["weights"][0], torch.stack(expected, 1).numpy(), atol=1e-6)


def test_page_and_pictures(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["inspect", str(folder), str(folder.parent / "x.png"), "--target", TARGET, "--out"]
    for name in ("page.html", "picture.svg"):
        assert cli.main([*command, str(tmp_path / name)]) == 0
    page, picture = ((tmp_path / name).read_text(encoding="utf-8") for name in ("page.html", "picture.svg"))
    assert re.findall(r"<b>(.*?)</b>", page) == TARGET.split()
    assert page.count("data:image/png") == 1  # the image is stored once
    facts = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', page, re.S)[1])
    largest = np.frombuffer(base64.b64decode(facts["weights"]["largest"]), "<f4")
    weights = heedful.inspect(folder, str(folder.parent / "x.png"), target=TARGET).data["weights"]
    assert np.allclose(largest[: len(TARGET.split())], weights.mean((0, 1)).max((1, 2)), atol=1e-6)
    assert picture.count("<image") == len(TARGET.split())
    assert "Strongest patches: the: row" in picture
    assert cli.main([*command, str(tmp_path / "page.html"), "--layers", "7"]) == 2
    assert "no layer 7" in capsys.readouterr().err


def test_a_text_of_its_own_and_the_other_views(folder: Path, tmp_path: Path) -> None:
    image = str(folder.parent / "x.png")
    own = heedful.pipeline(None, folder)(image)["output"]
    words = "".join(heedful.inspect(folder, image).data["words"])
    assert words.replace("<s>", "").replace("<unk>", "") == own.replace(" ", "")
    steps = heedful.inspect(folder, image, view="steps", max_new_tokens=4).data
    assert len(steps["generated"]) == 4
    assert steps["prompt"] == tokens(heedful.from_pretrained(folder))
    for view in ("heads", "matrix", "model", "lens"):
        assert heedful.inspect(folder, image, view=view, target=TARGET).html().startswith("<!doctype html>")
    assert heedful.inspect(folder, [image, image], view="similarity").data["similarity"][0, 1] == pytest.approx(1.0)
    for view in ("filters", "positions"):
        assert heedful.inspect(folder, None, view=view).html()
    for view in ("gradient", "embeddings", "importance", "image"):
        with pytest.raises(HeedfulError, match=rf"view '{view}' works only with .*choose from .*words"):
            heedful.inspect(folder, image, view=view)


def test_a_text_that_fills_all_positions(folder: Path) -> None:
    image = str(folder.parent / "x.png")
    target = "the pear is a tool" + " a" * 7  # 32 tokens, as many as the decoder has positions
    for view, name in (("words", "words"), ("steps", "generated")):
        pieces = heedful.inspect(folder, image, view=view, target=target).data[name]
        assert "".join(pieces).replace(" ", "") == target.replace(" ", "")
    with pytest.raises(HeedfulError, match="the target has 34 tokens, but model takes at most 32"):
        heedful.inspect(folder, image, target=target + "s")


@torch.no_grad()
def test_functions_of_patches_read_a_captioner(folder: Path) -> None:
    model = heedful.from_pretrained(folder)
    patches: Any = model.config.source
    images = torch.randn(2, patches.channels, *patches.image_size)
    rows, columns = patch_grid(model)
    assert filters(model).shape == (model.config.encoder.dim, patches.patch_size, patches.patch_size, 3)
    maps = feature_maps(model, images, 0)
    assert torch.allclose(maps.flatten(2).mT, feature_maps(model, images, 0).flatten(2).mT)
    assert maps.shape == (2, model.config.encoder.dim, rows, columns)
    target = torch.tensor([[1, 5, 6], [1, 7, 8]])
    assert find_heads(model, images, target, by="first-token")
    with pytest.raises(HeedfulError, match="which an image does not have"):
        find_heads(model, images, target, by="duplicate-token")
