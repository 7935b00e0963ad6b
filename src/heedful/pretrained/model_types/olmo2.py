"""OLMo 2 (OLMo team 2025): Llama with RMS norms on the outputs of the sublayers, before the sum.

Queries and keys are normed too, over all heads together, before they are rotated.
"""

from __future__ import annotations

from heedful.pretrained.config_keys import ConfigKey, TokenIdKey
from heedful.pretrained.model_type import ModelType, rename_architectures
from heedful.pretrained.model_types.llama import (
    ARCHITECTURES,
    COMMON_RULES,
    CONFIG_KEYS,
    FIXED,
    OUR_BLOCK,
    THEIR_LAYER,
)
from heedful.pretrained.rules import Rename

OLMO2 = ModelType(
    name="olmo2",
    prefix="model.",
    fixed={**FIXED, "decoder.ff_bias": False, "decoder.placement": "out", "decoder.qk_norm": "all"},
    config_keys=(
        *CONFIG_KEYS,
        ConfigKey("vocab_size", "embedding.vocab_size", 50304),
        ConfigKey("max_position_embeddings", "decoder.position.length", 2048),
        ConfigKey("intermediate_size", "decoder.ff_dim", 11008),
        ConfigKey("num_key_value_heads", "decoder.kv_heads", None),
        ConfigKey("head_dim", "decoder.head_dim", None),
        ConfigKey("rms_norm_eps", "decoder.norm_eps", 1e-5),
        ConfigKey("attention_bias", "decoder.attention_bias", False, {True: "all", False: "none"}),
        TokenIdKey("pad_token_id", "special.pad", 1),
        TokenIdKey("bos_token_id", "special.start", None),
        TokenIdKey("eos_token_id", "special.end", 50279, several=True),
    ),
    rules=(
        Rename(THEIR_LAYER + ".post_attention_layernorm.{p}", OUR_BLOCK + ".attention_residual.out.{p}"),
        Rename(THEIR_LAYER + ".post_feedforward_layernorm.{p}", OUR_BLOCK + ".feed_forward_residual.out.{p}"),
        *COMMON_RULES,
    ),
    architectures=rename_architectures(ARCHITECTURES[:3], "Llama", "Olmo2"),
)
