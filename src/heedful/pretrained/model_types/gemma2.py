"""Gemma 2 (Gemma team 2024): RMS norms around the sublayers, and soft caps of attention scores and logits.

The weights of norms are stored minus 1. Blocks with a window alternate with dense ones, and √dim multiplies the
embedding after rounding to its type.
"""

from __future__ import annotations

from dataclasses import replace

from heedful.pretrained.config_keys import ACTIVATIONS, ConfigKey, TokenIdKey, required_values
from heedful.pretrained.model_type import ModelType, rename_architectures
from heedful.pretrained.model_types.llama import ARCHITECTURES, COMMON_RULES, FIXED, OUR_BLOCK, THEIR_LAYER
from heedful.pretrained.rules import Rename
from heedful.pretrained.special_config_keys import AlternatingWindowKeys, RotaryKeys, ScoreScaleKey

WORDS = {"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATIONS}  # the first is written
LANGUAGE_MODEL = replace(
    ARCHITECTURES[0],
    config_keys=(
        ConfigKey("tie_word_embeddings", "head.tied", True),
        ConfigKey("final_logit_softcapping", "head.logit_cap", 30.0, null=True),
    ),
)

GEMMA2 = ModelType(
    name="gemma2",
    prefix="model.",
    fixed={
        **FIXED,
        "decoder.norm": "rms-offset",
        "decoder.placement": "sandwich",
        "decoder.ff_bias": False,
        "embedding.scale": "sqrt-rounded",
    },
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 256000),
        ConfigKey("hidden_size", "decoder.dim", 2304),
        ConfigKey("num_hidden_layers", "decoder.depth", 26),
        ConfigKey("num_attention_heads", "decoder.heads", 8),
        ConfigKey("num_key_value_heads", "decoder.kv_heads", 4),
        ConfigKey("head_dim", "decoder.head_dim", 256),
        ConfigKey("intermediate_size", "decoder.ff_dim", 9216),
        ConfigKey("hidden_activation", "decoder.activation", "gelu_pytorch_tanh", WORDS),
        ConfigKey("max_position_embeddings", "decoder.position.length", 8192),
        ConfigKey("rms_norm_eps", "decoder.norm_eps", 1e-6),
        ConfigKey("attention_bias", "decoder.attention_bias", False, {True: "all", False: "none"}),
        ConfigKey("attention_dropout", "decoder.dropout.attention", 0.0),
        ConfigKey("attn_logit_softcapping", "decoder.score_cap", 50.0, null=True),
        ConfigKey("use_bidirectional_attention", "decoder.causal", False, {None: True, False: True}, null=True),
        ConfigKey("initializer_range", "decoder.init_std", 0.02),
        RotaryKeys(),
        ScoreScaleKey(),
        AlternatingWindowKeys(),
        TokenIdKey("pad_token_id", "special.pad", 0),
        TokenIdKey("bos_token_id", "special.start", 2),
        TokenIdKey("eos_token_id", "special.end", 1, several=True),
        *required_values(is_causal=True),
    ),
    rules=(
        Rename(THEIR_LAYER + ".post_attention_layernorm.{p}", OUR_BLOCK + ".attention_residual.out.{p}"),
        Rename(THEIR_LAYER + ".pre_feedforward_layernorm.{p}", OUR_BLOCK + ".feed_forward_residual.before.{p}"),
        Rename(THEIR_LAYER + ".post_feedforward_layernorm.{p}", OUR_BLOCK + ".feed_forward_residual.out.{p}"),
        *COMMON_RULES,
    ),
    architectures=rename_architectures((LANGUAGE_MODEL, *ARCHITECTURES[1:]), "Llama", "Gemma2"),
)
