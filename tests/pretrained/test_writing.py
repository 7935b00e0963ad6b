"""Writing a folder: shards as ``transformers`` opens them, and old or new weights whatever happens in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fresh_process
import heedful
from heedful.config import DecoderConfig, EmbeddingConfig, EncoderConfig, EnsembleConfig, LearnedPosition, StackConfig
from heedful.pretrained import load, save
from heedful.pretrained.folder import atomic_write
from heedful.pretrained.writing import size_of
from tolerances import assert_close, assert_same_model

STACK = StackConfig(
    dim=16,
    depth=2,
    heads=2,
    ff_dim=64,
    causal=True,
    position=LearnedPosition(length=8),
    activation="gelu_tanh",
    init="scaled",
)
GPT = DecoderConfig(embedding=EmbeddingConfig(vocab_size=11), decoder=STACK)
IDS = torch.tensor([[1, 2, 3, 4]])
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weights(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "model" in path.name)


def read(folder: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in folder.glob("*.safetensors") for name, t in load_file(file).items()}


@pytest.mark.parametrize("most", [1, 5_000, "5KB", "6.5KiB", 10**6])
def test_shards_open_in_transformers(most: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = heedful.create(GPT, seed=0).eval()
    save(model, tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size=most)
    whole, folder = load_file(tmp_path / "whole" / WHOLE), tmp_path / "shards"
    files = sorted(folder.glob("model*.safetensors"))
    if most == 10**6:
        assert weights(folder) == [WHOLE]
    else:
        index = json.loads((folder / INDEX).read_text())
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
        assert index["weight_map"] == {n: file.name for file in files for n in load_file(file)}
        assert [file.name[:12] for file in files] == [f"model-{i:05}-" for i in range(1, len(files) + 1)]
        for file in files:
            tensors = load_file(file)
            assert len(tensors) == 1 or sum(t.nbytes for t in tensors.values()) <= size_of(most)
    ours = read(folder)
    assert ours.keys() == whole.keys()
    assert all(torch.equal(ours[name], whole[name]) for name in whole)
    assert_same_model(load(folder), model, IDS)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    assert_close(theirs(IDS).logits, model(IDS))


def test_transformers_divides_alike(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    save(heedful.create(GPT, seed=0), tmp_path / "a", max_shard_size="5KB")
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a").save_pretrained(
        tmp_path / "b", max_shard_size="5KB"
    )
    a, b = (json.loads((tmp_path / name / INDEX).read_text()) for name in "ab")
    assert a["metadata"]["total_size"] == b["metadata"]["total_size"]
    assert a["weight_map"].keys() == b["weight_map"].keys()
    assert_same_model(load(tmp_path / "b"), load(tmp_path / "a"), IDS)


@pytest.mark.parametrize("size", ["5 parsecs", "-1", 0, "", "0GB", "GB", 1.5j])
def test_a_size_that_is_none(size: Any, tmp_path: Path) -> None:
    with pytest.raises(heedful.HeedfulError, match=r"max_shard_size is .*; give a number of bytes, or a size such"):
        save(heedful.create(GPT, seed=0), tmp_path / "x", max_shard_size=size)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("options", [[], ["-O"]], ids=["plain", "optimised"])
def test_a_replaced_part_that_the_layout_lacks_is_an_error(options: list[str], tmp_path: Path) -> None:
    """Its weights would be lost without a word: under python -O as well, where assertions vanish."""
    code = """
import sys, heedful
from torch import nn
model = heedful.create("gpt-micro", seed=0)
model.decoder.block[0].feed_forward.gate = nn.Linear(2, 2)
try:
    model.save_pretrained(sys.argv[1])
except heedful.HeedfulError as error:
    print(error)
"""
    if options:
        command = [sys.executable, *options, "-c", code, str(tmp_path / "x")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    else:
        done = fresh_process.run(code, str(tmp_path / "x"))
    for part in ("decoder.block.0.feed_forward.gate.weight", "replaced", "restore the original part"):
        assert part in done.stdout
    assert not (tmp_path / "x").exists()


def test_files_of_earlier_weights(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors.bak").write_text("mine")
    for seed, most in enumerate((10**6, 5_000, 3_000, 3_000, 10**6)):
        model = heedful.create(GPT, seed=seed).eval()
        save(model, tmp_path, max_shard_size=most)
        assert_same_model(load(tmp_path), model, IDS)
        named = (
            [WHOLE] if most == 10**6 else [*json.loads((tmp_path / INDEX).read_text())["weight_map"].values(), INDEX]
        )
        assert weights(tmp_path) == sorted({*named, "model.safetensors.bak"})
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []
    assert (tmp_path / "tokenizer.json").exists()


class Crash(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("sizes", [(10**6, 10**6), (10**6, 5_000), (5_000, 10**6), (5_000, 5_000), (5_000, 3_000)])
def test_a_crash_leaves_the_old_weights_or_the_new(
    sizes: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any of its changes to the folder, even to another configuration."""
    old = heedful.create(GPT, seed=0).eval()
    new = heedful.create(replace(GPT, decoder=replace(STACK, depth=1, norm_eps=1e-3)), seed=1).eval()
    seen, steps = set(), 0
    for step in range(99):
        folder = tmp_path / str(step)
        save(old, folder, max_shard_size=sizes[0])
        left = [step]

        def dies(module: Any, name: str, left: list[int] = left, folder: Path = folder) -> Any:
            does = getattr(module, name)

            def change(*paths: Any, **options: Any) -> Any:
                if folder in (Path(path).parent for path in paths):
                    left[0] -= 1
                    if left[0] < 0:
                        raise Crash
                return does(*paths, **options)

            return change

        with monkeypatch.context() as patch:
            for module, name in ((os, "replace"), (Path, "unlink")):
                patch.setattr(module, name, dies(module, name))
            try:
                save(new, folder, max_shard_size=sizes[1])
            except Crash:
                steps += 1
        back = load(folder)
        expected = old if back.config == old.config else new
        assert back.config == expected.config
        assert_same_model(back, expected, IDS)
        assert_same_model(load(folder), expected, IDS)  # and again, once it is settled
        assert not list(folder.glob(".*"))
        seen.add("old" if expected is old else "new")
        if left[0] >= 0:
            break
    assert seen == {"old", "new"}
    assert steps >= 4


