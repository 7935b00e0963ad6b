"""Model folders: what goes wrong says so in one line; heads, types, layouts, files."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import fresh_process
import heedful
from heedful import presets
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    DropoutRates,
    EmbeddingConfig,
    EncoderConfig,
    LanguageHead,
    LearnedPosition,
    NoHead,
    StackConfig,
)
from heedful.pretrained import folder as folders
from heedful.pretrained import load, read_card, save, writing
from heedful.pretrained.fill_model import align_weights
from heedful.pretrained.model_types import express
from tolerances import assert_close, assert_same_model

STACK = StackConfig(dim=16, depth=2, heads=2, causal=True, position=LearnedPosition(length=8))
GPT = DecoderConfig(embedding=EmbeddingConfig(vocab_size=11), decoder=replace(STACK, activation="gelu_tanh"))
BERT = EncoderConfig(
    embedding=EmbeddingConfig(vocab_size=11, segments=2),
    encoder=replace(STACK, causal=False, placement="post", embedding_norm=True),
    head=NoHead(pooler=True),
)
IDS = torch.tensor([[1, 2, 3, 4]])


def noisy(config: Any, **options: Any) -> Any:
    model = heedful.create(config, seed=0, **options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    return model


@pytest.fixture
def gpt(tmp_path: Path) -> Path:
    save(noisy(GPT), tmp_path / "gpt")
    return tmp_path / "gpt"


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_family_loads_its_own_models(gpt: Path) -> None:
    model = heedful.Decoder.from_pretrained(gpt, dtype="float64")
    assert_same_model(model, load(gpt, dtype="float64"), IDS)
    assert model.dtype is torch.float64
    with pytest.raises(heedful.HeedfulError, match=r"gpt is no Encoder, .* family Decoder; call heedful\.Decoder"):
        heedful.Encoder.from_pretrained(gpt)


def test_a_model_comes_back_ready_to_answer(gpt: Path) -> None:
    model, back = noisy(GPT), load(gpt)
    assert not back.training
    assert_same_model(back, model, IDS)
    assert back.head.output.weight is back.embedding.token.weight  # tied again, generically
    assert back.num_parameters() == model.num_parameters()
    assert all(p.requires_grad and not p.is_meta for p in back.parameters())


def test_tied_weights_are_stored_once(gpt: Path) -> None:
    assert "lm_head.weight" not in load_file(gpt / "model.safetensors")


def test_training_a_loaded_model_leaves_its_file_alone(gpt: Path) -> None:
    before, model = (gpt / "model.safetensors").read_bytes(), load(gpt)
    model(IDS).sum().backward()
    torch.optim.SGD(model.parameters(), 1.0).step()
    assert (gpt / "model.safetensors").read_bytes() == before
    save(model, gpt)  # over the file that is mapped
    assert_same_model(load(gpt), model, IDS)


@pytest.mark.parametrize("fused", [True, False])
def test_weights_that_are_views_of_a_file_are_trained_like_others(fused: bool, gpt: Path) -> None:
    """GPT-2's query is a part of a wider matrix, stored turned; PyTorch's fused optimisers step over no gaps.

    The gradient of a key's bias is zero but for rounding, which ``eps`` keeps small: kernels round otherwise for views.
    """
    views, model = load(gpt), noisy(GPT)
    query = views.decoder.block[0].attention.query.weight
    assert query.untyped_storage().nbytes() > query.nbytes  # not copied
    for each in (views, model):
        optimiser = torch.optim.AdamW(each.parameters(), 0.1, eps=0.1, fused=fused)
        for _ in range(3):
            optimiser.zero_grad()
            each(IDS).logsumexp(-1).sum().backward()
            optimiser.step()
    for ours, theirs in zip(views.parameters(), model.parameters(), strict=True):
        assert_close(ours, theirs, "training")
    assert query.is_contiguous()
    assert not query._post_accumulate_grad_hooks  # type: ignore[attr-defined]  # its work is done after one step


def test_weights_are_aligned_for_training_wherever_their_file_holds_them(gpt: Path) -> None:
    """Kernels sum in another order where memory is not aligned: a resumed run would end with other bits."""
    path, places = gpt / "model.safetensors", set()
    for padding in range(0, 64, 8):
        save_file(load_file(path), path, {"padding": "-" * padding})  # a longer header moves all tensors
        model, expected = load(gpt), load(gpt).state_dict()
        places.add(model.embedding.token.weight.data_ptr() % 64)
        align_weights(model)
        assert all(weight.data_ptr() % 64 == 0 and weight.is_contiguous() for weight in model.parameters())
        assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())
        assert model.head.output.weight is model.embedding.token.weight
    assert places == set(range(0, 64, 8))


@pytest.mark.parametrize("change", ["delete", "replace"])
def test_a_model_outlives_its_file(change: str, gpt: Path) -> None:
    model, expected = load(gpt), noisy(GPT)
    if change == "delete":
        (gpt / "model.safetensors").unlink()
    else:
        save(heedful.create(GPT, seed=5), gpt)
    assert_same_model(model, expected, IDS)


@pytest.mark.parametrize(
    "config",
    [
        replace(GPT, decoder=replace(GPT.decoder, position=AlibiPosition(), norm="rms", gated=True)),
        replace(GPT, head=LanguageHead(tied=True, bias=True)),
        replace(BERT, encoder=replace(BERT.encoder, norm="batch")),
        replace(BERT, embedding=EmbeddingConfig(vocab_size=11)),
    ],
    ids=["alibi", "bias", "batch", "no segments"],
)
def test_our_own_layout(config: Any, tmp_path: Path) -> None:
    model = noisy(config)
    assert save(model, tmp_path, extra={"task": "x"}) == "heedful"
    assert read_card(tmp_path)["layout"] == "heedful"
    back = load(tmp_path)
    assert back.config == config
    assert_same_model(back, model, IDS)


def test_settings_of_training_are_saved_too(tmp_path: Path) -> None:
    dropout = DropoutRates(embedding=0.1, attention=0.2, hidden=0.3, residual=0.4)
    config = replace(BERT, encoder=replace(BERT.encoder, ff_dim=64, dropout=dropout, init="xavier"))
    assert save(noisy(config), tmp_path) == "bert"
    back = load(tmp_path).config.encoder
    assert back.dropout == dropout
    assert back.init == "xavier"


# ------------------------------------------------------------------------------------------------------------ heads


def test_another_head_is_fresh_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    body = noisy(BERT)
    save(body, tmp_path)
    with caplog.at_level(logging.WARNING, logger="heedful"):
        model = load(tmp_path, head="sequence", num_labels=3)
    assert vars(model)["fresh"] == ["head.output.weight", "head.output.bias"]
    assert "head.output.weight, head.output.bias" in caplog.text
    assert_close(model.hidden(IDS), body.hidden(IDS))
    assert torch.equal(model.head.pooler.dense.weight, body.head.pooler.dense.weight)  # the pooler was stored
    assert model(IDS).shape == (1, 3)
    assert model.head.output.weight.detach().std() > 0.01
    assert express(model.config)[1].name == "BertForSequenceClassification"  # so that it opens elsewhere


@pytest.mark.parametrize("head", ["token", "span", "masked-language-model", "pooled", "none"])
def test_every_head_on_a_stored_body(head: str, tmp_path: Path) -> None:
    body = noisy(BERT, head="sequence", num_labels=4)
    save(body, tmp_path)
    model = load(tmp_path, head=head)
    assert_close(model.hidden(IDS), body.hidden(IDS))
    assert all(name.startswith("head.") for name in vars(model)["fresh"])
    assert {"head.output.weight", "head.output.bias"} & set(vars(model)["fresh"]) or head in ("pooled", "none")
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_another_number_of_labels_makes_the_output_fresh(tmp_path: Path) -> None:
    save(noisy(BERT, head="sequence", num_labels=4), tmp_path, extra={"labels": ["a", "b", "c", "d"]})
    same, other = load(tmp_path, num_labels=4), load(tmp_path, num_labels=2)
    assert vars(same)["fresh"] == []
    assert vars(same)["labels"] == ["a", "b", "c", "d"]
    assert vars(other)["fresh"] == ["head.output.weight", "head.output.bias"]
    assert vars(other)["labels"] == []


def test_no_label_is_lost_on_the_way(tmp_path: Path) -> None:
    save(noisy(BERT, head="token", num_labels=2), tmp_path / "a", extra={"labels": ["no", "ja"], "task": "t"})
    assert read_card(tmp_path / "a") | {"task": "t", "labels": ["no", "ja"]} == read_card(tmp_path / "a")
    save(load(tmp_path / "a"), tmp_path / "b")
    assert json.loads((tmp_path / "b" / "config.json").read_text())["id2label"] == {"0": "no", "1": "ja"}
    with pytest.raises(heedful.HeedfulError, match="3 label names for a head of 2 labels"):
        save(load(tmp_path / "a"), tmp_path / "c", extra={"labels": ["a", "b", "c"]})
    assert not (tmp_path / "c").exists()


# ------------------------------------------------------------------------------------------------------------ types


def test_types(gpt: Path, tmp_path: Path) -> None:
    assert load(gpt).dtype == torch.float32
    assert load(gpt, dtype="bfloat16").dtype == load(gpt, dtype=torch.bfloat16).dtype == torch.bfloat16
    tensors = load_file(gpt / "model.safetensors")
    save_file({k: v.half() for k, v in tensors.items()}, gpt / "model.safetensors")
    assert load(gpt).dtype == torch.float32  # float16 has no speed on a CPU
    save_file({k: v.bfloat16() for k, v in tensors.items()}, gpt / "model.safetensors")
    assert load(gpt).dtype == torch.bfloat16
    save(load(gpt), tmp_path / "b")
    assert json.loads((tmp_path / "b" / "config.json").read_text())["dtype"] == "bfloat16"
    with pytest.raises(heedful.HeedfulError, match="float16 is hundreds of times slower than float32 on a CPU; use"):
        load(gpt, dtype="float16")
    with pytest.raises(heedful.HeedfulError, match="did you mean 'bfloat16'"):
        load(gpt, dtype="bfloat")
    with pytest.raises(heedful.HeedfulError, match="device 'nowhere' cannot be used here"):
        load(gpt, device="nowhere")


MEASURE = """
import gc, sys, heedful
def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) * 1024
heedful.from_pretrained(sys.argv[1])  # whatever is imported late
for folder, dtype in (("whole", None), ("shards", None), ("half", "float32"), ("whole", "bfloat16")):
    gc.collect()  # the model before
    before = anonymous()
    model = heedful.from_pretrained(f"{sys.argv[2]}/{folder}", dtype=dtype)
    print((anonymous() - before) / sum(p.nbytes for p in model.parameters()))
    del model
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a process's anonymous memory")
def test_memory_is_the_weights_size_at_most(gpt: Path, tmp_path: Path) -> None:
    config = replace(
        GPT, decoder=replace(STACK, dim=512, activation="gelu_tanh"), embedding=EmbeddingConfig(vocab_size=20_000)
    )
    model = heedful.create(config, seed=0)
    save(model, tmp_path / "whole")
    save(model, tmp_path / "shards", max_shard_size="10MB")
    save(model, tmp_path / "half")
    tensors = load_file(tmp_path / "half" / "model.safetensors")
    save_file({name: tensor.half() for name, tensor in tensors.items()}, tmp_path / "half" / "model.safetensors")
    command = [sys.executable, "-c", MEASURE, str(gpt), str(tmp_path)]
    told = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # glibc gives back what the model before had
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=told)
    whole, shards, half, brain = map(float, run.stdout.split())
    assert max(whole, shards) < 0.1  # mapped, GPT-2's parts of one matrix too
    assert 0.9 < half < 1.1
    assert 0.9 < brain < 1.1


