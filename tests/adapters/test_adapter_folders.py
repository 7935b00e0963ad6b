"""Folders of adapters: the place of the base model, the names of heads, and damaged folders."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

import heedful
from heedful.adapters import LoraConfig, add_adapter, low_rank_parts, merge
from heedful.cli import main
from heedful.config import EmbeddingConfig, EncoderConfig, SequenceHead, StackConfig
from heedful.errors import HeedfulError
from heedful.pretrained import save
from heedful.text import Tokenizer
from tolerances import approx, assert_close, assert_same_model

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # PEFT asks for it by its old name
hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

BERT = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
BERT |= {"max_position_embeddings": 12}
GPT2 = {"vocab_size": 23, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 12}
NAMES = {"id2label": {0: "no", 1: "yes", 2: "what"}, "label2id": {"no": 0, "yes": 1, "what": 2}}
IDS = torch.tensor([[5, 7, 9, 11], [6, 8, 10, 12]])
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
QUERY = "base_model.model.bert.encoder.layer.0.attention.self.query"


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model, and PEFT's adapter of it for three classes."""
    folder = tmp_path_factory.mktemp("folders")
    torch.manual_seed(0)
    hf.BertForMaskedLM(hf.BertConfig(**BERT, initializer_range=0.2)).save_pretrained(folder / "base")
    model = hf.BertForSequenceClassification.from_pretrained(folder / "base", **NAMES)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, task_type="SEQ_CLS", init_lora_weights="gaussian"))
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            parameter.data.normal_()
            assert "bert.pooler" not in name
    adapted.save_pretrained(folder / "adapter")
    config = json.loads((folder / "adapter" / CONFIG).read_text()) | {"base_model_name_or_path": "../base"}
    (folder / "adapter" / CONFIG).write_text(json.dumps(config))
    return folder


@pytest.fixture
def adapter(room: Path, tmp_path: Path) -> Path:
    """A copy to spoil; its base is beside it."""
    shutil.copytree(room, tmp_path / "room")
    return tmp_path / "room" / "adapter"


def change(folder: Path, **values: Any) -> None:
    told = json.loads((folder / CONFIG).read_text()) | values
    (folder / CONFIG).write_text(json.dumps(told))


