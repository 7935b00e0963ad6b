"""The pooling that a folder of sentence-transformers tells of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import IDS, MASK, reference

from heedful import HeedfulError
from heedful.checkpoints import load
from heedful.checkpoints.pooling import pooled_head
from heedful.config import PooledHead

TYPE = "sentence_transformers.models."


def folder(at: Path, kinds: list[str], told: dict[str, Any]) -> Path:
    reference("bert").float().save_pretrained(at)
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
    assert torch.allclose(model(IDS, MASK), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("kinds", "told", "said"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode": "mean"}, "names Transformer, Pooling, Dense; only"),
        (["Pooling"], {"pooling_mode": "mean"}, "names Pooling; only"),
        (["Transformer", "Pooling"], {"pooling_mode_mean_sqrt_len_tokens": True}, "pools by 'mean_sqrt_len'"),
        (["Transformer", "Pooling"], {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "pools by"),
        (["Transformer", "Pooling"], {"pooling_mode": ["mean", "cls"]}, "pools by .'mean', 'cls'."),
        (["Transformer", "Pooling"], {}, "pools by"),
    ],
)
def test_what_is_not_spoken_is_refused(kinds: list[str], told: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = folder(tmp_path, kinds, told)
    with pytest.raises(HeedfulError, match=said):
        load(path, head="pooled")
    assert load(path).config.head.kind == "no-head"  # the body opens all the same


def test_a_path_that_leaves_the_folder(tmp_path: Path) -> None:
    path = folder(tmp_path, ["Transformer", "Pooling"], {"pooling_mode": "mean"})
    modules = json.loads((path / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    (path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(HeedfulError, match="leaves the folder"):
        pooled_head(path)
    for broken in ('{"a": 1}', "[1]", "["):
        (path / "modules.json").write_text(broken)
        with pytest.raises(HeedfulError, match=r"modules.json"):
            pooled_head(path)


def test_without_a_word_of_it_the_mean_is_taken(tmp_path: Path) -> None:
    reference("bert").float().save_pretrained(tmp_path)
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
