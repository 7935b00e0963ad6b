"""Attention maps of a person's input: the right weights under the right pieces, whole or through a window."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import heedful
from heedful.views.inspect import attention_view as attention
from heedful.views.inspect.inspect import inspect
from heedful.views.inspect.model_input import read
from heedful.views.inspect.opened_model import open_model
from heedful.views.inspect.request import Request
from tolerances import approx, assert_close

Make = Callable[[str], Path]


def test_minilm(shared_data: Callable[[str], Path]) -> None:
    """A bare encoder, published, with no task: the first row of its first head."""
    look = inspect(shared_data("weights/minilm-l6"), "I love transformers", view="model")
    (maps,) = look.data["maps"]
    assert maps["queries"] == maps["keys"] == ["[CLS]", " i", " love", " transformers", "[SEP]"]
    assert maps["weights"].shape == (6, 12, 5, 5)
    assert_close(maps["weights"][0, 0, 0], [0.3465, 0.0288, 0.0442, 0.0476, 0.5330], "training")


def test_the_same_as_transformers(shared_data: Callable[[str], Path]) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = shared_data("weights/minilm-l6")
    theirs = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    encoded = AutoTokenizer.from_pretrained(folder)("A first text", "and its pair", return_tensors="pt")
    with torch.no_grad():
        wanted = torch.stack(theirs(**encoded, output_attentions=True).attentions, 1)[0]
    got = inspect(folder, ("A first text", "and its pair")).data["maps"][0]["weights"]
    assert_close(got, wanted.numpy())
    tabbed = inspect(folder, "A first text\tand its pair").data["maps"][0]["weights"]
    np.testing.assert_array_equal(got, tabbed)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "pair"])
def test_every_family_against_a_record(made: Make, kind: str) -> None:
    """The maps are what the model's own layers recorded while it read the same ids."""
    asked = Request.of("a small dog sees", target="le chien" if kind == "pair" else None)
    opened, request = open_model(made(kind), asked)
    reading = read(opened, request.inputs[0], request)
    with torch.no_grad(), heedful.record(opened.model, "pattern") as seen:
        opened.model(*reading.arguments)
    maps = attention.maps_of(opened, reading, request)
    assert sum(len(one.layers) for one in maps) == len(seen)
    parts = {
        "self-attention": f"{kind}.block.{{}}.attention.pattern",
        "cross-attention": "decoder.block.{}.cross_attention.pattern",
        "encoder self-attention": "encoder.block.{}.attention.pattern",
        "decoder self-attention": "decoder.block.{}.attention.pattern",
    }
    for one in maps:
        for place, layer in enumerate(one.layers):
            wanted = seen[parts[one.name].format(layer)][0]
            assert_close(one.weights[place], wanted.numpy(), "layer")
            assert wanted.shape[1:] == (len(one.queries), len(one.keys))
            assert len(one.heads) == len(wanted)


def test_cross_attention_is_called_by_what_it_wrote(made: Make) -> None:
    maps = inspect(made("pair"), "two cats", target="les chats").data["maps"]
    assert [one["name"] for one in maps] == ["cross-attention", "encoder self-attention", "decoder self-attention"]
    cross, own = maps[0], maps[2]
    assert "".join(cross["queries"]) == " les chats</s>"
    assert "".join(cross["keys"]) == " two cats</s>"
    assert own["queries"] == own["keys"] == ["<s>", *cross["queries"][:-1]]


def test_without_a_target_it_is_what_the_model_writes(made: Make) -> None:
    folder = made("pair")
    wrote = heedful.pipeline("translation", folder)("two cats", max_new_tokens=6)["output"]
    look = inspect(folder, "two cats", max_new_tokens=6)
    cross = look.data["maps"][0]
    assert "".join(piece for piece in cross["queries"] if not piece.startswith("<")).strip() == wrote.strip()
    assert "itself" in look.data["note"]


def test_an_image_has_a_row_for_every_patch(made: Make) -> None:
    maps = inspect(made("vision"), np.arange(144, dtype=np.uint8).reshape(12, 12), view="matrix").data["maps"][0]
    assert maps["queries"] == ["[class]", *(f"{r},{c}" for r in range(3) for c in range(3))]
    assert maps["weights"].shape == (2, 4, 10, 10)


def test_layers_and_heads(made: Make) -> None:
    every = inspect(made("decoder"), "a small dog").data["maps"][0]["weights"]
    maps = inspect(made("decoder"), "a small dog", layers=[1], heads=[3, 0]).data["maps"][0]
    assert (maps["layers"], maps["heads"]) == ([1], [3, 0])
    np.testing.assert_array_equal(maps["weights"], every[1:, [3, 0]])


