"""Stochastic depth against transformers' own, and in the hands of a run."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers.models.beit.modeling_beit import BeitDropPath

import heedful
from heedful import cli
from heedful.layers.dropout import DropPath
from heedful.stack import set_drop_path

IDS = torch.tensor([[5, 7, 9, 2], [4, 3, 8, 1]])


def rates_of(model: nn.Module) -> set[float]:
    return {part.rate for part in model.modules() if isinstance(part, DropPath)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_transformers(dtype: torch.dtype) -> None:
    y = torch.randn(64, 3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    torch.manual_seed(1)
    ours = DropPath(0.25).train()(y)
    torch.manual_seed(1)
    theirs = BeitDropPath(0.25).train()(y.float())
    assert ours.dtype == dtype
    assert torch.equal(ours == 0, theirs == 0)
    torch.testing.assert_close(ours.float(), theirs, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0)


def test_examples_are_dropped_whole_and_the_mean_stays() -> None:
    made = DropPath(0.3).train()(torch.ones(20_000, 2, 2))
    rows = made.flatten(1)
    assert torch.equal(rows.amin(1), rows.amax(1))
    assert rows.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert made.mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("preset", ["vit-micro", "transformer-tiny", "gpt-micro", "bert-tiny"])
def test_rates_rise_in_a_line_and_nothing_else_changes(preset: str) -> None:
    model, plain = heedful.create(preset, seed=0).eval(), heedful.create(preset, seed=0).eval()
    set_drop_path(model, 0.3)
    inputs = torch.rand(2, 1, 28, 28) if preset == "vit-micro" else IDS
    given = (inputs, IDS) if preset == "transformer-tiny" else (inputs,)
    assert torch.equal(model(*given), plain(*given))
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert model.config == plain.config
    for name, stack in model.named_children():
        if not hasattr(stack, "block"):
            continue
        depth, sublayers = len(stack.block), 3 if name == "decoder" and preset == "transformer-tiny" else 2
        found = [[part.rate for part in block.modules() if isinstance(part, DropPath)] for block in stack.block]
        for index, rates in enumerate(found):
            assert rates == pytest.approx([0.3 * index / (depth - 1)] * sublayers)


def test_a_path_that_is_always_dropped_leaves_the_stream() -> None:
    from heedful.config import StackConfig
    from heedful.stack import Stack

    model = Stack(StackConfig(dim=16, depth=1, heads=2)).train()
    set_drop_path(model, 1 - 1e-7)
    model.norm = heedful.layers.norm.Identity()
    x = torch.randn(2, 3, 16)
    assert torch.equal(model(x), x)
    assert rates_of(heedful.create("vit-micro")) == {0.0}


def test_a_run_hears_it_from_nothing_and_from_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: set[float] = set()
    forward = DropPath.forward

    def watched(self: DropPath, y: torch.Tensor) -> torch.Tensor:
        if self.training:
            rates.add(round(self.rate, 6))
        return forward(self, y)

    monkeypatch.setattr(DropPath, "forward", watched)
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"{w} day {n}\t{w}\n" for w in ("good", "bad") for n in range(20)), encoding="utf-8")
    small = ["--preset=bert-tiny", "--model.dim=16", "--model.heads=2", "--model.depth=3", "--tokenizer.size=60"]
    run = ["train", "text-classification", "--train", str(data), "--max-steps=2", "--out"]
    assert cli.main([*run, str(tmp_path / "a"), *small, "--model.drop-path=0.4"]) == 0
    assert rates == {0.2, 0.4}  # the first block, of rate 0, does not call it
    assert tomllib.loads((tmp_path / "a" / "run.toml").read_text(encoding="utf-8"))["model"]["drop_path"] == 0.4
    rates.clear()
    assert cli.main([*run, str(tmp_path / "b"), "--from", str(tmp_path / "a"), "--model.drop-path=0.2"]) == 0
    assert rates == {0.1, 0.2}
    rates.clear()
    assert cli.main([*run, str(tmp_path / "c"), "--from", str(tmp_path / "a")]) == 0
    assert not rates
    opened = heedful.from_pretrained(tmp_path / "a")
    assert rates_of(opened) == {0.0}