def test_computed_tables_keep_their_precision(tmp_path: Path) -> None:
    config = presets.get("stories260k")
    save(heedful.create(config, seed=0), tmp_path)
    buffers = dict(load(tmp_path, dtype="bfloat16").named_buffers())
    plain = dict(heedful.create(config, seed=0).named_buffers())
    assert buffers.keys() == plain.keys() != set()
    assert all(torch.equal(buffers[name], plain[name]) and buffers[name].dtype == torch.float32 for name in plain)


# ----------------------------------------------------------------------------------------------------------- errors


def test_all_misfits_in_one_error(gpt: Path) -> None:
    tensors = load_file(gpt / "model.safetensors")
    del tensors["transformer.h.0.ln_1.bias"], tensors["transformer.h.1.attn.c_attn.weight"]
    tensors |= {"transformer.ln_f.weight": torch.ones(3), "extra.weight": torch.ones(1)}
    save_file(tensors, gpt / "model.safetensors")
    with pytest.raises(heedful.HeedfulError) as error:
        load(gpt)
    message = str(error.value)
    for part in (
        "missing: transformer.h.0.ln_1.bias, transformer.h.1.attn.c_attn.weight;",
        "unexpected: extra.weight",
        "transformer.ln_f.weight is (3,), but the configuration requires (16,)",
        str(gpt),
    ):
        assert part in message
    assert "\n" not in message


