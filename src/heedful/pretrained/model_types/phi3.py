"""Phi-3 (Abdin et al. 2024) and Phi-4: Llama's blocks with dropout, and a share of the features of a head rotated.

Queries, keys and values are stored as one map, and the gate and the other map of the feed-forward as another. Rotary
positions that are scaled (``longrope``) are not supported.
"""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, ConfigKey, TokenIdKey, required_values
from heedful.pretrained.model_type import ModelType, rename_architectures
from heedful.pretrained.model_types.llama import ARCHITECTURES, FIXED, OUR_BLOCK, THEIR_LAYER
from heedful.pretrained.rules import Rename, RotatedPairs, Split, SplitProjections
from heedful.pretrained.special_config_keys import RotaryKeys

QUERY, KEY, VALUE = (
    OUR_BLOCK + ".attention.query.weight",
    OUR_BLOCK + ".attention.key.weight",
    OUR_BLOCK + ".attention.value.weight",
)

PHI3 = ModelType(
    name="phi3",
    prefix="model.",
    fixed={**FIXED, "decoder.ff_bias": False, "decoder.attention_bias": "none"},
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 32064),
        ConfigKey("hidden_size", "decoder.dim", 3072),
        ConfigKey("intermediate_size", "decoder.ff_dim", 8192),
        ConfigKey("num_hidden_layers", "decoder.depth", 32),
        ConfigKey("num_attention_heads", "decoder.heads", 32),
        ConfigKey("num_key_value_heads", "decoder.kv_heads", None),
        ConfigKey("head_dim", "decoder.head_dim", None),
        ConfigKey("hidden_act", "decoder.activation", "silu", ACTIVATIONS),
        ConfigKey("rms_norm_eps", "decoder.norm_eps", 1e-5),
        ConfigKey("resid_pdrop", "decoder.dropout.residual", 0.0),
        ConfigKey("attention_dropout", "decoder.dropout.attention", 0.0),
        ConfigKey("initializer_range", "decoder.init_std", 0.02),
        ConfigKey("max_position_embeddings", "decoder.position.length", 4096),
        ConfigKey("sliding_window", "decoder.window", None),
        RotaryKeys(share=1.0, kinds=("default",)),
        TokenIdKey("bos_token_id", "special.start", 1),
        TokenIdKey("eos_token_id", "special.end", 32000, several=True),
        TokenIdKey("pad_token_id", "special.pad", 32000),
        *required_values(is_causal=True),
    ),
    rules=(
        Rename("embed_tokens.weight", "embedding.token.weight"),
        Rename(THEIR_LAYER + ".input_layernorm.weight", OUR_BLOCK + ".attention_residual.before.weight"),
        SplitProjections(THEIR_LAYER + ".self_attn.qkv_proj.weight", (QUERY, KEY, VALUE)),
        RotatedPairs(QUERY),
        RotatedPairs(KEY),
        Rename(THEIR_LAYER + ".self_attn.o_proj.weight", OUR_BLOCK + ".attention.out.weight"),
        Rename(THEIR_LAYER + ".post_attention_layernorm.weight", OUR_BLOCK + ".feed_forward_residual.before.weight"),
        Split(
            THEIR_LAYER + ".mlp.gate_up_proj.weight",
            (OUR_BLOCK + ".feed_forward.gate.weight", OUR_BLOCK + ".feed_forward.up.weight"),
        ),
        Rename(THEIR_LAYER + ".mlp.down_proj.weight", OUR_BLOCK + ".feed_forward.down.weight"),
        Rename("norm.weight", "decoder.norm.weight"),
    ),
    architectures=rename_architectures(ARCHITECTURES, "Llama", "Phi3"),
)
