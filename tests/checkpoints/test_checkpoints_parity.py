"""Every family and head against tiny random ``transformers`` models, there and back."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import heedful
from heedful import presets
from heedful.checkpoints import load, save
from heedful.checkpoints.families import FAMILIES, express

hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

GPT2 = {
    "vocab_size": 23,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 12,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}
GPT2 |= {"pad_token_id": 0, "resid_pdrop": 0.2, "attn_pdrop": 0.3, "embd_pdrop": 0.4, "layer_norm_epsilon": 1e-4}
BERT = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
BERT |= {"max_position_embeddings": 12, "type_vocab_size": 3, "hidden_dropout_prob": 0.2}
MARIAN = {"vocab_size": 23, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4}
MARIAN |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 40, "max_position_embeddings": 12}
MARIAN |= {"pad_token_id": 22, "decoder_start_token_id": 22, "eos_token_id": 1, "attention_dropout": 0.3}
APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 29}
VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "patch_size": 4}
VIT |= {"image_size": [8, 12], "num_channels": 2}
NAMED = {"id2label": {0: "no", 1: "yes", 2: "what"}, "label2id": {"no": 0, "yes": 1, "what": 2}}

# name: (class, settings)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt2": (hf.GPT2LMHeadModel, GPT2),
    "gpt2 untied": (hf.GPT2LMHeadModel, {**GPT2, "tie_word_embeddings": False, "n_inner": 24}),
    "gpt2 relu": (hf.GPT2LMHeadModel, {**GPT2, "activation_function": "relu"}),
    "gpt2 body": (hf.GPT2Model, {**GPT2, "activation_function": "silu"}),
    "gpt2 sequence": (hf.GPT2ForSequenceClassification, {**GPT2, **NAMED}),
    "gpt2 token": (hf.GPT2ForTokenClassification, {**GPT2, **NAMED}),
    "gpt2 span": (hf.GPT2ForQuestionAnswering, GPT2),
    "bert": (hf.BertModel, BERT),
    "bert masked": (hf.BertForMaskedLM, {**BERT, "hidden_act": "relu"}),
    "bert sequence": (hf.BertForSequenceClassification, {**BERT, **NAMED}),
    "bert token": (hf.BertForTokenClassification, {**BERT, **NAMED, "classifier_dropout": 0.4}),
    "bert span": (hf.BertForQuestionAnswering, BERT),
    "marian": (hf.MarianMTModel, {**MARIAN, "scale_embedding": True}),
    "marian unscaled": (hf.MarianMTModel, {**MARIAN, "activation_function": "swish"}),
    "marian apart": (hf.MarianMTModel, {**MARIAN, **APART}),
    "marian apart untied": (hf.MarianMTModel, {**MARIAN, **APART, "tie_word_embeddings": False}),
    "vit": (hf.ViTModel, VIT),
    "vit image": (hf.ViTForImageClassification, {**VIT, **NAMED, "image_size": 12, "qkv_bias": False}),
}

IDS = torch.tensor([[5, 7, 9, 11, 4], [6, 8, 10, 12, 14]])
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
TARGET = torch.tensor([[22, 4, 5, 6], [22, 7, 8, 9]])


@functools.cache
def reference(case: str) -> Any:
    """A model with every parameter and stored buffer random: biases and norm weights too."""
    made, settings = CASES[case]
    model = made(made.config_class(**settings))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point() and "embed_positions" not in name:
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3 + ("norm" in name.lower()))
    return model.eval()


def their_output(model: Any, mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    model = model.to(dtype)
    name, given = type(model).__name__, {} if mask is None else {"attention_mask": mask.long()}
    ids = IDS if mask is None else IDS.masked_fill(~mask, model.config.pad_token_id or 0)
    if name.startswith("ViT"):
        out = model(pixels(model).to(dtype))
    elif name.startswith("Marian"):
        out = model(input_ids=IDS, decoder_input_ids=TARGET, **given)
    elif name.startswith("GPT2"):
        positions = {} if mask is None else {"position_ids": (mask.long().cumsum(-1) - 1).clamp(min=0)}
        out = model(input_ids=ids, **given, **positions)
    else:
        out = model(input_ids=ids, token_type_ids=IDS % 3, **given)
    if hasattr(out, "start_logits"):
        return torch.stack((out.start_logits, out.end_logits), -1)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def our_output(model: Any, mask: torch.Tensor | None) -> torch.Tensor:
    if model.config.kind == "vision":
        return model(pixels(model).to(model.dtype))
    if model.config.kind == "encoder-decoder":
        return model(IDS, TARGET, mask)
    return model(IDS, mask, IDS % 3) if model.config.kind == "encoder" else model(IDS, mask)


def pixels(model: Any) -> torch.Tensor:
    size = (8, 12) if model.config.__dict__.get("image_size") == [8, 12] else None
    if size is None and hasattr(model.config, "patches"):
        size = model.config.patches.image_size
    return torch.randn(2, 2, *(size or (12, 12)), generator=torch.Generator().manual_seed(1))


def masks(case: str) -> dict[str, torch.Tensor | None]:
    if case.startswith("vit"):
        return {"none": None}
    return {"none": None, "right": MASK} | ({"left": MASK.flip(1)} if case.startswith("gpt2") else {})


def distance(a: torch.Tensor, b: torch.Tensor, mask: torch.Tensor | None) -> float:
    """The largest difference at real tokens, of the largest value."""
    if mask is not None and a.dim() == 3 and a.shape[:2] == mask.shape:
        a, b = a[mask], b[mask]
    return float((a - b).abs().max() / b.abs().max())


@pytest.fixture
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    reference(request.param).float().save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def every(test: Callable[..., None]) -> Callable[..., None]:
    table = [pytest.param(case, case, id=case) for case in CASES]
    return pytest.mark.parametrize(("case", "stored"), table, indirect=["stored"])(test)


@every
@torch.no_grad()
def test_logits_equal_transformers(case: str, stored: Path) -> None:
    for dtype, allowed in [(torch.float64, 1e-10), (torch.float32, 1e-5)]:
        ours = load(stored, dtype=dtype)
        for mask in masks(case).values():
            theirs = their_output(reference(case), mask, dtype)
            assert distance(our_output(ours, mask), theirs, mask) <= allowed


@every
@torch.no_grad()
def test_what_we_write_opens_strictly_in_transformers(case: str, stored: Path, tmp_path: Path) -> None:
    ours = load(stored)
    assert save(ours, tmp_path / "ours") == case.split()[0]
    made = CASES[case][0]
    theirs, info = made.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    for mask in masks(case).values():
        assert distance(our_output(ours, mask), their_output(theirs.eval(), mask, torch.float32), mask) <= 1e-5
    for key, value in CASES[case][1].items():  # names and dropouts too
        assert getattr(theirs.config, key) == value or (key, value) in [
            ("activation_function", "swish"),  # the same function by its newer name
            ("max_position_embeddings", 12 if case.startswith("marian") else None),  # ours has no end
        ]


@every
def test_there_and_back_is_bit_equal(case: str, stored: Path, tmp_path: Path) -> None:
    save(load(stored), tmp_path / "once")
    save(load(tmp_path / "once"), tmp_path / "twice")
    theirs, once, twice = (load_file(f / "model.safetensors") for f in (stored, tmp_path / "once", tmp_path / "twice"))
    assert theirs.keys() == once.keys()  # ties stored once, as transformers does
    assert all(torch.equal(theirs[name], once[name]) for name in theirs)
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "once" / file).read_bytes() == (tmp_path / "twice" / file).read_bytes()
    assert once.keys() == twice.keys()


def test_pooler_is_optional(tmp_path: Path) -> None:
    model = hf.BertModel(hf.BertConfig(**BERT), add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert not ours.config.head.pooler
    save(ours, tmp_path / "ours")
    assert load_file(tmp_path / "ours" / "model.safetensors").keys() == model.state_dict().keys()


def test_zero_logits_bias_is_none(tmp_path: Path) -> None:
    reference("marian").save_pretrained(tmp_path)
    assert load(tmp_path).config.head.bias
    model = hf.MarianMTModel(hf.MarianConfig(**MARIAN))
    model.save_pretrained(tmp_path)
    assert not load(tmp_path).config.head.bias


def test_pretraining_class_reads_as_masked_language_model(tmp_path: Path) -> None:
    theirs = hf.BertForPreTraining(hf.BertConfig(**BERT)).eval()
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        ours = load(tmp_path)(IDS)
        assert distance(ours, theirs(input_ids=IDS).prediction_logits, None) <= 1e-5


@pytest.mark.parametrize("case", ["marian", "marian apart"])
def test_older_files_with_copies_of_tied_weights_and_tables(case: str, tmp_path: Path) -> None:
    theirs = reference(case)
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    assert {"lm_head.weight", "model.encoder.embed_positions.weight"} <= state.keys()
    theirs.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["MarianMTModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(state, tmp_path / "pytorch_model.bin")
    with torch.no_grad():
        assert distance(our_output(load(tmp_path), None), their_output(theirs, None, torch.float32), None) <= 1e-5
    state["lm_head.weight"][0, 0] += 1
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(heedful.HeedfulError, match=r"lm_head.weight are one tensor .* different values"):
        load(tmp_path)


@pytest.mark.parametrize("case", ["gpt2", "bert masked"])
def test_older_names(case: str, tmp_path: Path) -> None:
    """GPT-2's file on the Hub has no prefix and holds its masks; BERT's has gamma, beta and its position ids."""
    theirs = reference(case)
    theirs.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in old.items():
        state = {key.replace(new, name): tensor for key, tensor in state.items()}
    computed = {"gpt2": "h.0.attn.bias", "bert masked": "bert.embeddings.position_ids"}[case]
    (tmp_path / "model.safetensors").unlink()
    torch.save(state | {computed: torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with torch.no_grad():
        assert distance(our_output(load(tmp_path), None), their_output(theirs, None, torch.float32), None) <= 1e-5


LAPTOP = ["transformer-tiny", "transformer-small", "gpt-mini", "gpt-micro", "bert-mini", "bert-tiny"]


@pytest.mark.parametrize("name", [*LAPTOP, "vit-mini", "vit-micro"])
@torch.no_grad()
def test_laptop_presets_open_in_transformers(name: str, tmp_path: Path) -> None:
    ours = heedful.create(name, seed=0).eval()
    assert save(ours, tmp_path) != "heedful"
    made = getattr(hf, json.loads((tmp_path / "config.json").read_text())["architectures"][0])
    theirs, info = made.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    stored = [p.numel() for name, p in theirs.named_parameters() if "embed_positions" not in name]  # computed
    assert sum(stored) == ours.count()


def test_every_trainable_default_has_a_family() -> None:
    ours = {name: presets.get(name) for name in presets.names() if presets.PRESETS[name][0] == "laptop"}
    assert len(ours) >= 6
    for name, config in ours.items():
        assert express(config) is not None, name


def test_generation_settings(tmp_path: Path) -> None:
    """Token ids and other settings are transformers' own, there and back."""
    theirs = reference("gpt2")
    theirs.generation_config.num_beams = 3
    theirs.save_pretrained(tmp_path / "theirs")
    theirs.generation_config.num_beams = 1
    ours = load(tmp_path / "theirs")
    assert ours.config.special.end == (2, 3)
    assert ours.config.special.start == 1
    assert ours.generation["num_beams"] == 3
    save(ours, tmp_path / "ours")
    back = hf.GenerationConfig.from_pretrained(tmp_path / "ours")
    assert (back.bos_token_id, back.eos_token_id, back.pad_token_id, back.num_beams) == (1, [2, 3], 0, 3)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_data(name: str) -> None:
    tree = ast.parse(Path(import_module(f"heedful.checkpoints.{name}").__file__ or "").read_text())
    code = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.If, ast.IfExp, ast.For, ast.comprehension)
    assert not [node for node in ast.walk(tree) if isinstance(node, code)]
