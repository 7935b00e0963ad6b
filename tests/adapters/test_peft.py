"""Adapters in PEFT's files: theirs opened here, ours opened there, with the same numbers; and merged the same."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import load_file
from transformers.models.deberta import modeling_deberta

import heedful
from heedful.adapters import LoraConfig, add_adapter, low_rank_parts, merge
from heedful.config import patches_of
from tolerances import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # PEFT asks for it by its old name
hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

SMALL = {"vocab_size": 23, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = SMALL | {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 12}
OPT = SMALL | {"hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
OPT |= {"max_position_embeddings": 12}
BLOOM = SMALL | {"hidden_size": 16, "n_layer": 2, "n_head": 4}
LLAMA = SMALL | {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA |= {"num_key_value_heads": 2, "max_position_embeddings": 12}
GPT_NEOX = SMALL | {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
GPT_NEOX |= {"max_position_embeddings": 12}
PHI3 = LLAMA | {"hidden_size": 32}
GPTJ = SMALL | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 12, "rotary_dim": 4}
BERT = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
BERT |= {"num_labels": 3, "max_position_embeddings": 12}
ROBERTA = BERT | {"pad_token_id": 1, "max_position_embeddings": 14}
MODERN = BERT | {"pad_token_id": 0, "local_attention": 4, "num_hidden_layers": 3}
DISTIL = {"vocab_size": 23, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "num_labels": 3}
T5 = {"vocab_size": 23, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}
T5 |= {"decoder_start_token_id": 0}
BART = SMALL | {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4}
BART |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 12}
MARIAN = BART | {"decoder_start_token_id": 0}
VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24, "patch_size": 4}
VIT |= {"image_size": 12, "num_labels": 3}
LLAMA_ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# name: (class, its settings, PEFT's, our targets that are the same)
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any], str]] = {
    "gpt2": (hf.GPT2LMHeadModel, GPT2, {"task_type": "CAUSAL_LM"}, "query,value"),
    "gpt2 all": (
        hf.GPT2LMHeadModel,
        GPT2,
        {"task_type": "CAUSAL_LM", "target_modules": ["c_attn", "c_proj", "c_fc"], "use_rslora": True},
        "all",
    ),
    "gpt2 out": (hf.GPT2LMHeadModel, GPT2, {"task_type": "CAUSAL_LM", "target_modules": ["attn.c_proj"]}, "out"),
    "gpt2 sequence": (hf.GPT2ForSequenceClassification, GPT2 | {"num_labels": 3}, {"task_type": "SEQ_CLS"}, "query"),
    "openai-gpt all": (
        hf.OpenAIGPTLMHeadModel,
        GPT2,
        {"task_type": "CAUSAL_LM", "target_modules": ["c_attn", "c_proj", "c_fc"]},
        "all",
    ),
    "opt": (hf.OPTForCausalLM, OPT, {"task_type": "CAUSAL_LM"}, "query,value"),
    "opt all": (
        hf.OPTForSequenceClassification,
        OPT | {"do_layer_norm_before": False, "num_labels": 3},
        {"task_type": "SEQ_CLS", "target_modules": ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]},
        "all",
    ),
    "gpt_neox": (hf.GPTNeoXForCausalLM, GPT_NEOX, {"task_type": "CAUSAL_LM"}, "query,key,value"),
    "phi3": (
        hf.Phi3ForCausalLM,
        PHI3,
        {"task_type": "CAUSAL_LM", "target_modules": ["qkv_proj", "gate_up_proj"]},
        "query,key,value,gate,up",
    ),
    "gptj": (hf.GPTJForCausalLM, GPTJ, {"task_type": "CAUSAL_LM"}, "query,value"),
    "bloom": (hf.BloomForCausalLM, BLOOM, {"task_type": "CAUSAL_LM"}, "query,value"),
    "bloom all": (
        hf.BloomForSequenceClassification,
        BLOOM | {"num_labels": 3},
        {
            "task_type": "SEQ_CLS",
            "target_modules": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
        },
        "all",
    ),
    "llama": (hf.LlamaForCausalLM, LLAMA, {"task_type": "CAUSAL_LM"}, "query,value"),
    "llama all": (hf.LlamaForCausalLM, LLAMA, {"task_type": "CAUSAL_LM", "target_modules": LLAMA_ALL}, "all"),
    "olmo2": (
        hf.Olmo2ForCausalLM,
        LLAMA,
        {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"]},
        "query,value",
    ),
    "bert": (hf.BertForSequenceClassification, BERT, {"task_type": "SEQ_CLS"}, "query,value"),
    "bert down": (
        hf.BertForSequenceClassification,
        BERT,
        {"task_type": "SEQ_CLS", "target_modules": r".*layer\.\d+\.output\.dense"},
        "down",
    ),
    "roberta": (hf.RobertaForSequenceClassification, ROBERTA, {"task_type": "SEQ_CLS"}, "query,value"),
    "albert": (
        hf.AlbertForSequenceClassification,
        BERT | {"embedding_size": 8},
        {"task_type": "SEQ_CLS", "target_modules": ["query", "value"]},
        "query,value",
    ),
    "mpnet": (
        hf.MPNetForSequenceClassification,
        BERT,
        {"task_type": "SEQ_CLS", "target_modules": ["q", "v"]},
        "query,value",
    ),
    "deberta": (
        hf.DebertaForSequenceClassification,
        BERT | {"relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c"},
        {"task_type": "SEQ_CLS", "modules_to_save": ["classifier", "pooler"]},
        "query,key,value",
    ),
    "electra": (
        hf.ElectraForSequenceClassification,
        BERT | {"embedding_size": 8},
        {"task_type": "SEQ_CLS"},
        "query,value",
    ),
    "modernbert": (
        hf.ModernBertForSequenceClassification,
        MODERN,
        {"task_type": "SEQ_CLS", "target_modules": ["Wqkv", "Wi"], "modules_to_save": ["head", "classifier"]},
        "query,key,value,gate,up",
    ),
    "distilbert": (
        hf.DistilBertForSequenceClassification,
        DISTIL,
        {"task_type": "SEQ_CLS", "target_modules": ["q_lin", "v_lin"]},
        "query,value",
    ),
    "t5": (hf.T5ForConditionalGeneration, T5, {"task_type": "SEQ_2_SEQ_LM"}, "query,value"),
    "t5 gated": (
        hf.T5ForConditionalGeneration,
        T5 | {"feed_forward_proj": "gated-gelu"},
        {"task_type": "SEQ_2_SEQ_LM", "target_modules": ["wi_0", "wi_1", "wo"]},
        "gate,up,down",
    ),
    "bart": (hf.BartForConditionalGeneration, BART, {"task_type": "SEQ_2_SEQ_LM"}, "query,value"),
    "marian": (
        hf.MarianMTModel,
        MARIAN,
        {"task_type": "SEQ_2_SEQ_LM", "target_modules": ["q_proj", "v_proj"]},
        "query,value",
    ),
    "mbart": (
        hf.MBartForConditionalGeneration,
        MARIAN,
        {"task_type": "SEQ_2_SEQ_LM", "target_modules": ["q_proj", "v_proj"]},
        "query,value",
    ),
    "pegasus": (
        hf.PegasusForConditionalGeneration,
        MARIAN,
        {"task_type": "SEQ_2_SEQ_LM", "target_modules": ["q_proj", "v_proj"]},
        "query,value",
    ),
    "mt5": (hf.MT5ForConditionalGeneration, T5, {"task_type": "SEQ_2_SEQ_LM"}, "query,value"),
    "vit": (
        hf.ViTForImageClassification,
        VIT,
        {"target_modules": ["q_proj", "fc2"], "modules_to_save": ["classifier"]},
        "query,down",
    ),
    "dinov2": (
        hf.Dinov2ForImageClassification,
        {key: value for key, value in VIT.items() if key != "intermediate_size"} | {"mlp_ratio": 2},
        {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "fc2"], "modules_to_save": ["classifier"]},
        "all",
    ),
}
PIXELS = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([[5, 7, 9, 11, 4], [6, 8, 10, 12, 14]])
TARGET = torch.tensor([[2, 4, 5, 6], [2, 7, 8, 9]])


def random(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                fresh = torch.randn(parameter.shape, generator=generator) * 0.3 + ("norm" in name.lower())
                parameter.copy_(fresh)


def their_output(model: Any) -> torch.Tensor:
    inside = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    inside.double().eval()
    for part in inside.modules():
        if hasattr(part, "variance_epsilon") and hasattr(part, "bias"):  # DeBERTa's norm, in float32 otherwise
            part.forward = functools.partial(exactly, part)
    with torch.no_grad():
        more = {"decoder_input_ids": TARGET} if inside.config.is_encoder_decoder else {}
        if inside.main_input_name == "pixel_values":
            return inside(PIXELS.double(), **more).logits
        return inside(input_ids=IDS, **more).logits


def exactly(norm: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.variance_epsilon)


def score_scale(q: torch.Tensor, terms: int) -> torch.Tensor:
    return torch.tensor(q.size(-1) * terms, dtype=torch.float64).sqrt()


@torch.no_grad()
def our_output(model: Any) -> torch.Tensor:
    model.double().eval()
    if model.config.kind == "vision":
        return model(PIXELS.double())
    if patches_of(model.config) is not None:
        return model(PIXELS.double(), TARGET)
    return model(IDS, TARGET) if model.config.kind == "encoder-decoder" else model(IDS)


@pytest.fixture(autouse=True)
def _precise_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their RMS norms compute in float32 whatever they are given; here in what they are given."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    rotate = hf.models.llama.modeling_llama.apply_rotary_pos_emb  # ModernBERT's rotates in float32
    monkeypatch.setattr(hf.models.modernbert.modeling_modernbert, "apply_rotary_pos_emb", rotate)
    monkeypatch.setattr(modeling_deberta, "scaled_size_sqrt", score_scale)
    bloom = hf.models.bloom.modeling_bloom  # its softmax and GELU round too
    monkeypatch.setattr(bloom, "torch", SimpleNamespace(**{**vars(torch), "float32": torch.float64}))
    monkeypatch.setattr(bloom, "bloom_gelu_forward", functools.partial(F.gelu, approximate="tanh"))
    for owner in (
        hf.models.olmo2.modeling_olmo2.Olmo2RMSNorm,
        hf.models.phi3.modeling_phi3.Phi3RMSNorm,
        hf.models.llama.modeling_llama.LlamaRMSNorm,
        hf.models.t5.modeling_t5.T5LayerNorm,
        hf.models.mt5.modeling_mt5.MT5LayerNorm,
    ):
        monkeypatch.setattr(owner, "forward", forward)


@functools.cache
def base(case: str, folder: Path) -> Path:
    made, settings, _, _ = CASES[case]
    model = made(made.config_class(**settings))
    random(model, 0)
    model.save_pretrained(folder / case / "base")
    return folder / case / "base"


@pytest.fixture(scope="session")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("peft")


@functools.cache
def theirs(case: str, folder: Path) -> Path:
    """An adapter of random numbers, as PEFT writes it."""
    made, _, settings, _ = CASES[case]
    model = made.from_pretrained(base(case, folder))
    before = {name: parameter.clone() for name, parameter in model.named_parameters(remove_duplicate=False)}
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, **fan(case), **settings))
    random(adapted, 1)
    for name, parameter in adapted.named_parameters():  # the base's as they were
        if "lora_" not in name and "modules_to_save" not in name:
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".original_module", "")
            parameter.data.copy_(before[plain])
    adapted.save_pretrained(folder / case / "theirs")
    return folder / case / "theirs"


def fan(case: str) -> dict[str, bool]:
    return {"fan_in_fan_out": True} if case.startswith(("gpt2", "openai-gpt")) else {}


def reopened(case: str, room: Path, folder: Path) -> Any:
    made = CASES[case][0]
    return peft.PeftModel.from_pretrained(made.from_pretrained(base(case, room)), folder)


def every(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.parametrize("case", CASES)(test)


@every
@pytest.mark.full(keep=5)
def test_theirs_opens_here(case: str, room: Path) -> None:
    folder = theirs(case, room)
    expected = their_output(reopened(case, room, folder))
    ours = heedful.from_pretrained(folder, dtype="float64")
    assert not ours.training
    assert ours.fresh == []
    plain = our_output(heedful.from_pretrained(base(case, room), dtype="float64"))
    scale = expected.abs().max()
    assert (our_output(ours) - expected).abs().max() <= 1e-10 * scale
    assert (plain - expected).abs().max() > 1e-3 * scale, "the adapter changes nothing"


@every
def test_there_and_back_is_the_same_file(case: str, room: Path, tmp_path: Path) -> None:
    folder = theirs(case, room)
    heedful.from_pretrained(folder).save_pretrained(tmp_path / "ours")
    stored, again = (load_file(place / "adapter_model.safetensors") for place in (folder, tmp_path / "ours"))
    assert stored.keys() == again.keys()
    assert all(torch.equal(stored[name], again[name]) for name in stored)
    expected, told = (json.loads((place / "adapter_config.json").read_text()) for place in (folder, tmp_path / "ours"))
    for key in ("peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "fan_in_fan_out", "bias"):
        assert told[key] == expected[key], key
    assert Path(told["base_model_name_or_path"]).samefile(expected["base_model_name_or_path"])
    if isinstance(expected["target_modules"], list):
        assert sorted(told["target_modules"]) == sorted(expected["target_modules"])
    for name in told["modules_to_save"] or ():
        assert name.endswith(tuple(expected["modules_to_save"])), "PEFT takes names for endings"
    assert not (tmp_path / "ours" / "model.safetensors").exists()


@every
def test_ours_opens_there(case: str, room: Path, tmp_path: Path) -> None:
    model = heedful.from_pretrained(base(case, room), dtype="float64")
    plain = our_output(model)
    targets = tuple(CASES[case][3].split(","))
    add_adapter(model, LoraConfig(rank=3, alpha=5, dropout=0.1, targets=targets, rslora=case == "bert"), seed=0)
    before = our_output(model)
    assert torch.equal(before, plain)
    generator = torch.Generator().manual_seed(2)
    for part in low_rank_parts(model).values():
        part.lora_b.data.copy_(torch.randn(part.lora_b.shape, generator=generator))
    model.save_pretrained(tmp_path / "ours")
    expected = our_output(model)
    scale = expected.abs().max()
    assert (expected - before).abs().max() > 1e-3 * scale
    assert (their_output(reopened(case, room, tmp_path / "ours")) - expected).abs().max() <= 1e-10 * scale
    assert (our_output(heedful.from_pretrained(tmp_path / "ours")) - expected).abs().max() <= 1e-12 * scale


@every
def test_merged_is_theirs_merged(case: str, room: Path, tmp_path: Path) -> None:
    folder = theirs(case, room)
    opened = reopened(case, room, folder)
    expected = their_output(opened)
    merged = opened.double().merge_and_unload()
    ours = heedful.from_pretrained(folder, dtype="float64")
    before = our_output(ours)
    assert merge(ours) is ours
    assert not low_rank_parts(ours)
    assert ours.adapter is None
    assert all(parameter.requires_grad for parameter in ours.parameters())
    scale = before.abs().max()
    assert (our_output(ours) - before).abs().max() <= 1e-12 * scale
    assert (our_output(ours) - expected).abs().max() <= 1e-10 * scale
    ours.save_pretrained(tmp_path / "whole")
    merged.save_pretrained(tmp_path / "theirs")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "theirs"))
    assert other.keys() - one.keys() <= {"final_logits_bias"}, "which is zero"
    for name in one:
        assert_close(one[name], other[name])


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to")  # GPT-2's maps are (in, out), ViT's (out, in)
def test_an_adapter_of_both_sides_of_a_captioner_opens_there(tmp_path: Path) -> None:
    decoder = GPT2 | {"model_type": "gpt2", "is_decoder": True, "add_cross_attention": True}
    config = hf.VisionEncoderDecoderConfig(encoder=VIT | {"model_type": "vit"}, decoder=decoder)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    base = hf.VisionEncoderDecoderModel(config)
    random(base, 0)
    base.save_pretrained(tmp_path / "base")
    ours = heedful.from_pretrained(tmp_path / "base", dtype="float64")
    add_adapter(ours, LoraConfig(rank=3, targets=("query", "value", "up")), seed=0)
    for part in low_rank_parts(ours).values():
        part.lora_b.data.copy_(torch.randn(part.lora_b.shape))  # of float32, as PEFT opens them
    ours.save_pretrained(tmp_path / "ours")
    expected = our_output(ours)
    again = hf.VisionEncoderDecoderModel.from_pretrained(tmp_path / "base")
    found = their_output(peft.PeftModel.from_pretrained(again, tmp_path / "ours"))
    assert (found - expected).abs().max() <= 1e-10 * expected.abs().max()
