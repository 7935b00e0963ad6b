"""Every family verified, each planted fault found, and what cannot be checked said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import heedful
from heedful import cli
from heedful.adapters import LoraConfig, add_adapter
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    PooledHead,
    SequenceHead,
    SpanHead,
    StackConfig,
)
from heedful.models import build
from heedful.pretrained import load, model_types, read_card, save
from heedful.pretrained.preprocessing import Preprocessing, write_preprocessing
from heedful.text import Tokenizer
from heedful.verify import Report, reference, transformers_checks, verified_folder, verify
from heedful.verify.check_report import CheckResult, Comparison

Published = Callable[..., Path]
TEXT = ["the cat sat on the mat", "a dog ran to the big red house", "she sells sea shells by the sea shore"]
LOGITS = {"logits, float64", "logits, float32"}


def verdicts(report: Report, verdict: str) -> set[str]:
    return {check.name for check in report.checks if check.verdict == verdict}


def finding(report: Report, name: str) -> CheckResult:
    return next(check for check in report.checks if check.name == name)


# -------------------------------------------------------------------------------------------------------- all is well


GENERATE = (
    "gpt2",
    "openai-gpt",
    "opt",
    "olmo2",
    "gemma2",
    "switch",
    "mixtral",
    "bloom",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "phi3",
    "llama",
    "mistral",
    "qwen3",
    "t5",
    "mt5",
    "bart",
    "mbart",
    "m2m_100",
    "pegasus",
    "marian",
)


def test_published_models_hold(published: Published, family: str) -> None:
    report = verify(published(family))
    assert [f"{c.name}: {c.reason}" for c in report.checks if c.verdict == "failed"] == []
    assert {"round trip", "stored tensors", "saved logits", "mixed batch"} | LOGITS <= verdicts(report, "ok")
    generates = family.removesuffix(" post-norm") in GENERATE
    for check in ("greedy text", "batched text"):
        assert finding(report, check).verdict == ("ok" if generates else "skipped")
    decodes = generates or family.endswith("for sequences")
    assert finding(report, "cached").verdict == ("ok" if decodes else "skipped")
    assert (finding(report, "padded left").verdict == "ok") == (family not in ("vit", "deit", "dinov2", "ijepa"))
    assert all(check.reason for check in report.checks if check.verdict == "skipped")
    assert report.ok


def test_a_folder_with_stop_strings_holds(published: Published) -> None:
    """They end texts, and need a tokenizer on both sides; ids are compared without them."""
    folder = published("gpt2")
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "stop_strings": ["\n", "the"]}))
    assert load(folder).generation["stop_strings"] == ["\n", "the"]
    report = verify(folder)
    assert {"greedy text", "batched text"} <= verdicts(report, "ok")
    assert report.ok


def test_older_files_pass_and_differences_are_named(published: Published) -> None:
    """A pickle with names of before, a computed buffer, and a copy of the tied table."""
    folder = published("gpt2")
    tensors = load_file(folder / "model.safetensors")
    state = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    state |= {"h.0.attn.bias": torch.ones(1), "lm_head.weight": state["wte.weight"].clone()}
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    found = finding(verify(folder), "stored tensors")
    assert found.verdict == "ok"
    assert found.reason == "28 older names replaced, 1 computed or zero tensors left out"


def test_an_adapter_holds_by_itself(published: Published, tmp_path: Path) -> None:
    save(add_adapter(load(published("gpt2")), LoraConfig(rank=2), seed=0), tmp_path / "adapter")
    report = verify(tmp_path / "adapter")
    assert verdicts(report, "failed") == set()
    assert {"round trip", "padded left", "cached", "batched text"} <= verdicts(report, "ok")
    assert "export the folder with --to hf" in finding(report, "logits, float32").reason


STACK = StackConfig(dim=16, depth=1, heads=4, position=AlibiPosition())
OWN = {
    "decoder": DecoderConfig(embedding=EmbeddingConfig(vocab_size=9), decoder=replace(STACK, causal=True)),
    "decoder of sequences": DecoderConfig(
        embedding=EmbeddingConfig(vocab_size=9),
        decoder=replace(STACK, depth=2, causal=True, window=(3, None)),
        head=SequenceHead(pooling="last", pooler=False),
    ),
    "pooled": EncoderConfig(
        embedding=EmbeddingConfig(vocab_size=40, segments=2), encoder=STACK, head=PooledHead(normalise=True)
    ),
    "batch norm": EncoderConfig(
        embedding=EmbeddingConfig(vocab_size=40), encoder=replace(STACK, norm="batch"), head=SpanHead()
    ),
}


@pytest.mark.parametrize("case", OWN)
def test_our_own_layout_holds_and_says_what_is_skipped(tmp_path: Path, case: str) -> None:
    assert save(build(OWN[case]), tmp_path) == "heedful"
    report = verify(tmp_path)
    assert verdicts(report, "failed") == set()
    assert {"round trip", "stored tensors", "padded left", "padded right", "mixed batch"} <= verdicts(report, "ok")
    assert (finding(report, "cached").verdict == "ok") == case.startswith("decoder")
    assert finding(report, "logits, float64").verdict == "skipped"
    assert "heedful's own layout" in finding(report, "logits, float64").reason


@pytest.fixture
def trained(published: Published) -> Path:
    """A GPT-2 with a tokenizer beside it."""
    tokenizer = Tokenizer.train(TEXT * 5, size=40, kind="character", template="none")
    folder = published("gpt2", vocab_size=tokenizer.vocab_size)
    tokenizer.save(folder)
    return folder


def test_the_tokenizer_and_the_task_are_asked(trained: Path) -> None:
    report = verify(trained, task="text-generation", texts=["the sea"])
    assert [f"{c.name}: {c.reason}" for c in report.checks if c.verdict != "ok"] == []


def test_nothing_of_the_caller_changes(published: Published) -> None:
    import transformers

    folder = published("gpt2")
    state, said = torch.get_rng_state(), transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    first, again = verify(folder), verify(folder)
    assert [c.difference for c in first.checks] == [c.difference for c in again.checks]
    assert torch.equal(torch.get_rng_state(), state)
    assert (transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()) == (said, bars)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == files


def test_without_transformers(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = published("gpt2")
    monkeypatch.setattr(reference.importlib.util, "find_spec", lambda name: None)
    report = verify(folder)
    assert {*LOGITS, "saved logits", "greedy text"} <= verdicts(report, "skipped")
    assert "transformers is not installed" in finding(report, "greedy text").reason
    assert {"round trip", "stored tensors", "padded left", "cached"} <= verdicts(report, "ok")


# ------------------------------------------------------------------------------------------------------ planted faults


def test_a_weight_changed_in_saving(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(model: Any, place: Path) -> str:
        weight = model.get_parameter("decoder.block.1.feed_forward.up.bias")
        with torch.no_grad():
            before = weight[3].clone()
            weight[3] += 1e-3
            layout = save(model, place)
            weight[3] = before
        return layout

    folder = published("gpt2")
    monkeypatch.setattr(verified_folder, "save", spoilt)
    report = verify(folder)
    assert verdicts(report, "failed") == {"round trip", "stored tensors", "saved logits"}
    assert finding(report, "round trip").reason == "differ: decoder.block.1.feed_forward.up.bias"
    assert "h.1.mlp.c_fc.bias" in finding(report, "stored tensors").reason
    assert finding(report, "round trip").difference == 1
    assert not report.ok


def test_a_key_of_the_configuration_that_is_not_read(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    """The epsilon of the norms: folders are written and read alike, and only another program sees it."""
    folder = published("gpt2", layer_norm_epsilon=0.1)
    gpt2, name = model_types.MODEL_TYPES["gpt2"], "layer_norm_epsilon"
    keys = tuple(replace(key, hub_name="eps") if key.hub_name == name else key for key in gpt2.config_keys)
    monkeypatch.setitem(model_types.MODEL_TYPES, "gpt2", replace(gpt2, config_keys=keys))
    report = verify(folder)
    assert LOGITS <= verdicts(report, "failed") <= LOGITS | {"greedy text"}, "a key that is not read is kept on saving"
    assert finding(report, "logits, float64").difference > 1e-3


def test_a_mask_that_lets_padding_through(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = published("bert")
    monkeypatch.setattr("heedful.layers.mask.padding_mask", lambda real: torch.ones_like(real)[:, None, None, :].bool())
    report = verify(folder)
    assert verdicts(report, "failed") == LOGITS | {"padded left", "padded right", "mixed batch"}


def test_a_cache_that_forgets(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("Growing", "Preallocated"):
        monkeypatch.setattr(f"heedful.cache.{kind}.update", lambda self, project: project())
    report = verify(trained)
    assert {"cached", "greedy text"} <= verdicts(report, "failed")
    assert "padded left" in verdicts(report, "ok")
    found = finding(report, "greedy text")
    assert found.difference > 0
    assert "logits differ by" in found.reason


def test_positions_that_count_padding(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = published("gpt2")
    for module in ("layers.mask", "cache"):
        counted = lambda real: torch.arange(real.size(1)).expand(len(real), -1)  # noqa: E731
        monkeypatch.setattr(f"heedful.{module}.token_positions", counted)
    report = verify(folder)
    assert {"padded left", "mixed batch", "batched text"} | LOGITS <= verdicts(report, "failed")
    assert "padded right" in verdicts(report, "ok")


def test_another_tokenizer(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, texts: encode(self, [text.rstrip() for text in texts]))
    found = finding(verify(trained), "token ids")
    assert (found.verdict, found.difference) == ("failed", 1)  # one of the texts ends with line breaks


def test_a_tokenizer_that_their_class_does_not_take(published: Published) -> None:
    """DeBERTa's class of tokenizers reads pieces alone; ``tokenizer_class`` names one that reads any file."""
    folder = published("deberta")
    words = {word: number for number, word in enumerate(("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"unk_token": "[UNK]"}')
    found = finding(verify(folder), "token ids")
    assert found.verdict == "failed"
    assert found.reason.startswith("AutoTokenizer does not load the folder's tokenizer (TypeError: ")
    assert "\n" not in found.reason
    settings = {"unk_token": "[UNK]", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert finding(verify(folder), "token ids").verdict == "ok"


def test_a_folder_whose_configuration_names_no_class(published: Published) -> None:
    """The published DeBERTas are such folders: their body is compared."""
    folder = published("deberta")
    weights = load_file(folder / "model.safetensors")
    body = {name: tensor for name, tensor in weights.items() if not name.startswith("cls.")}
    save_file(body, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    assert finding(verify(folder), "logits, float64").verdict == "ok"


def test_a_tie_is_settled_in_float64(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    def swayed(model: Any, ids: Tensor, mask: Tensor | None, count: int) -> Tensor:
        made = plain(model, ids, mask, count)
        if model.dtype == torch.float32:
            made[:, -1] = (made[:, -1] + 1) % 40
        return made

    folder, plain = published("gpt2"), transformers_checks.inputs.greedy_ids
    monkeypatch.setattr(transformers_checks.inputs, "greedy_ids", swayed)
    found = finding(verify(folder), "greedy text")
    assert found.verdict == "ok"
    assert found.reason.startswith("in float32 token ")
    assert found.reason.endswith("a tie, equal in float64")


def test_a_check_that_fails_is_reported(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    def broken(*given: Any, **named: Any) -> Any:
        raise KeyError("no such\nthing")

    folder = published("gpt2")
    monkeypatch.setattr(transformers.GPT2LMHeadModel, "from_pretrained", broken)
    found = finding(verify(folder), "logits, float64")
    assert (found.verdict, found.difference) == ("failed", None)
    assert found.reason.startswith("KeyError: ")
    assert "\n" not in found.reason


def test_a_folder_that_does_not_open_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(heedful.HeedfulError, match=r"config\.json is missing"):
        verify(tmp_path)
    with pytest.raises(heedful.HeedfulError, match="did you mean 'translation'"):
        verify(tmp_path, task="translatio")


# ------------------------------------------------------------------------------------------------------------- report


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 2e-5])
def test_nan_and_large_differences_are_not_ok(number: float) -> None:
    assert not Comparison(difference=number, tolerance=1e-5).ok
    assert Comparison(difference=1e-5, tolerance=1e-5).ok


def test_the_command(published: Published, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(published("vit"))
    assert cli.main(["verify", folder]) == 0
    first, *table = capsys.readouterr().out.splitlines()
    assert first.startswith("all 6 checks passed, 7 skipped (")
    assert any(line.startswith("logits, float64") and " ok " in line and "≤ 1e-10" in line for line in table)
    assert cli.main(["verify", folder, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"ok", "checks", "model", "seconds"}
    assert (told["ok"], told["model"]) == (True, folder)
    fields = {"name", "description", "verdict", "difference", "tolerance", "reason", "seconds"}
    assert all(set(check) == fields for check in told["checks"])


def test_the_command_finds_a_fault(
    published: Published, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(published("bert"))
    monkeypatch.setattr("heedful.layers.mask.padding_mask", lambda real: torch.ones_like(real)[:, None, None, :].bool())
    assert cli.main(["verify", folder]) == 1
    assert capsys.readouterr().out.startswith("5 of 8 checks failed, 5 skipped (")
    assert cli.main(["verify", folder, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_the_figures_are_kept(published: Published, capsys: pytest.CaptureFixture[str]) -> None:
    folder = published("vit")
    write_preprocessing(Preprocessing(size=12, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)), folder)
    (folder / "heedful.json").write_text('{"task": "image-classification"}')
    assert cli.main(["verify", str(folder), "--save"]) == 0
    card = read_card(folder)
    assert card["task"] == "image-classification"
    kept = card["verification"]
    assert kept["ok"] is True
    assert {"heedful", "torch", "transformers"} == set(kept["versions"])
    figures = {check["name"]: check for check in kept["checks"]}
    assert figures["logits, float64"]["difference"] <= figures["logits, float64"]["tolerance"] == 1e-10
    assert "greedy text" not in figures
    assert "| logits, float64 | ok |" in (folder / "README.md").read_text(encoding="utf-8")
    assert cli.main(["verify", "org/name", "--save"]) == 2
    assert "leave --save out" in capsys.readouterr().err


def test_images_are_not_asked_with_texts(tmp_path: Path) -> None:
    heedful.create("vit-micro", seed=0).save_pretrained(tmp_path)
    with pytest.raises(heedful.HeedfulError, match="is a vision model, which takes no texts; leave --text out"):
        verify(tmp_path, texts=["a"])


def test_a_task_that_the_model_cannot_serve_is_a_mistake_and_no_finding(tmp_path: Path) -> None:
    heedful.create("gpt-micro", seed=0).save_pretrained(tmp_path)
    with pytest.raises(heedful.HeedfulError, match="translation"):
        verify(tmp_path, task="translation")