BREAKS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "is not a model folder: config.json is missing"),
    "broken config": (lambda f: (f / "config.json").write_text('{"a": 1,\n,'), "broken JSON in .*config.json:2"),
    "no object": (lambda f: (f / "config.json").write_text("[]"), "is not a JSON object"),
    "binary config": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "cannot read .*config.json"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no weights; add model.safetensors"),
    "cut weights": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-100]),
        "model.safetensors is not a complete safetensors file",
    ),
    "empty weights": (lambda f: (f / "model.safetensors").write_bytes(b""), "is not a complete safetensors file"),
    "other type": (
        lambda f: change(f / "config.json", model_type="gpt22"),
        "'gpt22' is not supported; known: .*gpt2, ",
    ),
    "no type": (lambda f: change(f / "config.json", model_type=None), "model_type None is not supported; known: "),
    "other class": (
        lambda f: change(f / "config.json", architectures=["GPT2LMModel"]),
        "the class .GPT2LMModel. is not supported; known: GPT2For",
    ),
    "no class": (lambda f: change(f / "config.json", architectures=None), '"architectures" is missing; add'),
    "other behaviour": (
        lambda f: change(f / "config.json", scale_attn_by_inverse_layer_idx=True),
        "config.json: scale_attn_by_inverse_layer_idx is True; only False is supported",
    ),
    "quantised": (lambda f: change(f / "config.json", quantization_config={"bits": 4}), "quantization_config is"),
    "activation": (
        lambda f: change(f / "config.json", activation_function="mish"),
        "activation_function is 'mish'; only 'gelu_new', .* are supported",
    ),
    "word for number": (lambda f: change(f / "config.json", n_embd="16"), "n_embd is '16'; it must be a whole number"),
    "null for number": (lambda f: change(f / "config.json", n_layer=None), "n_layer is None; it must be a whole"),
    "no layers": (lambda f: change(f / "config.json", n_layer=0), "n_layer is 0; it must be 1 or more"),
    "odd heads": (lambda f: change(f / "config.json", n_head=3), "dim 16 is not a multiple of 3 heads"),
    "odd id": (lambda f: change(f / "config.json", eos_token_id=[1, "x"]), "eos_token_id is 'x'; it must be a whole"),
    "fewer layers": (lambda f: change(f / "config.json", n_layer=1), "unexpected: transformer.h.1.attn.c_attn.bias, "),
    "broken generation": (lambda f: (f / "generation_config.json").write_text("{"), "broken JSON in .*generation"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_errors_are_one_line(name: str, gpt: Path) -> None:
    breaks, message = BREAKS[name]
    breaks(gpt)
    with pytest.raises(heedful.HeedfulError, match=message) as error:
        load(gpt)
    assert "\n" not in str(error.value)
    assert str(gpt) in str(error.value)


def test_own_layout_that_is_not_whole(tmp_path: Path) -> None:
    save(noisy(replace(GPT, head=LanguageHead(bias=True))), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "embedding"}))
    with pytest.raises(heedful.HeedfulError, match=r"is incomplete: .*embedding"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"embeding": 1}))
    with pytest.raises(heedful.HeedfulError, match=r"unknown key 'embeding' .* did you mean 'embedding'"):
        load(tmp_path)