def store(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(tensors, folder / WEIGHTS)


@torch.no_grad()
def test_the_head_is_the_tasks_and_its_weights_the_adapters(adapter: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The base is a masked language model; nothing is drawn anew but its pooler, which nobody stored."""
    with caplog.at_level(logging.WARNING):
        model = heedful.from_pretrained(adapter)
    assert isinstance(model.config.head, SequenceHead)
    assert model.config.head.labels == 3
    stored = load_file(adapter / WEIGHTS)
    assert torch.equal(model.head.output.weight, stored["base_model.model.classifier.weight"])
    assert not any("output" in name for name in model.fresh)
    assert not any("output" in record.getMessage() for record in caplog.records)
    model.head.pooler.dense.weight.zero_()
    model.head.pooler.dense.bias.zero_()
    assert torch.equal(model(IDS)[0], stored["base_model.model.classifier.bias"])


def test_the_base_is_looked_for_beside_the_adapter_and_then_here(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = heedful.from_pretrained(adapter, head="masked-language-model")
    assert beside.folder.source == str((adapter / "../base").resolve())
    change(adapter, base_model_name_or_path="room/base")
    monkeypatch.chdir(tmp_path)
    here = heedful.from_pretrained(Path("room/adapter"), head="masked-language-model")
    change(adapter, base_model_name_or_path=str(adapter.parent / "base"))
    whole = heedful.from_pretrained(str(adapter), head="masked-language-model")
    with torch.no_grad():
        assert torch.equal(beside(IDS), here(IDS))
        assert torch.equal(beside(IDS), whole(IDS))


def test_another_head_leaves_the_stored_one(adapter: Path) -> None:
    model = heedful.from_pretrained(adapter, head="masked-language-model")
    assert model.fresh == []
    assert len(low_rank_parts(model)) == 4
    other = heedful.from_pretrained(adapter, num_labels=5)
    assert other.config.head.labels == 5
    assert "head.output.weight" in other.fresh
    assert other.head.output.weight.requires_grad


def test_half_precision_bases_keep_finer_adapters(adapter: Path) -> None:
    base = hf.BertForMaskedLM.from_pretrained(adapter.parent / "base").bfloat16()
    base.save_pretrained(adapter.parent / "base")
    model = heedful.from_pretrained(adapter)
    part = model.encoder.block[0].attention.query
    assert (part.weight.dtype, part.lora_a.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(part.lora_a, load_file(adapter / WEIGHTS)[f"{QUERY}.lora_A.weight"])
    assert model(IDS).dtype == torch.bfloat16
    asked = heedful.from_pretrained(adapter, dtype="float64")
    assert {p.dtype for p in asked.parameters()} == {torch.float64}


def test_a_pickle_is_read_as_plain_tensors(adapter: Path) -> None:
    expected = heedful.from_pretrained(adapter, head="masked-language-model")
    torch.save(load_file(adapter / WEIGHTS), adapter / "adapter_model.bin")
    (adapter / WEIGHTS).unlink()
    with torch.no_grad():
        assert_same_model(heedful.from_pretrained(adapter, head="masked-language-model"), expected, IDS)

    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(adapter / "harm"),)

    torch.save({f"{QUERY}.lora_A.weight": Harm()}, adapter / "adapter_model.bin")
    refused(adapter, "could run code")
    assert not (adapter / "harm").exists()


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(HeedfulError) as error:
        heedful.from_pretrained(folder)
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"peft_type": "IA3"}, ("peft_type 'IA3'", "only 'LORA'")),
        ({"use_dora": True}, ("use_dora=True", "merge_and_unload")),
        ({"rank_pattern": {"query": 2}}, ("rank_pattern={'query': 2}",)),
        ({"alpha_pattern": {"query": 2}}, ("alpha_pattern",)),
        ({"bias": "lora_only"}, ("bias='lora_only'",)),
        ({"init_lora_weights": "pissa"}, ("init_lora_weights='pissa'",)),
        ({"a_later_invention": 3}, ("a_later_invention=3",)),
        ({"r": "four"}, ("r must be a whole number, not 'four'",)),
        ({"r": 5}, ("does not fit", "query has A (4, 16) and B (16, 4) for a (16, 16) linear map with r = 5")),
        ({"base_model_name_or_path": None}, ("base_model_name_or_path must be a text",)),
        ({"base_model_name_or_path": "../nowhere"}, ("is an adapter of '../nowhere'", "no folder", "put it back, or")),
        (
            {"base_model_name_or_path": "/nowhere/base"},
            ("no folder /nowhere/base here; put it back, or write its new",),
        ),
        ({"base_model_name_or_path": "."}, ("which is itself an adapter",)),
        ({"target_modules": ["query", "value", "key"]}, ("missing:", "attention.self.key")),
    ],
    ids=str,
)
def test_configurations_that_we_do_not_speak(adapter: Path, values: dict[str, Any], words: tuple[str, ...]) -> None:
    change(adapter, **values)
    refused(adapter, *words)


def test_tensors_that_do_not_fit(adapter: Path) -> None:
    keep = (adapter / WEIGHTS).read_bytes()

    def spoiled(spoil: Callable[[dict[str, torch.Tensor]], Any], *words: str) -> None:
        (adapter / WEIGHTS).write_bytes(keep)
        store(adapter, spoil)
        refused(adapter, *words)

    a, b = f"{QUERY}.lora_A.weight", f"{QUERY}.lora_B.weight"
    spoiled(lambda t: t.pop(b), "not lora_A and lora_B", a)
    spoiled(lambda t: t.update({b: torch.ones(8, 4)}), "of another shape", "B (8, 4)")
    spoiled(
        lambda t: t.update({b.replace("layer.0", "layer.7"): t[b], a.replace("layer.0", "layer.7"): t[a]}), "layer.7"
    )
    spoiled(lambda t: t.update({"base_model.model.bert.embeddings.word_embeddings.weight": torch.ones(23, 16)}), "head")
    spoiled(lambda t: t.update({"base_model.model.what.weight": torch.ones(1)}), "what.weight is not in the head")
    spoiled(lambda t: t.update({"base_model.model.classifier.bias": torch.ones(4)}), "classifier.bias is (4,)")
    spoiled(lambda t: t.update({f"{QUERY}.lora_magnitude_vector": torch.ones(16)}), "lora_magnitude_vector")
    spoiled(lambda t: t.update({"elsewhere": torch.ones(16)}), "elsewhere")
    spoiled(lambda t: [t.pop(name) for name in list(t) if "lora" in name], "no pair")
    (adapter / WEIGHTS).write_bytes(keep[: len(keep) // 2])
    refused(adapter, WEIGHTS, "not a complete safetensors file")
    (adapter / WEIGHTS).unlink()
    refused(adapter, "has no weights")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ["encoder.layer.{}.attention.self.query.lora_A", "encoder.layer.{}.attention.self.query.lora_B"],
            "unexpected",
        ),
        (["{}"], "modules_to_save may list only"),
        (["{}.lora_C"], "not lora_A and lora_B"),
    ],
)
def test_the_first_few_of_many_wrong_tensors_are_named(adapter: Path, names: list[str], words: str) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        shapes = [(4, 16), (16, 4)]
        for number in range(100, 1100):
            for name, shape in zip(names, shapes, strict=False):
                tensors[f"base_model.model.{name.format(number)}.weight"] = torch.ones(shape)

    store(adapter, spoil)
    with pytest.raises(HeedfulError, match=f"{words}.* and 992 more") as error:
        heedful.from_pretrained(adapter)
    assert len(str(error.value)) < 2000


def test_an_adapter_has_a_base_and_a_folder_of_its_own(adapter: Path, tmp_path: Path) -> None:
    model = add_adapter(heedful.create("bert-tiny"), LoraConfig())
    with pytest.raises(HeedfulError, match="cannot name a base"):
        model.save_pretrained(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    opened = heedful.from_pretrained(adapter)
    with pytest.raises(HeedfulError, match="holds a whole model"):
        opened.save_pretrained(adapter.parent / "base")
    assert not (adapter.parent / "base" / CONFIG).exists()


@torch.no_grad()
def test_an_adapter_of_the_bare_body_stands_under_the_bases_head(room: Path, tmp_path: Path) -> None:
    """Made on the class without a head, its names have no prefix."""
    body = hf.BertModel.from_pretrained(room / "base", add_pooling_layer=False)
    told = peft.LoraConfig(r=2, task_type="FEATURE_EXTRACTION", init_lora_weights=False)
    adapted = peft.get_peft_model(body, told).eval()
    adapted.save_pretrained(tmp_path / "body")
    assert "base_model.model.encoder.layer.0.attention.self.query.lora_A.weight" in load_file(
        tmp_path / "body" / WEIGHTS
    )
    model = heedful.from_pretrained(tmp_path / "body")
    expected = adapted(input_ids=IDS).last_hidden_state
    assert_close(model.hidden(IDS), expected)


@pytest.mark.parametrize(("kind", "settings"), [(hf.BertModel, BERT), (hf.GPT2Model, GPT2)])
@torch.no_grad()
def test_an_adapter_of_a_model_without_a_head(kind: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    """Ours, in a folder that is moved, opened by PEFT; and PEFT's own."""
    kind(kind.config_class(**settings, initializer_range=0.2)).save_pretrained(tmp_path / "base")
    model = add_adapter(heedful.from_pretrained(tmp_path / "base"), LoraConfig(rank=2), seed=0)
    for part in low_rank_parts(model).values():
        torch.nn.init.normal_(part.lora_b)
    model.save_pretrained(tmp_path / "adapter")
    shutil.move(tmp_path / "adapter", tmp_path / "moved")
    for head in (None, "none", "None"):
        again = heedful.from_pretrained(tmp_path / "moved", head=head)
        assert again.config == model.config
        assert_same_model(again, model, IDS)
    theirs = peft.AutoPeftModelForFeatureExtraction.from_pretrained(tmp_path / "moved").eval()
    assert_close(theirs(input_ids=IDS).last_hidden_state, model(IDS))
    theirs.save_pretrained(tmp_path / "theirs")
    assert not (tmp_path / "theirs" / "config.json").exists()
    assert_same_model(heedful.from_pretrained(tmp_path / "theirs"), model, IDS)


def test_a_head_s_name_may_be_written_as_anywhere(adapter: Path) -> None:
    """The adapter's own head is loaded, under whichever spelling ``create`` accepts."""
    model = heedful.from_pretrained(adapter, head="Sequence")
    assert torch.equal(model.head.output.weight, heedful.from_pretrained(adapter).head.output.weight)
    assert heedful.from_pretrained(adapter, head="Masked_language_model").fresh == []


def test_merged_it_is_a_whole_model_in_the_same_folder(adapter: Path) -> None:
    model = heedful.from_pretrained(adapter, head="masked-language-model")
    expected = model(IDS)
    merge(model).save_pretrained(adapter)
    assert not (adapter / CONFIG).exists()
    again = heedful.from_pretrained(adapter)
    assert again.adapter is None
    assert_close(again(IDS), expected)


def test_our_own_folder_tells_the_labels_and_opens_in_peft(room: Path, tmp_path: Path) -> None:
    model = heedful.from_pretrained(room / "base", head="sequence", num_labels=3)
    model.labels = ["no", "yes", "what"]
    add_adapter(model, LoraConfig(rank=2), seed=0)
    assert set(model.adapter.whole) >= {"head.output.weight", "head.output.bias", "head.pooler.dense.weight"}
    save(model, tmp_path / "ours", extra={"task": "text-classification"})
    again = heedful.from_pretrained(tmp_path / "ours")
    assert list(again.labels) == ["no", "yes", "what"]
    assert again.fresh == []
    assert set(again.adapter.whole) == set(model.adapter.whole)
    with torch.no_grad():
        assert_same_model(again, model.eval(), IDS)
    theirs = peft.AutoPeftModelForSequenceClassification.from_pretrained(tmp_path / "ours", num_labels=3).eval()
    with torch.no_grad():
        assert_close(theirs(input_ids=IDS).logits, model(IDS))


def test_our_own_layout_has_adapters_by_our_names(tmp_path: Path) -> None:
    """A model that no published family can express gets an adapter too."""
    stack = StackConfig(dim=16, depth=1, heads=2, placement="sandwich")
    config = EncoderConfig(embedding=EmbeddingConfig(vocab_size=23), encoder=stack, head=SequenceHead(labels=2))
    assert save(heedful.create(config, seed=0), tmp_path / "base") == "heedful"
    model = add_adapter(heedful.from_pretrained(tmp_path / "base"), LoraConfig(targets=("all",)), seed=0)
    for part in low_rank_parts(model).values():
        torch.nn.init.normal_(part.lora_b)
    model.save_pretrained(tmp_path / "adapter")
    again = heedful.from_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        assert_same_model(again, model, IDS)
    assert "base_model.model.encoder.block.0.attention.query.lora_A.weight" in load_file(tmp_path / "adapter" / WEIGHTS)


def test_the_base_may_be_on_the_hub(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def download(name: str, *, revision: str | None = None, **_: Any) -> str:
        asked.append((name, revision))
        return str(adapter.parent / "base")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    change(adapter, base_model_name_or_path="org/name", revision="v1")
    model = heedful.from_pretrained(adapter, head="masked-language-model")
    assert asked == [("org/name", "v1")]
    assert model.folder.source == "org/name@v1"
    model.save_pretrained(adapter.parent / "again")
    told = json.loads((adapter.parent / "again" / CONFIG).read_text())
    assert (told["base_model_name_or_path"], told["revision"]) == ("org/name", "v1")


def test_a_bare_folder_of_peft_s_is_used_like_any(adapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PEFT writes no config.json and no tokenizer: the base's, under the adapter's own head, with its own classes."""
    assert not (adapter / "config.json").exists()
    words = [f"w{number}" for number in range(8)]
    tokenizer = Tokenizer.train([" ".join(words)] * 3, 23, "wordpiece", template="both")
    tokenizer.save(adapter.parent / "base")
    pipe = heedful.pipeline(None, adapter, device="cpu")
    assert (pipe.task.name, pipe.task.labels) == ("text-classification", ["LABEL_0", "LABEL_1", "LABEL_2"])
    answer = pipe("w1 w2")
    ids = torch.tensor([tokenizer.template().join(tokenizer.encode(["w1 w2"])[0])[0]])
    with torch.no_grad():  # the same model: the base has no pooler, so that each opening draws one
        scores = pipe.model(ids)[0].softmax(-1)
    assert answer["output"] == f"LABEL_{int(scores.argmax())}"
    assert answer["score"] == approx(float(scores.max()), "layer")
    out = adapter.parent / "merged"
    assert main(["export", str(adapter), "--to", "hf", "--out", str(out)]) == 0
    assert heedful.pipeline(None, out, device="cpu")("w1 w2")["output"] in pipe.task.labels
    data = adapter.parent / "data.tsv"
    data.write_text("".join(f"w{i % 8} w{i % 5} w{i % 3}\tLABEL_{i % 3}\n" for i in range(40)), encoding="utf-8")
    options = ["--train", str(data), "--from", str(adapter), "--out", str(adapter.parent / "on"), "--max-steps=1"]
    assert main(["train", "text-classification", *options]) == 0
    assert heedful.from_pretrained(adapter.parent / "on").labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
