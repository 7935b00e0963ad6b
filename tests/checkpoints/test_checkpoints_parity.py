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
LLAMA = {"vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
LLAMA |= {"max_position_embeddings": 12, "rms_norm_eps": 1e-4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = {**LLAMA, "num_key_value_heads": 2}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0}
LLAMA3 |= {"original_max_position_embeddings": 6, "rope_theta": 50.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "rope_theta": 100.0}
ROBERTA = {**BERT, "type_vocab_size": 1, "max_position_embeddings": 14, "pad_token_id": 1}
DISTIL = {"vocab_size": 23, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24, "max_position_embeddings": 12}
DISTIL |= {"dropout": 0.2, "attention_dropout": 0.3}
T5 = {"vocab_size": 23, "d_model": 16, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "d_kv": 6, "d_ff": 24}
T5 |= {
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
    "decoder_start_token_id": 0,
    "eos_token_id": 2,
}
BART = {"vocab_size": 23, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4}
BART |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 40, "max_position_embeddings": 12}
DEIT = {**VIT, "image_size": 12}

# name: (class, settings)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt2": (hf.GPT2LMHeadModel, GPT2),
    "gpt2 untied": (hf.GPT2LMHeadModel, {**GPT2, "tie_word_embeddings": False, "n_inner": 24}),
    "gpt2 relu": (hf.GPT2LMHeadModel, {**GPT2, "activation_function": "relu"}),
    "gpt2 body": (hf.GPT2Model, {**GPT2, "activation_function": "silu"}),
    "gpt2 sequence": (hf.GPT2ForSequenceClassification, {**GPT2, **NAMED}),
    "gpt2 token": (hf.GPT2ForTokenClassification, {**GPT2, **NAMED}),
    "gpt2 span": (hf.GPT2ForQuestionAnswering, GPT2),
    "llama": (hf.LlamaForCausalLM, LLAMA),
    "llama grouped tied": (hf.LlamaForCausalLM, {**GROUPED, "tie_word_embeddings": True}),
    "llama biases head": (hf.LlamaForCausalLM, {**LLAMA, "attention_bias": True, "mlp_bias": True, "head_dim": 6}),
    "llama linear": (hf.LlamaForCausalLM, {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
    "llama llama3": (hf.LlamaForCausalLM, {**LLAMA, "rope_parameters": LLAMA3}),
    "llama yarn": (hf.LlamaForCausalLM, {**GROUPED, "rope_parameters": YARN}),
    "llama yarn said": (
        hf.LlamaForCausalLM,
        {**LLAMA, "rope_parameters": {**YARN, "attention_factor": 1.3, "beta_fast": 8.0, "beta_slow": 0.5}},
    ),
    "llama body": (hf.LlamaModel, {**LLAMA, "hidden_act": "gelu"}),
    "llama sequence": (hf.LlamaForSequenceClassification, {**LLAMA, **NAMED}),
    "llama token": (hf.LlamaForTokenClassification, {**GROUPED, **NAMED}),
    "llama span": (hf.LlamaForQuestionAnswering, LLAMA),
    "mistral": (hf.MistralForCausalLM, {**GROUPED, "sliding_window": 3}),
    "mistral whole": (hf.MistralForCausalLM, {**LLAMA, "num_key_value_heads": 1, "sliding_window": None}),
    "mistral sequence": (hf.MistralForSequenceClassification, {**GROUPED, **NAMED, "sliding_window": 2}),
    "mistral span": (hf.MistralForQuestionAnswering, {**GROUPED, "sliding_window": 2}),
    "qwen2": (hf.Qwen2ForCausalLM, {**GROUPED, "tie_word_embeddings": True}),
    "qwen2 window": (
        hf.Qwen2ForCausalLM,
        {**GROUPED, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
    ),
    "qwen2 token": (hf.Qwen2ForTokenClassification, {**GROUPED, **NAMED}),
    "qwen2 span": (hf.Qwen2ForQuestionAnswering, GROUPED),
    "qwen3": (hf.Qwen3ForCausalLM, {**GROUPED, "head_dim": 8}),
    "qwen3 bias tied": (
        hf.Qwen3ForCausalLM,
        {**GROUPED, "head_dim": 6, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "qwen3 window": (
        hf.Qwen3ForSequenceClassification,
        {**GROUPED, **NAMED, "use_sliding_window": True, "sliding_window": 2, "max_window_layers": 0},
    ),
    "bert": (hf.BertModel, BERT),
    "bert masked": (hf.BertForMaskedLM, {**BERT, "hidden_act": "relu"}),
    "bert sequence": (hf.BertForSequenceClassification, {**BERT, **NAMED}),
    "bert token": (hf.BertForTokenClassification, {**BERT, **NAMED, "classifier_dropout": 0.4}),
    "bert span": (hf.BertForQuestionAnswering, BERT),
    "roberta": (hf.RobertaModel, ROBERTA),
    "roberta masked": (hf.RobertaForMaskedLM, {**ROBERTA, "layer_norm_eps": 1e-3}),
    "roberta sequence": (hf.RobertaForSequenceClassification, {**ROBERTA, **NAMED}),
    "roberta token": (hf.RobertaForTokenClassification, {**ROBERTA, **NAMED, "type_vocab_size": 2}),
    "roberta span": (hf.RobertaForQuestionAnswering, {**ROBERTA, "hidden_act": "relu"}),
    "xlm-roberta": (hf.XLMRobertaForMaskedLM, ROBERTA),
    "xlm-roberta sequence": (hf.XLMRobertaForSequenceClassification, {**ROBERTA, **NAMED}),
    "xlm-roberta other pad": (hf.XLMRobertaModel, {**ROBERTA, "pad_token_id": 3}),
    "distilbert": (hf.DistilBertModel, DISTIL),
    "distilbert masked": (hf.DistilBertForMaskedLM, {**DISTIL, "activation": "relu"}),
    "distilbert untied": (hf.DistilBertForMaskedLM, {**DISTIL, "tie_word_embeddings": False}),
    "distilbert sequence": (hf.DistilBertForSequenceClassification, {**DISTIL, **NAMED}),
    "distilbert token": (hf.DistilBertForTokenClassification, {**DISTIL, **NAMED}),
    "distilbert span": (hf.DistilBertForQuestionAnswering, {**DISTIL, "sinusoidal_pos_embds": True}),
    "marian": (hf.MarianMTModel, {**MARIAN, "scale_embedding": True}),
    "marian unscaled": (hf.MarianMTModel, {**MARIAN, "activation_function": "swish"}),
    "marian apart": (hf.MarianMTModel, {**MARIAN, **APART}),
    "marian apart untied": (hf.MarianMTModel, {**MARIAN, **APART, "tie_word_embeddings": False}),
    "t5": (hf.T5ForConditionalGeneration, T5),
    "t5 gated": (
        hf.T5ForConditionalGeneration,
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "t5 gated silu": (
        hf.T5ForConditionalGeneration,
        {**T5, "feed_forward_proj": "gated-silu", "layer_norm_epsilon": 1e-3},
    ),
    "t5 body": (hf.T5Model, {**T5, "feed_forward_proj": "gelu_new"}),
    "t5 sequence": (hf.T5ForSequenceClassification, {**T5, **NAMED, "classifier_dropout": 0.3}),
    "t5 span": (hf.T5ForQuestionAnswering, {**T5, "feed_forward_proj": "gated-relu"}),
    "bart": (hf.BartForConditionalGeneration, {**BART, "scale_embedding": True}),
    "bart relu": (hf.BartForConditionalGeneration, {**BART, "activation_function": "relu", "dropout": 0.3}),
    "bart body": (hf.BartModel, BART),
    "bart sequence": (hf.BartForSequenceClassification, {**BART, **NAMED, "classifier_dropout": 0.3}),
    "bart span": (hf.BartForQuestionAnswering, BART),
    "vit": (hf.ViTModel, VIT),
    "vit image": (hf.ViTForImageClassification, {**VIT, **NAMED, "image_size": 12, "qkv_bias": False}),
    "vit relu": (hf.ViTForImageClassification, {**VIT, **NAMED, "hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "deit": (hf.DeiTModel, VIT),
    "deit image": (hf.DeiTForImageClassification, {**DEIT, **NAMED}),
    "deit teacher": (hf.DeiTForImageClassificationWithTeacher, {**DEIT, **NAMED, "qkv_bias": False}),
}

END = 2  # one in each row, at its end: classifiers of encoder-decoders read that place
IDS = torch.tensor([[5, 7, 9, 11, END], [6, 8, 10, 12, END]])
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
TARGET = torch.tensor([[22, 4, 5, 6], [22, 7, 8, 9]])
DECODERS = ("gpt2", "llama", "mistral", "qwen2", "qwen3")


@functools.cache
def reference(case: str) -> Any:
    """A model with every parameter and stored buffer random: biases and norm weights too."""
    made, settings = CASES[case]
    model = made(made.config_class(**settings))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            computed = name.endswith("inv_freq") or (made is hf.MarianMTModel and "embed_positions" in name)
            if tensor.is_floating_point() and not computed:
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3 + ("norm" in name.lower()))
    return model.eval()


def exactly(norm: Any, x: torch.Tensor) -> torch.Tensor:
    """The RMS norm of their model in the precision of ``x``: theirs rounds to float32, whatever comes in."""
    return norm.weight * x * (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()


def their_output(model: Any, mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    model = model.to(dtype)
    for part in model.modules():
        if dtype == torch.float64 and hasattr(part, "variance_epsilon"):
            part.forward = functools.partial(exactly, part)
    kind, given = model.config.model_type, {} if mask is None else {"attention_mask": mask.long()}
    ids = IDS if mask is None else IDS.masked_fill(~mask, model.config.pad_token_id or 0)
    if kind in ("vit", "deit"):
        out = model(pixels(model).to(dtype))
    elif model.config.is_encoder_decoder:
        inner = type(model).__name__.endswith("SequenceClassification")  # it makes the decoder's input itself
        target = {} if inner else {"decoder_input_ids": TARGET}
        out = model(input_ids=closed(mask) if inner else IDS, **target, **given)
    elif kind in DECODERS:
        positions = {} if mask is None else {"position_ids": (mask.long().cumsum(-1) - 1).clamp(min=0)}
        out = model(input_ids=ids, **given, **positions)
    else:
        segments = {"token_type_ids": segments_of(model.config.type_vocab_size)} if kind != "distilbert" else {}
        out = model(input_ids=ids, **segments, **given)
    if hasattr(out, "start_logits"):
        return torch.stack((out.start_logits, out.end_logits), -1)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def segments_of(kinds: int) -> torch.Tensor:
    return IDS % kinds


def closed(mask: torch.Tensor | None) -> torch.Tensor:
    """The ids, the last real one of each row being the end token."""
    if mask is None:
        return IDS
    ids = IDS.masked_fill(IDS == END, 3)
    return ids.scatter(1, mask.sum(1, keepdim=True) - 1, END).masked_fill(~mask, 0)


def our_output(model: Any, mask: torch.Tensor | None) -> torch.Tensor:
    config = model.config
    if config.kind == "vision":
        return model(pixels(model).to(model.dtype))
    if config.kind == "encoder-decoder" and config.head.kind == "sequence":
        ids = closed(mask)
        start = torch.full((len(ids), 1), config.special.start)
        return model(ids, torch.cat((start, ids[:, :-1]), 1), mask, mask)
    if config.kind == "encoder-decoder":
        return model(IDS, TARGET, mask)
    if config.kind == "encoder" and config.embedding.segments:
        return model(IDS, mask, segments_of(config.embedding.segments))
    return model(IDS, mask)


def pixels(model: Any) -> torch.Tensor:
    size = (8, 12) if model.config.__dict__.get("image_size") == [8, 12] else None
    if size is None and hasattr(model.config, "patches"):
        size = model.config.patches.image_size
    return torch.randn(2, 2, *(size or (12, 12)), generator=torch.Generator().manual_seed(1))


def masks(case: str) -> dict[str, torch.Tensor | None]:
    if case.startswith(("vit", "deit")):
        return {"none": None}
    return {"none": None, "right": MASK} | ({"left": MASK.flip(1)} if case.startswith(DECODERS) else {})


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
        if (case, key) not in SAID_OTHERWISE and (case.split()[0], key) not in SAID_OTHERWISE:
            found = getattr(theirs.config, key)
            assert found == value or (isinstance(value, dict) and value.items() <= found.items()), key


SAID_OTHERWISE = {
    ("marian unscaled", "activation_function"),  # the same function by its newer name
    ("marian", "max_position_embeddings"),  # ours has no end
    ("t5 gated", "tie_word_embeddings"),  # their class takes it for "no scale" and forgets it
    ("distilbert", "sinusoidal_pos_embds"),  # how the stored rows began
}


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


HOMES = {"mistral": "llama", "qwen2": "llama", "qwen3": "llama", "xlm-roberta": "roberta"}


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_data(name: str) -> None:
    tree = ast.parse(Path(import_module(f"heedful.checkpoints.{HOMES.get(name, name)}").__file__ or "").read_text())
    code = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.If, ast.IfExp, ast.For, ast.comprehension)
    assert not [node for node in ast.walk(tree) if isinstance(node, code)]
