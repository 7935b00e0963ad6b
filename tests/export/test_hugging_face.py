"""Hugging Face's layout: what is written opens in ``transformers``, whole or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful import cli, presets
from heedful.adapters import LoraConfig, add_adapter, low_rank_parts
from heedful.config import AlibiPosition, EncoderConfig, NoPosition
from heedful.errors import HeedfulError
from heedful.export import export
from heedful.models import build
from heedful.pretrained import load, read_card, save
from heedful.text import Tokenizer
from tolerances import assert_close

TEXT = ["the cat sat on the mat", "a dog ran to the big red house"] * 5


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A GPT-2 with a tokenizer, a card and a way of generating."""
    folder = tmp_path / "model"
    made = heedful.create("gpt-micro", seed=0)
    vars(made)["generation"] = {"num_beams": 2}
    save(made, folder, extra={"task": "text-generation", "metrics": {"loss": 1.5}})
    Tokenizer.train(TEXT, size=60, kind="character", template="none").save(folder)
    (folder / "preprocessor_config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("{}\n")
    return folder


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_it_opens_there_with_the_same_logits(model: Path, tmp_path: Path, dtype: str | None) -> None:
    hf = pytest.importorskip("transformers")
    told = export(model, "hf", tmp_path / "out", dtype=dtype)
    assert (told["layout"], told["dtype"]) == ("gpt2", dtype or "float32")
    theirs, info = hf.GPT2LMHeadModel.from_pretrained(tmp_path / "out", dtype="auto", output_loading_info=True)
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert theirs.dtype == getattr(torch, dtype or "float32")
    assert theirs.generation_config.num_beams == 2
    ids = torch.tensor([[5, 7, 9, 11]])
    ours = load(model, dtype=dtype)
    with torch.no_grad():
        assert torch.allclose(
            ours(ids).float(), theirs.eval()(ids).logits.float(), atol=1e-5 if dtype is None else 0.05
        )
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("the cat")["input_ids"] == Tokenizer.load(model).encode(["the cat"])[0]


def test_files_beside_the_weights(model: Path, tmp_path: Path) -> None:
    told = export(model, "hf", tmp_path / "out")
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "generation_config.json"} <= written
    assert "metrics.jsonl" not in written
    card = read_card(tmp_path / "out")
    assert (card["task"], card["metrics"]) == ("text-generation", {"loss": 1.5})
    sizes = {file.name: file.stat().st_size for file in (tmp_path / "out").iterdir()}
    assert told["files"] == sizes


def test_an_adapter_is_merged(model: Path, tmp_path: Path) -> None:
    adapted = add_adapter(load(model), LoraConfig(rank=2), seed=0)
    with torch.no_grad():
        for part in low_rank_parts(adapted).values():
            part.lora_b.normal_()
    save(adapted, tmp_path / "adapter")
    export(tmp_path / "adapter", "hf", tmp_path / "out")
    merged, ids = load(tmp_path / "out"), torch.tensor([[5, 7, 9]])
    assert merged.adapter is None
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == set(load_file(model / "model.safetensors"))
    with torch.no_grad():
        assert_close(merged(ids), adapted.eval()(ids))
        assert not torch.allclose(merged(ids), load(model)(ids), atol=1e-2)


def test_a_model_that_no_family_can_say_is_refused_by_its_fields(tmp_path: Path) -> None:
    config = presets.get("bert-tiny")
    assert isinstance(config, EncoderConfig)
    assert save(build(replace(config, encoder=replace(config.encoder, norm="batch"))), tmp_path / "model") == "heedful"
    with pytest.raises(HeedfulError, match=r"BertModel, has no encoder\.norm; change"):
        export(tmp_path / "model", "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    config = presets.get("gpt-micro")
    save(build(replace(config, decoder=replace(config.decoder, position=AlibiPosition()))), tmp_path / "model")
    with pytest.raises(HeedfulError, match=r"BloomForCausalLM, has no decoder\.activation, decoder\.embedding_norm"):
        export(tmp_path / "model", "hf", tmp_path / "out")
    config = presets.get("transformer-tiny")
    save(build(replace(config, decoder=replace(config.decoder, position=NoPosition()))), tmp_path / "model")
    with pytest.raises(HeedfulError, match=r"decoder\.position\.kind"):
        export(tmp_path / "model", "hf", tmp_path / "out")


# ------------------------------------------------------------------------------------------------------- the target


def test_a_filled_folder_is_not_touched_unless_it_is_meant(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    with pytest.raises(HeedfulError, match=r"out is not empty; --overwrite"):
        export(model, "hf", out)
    with pytest.raises(
        HeedfulError, match=r"--overwrite only replaces a model, and .*out holds other files; empty it yourself"
    ):
        export(model, "hf", out, overwrite=True)
    assert [file.name for file in out.iterdir()] == ["mine"]
    (out / "config.json").write_text("{}")
    export(model, "hf", out, overwrite=True)
    assert not (out / "mine").exists()
    assert (out / "model.safetensors").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]  # nothing is left beside


def test_a_failed_export_leaves_the_folder_as_it_was(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(source: Path, place: Path) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    export(model, "hf", out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    monkeypatch.setattr("heedful.export.hugging_face.copy_beside", broken)
    with pytest.raises(KeyboardInterrupt):
        export(model, "hf", out, overwrite=True)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out"]


def test_the_model_is_not_written_over_itself(model: Path) -> None:
    (model.parent / "config.json").write_text("{}")  # as a run's folder is around its last/ and average/
    for out in (model, model / "inside", model.parent):
        with pytest.raises(HeedfulError, match=r"overlaps the model's own folder"):
            export(model, "hf", out, overwrite=True)
    assert load(model).num_parameters()


# ------------------------------------------------------------------------------------------------------ the command


def test_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert cli.main(["export", str(model), "--to", "hf", "--out", out]) == 0
    assert f"{out}/model.safetensors  " in capsys.readouterr().out
    assert cli.main(["export", str(model), "--to", "hf", "--out", out, "--overwrite", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["format"], told["out"], told["layout"]) == ("hf", out, "gpt2")


@pytest.mark.parametrize(
    ("tokens", "part"),
    [
        (["--to", "ctranslate"], "did you mean 'ctranslate2'?"),
        (["--to", "hf", "--dtype", "float23"], "did you mean 'float"),
        (["--to", "ctranslate2", "--quantization", "int9"], "did you mean 'int"),
        (
            ["--to", "hf", "--quantization", "int8"],
            "--quantization has no effect on --to hf, only on --to ctranslate2",
        ),
        (["--to", "onnx", "--dtype", "float16"], "--dtype has no effect on --to onnx"),
    ],
)
def test_options_are_refused_in_one_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tokens: list[str], part: str
) -> None:
    assert cli.main(["export", str(model), *tokens, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert part in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_one_line(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heedful.export.target.importlib.util.find_spec", lambda name: None)
    with pytest.raises(HeedfulError, match=r"needs ctranslate2 and transformers; pip install 'heedful\[ctranslate2\]'"):
        export(model, "ctranslate2", tmp_path / "out")
    with pytest.raises(HeedfulError, match=r"needs onnx and onnxscript; pip install 'heedful\[onnx\]'"):
        export(model, "onnx", tmp_path / "out")
