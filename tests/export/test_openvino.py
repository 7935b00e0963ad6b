"""OpenVINO: the graphs give the model's numbers, a decoder with its cache piece by piece."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import graph_cases
import numpy as np
import pytest
import torch
from graph_cases import STACK, WORDS, inputs, randomised, wanted
from torch import Tensor

from heedful import cli
from heedful.config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ImageHead,
    LanguageHead,
    LearnedPosition,
    MaskedHead,
    ModelConfig,
    NoHead,
    PooledHead,
    SequenceHead,
    SpanHead,
    StackConfig,
    TokenHead,
)
from heedful.errors import HeedfulError
from heedful.export import export, openvino_writer
from heedful.models import EncoderDecoder, Model
from heedful.pretrained import load, save
from heedful.text import Tokenizer

BERT = EncoderConfig(
    embedding=replace(WORDS, segments=2),
    encoder=replace(STACK, placement="post", embedding_norm=True, position=LearnedPosition(length=40)),
)
HEADS = (
    *(MaskedHead(), SequenceHead(pooling="first"), SequenceHead(pooling="max", pooler=False), TokenHead()),
    *(SpanHead(), PooledHead(pooling="last", pooler=True)),
)
PAIR = graph_cases.CASES["pair, sines"][0]
assert isinstance(PAIR, EncoderDecoderConfig)
CASES: dict[str, ModelConfig] = {name: config for name, (config, _) in graph_cases.CASES.items()}
CASES |= {f"encoder, {head.kind}, {number}": replace(BERT, head=head) for number, head in enumerate(HEADS)}
CASES |= {
    "pair, no head": replace(PAIR, head=NoHead()),
    "pair, sequence": replace(PAIR, head=SequenceHead(pooling="last", pooler=False)),
    "decoder, no head": DecoderConfig(
        embedding=WORDS, decoder=replace(STACK, causal=True, position=LearnedPosition(length=40)), head=NoHead()
    ),
    "decoder, ALiBi": DecoderConfig(
        embedding=WORDS, decoder=replace(STACK, causal=True, depth=2, position=graph_cases.AlibiPosition())
    ),
}
STATEFUL = [
    name
    for name, config in CASES.items()
    if isinstance(config.head, LanguageHead) and not isinstance(config, EncoderConfig)
]
Once = Callable[[str], tuple[Model, dict[str, Any], Path]]
FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
NOTES = cache(openvino_writer._precision_notes)


@pytest.fixture(autouse=True)
def _asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The type that this machine rounds to by default, asked in one process for all exports."""
    monkeypatch.setattr(openvino_writer, "_precision_notes", NOTES)


@lru_cache(maxsize=1)
def core() -> Any:
    """The engine, one for all tests: of two, the first to end would free the stack of the process's signal handlers."""
    return pytest.importorskip("openvino").Core()


def opened(file: Path) -> Any:
    """A request of a compiled graph."""
    return core().compile_model(file, "CPU", FLOAT32).create_infer_request()


def run(request: Any, **given: Tensor) -> Tensor:
    request.infer({name: tensor.numpy() for name, tensor in given.items()})
    return torch.tensor(request.get_output_tensor(0).data)


def exported(config: ModelConfig, folder: Path, **options: Any) -> tuple[Model, dict[str, Any]]:
    pytest.importorskip("openvino")
    model = randomised(config)
    save(model, folder / "model")
    return model, export(folder / "model", "openvino", folder / "out", **options)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """The model of a case, what its export told, and the folder of its graphs: made once, and only read."""

    @cache
    def made(case: str) -> tuple[Model, dict[str, Any], Path]:
        folder = tmp_path_factory.mktemp("openvino")
        with torch.random.fork_rng(devices=[]):  # each test draws the same inputs, whichever makes the model
            torch.manual_seed(0)
            model, told = exported(CASES[case], folder)
        return model, told, folder / "out"

    return made


def close(found: Tensor, ours: Tensor, real: Tensor | None = None) -> bool:
    apart = (found - ours).abs()
    return bool((apart if real is None else apart[real]).max() <= 1e-4 * ours.abs().max())


@pytest.mark.parametrize("case", [name for name in CASES if name not in STATEFUL])
@pytest.mark.full(keep=9)
def test_a_graph_gives_our_numbers(case: str, once: Once) -> None:
    config = CASES[case]
    model, told, out = once(case)
    request = opened(out / "openvino_model.xml")
    for rows, length, target in ((1, 1, 1), (2, 12, 3), (5, 40, 9)):
        given = inputs(model, rows, length, target)
        found = run(request, **{name: given[name] for name in told["graphs"]["openvino_model"]})
        ours = wanted(model, given)
        assert found.shape == ours.shape
        by_token = isinstance(config, EncoderConfig | DecoderConfig) and ours.shape[1:2] == (length,) and ours.dim() > 2
        assert close(found, ours, given["attention_mask"].bool() if by_token else None)