def test_a_cut_off_write_that_cannot_be_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(heedful.create(GPT, seed=0), tmp_path)
    ready = tmp_path / ".1.ready"
    ready.mkdir()
    (ready / "moves.json").write_text('{"new": ["config.json"], "old": []}')

    def refused(*arguments: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refused)
        with pytest.raises(heedful.HeedfulError, match=r"interrupted .*\(Permission denied\); make"):
            load(tmp_path)
    assert load(tmp_path).config == GPT


@pytest.mark.parametrize(
    "moves",
    [
        {"new": [], "old": ["../precious"]},
        {"new": ["../precious"], "old": []},
        {"new": "x", "old": []},
        {"new": [1], "old": []},
        {},
    ],
)
def test_moves_that_leave_the_folder(moves: Any, tmp_path: Path) -> None:
    """A downloaded folder may hold anything."""
    (tmp_path / "precious").write_text("mine")
    folder = tmp_path / "model"
    save(heedful.create(GPT, seed=0), folder)
    (folder / ".1.ready").mkdir()
    (folder / ".1.ready" / "moves.json").write_text(json.dumps(moves))
    with pytest.raises(heedful.HeedfulError, match=r"\.1\.ready was not written by heedful; remove it"):
        load(folder)
    assert (tmp_path / "precious").read_text() == "mine"


def test_views_of_one_file_are_written_each_on_its_own(tmp_path: Path) -> None:
    """GPT-2's query, key and value are parts of one stored matrix; our own layout keeps them apart."""
    save(heedful.create(GPT, seed=0), tmp_path / "gpt")
    model = load(tmp_path / "gpt")
    model.config = replace(GPT, decoder=replace(STACK, scale="none"))  # which no family says
    for block in model.decoder.block:
        block.attention.scale = 1.0
    assert save(model, tmp_path / "own") == "heedful"
    stored = load_file(tmp_path / "own" / WHOLE)
    assert all(torch.equal(stored[name], value) for name, value in model.state_dict().items() if name in stored)


def test_two_writes_at_once_do_not_touch_each_other(tmp_path: Path) -> None:
    """As two threads do, which have one process number: each is whole, and the later to end counts."""
    for folder in (tmp_path, tmp_path / "new"):
        with atomic_write(folder) as first:
            (first / "a").write_text("first")
            (first / "b").write_text("first")
            with atomic_write(folder) as second:
                (second / "a").write_text("second")
            assert [file.name for file in folder.iterdir() if file.is_file()] == ["a"]
        assert ((folder / "a").read_text(), (folder / "b").read_text()) == ("first", "first")
        assert not [file for file in folder.iterdir() if file.name.startswith(".")]


def test_members_of_an_ensemble_go_with_it(tmp_path: Path) -> None:
    """Their files alone, and not before the files that replace them are whole."""
    size = heedful.create("bert-tiny", head="sequence", num_labels=2, seed=0).config
    assert isinstance(size, EncoderConfig)
    save(heedful.create(EnsembleConfig(members=(size,) * 3), seed=0), tmp_path)
    for number in range(3):
        (tmp_path / f"member-{number}" / "tokenizer.json").write_text("{}")
    (tmp_path / "member-1" / "notes.md").write_text("of a person")
    (tmp_path / "member-9").mkdir()  # of no ensemble
    save(heedful.create(EnsembleConfig(members=(size,) * 2), seed=0), tmp_path)
    assert {path.name for path in tmp_path.glob("member-*")} == {"member-0", "member-1", "member-9"}
    assert (tmp_path / "member-0" / "tokenizer.json").is_file()  # its task writes it anew
    model = heedful.create(size, seed=1).eval()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("heedful.pretrained.folder._move_files", lambda *_: None)  # killed before
        save(model, tmp_path)
    assert len(list(tmp_path.glob("member-*/model.safetensors"))) == 2
    assert_same_model(load(tmp_path), model, IDS)  # which ends the write
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("member-*/*")} == {"member-1/notes.md"}
    assert not (tmp_path / "member-0").exists()
    assert (tmp_path / "member-9").is_dir()
