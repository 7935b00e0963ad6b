"""ONNX: the graph gives the model's numbers, on other shapes than it was traced with, padding included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_cases import CASES, inputs, randomised, wanted

import heedful
from answering_folders import saved
from heedful import cli
from heedful.config import DecoderConfig, EncoderConfig
from heedful.errors import HeedfulError
from heedful.export import export
from heedful.pretrained import save
from heedful.pretrained.preprocessing import read_preprocessing
from heedful.text import Tokenizer


def session(path: Path) -> Any:
    return pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.full(keep=2)
def test_the_graph_gives_our_numbers(case: str, tmp_path: Path) -> None:
    config, output = CASES[case]
    model = randomised(config)
    save(model, tmp_path / "model")
    if case == "decoder, rotary, window, grouped" and torch.__version__ < "2.13":
        with pytest.raises(HeedfulError, match="cannot trace this model"):
            export(tmp_path / "model", "onnx", tmp_path / "out")
        pytest.skip("an older PyTorch cannot trace a window of attention")
    told = export(tmp_path / "model", "onnx", tmp_path / "out")
    graph = session(tmp_path / "out" / "model.onnx")
    assert [one.name for one in graph.get_outputs()] == told["outputs"] == [output]
    assert [one.name for one in graph.get_inputs()] == told["inputs"]
    for rows, length, target in ((1, 1, 1), (2, 12, 3), (5, 40, 9)):
        given = inputs(model, rows, length, target)
        found = torch.tensor(graph.run(None, {name: given[name].numpy() for name in told["inputs"]})[0])
        ours = wanted(model, given)
        assert found.shape == ours.shape
        apart = (found - ours).abs()
        if isinstance(config, EncoderConfig | DecoderConfig) and ours.dim() == 3:
            apart = apart[given["attention_mask"].bool()]
        assert apart.max() <= 1e-4 * ours.abs().max()


def test_names_are_optimums(tmp_path: Path) -> None:
    """The three cases of inputs beside the plain one, from the configurations alone."""
    from heedful.export.traceable import input_names

    assert input_names(CASES["encoder, segments"][0]) == ("input_ids", "attention_mask", "token_type_ids")
    assert input_names(CASES["pair, sines"][0]) == ("input_ids", "attention_mask", "decoder_input_ids")
    assert input_names(CASES["pictures"][0]) == ("pixel_values",)


def test_an_adapted_model_and_what_travels_along(tmp_path: Path) -> None:
    from heedful.adapters import LoraConfig, add_adapter, low_rank_parts
    from heedful.pretrained import load

    save(randomised(CASES["decoder, learned"][0]), tmp_path / "base")
    model = add_adapter(load(tmp_path / "base"), LoraConfig(rank=2), seed=0)
    with torch.no_grad():
        for part in low_rank_parts(model).values():
            part.lora_b.normal_()
    save(model, tmp_path / "model")
    Tokenizer.train(["some words"] * 3, size=20, kind="character").save(tmp_path / "model")
    export(tmp_path / "model", "onnx", tmp_path / "out")
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"model.onnx", "config.json", "generation_config.json", "tokenizer.json"} <= files
    given = inputs(model, 2, 9, 1)
    names = ("input_ids", "attention_mask")
    found = session(tmp_path / "out" / "model.onnx").run(None, {name: given[name].numpy() for name in names})[0]
    apart = (torch.tensor(found) - wanted(model.eval(), given)).abs()[given["attention_mask"].bool()]
    assert apart.max() <= 1e-4 * float(abs(found).max())


def test_a_captioner_generates_the_same_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = saved("image-to-text", tmp_path / "model"), tmp_path / "out"
    assert cli.main(["export", str(folder), "--to", "onnx", "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["inputs"], told["outputs"]) == (["pixel_values", "decoder_input_ids"], ["logits"])
    assert {"preprocessor_config.json", "tokenizer.json"} <= set(told["files"])
    graph, model = session(out / "model.onnx"), heedful.from_pretrained(folder)

    def logits(pixels: np.ndarray, ids: np.ndarray) -> np.ndarray:
        return graph.run(None, {"pixel_values": pixels, "decoder_input_ids": ids})[0]

    files = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    pixels = read_preprocessing(out).normalised(files.transpose(0, 3, 1, 2))
    for rows, length in ((1, 1), (4, 32)):
        ids = np.random.default_rng(length).integers(0, model.config.tokens.vocab_size, (rows, length))
        with torch.no_grad():
            ours = model(torch.from_numpy(pixels[:rows]), torch.from_numpy(ids)).numpy()
        found = logits(pixels[:rows], ids)
        assert found.shape == ours.shape
        assert abs(found - ours).max() <= 1e-4 * abs(ours).max()
    ids = np.full((1, 1), model.config.special.start)
    while ids.shape[1] < 12 and ids[0, -1] not in model.config.special.end:  # greedy, without a cache
        ids = np.append(ids, logits(pixels[:1], ids)[:, -1:].argmax(-1), 1)
    assert ids.tolist() == model.generate(torch.from_numpy(pixels[:1]), max_new_tokens=11).tolist()
    assert ids.shape[1] > 4


@pytest.mark.parametrize(("to", "name"), [("ctranslate2", "out"), ("openvino", "out"), ("gguf", "out.gguf")])
def test_other_formats_refuse_a_captioner_in_one_line(
    to: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved("image-to-text", tmp_path / "model")
    assert cli.main(["export", str(folder), "--to", to, "--out", str(tmp_path / name)]) == 2
    told = capsys.readouterr().err.strip()
    assert "\n" not in told
    assert "--to onnx" in told
    assert not (tmp_path / name).exists()


def test_an_error_of_tracing_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object, **named: object) -> None:
        raise torch._dynamo.exc.UserError(torch._dynamo.exc.UserErrorType.DYNAMIC_DIM, "no\nway")

    save(randomised(CASES["pictures"][0]), tmp_path / "model")
    monkeypatch.setattr(torch.export, "export", broken)
    with pytest.raises(HeedfulError, match=r"^torch \S+ cannot trace this model \(no way"):
        export(tmp_path / "model", "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_name_of_a_file_is_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = randomised(CASES["pictures"][0])
    save(model, tmp_path / "model")
    out = tmp_path / "new" / "pictures.onnx"
    command = ["export", str(tmp_path / "model"), "--to", "onnx", "--out", str(out)]
    assert cli.main(command) == 0
    assert capsys.readouterr().out.startswith(f"{out}  {out.stat().st_size:,} bytes")
    assert [file.name for file in out.parent.iterdir()] == ["pictures.onnx"]
    given = inputs(model, 2, 1, 1)
    found = session(out).run(None, {"pixel_values": given["pixel_values"].numpy()})[0]
    assert (torch.tensor(found) - wanted(model, given)).abs().max() <= 1e-4 * float(abs(found).max())
    before = out.read_bytes()
    assert cli.main(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    out.write_bytes(b"old")

    def written(source: Path, file: Path) -> dict[str, Any]:  # the same graph, which takes seconds to trace
        file.write_bytes(before)
        return {"beside": []}

    monkeypatch.setattr("heedful.export.onnx_writer.write_file", written)
    assert cli.main([*command, "--overwrite", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["files"], told["beside"]) == ({"pictures.onnx": len(before)}, [])
    assert out.read_bytes() == before


def test_weights_that_one_file_cannot_hold_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(source: Path, file: Path) -> dict[str, Any]:
        file.write_bytes(b"graph")
        file.with_name(file.name + ".data").write_bytes(b"weights")
        return {}

    save(randomised(CASES["pictures"][0]), tmp_path / "model")
    monkeypatch.setattr("heedful.export.onnx_writer.write_file", written)
    with pytest.raises(HeedfulError, match=r"remove \.onnx from --out"):
        export(tmp_path / "model", "onnx", tmp_path / "big.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(("to", "name"), [("hf", "model.safetensors"), ("hf", "x.onnx"), ("onnx", "model.gguf")])
def test_a_folder_is_not_named_as_a_file(to: str, name: str, tmp_path: Path) -> None:
    save(randomised(CASES["pictures"][0]), tmp_path / "model")
    with pytest.raises(HeedfulError, match=rf"--to {to} .*folder.*{name}.*remove \.\w+"):
        export(tmp_path / "model", to, tmp_path / name)
    (tmp_path / "x.onnx").mkdir()
    with pytest.raises(HeedfulError, match=r"x\.onnx is a folder"):
        export(tmp_path / "model", "onnx", tmp_path / "x.onnx", overwrite=True)
