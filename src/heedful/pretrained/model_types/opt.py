"""OPT (Zhang et al. 2022): positions from table row 2, pre-norm, or post-norm without a norm after the last block."""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, ConfigKey, TokenIdKey, required_values
from heedful.pretrained.model_type import ModelType, rename_architectures
from heedful.pretrained.model_types.gpt2 import GPT2
from heedful.pretrained.rules import Drop, Rename, RenameBeside
from heedful.pretrained.special_config_keys import RepeatedKey

THEIR_LAYER, OUR_BLOCK = "decoder.layers.{i}", "decoder.block.{i}"
LAST_NORM = "decoder.norm.weight"  # of pre-norm alone
LANGUAGE_MODEL, BODY, SEQUENCE, _, SPAN = GPT2.architectures

OPT = ModelType(
    name="opt",
    prefix="model.",
    fixed={
        "kind": "decoder",
        "decoder.causal": True,
        "decoder.position.kind": "learned",
        "decoder.position.offset": 2,
    },
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 50272),
        ConfigKey("max_position_embeddings", "decoder.position.length", 2048),
        ConfigKey("hidden_size", "decoder.dim", 768),
        ConfigKey("num_hidden_layers", "decoder.depth", 12),
        ConfigKey("num_attention_heads", "decoder.heads", 12),
        ConfigKey("ffn_dim", "decoder.ff_dim", 3072),
        ConfigKey("do_layer_norm_before", "decoder.placement", True, {True: "pre", False: "post"}),
        ConfigKey("activation_function", "decoder.activation", "relu", ACTIVATIONS),
        ConfigKey("enable_bias", "decoder.attention_bias", True, {True: "all", False: "none"}),
        ConfigKey("enable_bias", "decoder.ff_bias", True),
        ConfigKey("dropout", "decoder.dropout.residual", 0.1),
        ConfigKey("attention_dropout", "decoder.dropout.attention", 0.0),
        ConfigKey("init_std", "decoder.init_std", 0.02),
        TokenIdKey("bos_token_id", "special.start", 2),
        TokenIdKey("eos_token_id", "special.end", 2, several=True),
        TokenIdKey("pad_token_id", "special.pad", 1),
        RepeatedKey("word_embed_proj_dim", "decoder.dim"),  # 350m has an embedding of another width
        *required_values(is_causal=True, layer_norm_elementwise_affine=True, _remove_final_layer_norm=False),
    ),
    rules=(
        Drop("decoder.version"),
        Rename("decoder.embed_tokens.weight", "embedding.token.weight"),
        Rename("decoder.embed_positions.weight", "decoder.position.table.weight"),
        Rename("decoder.final_layer_norm.{p}", "decoder.norm.{p}"),
        Rename(THEIR_LAYER + ".self_attn.q_proj.{p}", OUR_BLOCK + ".attention.query.{p}"),
        Rename(THEIR_LAYER + ".self_attn.k_proj.{p}", OUR_BLOCK + ".attention.key.{p}"),
        Rename(THEIR_LAYER + ".self_attn.v_proj.{p}", OUR_BLOCK + ".attention.value.{p}"),
        Rename(THEIR_LAYER + ".self_attn.out_proj.{p}", OUR_BLOCK + ".attention.out.{p}"),
        Rename(THEIR_LAYER + ".fc1.{p}", OUR_BLOCK + ".feed_forward.up.{p}"),
        Rename(THEIR_LAYER + ".fc2.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
        RenameBeside(
            THEIR_LAYER + ".self_attn_layer_norm.{p}", OUR_BLOCK + ".attention_residual.before.{p}", beside=LAST_NORM
        ),
        RenameBeside(
            THEIR_LAYER + ".final_layer_norm.{p}", OUR_BLOCK + ".feed_forward_residual.before.{p}", beside=LAST_NORM
        ),
        Rename(THEIR_LAYER + ".self_attn_layer_norm.{p}", OUR_BLOCK + ".attention_residual.after.{p}"),
        Rename(THEIR_LAYER + ".final_layer_norm.{p}", OUR_BLOCK + ".feed_forward_residual.after.{p}"),
    ),
    architectures=rename_architectures(
        rename_architectures((LANGUAGE_MODEL, BODY, SEQUENCE, SPAN), "GPT2LMHeadModel", "OPTForCausalLM"), "GPT2", "OPT"
    ),
)
