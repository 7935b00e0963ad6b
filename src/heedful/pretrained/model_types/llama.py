"""Llama (Touvron et al. 2023), Mistral, Qwen2 and Qwen3: RMS pre-norm, rotary positions, gated SiLU.

Mistral (Jiang et al. 2023) has a sliding window, Qwen2 (Yang et al. 2024) biases on queries, keys and values, Qwen3
(Yang et al. 2025) a norm on queries and keys and a head size of its own.
"""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, AnyConfigKey, ConfigKey, LabelKeys, TokenIdKey, required_values
from heedful.pretrained.model_type import Architecture, ModelType, rename_architectures
from heedful.pretrained.rules import Drop, Rename, Rule
from heedful.pretrained.special_config_keys import RotaryKeys, WindowKeys

THEIR_LAYER, OUR_BLOCK = "layers.{i}", "decoder.block.{i}"
FIXED = {
    "kind": "decoder",
    "decoder.causal": True,
    "decoder.norm": "rms",
    "decoder.gated": True,
    "decoder.position.kind": "rotary",
}
CONFIG_KEYS: tuple[AnyConfigKey, ...] = (
    ConfigKey("hidden_size", "decoder.dim", 4096),
    ConfigKey("num_hidden_layers", "decoder.depth", 32),
    ConfigKey("num_attention_heads", "decoder.heads", 32),
    ConfigKey("hidden_act", "decoder.activation", "silu", ACTIVATIONS),
    ConfigKey("rms_norm_eps", "decoder.norm_eps", 1e-6),
    ConfigKey("attention_dropout", "decoder.dropout.attention", 0.0),
    ConfigKey("initializer_range", "decoder.init_std", 0.02),
    RotaryKeys(),
    TokenIdKey("pad_token_id", "special.pad", None),
    *required_values(is_causal=True),  # embedding models with bidirectional attention have false
)
COMMON_RULES: tuple[Rule, ...] = (  # of other model types too, whose norms differ
    Drop(THEIR_LAYER + ".self_attn.rotary_emb.inv_freq"),  # computed
    Rename("embed_tokens.weight", "embedding.token.weight"),
    Rename(THEIR_LAYER + ".input_layernorm.{p}", OUR_BLOCK + ".attention_residual.before.{p}"),
    Rename(THEIR_LAYER + ".self_attn.q_proj.{p}", OUR_BLOCK + ".attention.query.{p}"),
    Rename(THEIR_LAYER + ".self_attn.k_proj.{p}", OUR_BLOCK + ".attention.key.{p}"),
    Rename(THEIR_LAYER + ".self_attn.v_proj.{p}", OUR_BLOCK + ".attention.value.{p}"),
    Rename(THEIR_LAYER + ".self_attn.o_proj.{p}", OUR_BLOCK + ".attention.out.{p}"),
    Rename(THEIR_LAYER + ".self_attn.q_norm.weight", OUR_BLOCK + ".attention.query_norm.weight"),
    Rename(THEIR_LAYER + ".self_attn.k_norm.weight", OUR_BLOCK + ".attention.key_norm.weight"),
    Rename(THEIR_LAYER + ".mlp.gate_proj.{p}", OUR_BLOCK + ".feed_forward.gate.{p}"),
    Rename(THEIR_LAYER + ".mlp.up_proj.{p}", OUR_BLOCK + ".feed_forward.up.{p}"),
    Rename(THEIR_LAYER + ".mlp.down_proj.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
    Rename("norm.{p}", "decoder.norm.{p}"),
)
RULES: tuple[Rule, ...] = (
    *COMMON_RULES,
    Rename(THEIR_LAYER + ".post_attention_layernorm.{p}", OUR_BLOCK + ".feed_forward_residual.before.{p}"),
)
SPAN = (Rename("qa_outputs.{p}", "head.output.{p}"),)
ARCHITECTURES = (
    Architecture(
        name="LlamaForCausalLM",
        fixed={"head.kind": "language-model"},
        config_keys=(ConfigKey("tie_word_embeddings", "head.tied", False),),
        rules=(Rename("lm_head.weight", "head.output.weight"),),
    ),
    Architecture(name="LlamaModel", fixed={"head.kind": "no-head"}, prefix=""),
    Architecture(
        name="LlamaForSequenceClassification",
        fixed={
            "head.kind": "sequence",
            "head.pooling": "last",
            "head.pooler": False,
            "head.bias": False,
            "head.dropout": 0.0,
        },
        config_keys=(LabelKeys("id2label", "head.labels", 2),),
        rules=(Rename("score.weight", "head.output.weight"),),
    ),
    Architecture(
        name="LlamaForTokenClassification",
        fixed={"head.kind": "token"},
        config_keys=(
            LabelKeys("id2label", "head.labels", 2),
            ConfigKey("classifier_dropout", "head.dropout", 0.1, fallback="hidden_dropout"),
            *required_values(token_classification_bias=True),
        ),
        rules=(Rename("score.{p}", "head.output.{p}"),),
    ),
)
LLAMA_SPAN = Architecture(
    name="LlamaForQuestionAnswering", fixed={"head.kind": "span"}, rules=SPAN, prefix="transformer."
)

LLAMA = ModelType(
    name="llama",
    prefix="model.",
    fixed=FIXED,
    config_keys=(
        *CONFIG_KEYS,
        ConfigKey("vocab_size", "embedding.vocab_size", 32000),
        ConfigKey("max_position_embeddings", "decoder.position.length", 2048),
        ConfigKey("intermediate_size", "decoder.ff_dim", 11008),
        ConfigKey("num_key_value_heads", "decoder.kv_heads", None),
        ConfigKey("head_dim", "decoder.head_dim", None),
        ConfigKey("attention_bias", "decoder.attention_bias", False, {True: "all", False: "none"}),
        ConfigKey("mlp_bias", "decoder.ff_bias", False),
        TokenIdKey("bos_token_id", "special.start", 1),
        TokenIdKey("eos_token_id", "special.end", 2, several=True),
    ),
    rules=RULES,
    architectures=(*ARCHITECTURES, LLAMA_SPAN),
)

MISTRAL = ModelType(
    name="mistral",
    prefix="model.",
    fixed={**FIXED, "decoder.ff_bias": False, "decoder.attention_bias": "none"},
    config_keys=(
        *CONFIG_KEYS,
        ConfigKey("vocab_size", "embedding.vocab_size", 32000),
        ConfigKey("max_position_embeddings", "decoder.position.length", 131072),
        ConfigKey("intermediate_size", "decoder.ff_dim", 14336),
        ConfigKey("num_key_value_heads", "decoder.kv_heads", 8, null=True),
        ConfigKey("head_dim", "decoder.head_dim", None),
        ConfigKey("sliding_window", "decoder.window", 4096, null=True),
        TokenIdKey("bos_token_id", "special.start", 1),
        TokenIdKey("eos_token_id", "special.end", 2, several=True),
    ),
    rules=RULES,
    architectures=(
        *rename_architectures(ARCHITECTURES, "Llama", "Mistral"),
        Architecture(name="MistralForQuestionAnswering", fixed={"head.kind": "span"}, rules=SPAN),
    ),
)

QWEN2 = ModelType(
    name="qwen2",
    prefix="model.",
    fixed={**FIXED, "decoder.ff_bias": False, "decoder.attention_bias": "qkv"},
    config_keys=(
        *CONFIG_KEYS,
        ConfigKey("vocab_size", "embedding.vocab_size", 151936),
        ConfigKey("max_position_embeddings", "decoder.position.length", 32768),
        ConfigKey("intermediate_size", "decoder.ff_dim", 22016),
        ConfigKey("num_key_value_heads", "decoder.kv_heads", 32, null=True),
        ConfigKey("head_dim", "decoder.head_dim", None),
        WindowKeys(),
        TokenIdKey("bos_token_id", "special.start", None),
        TokenIdKey("eos_token_id", "special.end", None, several=True),
    ),
    rules=RULES,
    architectures=rename_architectures((*ARCHITECTURES, LLAMA_SPAN), "Llama", "Qwen2"),
)

QWEN3 = ModelType(
    name="qwen3",
    prefix="model.",
    fixed={**FIXED, "decoder.ff_bias": False, "decoder.qk_norm": "head"},
    config_keys=(
        *CONFIG_KEYS,
        ConfigKey("vocab_size", "embedding.vocab_size", 151936),
        ConfigKey("max_position_embeddings", "decoder.position.length", 32768),
        ConfigKey("intermediate_size", "decoder.ff_dim", 22016),
        ConfigKey("num_key_value_heads", "decoder.kv_heads", 32, null=True),
        ConfigKey("head_dim", "decoder.head_dim", 128, null=True),
        ConfigKey("attention_bias", "decoder.attention_bias", False, {True: "all", False: "none"}),
        WindowKeys(),
        TokenIdKey("bos_token_id", "special.start", None),
        TokenIdKey("eos_token_id", "special.end", None, several=True),
    ),
    rules=RULES,
    architectures=rename_architectures((*ARCHITECTURES, LLAMA_SPAN), "Llama", "Qwen3"),
)
