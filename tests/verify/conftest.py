"""Tiny random models of the published classes, written by ``transformers``: every bias and every norm random."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

VOCABULARY = 40
NAMED = {"id2label": {0: "no", 1: "yes", 2: "what"}, "label2id": {"no": 0, "yes": 1, "what": 2}}
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
COMMON |= {"intermediate_size": 24, "max_position_embeddings": 40}
LLAMA = COMMON | {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT_NEO = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "window_size": 3}
GPT_NEO |= {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 40, "pad_token_id": 0}
GPT_NEO |= {"bos_token_id": 1, "eos_token_id": 2}
OPT = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
OPT |= {"ffn_dim": 24, "max_position_embeddings": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BLOOM = {"vocab_size": VOCABULARY, "hidden_size": 24, "n_layer": 2, "n_head": 12, "pad_token_id": 0}
PAIR = {"vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 24}
PAIR |= {
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 40,
}
PICTURES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
PICTURES |= {"image_size": 12, "patch_size": 4, "num_channels": 3} | NAMED
T5 = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}
T5 |= {"decoder_start_token_id": 0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
DEBERTA = {"type_vocab_size": 0, "relative_attention": True, "position_biased_input": False, "position_buckets": 8}
DEBERTA |= {"pos_att_type": ["p2c", "c2p"], "share_att_key": True, "norm_rel_ebd": "layer_norm"}

# name: (class, settings)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 40}
        | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    ),
    "openai-gpt": (
        "OpenAIGPTLMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 40}
        | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    ),
    "gpt_neo": ("GPTNeoForCausalLM", GPT_NEO),
    "opt": ("OPTForCausalLM", OPT),
    "opt post-norm": ("OPTForCausalLM", OPT | {"do_layer_norm_before": False, "activation_function": "gelu"}),
    "opt for sequences": ("OPTForSequenceClassification", OPT | NAMED),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"intermediate_size": 24, "max_position_embeddings": 40}
        | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    ),
    "gptj": (
        "GPTJForCausalLM",
        {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 40, "rotary_dim": 2}
        | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    ),
    "bloom": ("BloomForCausalLM", BLOOM),
    "bloom for sequences": ("BloomForSequenceClassification", BLOOM | NAMED),
    "llama": ("LlamaForCausalLM", LLAMA),
    "mistral": ("MistralForCausalLM", LLAMA | {"sliding_window": 4}),
    "qwen3": ("Qwen3ForCausalLM", LLAMA | {"head_dim": 8}),
    "phi3": ("Phi3ForCausalLM", LLAMA | {"sliding_window": 4}),
    "mixtral": ("MixtralForCausalLM", LLAMA | {"num_local_experts": 4}),
    "olmo2": ("Olmo2ForCausalLM", LLAMA),
    "gemma2": ("Gemma2ForCausalLM", LLAMA | {"head_dim": 8, "query_pre_attn_scalar": 6, "sliding_window": 4}),
    "bert": ("BertForMaskedLM", COMMON | {"type_vocab_size": 2}),
    "roberta": ("RobertaForTokenClassification", COMMON | NAMED | {"type_vocab_size": 1, "pad_token_id": 1}),
    "distilbert": (
        "DistilBertForSequenceClassification",
        {"vocab_size": VOCABULARY, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24} | NAMED,
    ),
    "albert": ("AlbertForMaskedLM", COMMON | {"embedding_size": 8}),
    "mpnet": ("MPNetForTokenClassification", COMMON | NAMED),
    "deberta v1": (
        "DebertaForMaskedLM",
        COMMON | {"relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c"},
    ),
    "electra": ("ElectraForMaskedLM", COMMON | {"embedding_size": 8}),
    "electra's discriminator": ("ElectraForPreTraining", COMMON | {"embedding_size": 8}),
    "modernbert": (
        "ModernBertForTokenClassification",
        COMMON | NAMED | {"num_hidden_layers": 3, "local_attention": 4, "pad_token_id": 0},
    ),
    "deberta": ("DebertaV2ForMaskedLM", COMMON | DEBERTA),
    "xlnet": (
        "XLNetForSequenceClassification",
        {"vocab_size": VOCABULARY, "d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 24, "pad_token_id": 0} | NAMED,
    ),
    "t5": ("T5ForConditionalGeneration", T5),
    "switch": (
        "SwitchTransformersForConditionalGeneration",
        T5 | {"num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    ),
    "bart": ("BartForConditionalGeneration", PAIR),
    "marian": (
        "MarianMTModel",
        PAIR | {"pad_token_id": 39, "decoder_start_token_id": 39, "eos_token_id": 0, "scale_embedding": True},
    ),
    "mbart": ("MBartForConditionalGeneration", PAIR | {"decoder_start_token_id": 2}),
    "m2m_100": ("M2M100ForConditionalGeneration", PAIR | {"decoder_start_token_id": 2}),
    "pegasus": ("PegasusForConditionalGeneration", PAIR),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "bert of two heads": ("BertForPreTraining", COMMON),
    "bart for sequences": ("BartForSequenceClassification", PAIR | NAMED),
    "t5 for sequences": ("T5ForSequenceClassification", T5 | NAMED),
    "gpt2 for sequences": (
        "GPT2ForSequenceClassification",
        {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 40} | NAMED,
    ),
    "vit": ("ViTForImageClassification", PICTURES),
    "deit": ("DeiTForImageClassificationWithTeacher", PICTURES),
    "dinov2": (
        "Dinov2ForImageClassification",
        {key: value for key, value in PICTURES.items() if key != "intermediate_size"} | {"mlp_ratio": 2},
    ),
    "ijepa": ("IJepaForImageClassification", PICTURES),
}


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Random weights; norms of either sign, since a tied head otherwise repeats what it is given."""
    random, stored = torch.Generator().manual_seed(seed), model.state_dict().keys()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not tensor.is_floating_point() or "embed_positions.weight" in name or name not in stored:
                continue
            noise = torch.randn(tensor.shape, generator=random)
            norm = tensor.dim() == 1 and name.endswith("weight")
            tensor.copy_(noise.sign() + 0.3 * noise if norm else 0.3 * noise)


@pytest.fixture
def published(tmp_path: Path) -> Callable[..., Path]:
    """A folder of one of ``MODELS``, with changes, as ``transformers`` writes it."""

    def make(name: str, **changes: Any) -> Path:
        hf = pytest.importorskip("transformers")
        hf.logging.disable_progress_bar()
        made, settings = getattr(hf, MODELS[name][0]), MODELS[name][1] | changes
        model = made(made.config_class(**settings)).eval()
        randomise(model)
        model.save_pretrained(tmp_path / name)
        return tmp_path / name

    return make


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``family`` runs for each of ``MODELS``."""
    if "family" in metafunc.fixturenames:
        metafunc.parametrize("family", MODELS)
