"""Values in published configurations that we do not compute are refused by name, in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import CASES, reference, write

from heedful import HeedfulError
from heedful.config import RotaryPosition
from heedful.pretrained import load, save
from heedful.pretrained.model_types import MODEL_TYPES
from tolerances import assert_close

# (a model to begin with, what its config.json says instead, what the refusal says)
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"model_type": "gemma3_text"}, "model_type 'gemma3_text' is not supported"),
    ("llama", {"architectures": ["LlamaForMultipleChoice"]}, "the class 'LlamaForMultipleChoice' is not supported"),
    ("llama", {"hidden_act": "relu2"}, "hidden_act is 'relu2'; only"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'; only 'default'"),
    ("llama", {"rope_parameters": None, "rope_scaling": {"type": "longrope"}}, "rope_type is 'longrope'"),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}, "of type 'linear' lacks factor"),
    ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}}, "has mscale 0.7"),
    ("llama", {"rope_parameters": [1]}, r"rope_parameters is \[1\]; it must be an object"),
    ("llama", {"rms_norm_eps": "small"}, "rms_norm_eps is 'small'; it must be a number"),
    ("llama", {"num_key_value_heads": 3}, "4 heads cannot share 3 key-value heads"),
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config is"),
    ("llama", {"per_layer_config": {"0": {"rms_norm_eps": 0.5}}}, "per_layer_config is"),
    ("gpt_neo", {"attention_types": [[["global"], 3]]}, r"attention_types has \[\['global'\], 3\]; give words"),
    ("gpt_neo", {"attention_types": [[["global"], 1]]}, "attention_types has 1 words, but the model has 2 layers"),
    ("gpt_neo", {"attention_types": [[["global", "near"], 1]]}, "attention_types names 'near'; only 'global', 'local'"),
    ("gpt_neo", {"attention_types": 3}, "attention_types is 3; it must be a list"),
    ("gemma2", {"layer_types": ["full_attention"]}, "layer_types has 1 words, but the model has 2 layers"),
    ("gemma2", {"sliding_window": None}, "sliding_window is None; it must be a whole number"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0; it must be 1 or more"),
    ("gemma2", {"attn_logit_softcapping": 0.0}, "attn_logit_softcapping: stack.score_cap is 0.0; give a finite"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True; only None, False are"),
    ("dinov2 image", {"image_size": [12, 16]}, r"image_size is \[12, 16\]; only squares are supported"),
    ("dinov2 image", {"use_swiglu_ffn": 1}, "use_swiglu_ffn is 1; it must be true or false"),
    ("gpt_neo", {"window_size": None}, "window_size is None; it must be a whole number"),
    ("albert", {"num_hidden_groups": 2}, "num_hidden_groups is 2; only 1 and the number of layers, 3, are supported"),
    ("albert", {"inner_group_num": 2}, "inner_group_num is 2; only 1 is supported"),
    ("mistral", {"sliding_window": 0}, "sliding_window is 0"),
    ("mistral", {"sliding_window": "wide"}, "sliding_window is 'wide'"),
    (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 0, "layer_types": ["full_attention", "sliding_attention"]},
        "stack.window is 0; give at least 1",
    ),
    ("roberta masked", {"tie_word_embeddings": False}, "tie_word_embeddings is False; only True"),
    ("roberta", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ("roberta", {"is_decoder": True}, "is_decoder is True"),
    ("distilbert", {"activation": "mish"}, "activation is 'mish'"),
    ("t5", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj is 'gated-tanh'; only 'relu'"),
    ("t5", {"feed_forward_proj": ["relu"]}, "feed_forward_proj is"),
    ("t5", {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; it must be true or false"),
    ("t5", {"architectures": ["T5EncoderModel"]}, "the class 'T5EncoderModel' is not supported"),
    ("bart", {"normalize_before": True}, "normalize_before is True; only False"),
    ("bart", {"add_final_layer_norm": True}, "add_final_layer_norm is True"),
    ("mbart", {"normalize_before": False}, "normalize_before is False; only True"),
    ("m2m_100", {"d_model": 15}, "d_model is 15; the sinusoids need an even number, 4 or more"),
    ("m2m_100", {"pad_token_id": 0}, "pad_token_id is 0 in config.json, but 1 in generation_config.json"),
    ("pegasus", {"static_position_embeddings": False}, "static_position_embeddings is False"),
    ("pegasus", {"max_position_embeddings": 10**12}, "max_position_embeddings is 1000000000000; it must be 1 to"),
    ("marian", {"static_position_embeddings": False}, "static_position_embeddings is False"),
    ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan; it must be a number"),
    ("llama", {"is_causal": False}, "is_causal is False; only True"),
    ("phi3", {"rope_scaling": {"type": "su"}}, "rope_type is 'su'; only 'default' is supported"),
    ("phi3", {"rope_scaling": {"rope_type": "longrope"}}, "rope_type is 'longrope'; only 'default' is supported"),
    ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.0}}, "partial_rotary_factor is 0.0; it must be above 0"),
    (
        "gpt_neox",
        {"rope_parameters": {"partial_rotary_factor": 0.4}},
        "rotary.share is 0.4, 3 of the 8 features of a head",
    ),
    ("gptj", {"rotary_dim": 12}, "rotary_dim is 12, but a head has 8 features; give at most 8"),
    (
        "modernbert",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        "rope_scaling is .*; only None is supported",
    ),
    ("modernbert", {"layer_types": ["full_attention"]}, "layer_types has 1 words, but the model has 4 layers"),
    (
        "modernbert",
        {"rope_parameters": {"sliding_attention": {"rope_type": "yarn", "factor": 2.0}}},
        "rope_type is 'yarn'; only 'default' is supported",
    ),
    (
        "modernbert",
        {"layer_types": None, "global_attn_every_n_layers": 0},
        "global_attn_every_n_layers is 0; it must be",
    ),
    ("modernbert", {"sliding_window": 64}, "sliding_window is 64; only None is supported"),
    ("modernbert sequence", {"classifier_pooling": "max"}, "classifier_pooling is 'max'; only 'cls', 'mean' are"),
    ("llama", {"partial_rotary_factor": 0.5}, "has partial_rotary_factor 0.5"),
    ("gpt2", {"is_causal": False}, "is_causal is False"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is False"),
    ("openai-gpt", {"afn": "gelu_new"}, "afn is 'gelu_new'; only 'gelu', 'relu'"),
    ("openai-gpt", {"num_attention_heads": 2}, "num_attention_heads is 2, but other keys set decoder.heads to 4"),
    ("opt", {"word_embed_proj_dim": 8}, "word_embed_proj_dim is 8, but other keys set decoder.dim to 16"),
    ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm is True; only False"),
    ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine is False; only True"),
    ("opt", {"architectures": ["OPTForTokenClassification"]}, "the class 'OPTForTokenClassification' is not supported"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm is True"),
    ("bloom", {"slow_but_exact": True}, "slow_but_exact is True; only False"),
    ("bloom", {"n_embed": 32}, "n_embed is 32, but other keys set decoder.dim to 16"),
    ("gpt2", {"num_attention_heads": 2}, "num_attention_heads is 2, but other keys set decoder.heads to 4"),
    ("distilbert", {"num_attention_heads": 2}, "num_attention_heads is 2"),
    ("qwen2", {"use_sliding_window": "yes"}, "use_sliding_window is 'yes'; it must be true or false"),
    ("qwen2", {"max_window_layers": "none"}, "max_window_layers is 'none'; it must be a whole number"),
    ("qwen2", {"use_sliding_window": True, "layer_types": 3}, "layer_types is 3; it must be a list"),
    ("switch_transformers", {"tie_word_embeddings": False}, "tie_word_embeddings is False; only True is supported"),
    ("switch_transformers", {"router_dtype": "bfloat16"}, "router_dtype is 'bfloat16'; only 'float32' is supported"),
    (
        "switch_transformers",
        {"num_sparse_encoder_layers": 3},
        "num_sparse_encoder_layers is 3, of 2 layers, so that none",
    ),
    ("switch_transformers", {"expert_capacity": 0}, "expert_capacity is 0; it must be 1 or more"),
    ("mixtral", {"num_experts_per_tok": 4}, "num_experts_per_tok: experts.per_token is 4, of 3 experts"),
    (
        "mixtral",
        {"router_jitter_noise": 1.5},
        "router_jitter_noise: experts.jitter is 1.5; give a number from 0 to below",
    ),
    ("qwen3 window", {"layer_types": ["linear_attention"] * 2}, "layer_types names 'linear_attention'; only"),
    ("t5", {"dense_act_fn": "silu"}, "dense_act_fn is 'silu', but other keys set encoder.activation to 'relu'"),
    ("t5", {"is_gated_act": True}, "is_gated_act is True, but"),
    ("t5", {"is_causal": False}, "is_causal is False"),
    ("bart", {"num_attention_heads": 2}, "num_attention_heads is 2"),
    ("bart", {"is_encoder_decoder": False}, "is_encoder_decoder is False"),
    ("marian", {"num_attention_heads": 2}, "num_attention_heads is 2"),
    ("marian", {"is_causal": False}, "is_causal is False"),
    ("deit image", {"pooler_act": "relu"}, "pooler_act is 'relu'"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 0.0}},
        "rope_theta is 0.0; it must be above 0",
    ),
    ("llama", {"rope_parameters": None, "rope_theta": -5}, "rope_theta is -5; it must be above 0"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor is 0; it must be above 0"),
    ("llama", {"rope_parameters": {"rope_type": ["linear"]}}, r"rope_type is \['linear'\]; only"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_slow": -1}}, "beta_slow is -1"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 2, "high_freq_factor": 2}},
        "high_frequency_factor are both 2.0",
    ),
    ("llama", {"rms_norm_eps": -1e-5}, "rms_norm_eps: stack.norm_eps is -1e-05; give 0"),
    ("qwen2", {"layer_types": ["x", "y"]}, "layer_types names 'x'; only"),
    ("qwen2", {"layer_types": ["full_attention"]}, "layer_types has 1 words, but the model has 2 layers"),
    ("llama", {"layer_types": ["x", "y"]}, "layer_types names 'x'; only"),
    (
        "distilbert sequence",
        {"id2label": {"5": "a", "6": "b", "7": "c"}},
        "id2label has the id 5 among 3 names; number",
    ),
    ("distilbert sequence", {"id2label": {"-1": "a", "0": "b", "1": "c"}}, "id2label has the id -1"),
    ("distilbert sequence", {"id2label": {"0": "a", "1": None, "2": "c"}}, "id2label gives the class 1 the name None"),
    ("distilbert sequence", {"id2label": {"0": "a", "00": "b", "1": "c"}}, "id2label gives an id twice"),
    ("distilbert sequence", {"id2label": {"zero": "a"}}, "id2label has the id 'zero'"),
    ("distilbert sequence", {"id2label": ["a", "b"]}, "id2label is .*; give an object"),
    (
        "distilbert sequence",
        {"seq_classif_dropout": 7},
        "seq_classif_dropout: sequence.dropout is 7; give a probability",
    ),
    ("bert sequence", {"classifier_dropout": 7.0}, "classifier_dropout: sequence.dropout is 7.0; give a probability"),
    ("bert token", {"classifier_dropout": -0.5}, "classifier_dropout: token.dropout is -0.5; give a probability"),
    ("t5", {"dropout_rate": 1.0}, "dropout_rate: dropout.* is 1.0; give a probability"),
    ("deit image", {"patch_size": [4, 2]}, r"patch_size is \[4, 2\]; only squares"),
]


def edited(case: str, changes: dict[str, Any], folder: Path) -> Path:
    write(case, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize("shape", [(), (0,), (7,), (5, 16)])
@pytest.mark.parametrize("case", ["gpt2", "bloom"])
def test_queries_keys_and_values_of_another_shape(case: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    write(case, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    name = next(name for name in stored if name.endswith(("c_attn.weight", "query_key_value.weight")))
    save_file(stored | {name: torch.zeros(shape)}, tmp_path / "model.safetensors")
    with pytest.raises(HeedfulError, match=f"the weights do not fit the configuration; .*{name}"):
        load(tmp_path)


@pytest.mark.parametrize(("case", "changes", "said"), REFUSED, ids=[f"{c} {next(iter(k))}" for c, k, _ in REFUSED])
def test_refused_by_name(case: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert case in CASES
    with pytest.raises(HeedfulError, match=said) as error:
        load(edited(case, changes, tmp_path))
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_a_start_token_that_the_vocabulary_has_not(tmp_path: Path) -> None:
    folder = edited("marian", {}, tmp_path)
    (folder / "generation_config.json").write_text('{"decoder_start_token_id": 1000000000}')
    with pytest.raises(
        HeedfulError, match=r"decoder_start_token_id: special.start is 10{9}, but the vocabulary has"
    ) as error:
        load(folder)
    assert str(folder) in str(error.value)


def test_an_id_that_the_vocabulary_has_not(tmp_path: Path) -> None:
    model = load(edited("llama", {}, tmp_path))
    with pytest.raises(HeedfulError, match=r"token ids are 1 to 9999, but the model has \d+ tokens"):
        model(torch.tensor([[1, 9999]]))


@pytest.mark.parametrize(
    "older",
    [
        {"rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 50.0, "rope_type": "linear", "factor": 2}},
    ],
)
def test_the_older_spellings_of_rotary_positions(older: dict[str, Any], tmp_path: Path) -> None:
    changes = {"rope_parameters": None} | older
    position = load(edited("llama", changes, tmp_path)).config.decoder.position
    assert position == RotaryPosition(length=12, base=50.0, scaling="linear", factor=2.0)


def test_llama3_takes_a_missing_original_length_from_the_model(tmp_path: Path) -> None:
    told = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 9.0}
    position = load(edited("llama", {"rope_parameters": told}, tmp_path)).config.decoder.position
    assert position.original_length == 12


@pytest.mark.parametrize(("scaled", "tied"), [(True, True), (True, False), (False, True), (False, False)])
@torch.no_grad()
def test_t5_ties_and_scales_independently(scaled: bool, tied: bool, tmp_path: Path) -> None:
    """All four come back as they were, and mean the same to ``transformers``."""
    made, settings = CASES["t5"]
    theirs = made(made.config_class(**settings, tie_word_embeddings=scaled)).eval()
    if not tied:
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn_like(theirs.lm_head.weight))
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    assert (ours.config.head.tied, ours.config.head.scale == "sqrt") == (tied, scaled)
    ids, target = torch.tensor([[4, 5, 2]]), torch.tensor([[0, 6]])
    logits = theirs(input_ids=ids, decoder_input_ids=target).logits
    assert_close(ours(ids, target), logits)
    save(ours, tmp_path / "ours")
    again = made.from_pretrained(tmp_path / "ours").eval()
    assert_close(again(input_ids=ids, decoder_input_ids=target).logits, logits)
    assert load(tmp_path / "ours").config == ours.config


def test_a_model_goes_back_into_the_layout_it_came_in(tmp_path: Path) -> None:
    """A Mistral without a window computes what a Llama computes, and stays a Mistral."""
    for case in ("mistral whole", "xlm-roberta"):
        write(case, tmp_path / case)
        assert save(load(tmp_path / case), tmp_path / "again") == case.split()[0]


def test_a_marian_of_two_vocabularies_that_names_one_size() -> None:
    """As their configuration has it: the target's is then the source's."""
    theirs = reference("marian apart").config.to_dict()
    model_type = MODEL_TYPES["marian"]
    for told in ({}, {"decoder_vocab_size": None}):
        said = {key: value for key, value in theirs.items() if key != "decoder_vocab_size"} | told
        said["architectures"] = ["MarianMTModel"]
        assert model_type.read(said, model_type.architecture_of(said), {}).target.vocab_size == theirs["vocab_size"]