@pytest.mark.parametrize("case", ["encoder, sequence, 1", "decoder, learned"])
def test_a_note_says_that_the_default_precision_gives_other_answers(case: str, once: Once) -> None:
    has_state = case in STATEFUL
    model, told, out = once(case)
    given = inputs(model, 3, 12, 1)
    if has_state:
        given = {name: given[name] for name in ("input_ids", "attention_mask")} | {"beam_idx": torch.arange(3)}
        given["attention_mask"][:] = 1
    by_default = core().compile_model(out / "openvino_model.xml", "CPU").create_infer_request()
    named = {name: given[name] for name in told["graphs"]["openvino_model"]}
    differs = not close(run(by_default, **named), run(opened(out / "openvino_model.xml"), **named))
    (note,) = told["notes"] or [""]
    assert ('"INFERENCE_PRECISION_HINT": "f32"' in note) == differs
    assert ("keeps the state in" in note) <= has_state


def pieces(length: int) -> list[slice]:
    """A prompt, two more tokens at once, then one by one."""
    return [slice(0, length - 5), slice(length - 5, length - 3), *(slice(n, n + 1) for n in range(length - 3, length))]


@pytest.mark.parametrize("case", [name for name in STATEFUL if name.startswith("decoder")])
def test_a_decoder_continues_its_state(case: str, once: Once) -> None:
    model, told, out = once(case)
    assert told["graphs"] == {"openvino_model": ["input_ids", "attention_mask", "beam_idx"]}
    request = opened(out / "openvino_model.xml")
    for rows, length in ((3, 14), (2, 9)):
        given = inputs(model, rows, length, 1)
        ids, mask = given["input_ids"], given["attention_mask"]
        mask[0] = 1  # only padding on the left can be continued
        ours = wanted(model, given)
        request.reset_state()
        for piece in pieces(length):
            whole = mask[:, : piece.stop]
            found = run(request, input_ids=ids[:, piece], attention_mask=whole, beam_idx=torch.arange(rows))
            assert close(found, ours[:, piece], mask[:, piece].bool())


def test_rows_of_the_state_in_a_new_order(once: Once) -> None:
    model, _, out = once("decoder, learned")
    request = opened(out / "openvino_model.xml")
    ids, order = torch.randint(60, (3, 8)), torch.tensor([2, 0, 0])
    run(request, input_ids=ids, attention_mask=torch.ones_like(ids), beam_idx=torch.arange(3))
    new = torch.randint(60, (3, 1))
    whole = torch.cat((ids[order], new), 1)
    found = run(request, input_ids=new, attention_mask=torch.ones_like(whole), beam_idx=order)
    with torch.no_grad():
        assert close(found, model(whole)[:, -1:])


@pytest.mark.parametrize("case", [name for name in STATEFUL if name.startswith("pair")])
def test_an_encoder_decoder_is_two_graphs(case: str, once: Once) -> None:
    model, told, out = once(case)
    assert isinstance(model, EncoderDecoder)
    assert told["graphs"] == {
        "openvino_encoder_model": ["input_ids", "attention_mask"],
        "openvino_decoder_model": ["input_ids", "encoder_hidden_states", "encoder_attention_mask", "beam_idx"],
    }
    encoder, decoder = (opened(out / f"openvino_{part}_model.xml") for part in ("encoder", "decoder"))
    for rows, length, target in ((2, 12, 9), (3, 5, 7)):
        given = inputs(model, rows, length, target)
        ids, mask, targets = given["input_ids"], given["attention_mask"], given["decoder_input_ids"]
        memory = run(encoder, input_ids=ids, attention_mask=mask)
        with torch.no_grad():
            assert close(memory, model.encode(ids, mask.bool()), mask.bool())
        ours = wanted(model, given)
        decoder.reset_state()
        for piece in pieces(target):
            given_now = {"input_ids": targets[:, piece], "encoder_hidden_states": memory}
            given_now |= {"encoder_attention_mask": mask, "beam_idx": torch.arange(rows)}
            assert close(run(decoder, **given_now), ours[:, piece])


def sizes(told: Mapping[str, Any]) -> int:
    return sum(size for name, size in told["files"].items() if name.endswith(".bin"))


