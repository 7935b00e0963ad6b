"""The pooling that a folder of sentence-transformers tells of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import IDS, MASK, write

from heedful import HeedfulError
from heedful.config import PooledHead, Pooling
from heedful.models import build
from heedful.pretrained import load, save
from heedful.pretrained.folder import find, read_card
from heedful.pretrained.pooling import module_files, pooled_head
from tolerances import assert_close

TYPE = "sentence_transformers.models."


def folder(at: Path, kinds: list[str], told: dict[str, Any]) -> Path:
    write("bert", at)
    modules = [
        {"path": "" if kind == "Transformer" else f"{i}_{kind}", "type": TYPE + kind} for i, kind in enumerate(kinds)
    ]
    (at / "modules.json").write_text(json.dumps(modules))
    (at / "1_Pooling").mkdir(exist_ok=True)
    (at / "1_Pooling" / "config.json").write_text(json.dumps(told))
    return at


@pytest.mark.parametrize(
    ("told", "pooling"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "mean", "embedding_dimension": 16}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
@pytest.mark.parametrize("unit", [True, False])
@torch.no_grad()
def test_a_pooled_head_is_the_folders(told: dict[str, Any], pooling: str, unit: bool, tmp_path: Path) -> None:
    path = folder(tmp_path, ["Transformer", "Pooling", *(["Normalize"] if unit else [])], told)
    model = load(path, head="pooled")
    assert model.config.head == PooledHead(pooling=pooling, normalise=unit)
    assert model.fresh == []
    hidden = load(path)(IDS, MASK)  # without asking it is the body, as elsewhere
    real = [hidden[0, :3], hidden[1]]
    rule = {"first": lambda h: h[0], "last": lambda h: h[-1], "mean": lambda h: h.mean(0), "max": lambda h: h.amax(0)}
    wanted = torch.stack([rule[pooling](rows) for rows in real])
    wanted = wanted / wanted.norm(dim=1, keepdim=True) if unit else wanted
    assert_close(model(IDS, MASK), wanted, "layer")


@pytest.mark.parametrize(
    ("kinds", "told", "said"),
    [
        (
            ["Transformer", "Pooling", "Dense"],
            {"pooling_mode": "mean"},
            "lists the modules Transformer, Pooling, Dense; only",
        ),
        (["Pooling"], {"pooling_mode": "mean"}, "lists the modules Pooling; only"),
        (["Transformer", "Pooling"], {"pooling_mode_mean_sqrt_len_tokens": True}, "sets the pooling 'mean_sqrt_len'"),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "sets the pooling",
        ),
        (["Transformer", "Pooling"], {"pooling_mode": ["mean", "cls"]}, "sets the pooling .'mean', 'cls'."),
        (["Transformer", "Pooling"], {}, "sets the pooling"),
    ],
)
def test_unsupported_poolings_are_refused(kinds: list[str], told: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = folder(tmp_path, kinds, told)
    with pytest.raises(HeedfulError, match=said):
        load(path, head="pooled")
    assert load(path).config.head.kind == "no-head"  # the body opens all the same


def test_a_path_that_leaves_the_folder(tmp_path: Path) -> None:
    path = folder(tmp_path, ["Transformer", "Pooling"], {"pooling_mode": "mean"})
    modules = json.loads((path / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    (path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(HeedfulError, match="outside the folder"):
        pooled_head(path)
    for broken in ('{"a": 1}', "[1]", "["):
        (path / "modules.json").write_text(broken)
        with pytest.raises(HeedfulError, match=r"modules.json"):
            pooled_head(path)


def test_without_a_word_of_it_the_mean_is_taken(tmp_path: Path) -> None:
    write("bert", tmp_path)
    assert load(tmp_path, head="pooled").config.head == PooledHead()


def test_minilm() -> None:
    path = Path(__file__).parents[2].parent / "shared" / "data" / "weights" / "minilm-l6"
    if not path.is_dir():
        pytest.skip("minilm-l6 is not beside this checkout")
    wanted = json.loads((path / "expected.json").read_text())
    model = load(path, head="pooled")
    assert model.config.head == PooledHead(pooling="mean", normalise=True)
    ids = {case["text"]: case["ids"] for case in wanted["tokenizer"]}
    with torch.no_grad():
        for case in wanted["sentences"]:
            found = model(torch.tensor([ids[case["text"]]]))[0]
            assert (found[:8] - torch.tensor(case["embedding_first8"])).abs().max() <= 3e-5


@pytest.mark.parametrize("pooling", get_args(Pooling))
@pytest.mark.parametrize("unit", [True, False])
def test_a_written_pooling_is_read_again(pooling: Pooling, unit: bool, tmp_path: Path) -> None:
    """In the layout of the body, beside what was there; and over itself."""
    source = folder(tmp_path / "source", ["Transformer", "Pooling"], {"pooling_mode": "mean"})
    body = load(source, head="pooled")
    model = build(replace(body.config, head=PooledHead(pooling=pooling, normalise=unit)))
    model.folder.layout = "bert"
    for _ in range(2):
        assert save(model, tmp_path / "out") == "bert"
        assert pooled_head(tmp_path / "out") == model.config.head
        again = load(tmp_path / "out")  # which need not be told
        assert again.config == model.config
        assert (again.folder.layout, again.fresh) == ("bert", [])
        assert all(tensor.equal(again.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert sorted(str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*")) == [
        "1_Pooling", "1_Pooling/config.json", "README.md", "config.json", "heedful.json", "model.safetensors",
        "modules.json",
    ]  # fmt: skip
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert not stored["pooler.dense.weight"].any()
    save(load(source), tmp_path / "out")  # a model that does not pool, over one that does
    assert "head" not in read_card(tmp_path / "out")
    assert load(tmp_path / "out").config.head.kind == "no-head"


def test_the_files_are_those_of_minilm() -> None:
    path = Path(__file__).parents[2].parent / "shared" / "data" / "weights" / "minilm-l6"
    if not path.is_dir():
        pytest.skip("minilm-l6 is not beside this checkout")
    ours = module_files(PooledHead(pooling="mean", normalise=True), 384)
    assert ours.keys() == {"modules.json", "1_Pooling/config.json"}
    for name, content in ours.items():
        assert content == json.loads((path / name).read_text()), name


def test_a_dense_layer_is_not_theirs(tmp_path: Path) -> None:
    source = folder(tmp_path / "source", ["Transformer", "Pooling"], {"pooling_mode": "mean"})
    config = load(source, head="pooled").config
    assert save(build(replace(config, head=PooledHead(pooler=True))), tmp_path / "out") == "heedful"
    assert not (tmp_path / "out" / "modules.json").exists()
    assert load(tmp_path / "out").config.head == PooledHead(pooler=True)


def cut_off(at: Path, names: list[str]) -> None:
    """A write that was cut off when all of its files were there."""
    ready = at / ".1.ready"
    (ready / "1_Pooling").mkdir(parents=True)
    (ready / "1_Pooling" / "config.json").write_text("{}")
    (ready / "moves.json").write_text(json.dumps({"new": names, "old": []}))


def test_a_write_that_was_cut_off_is_brought_to_its_end(tmp_path: Path) -> None:
    path = folder(tmp_path / "model", ["Transformer", "Pooling"], {"pooling_mode": "mean"})
    cut_off(path, ["1_Pooling/config.json"])
    find(path)
    assert (path / "1_Pooling" / "config.json").read_text() == "{}"
    assert not list(path.glob(".*"))


@pytest.mark.parametrize("name", ["../out", "1_Pooling/../../out", "/out", "a/b/c", "1_Pooling/", "..", ""])
def test_no_write_leaves_its_folder(name: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "model", ["Transformer", "Pooling"], {"pooling_mode": "mean"})
    cut_off(path, [name])
    with pytest.raises(HeedfulError, match="was not written by heedful; remove it"):
        find(path)