def test_kinds_that_lack_a_layer_are_left_out(made: Make) -> None:
    maps = inspect(made("pair"), "two cats", target="les chats", layers=[2]).data["maps"]  # the encoder has two
    assert [one["name"] for one in maps] == ["cross-attention", "decoder self-attention"]


def test_a_window_and_the_mean_of_every_block(made: Make) -> None:
    """Against the whole pattern, cut and averaged by hand."""
    folder, text = made("decoder"), "a small dog sees two cats"
    whole = inspect(folder, text).data["maps"][0]
    length = len(whole["queries"])
    assert whole["overview"] is None
    maps = inspect(folder, text, queries="3:7", keys="1:6").data["maps"][0]
    assert (maps["rows"], maps["columns"]) == ([3, 7], [1, 6])
    np.testing.assert_array_equal(maps["weights"], whole["weights"][..., 3:7, 1:6])
    assert "queries 3:7" in maps["note"]
    assert_close(maps["overview"], whole["weights"], "layer")  # as many blocks as tokens
    assert maps["overview"].shape[-1] == length


def test_blocks_are_means(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "BLOCKS", 4)
    folder, text = made("decoder"), "a small dog sees two cats and more"
    whole = inspect(folder, text).data["maps"][0]["weights"]
    length = whole.shape[-1]
    maps = inspect(folder, text, queries=(0, 2)).data["maps"][0]
    limits = [i * length // 4 for i in range(5)]
    for i in range(4):
        for j in range(4):
            block = whole[..., limits[i] : limits[i + 1], limits[j] : limits[j + 1]]
            assert_close(maps["overview"][..., i, j], block.mean((-1, -2)), "layer")


def test_what_a_page_cannot_hold_is_windowed(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "WHOLE", 8 * 2 * 36)  # 8 heads in all, 6 × 6 of each
    monkeypatch.setattr(attention, "LEAST", 2)
    maps = inspect(made("decoder"), "a small dog sees two cats and more").data["maps"][0]
    assert maps["weights"].shape == (2, 4, 6, 6)
    assert maps["overview"].shape == (2, 4, 6, 6)
    assert (maps["rows"], maps["columns"]) == ([0, 6], [0, 6])


def test_more_than_can_be_held_is_refused(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MOST", 100)
    with pytest.raises(heedful.HeedfulError, match="weights of self-attention are asked for, 100 can be shown"):
        inspect(made("decoder"), "a small dog sees", queries="0:", keys="0:")


def test_a_place_that_no_text_has(made: Make) -> None:
    with pytest.raises(heedful.HeedfulError, match="queries begin at 99, but there are"):
        inspect(made("pair"), "two cats", target="les chats", queries="99:")
    source = "a small dog sees two cats and a red ball"
    maps = inspect(made("pair"), source, target="un", keys="6:8").data["maps"]
    assert [one["name"] for one in maps] == ["cross-attention", "encoder self-attention"]


MEASURE = """
import resource, sys
from heedful.views.inspect.inspect import inspect
text = "a small dog sees two cats and "
sizes = []
for many in (8, 512):
    maps = inspect(sys.argv[1], text * many).data["maps"][0]
    sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(len(maps["queries"]), (sizes[1] - sizes[0]) // 1024)
"""


def test_memory_does_not_grow_with_the_square_of_the_text(made: Make) -> None:
    """Over 8,192 tokens one pattern of two heads would be 512 MB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEASURE, str(made("long"))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    tokens, grown = map(int, done.stdout.split())
    assert tokens >= 8192
    assert grown < 200


def test_a_long_text_under_an_overview(made: Make) -> None:
    """A window in the middle, and its overview, against the pattern written out."""
    text = "a small dog sees two cats and " * 20
    opened, request = open_model(made("long"), Request.of(text, queries="200:210", keys="100:150", heads=[1]))
    reading = read(opened, text, request)
    (maps,) = attention.maps_of(opened, reading, request)
    with torch.no_grad(), heedful.record(opened.model, ["query", "key"], layers=[0]) as seen:
        opened.model(*reading.arguments)
    q, k = (tensor[0, 1].double() for tensor in seen.values())
    scores = (q @ k.T / 2).masked_fill(~torch.ones(len(q), len(q)).tril().bool(), -torch.inf)  # heads of 4 numbers
    whole = scores.softmax(-1).numpy()
    assert_close(maps.weights[0, 0], whole[200:210, 100:150], "layer")
    assert maps.overview is not None
    rows = np.array_split(whole, [i * len(whole) // 64 for i in range(1, 64)], axis=0)
    for i, row in enumerate(rows):
        for j, block in enumerate(np.array_split(row, [c * len(whole) // 64 for c in range(1, 64)], axis=1)):
            assert maps.overview[0, 0, i, j] == approx(block.mean(), "layer")