def test_a_pickle_with_more_than_tensors_is_refused(gpt: Path) -> None:
    (gpt / "model.safetensors").unlink()
    torch.save({"x": Path("a")}, gpt / "pytorch_model.bin")
    with pytest.raises(heedful.HeedfulError, match=r"pytorch_model.bin is damaged"):
        load(gpt)
    torch.save({"x": 1}, gpt / "pytorch_model.bin")
    with pytest.raises(heedful.HeedfulError, match="is not a plain mapping"):
        load(gpt)


def test_shards(gpt: Path) -> None:
    tensors = load_file(gpt / "model.safetensors")
    expected = load(gpt)(IDS)
    where = {name: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(tensors)}
    for file in set(where.values()):
        save_file({name: t for name, t in tensors.items() if where[name] == file}, gpt / file)
    (gpt / "model.safetensors").unlink()
    (gpt / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    assert torch.equal(load(gpt)(IDS), expected)
    (gpt / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(heedful.HeedfulError, match=r"lacks model-00002-of-00002.safetensors"):
        load(gpt)
    (gpt / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x"}}')
    with pytest.raises(heedful.HeedfulError, match='no "weight_map"'):
        load(gpt)


# ---------------------------------------------------------------------------------------------------------- the Hub


def test_names_that_are_no_folder(tmp_path: Path, gpt: Path) -> None:
    with pytest.raises(heedful.HeedfulError, match=r"no folder .*nothing here; give"):
        load(tmp_path / "nothing")
    with pytest.raises(heedful.HeedfulError, match=r"no folder ./a/b here"):
        load("./a/b")
    with pytest.raises(heedful.HeedfulError, match="is a file; give the model's folder"):
        load(gpt / "config.json")


def test_the_hub(gpt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    asked: list[tuple[str, str | None]] = []

    def download(name: str, *, repo_type: str, revision: str | None, allow_patterns: list[str]) -> str:
        assert repo_type == "model"
        asked.append((name, revision))
        if name == "org/away":
            raise LocalEntryNotFoundError("no network\nat all")
        return str(gpt)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert torch.equal(load("org/name", revision="v1")(IDS), load(gpt)(IDS))
    assert asked == [("org/name", "v1")]
    with pytest.raises(heedful.HeedfulError, match=r"no folder org/away here, and the Hub cannot be reached") as error:
        load("org/away")
    assert "\n" not in str(error.value)


def test_offline_mode_is_heard(tmp_path: Path) -> None:
    code = "import heedful.pretrained as c\ntry: c.load('org/name')\nexcept ValueError as e: print(e)"
    run = fresh_process.run(code, env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": ""})
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("no folder org/name here, and the Hub is not used while HF_HUB_OFFLINE is set")


# ---------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("no space")])
@pytest.mark.parametrize("exists", [True, False])
def test_nothing_is_half_written(
    error: Exception, exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    if exists:
        target.mkdir()
        (target / "config.json").write_text("{}")

    def full(*arguments: Any, **options: Any) -> None:
        Path(arguments[1]).write_bytes(b"half")
        raise error

    monkeypatch.setattr(writing, "save_file", full)
    with pytest.raises(heedful.HeedfulError, match=r"cannot write .*out: .*space"):
        save(noisy(GPT), target)
    assert [p.name for p in tmp_path.iterdir()] == (["out"] if exists else [])
    if exists:
        assert (target / "config.json").read_text() == "{}"


def test_a_folder_that_cannot_be_made(gpt: Path) -> None:
    for place in (gpt / "config.json" / "x", gpt / "config.json"):
        with pytest.raises(heedful.HeedfulError, match="cannot write"):
            save(noisy(GPT), place)
    assert sorted(p.name for p in gpt.parent.iterdir()) == ["gpt"]


def test_other_files_of_a_folder_stay(gpt: Path) -> None:
    (gpt / "tokenizer.json").write_text("{}")
    save(noisy(GPT), gpt, extra={"metrics": {"bleu": 1.0}})
    assert (gpt / "tokenizer.json").read_text() == "{}"
    assert read_card(gpt)["metrics"] == {"bleu": 1.0}


def test_a_foreign_folder_has_no_card(tmp_path: Path) -> None:
    assert read_card(tmp_path) == {}
    assert folders.read_card(str(tmp_path)) == {}


def test_the_card_needs_no_torch() -> None:
    code = "import sys, heedful.pretrained as c; c.read_card('.'); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": "src", "PATH": ""}, check=True)
