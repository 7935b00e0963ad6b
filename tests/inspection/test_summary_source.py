"""Sources of a summary: presets, configurations and folders, whose weights are not read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import heedful
from heedful import cli, presets
from heedful.adapters import LoraConfig, add_adapter
from heedful.errors import HeedfulError
from heedful.inspection.summary import weightless as summary_source

torchinfo = pytest.importorskip("torchinfo", reason="torchinfo, whose columns are compared, is not installed")


class Together(nn.Module):
    """A residual and the part that it calls: the sub-block of the published table."""

    def __init__(self, residual: nn.Module, part: nn.Module) -> None:
        super().__init__()
        self.residual, self.part = residual, part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.residual(x, None, self.part)


def test_the_four_blocks_of_vit_b_as_torchinfo_counts_them() -> None:
    stack = presets.get("vit-b/16").encoder
    block = heedful.Block(stack)
    four = {
        2_363_904: Together(block.attention_residual, block.attention),
        4_723_968: Together(block.feed_forward_residual, block.feed_forward),
        7_087_872: block,
        85_054_464: nn.Sequential(*(heedful.Block(stack) for _ in range(12))),
    }
    for number, module in four.items():
        theirs = torchinfo.summary(module, input_size=(1, 197, 768), depth=9, verbose=0)
        ours = heedful.summary(module, input_shape=(1, 197, 768))
        assert theirs.total_params == ours.parameters == number
        assert theirs.trainable_params == ours.trainable
        paths = {id(part): path for path, part in module.named_modules()}
        counted = {paths[id(row.module)]: row.num_params for row in theirs.summary_list}
        rows = {layer.path: layer.parameters for layer in ours.layers}
        same = [path for path in rows if path in counted and not path.endswith("residual")]  # theirs: the norm alone
        assert len(same) >= 4
        assert {path: rows[path] for path in same} == {path: counted[path] for path in same}


@pytest.mark.parametrize("name", ["gpt-micro", "bert-tiny", "vit-micro", "transformer-tiny", "stories260k"])
def test_a_folder_is_counted_without_its_weights(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = heedful.create(name, seed=0)
    model.save_pretrained(tmp_path)
    asked = []
    real = summary_source.safe_open
    monkeypatch.setattr(summary_source, "safe_open", lambda *args, **more: asked.append(args) or real(*args, **more))
    monkeypatch.setattr(summary_source, "load", None)
    info = heedful.summary(tmp_path)
    assert info.parameters == model.num_parameters()
    assert [layer.as_dict() for layer in info.layers] == [layer.as_dict() for layer in heedful.summary(model).layers]
    assert len(asked) == 2 * (name == "bert-tiny")  # its pooler's weight alone, for the configuration and for the names


def test_weights_that_are_not_there_are_not_missed(tmp_path: Path) -> None:
    heedful.create("gpt-micro", seed=0).save_pretrained(tmp_path)
    whole = heedful.summary(tmp_path).parameters
    file = tmp_path / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as opened:  # the head alone, and a hole
        length = 8 + int.from_bytes(opened.read(8), "little")
        opened.truncate(length)
        opened.truncate(size)
    assert heedful.summary(tmp_path).parameters == whole


def test_a_configuration_alone(tmp_path: Path) -> None:
    model = heedful.create("gpt-micro", seed=0)
    model.save_pretrained(tmp_path / "whole")
    (tmp_path / "bare").mkdir()
    shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "bare")
    shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "mine.json")
    for what in (tmp_path / "bare", tmp_path / "bare" / "config.json", str(tmp_path / "mine.json"), model.config):
        assert heedful.summary(what).parameters == model.num_parameters()


def test_a_pickle_and_an_adapter(tmp_path: Path) -> None:
    model = heedful.create("gpt-micro", seed=0)
    model.save_pretrained(tmp_path / "base")
    shutil.copytree(tmp_path / "base", tmp_path / "pickle")
    file = tmp_path / "pickle" / "model.safetensors"
    torch.save(load_file(file), tmp_path / "pickle" / "pytorch_model.bin")
    file.unlink()
    assert heedful.summary(tmp_path / "pickle").parameters == model.num_parameters()
    base = heedful.from_pretrained(tmp_path / "base")
    add_adapter(base, LoraConfig(rank=2, alpha=4.0, dropout=0.0, targets=("query", "value")), seed=0)
    base.save_pretrained(tmp_path / "adapter")
    info = heedful.summary(tmp_path / "adapter")
    stack = presets.get("gpt-micro").decoder
    assert info.parameters - model.num_parameters() == stack.depth * 2 * 2 * 2 * stack.dim


def test_shards(tmp_path: Path) -> None:
    model = heedful.create("gpt-micro", seed=0)
    model.save_pretrained(tmp_path, max_shard_size=200_000)
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert heedful.summary(tmp_path).parameters == model.num_parameters()
    index = tmp_path / "model.safetensors.index.json"
    told = json.loads(index.read_text())
    for value in (["x"], {"a": 1}, 3, "../x.safetensors"):
        name = next(iter(told["weight_map"]))
        index.write_text(json.dumps(told | {"weight_map": told["weight_map"] | {name: value}}))
        with pytest.raises(HeedfulError, match=r'index.json has no "weight_map" .*download'):
            heedful.summary(tmp_path)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    heedful.create("gpt-micro", seed=0).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    gone, cut = [name for name in tensors if name.endswith("weight")][:2]
    del tensors[gone]
    tensors[cut] = tensors[cut][:-1].clone()
    save_file(tensors, file)
    with pytest.raises(HeedfulError, match=r"missing: .*of another shape: ") as error:
        heedful.summary(tmp_path)
    assert gone in str(error.value)
    assert cut in str(error.value)
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(HeedfulError, match="not a complete safetensors file"):
        heedful.summary(tmp_path)


def test_the_command_takes_an_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["summary", "bert-tiny", "--length", "16", "--batch", "2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["input"] == [[2, 16]]
    assert data["memory"]["float32"]["weights"] == 4 * 4_385_920
    assert cli.main(["summary", "vit-micro", "--image-size", "56"]) == 0
    assert "1 × 1 × 56 × 56" in capsys.readouterr().out
    assert cli.main(["summary", "gpt2", "--length", "5000"]) == 2
    assert "1024 positions" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    assert cli.main(["summary", str(tmp_path / "config.json")]) == 2
    assert "broken JSON" in capsys.readouterr().err