def test_smaller_weights(tmp_path: Path) -> None:
    wide = StackConfig(dim=64, depth=2, heads=4, causal=True, position=LearnedPosition(length=40))
    model, told = exported(DecoderConfig(embedding=replace(WORDS, vocab_size=300), decoder=wide), tmp_path)
    ids = torch.randint(300, (2, 9))
    with torch.no_grad():
        ours = model(ids)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "beam_idx": torch.arange(2)}
    for kind, share, error in (("float16", 0.55, 2e-3), ("int8", 0.45, 0.1)):
        if kind == "int8":
            pytest.importorskip("nncf")
        small = export(tmp_path / "model", "openvino", tmp_path / kind, quantization=kind)
        assert small["quantization"] == kind
        assert sizes(small) < share * sizes(told)
        found = run(opened(tmp_path / kind / "openvino_model.xml"), **given)
        assert (found - ours).abs().max() <= error * ours.abs().max()


def test_progress_is_not_part_of_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("nncf")
    exported(CASES["pictures"], tmp_path, quantization="int8")
    assert capsys.readouterr().out == ""


def signal_stack() -> int:
    """Address of the stack that signal handlers run on; 0 for the thread's own."""

    class Stack(ctypes.Structure):
        _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

    stack = Stack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0
    return stack.address or 0


@pytest.mark.skipif(sys.platform != "linux", reason="the engine sets a signal stack on Linux alone")
def test_an_export_does_not_change_the_signal_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's CPU part sets one while it lives; a freed one would crash the process at its next signal."""
    pytest.importorskip("nncf")
    monkeypatch.undo()  # the whole export
    before = signal_stack()
    exported(CASES["pair, sines"], tmp_path, quantization="int8")
    assert signal_stack() == before


def test_the_stored_type_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    model = randomised(CASES["decoder, learned"]).half()
    save(model, tmp_path / "model")
    assert export(tmp_path / "model", "openvino", tmp_path / "out")["quantization"] == "float16"


def test_an_adapted_model_and_the_files_beside(tmp_path: Path) -> None:
    from heedful.adapters import LoraConfig, add_adapter, low_rank_parts

    pytest.importorskip("openvino")
    save(randomised(CASES["decoder, learned"]), tmp_path / "base")
    model = add_adapter(load(tmp_path / "base"), LoraConfig(rank=2), seed=0)
    with torch.no_grad():
        for part in low_rank_parts(model).values():
            part.lora_b.normal_()
    save(model, tmp_path / "model")
    (tmp_path / "model" / "config.json").unlink()  # as in PEFT's folders
    Tokenizer.train(["some words"] * 3, size=20, kind="character").save(tmp_path / "model")
    assert cli.main(["export", str(tmp_path / "model"), "--to", "openvino", "--out", str(tmp_path / "out")]) == 0
    files = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"openvino_model.xml", "openvino_model.bin", "config.json", "tokenizer.json"} <= files
    ids = torch.randint(60, (2, 9))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "beam_idx": torch.arange(2)}
    with torch.no_grad():
        assert close(run(opened(tmp_path / "out" / "openvino_model.xml"), **given), model.eval()(ids))


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    save(randomised(CASES["pictures"]), tmp_path / "model")
    with pytest.raises(HeedfulError, match="unknown quantization 'q8_0' of --to openvino"):
        export(tmp_path / "model", "openvino", tmp_path / "out", quantization="q8_0")
    with pytest.raises(HeedfulError, match=r"--to openvino writes a folder, .*remove \.xml"):
        export(tmp_path / "model", "openvino", tmp_path / "out.xml")
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "nncf" else find(name, *more))
    with pytest.raises(HeedfulError, match=r"--to openvino needs nncf; pip install 'heedful\[openvino\]'"):
        export(tmp_path / "model", "openvino", tmp_path / "out", quantization="int8")

    def broken(*given: object, **named: object) -> None:
        raise RuntimeError("no\nway")

    monkeypatch.setattr("openvino.frontend.pytorch.ts_decoder.TorchScriptPythonDecoder", broken)
    with pytest.raises(HeedfulError, match=r"OpenVINO cannot convert this model \(no way\); use --to onnx"):
        export(tmp_path / "model", "openvino", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's converter reports its use to its makers unless told otherwise."""
    telemetry = pytest.importorskip("openvino_telemetry")
    events: list[object] = []
    for name in ("init", "send_event", "start_session"):
        monkeypatch.setattr(telemetry.Telemetry, name, lambda *given, **named: events.append(given))
    exported(CASES["pictures"], tmp_path)
    assert events == []


def test_images_without_a_head(tmp_path: Path) -> None:
    config = replace(CASES["pictures"], head=NoHead())
    assert not isinstance(config.head, ImageHead)
    model, told = exported(config, tmp_path)
    given = inputs(model, 2, 1, 1)
    found = run(opened(tmp_path / "out" / "openvino_model.xml"), pixel_values=given["pixel_values"])
    assert found.shape == (2, 8, 16)
    assert close(found, wanted(model, given))
    assert told["graphs"] == {"openvino_model": ["pixel_values"]}
    assert np.isfinite(found.numpy()).all()
