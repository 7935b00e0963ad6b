"""GPT-Neo (Black et al. 2021), an open GPT-3: dense blocks alternate with blocks that have a window.

Scores are not divided by √head_dim, and only the last projection of attention has a bias. Linear maps are stored as
(out, in), unlike GPT-2's.
"""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, ConfigKey, TokenIdKey, required_values
from heedful.pretrained.model_type import ModelType, rename_architectures
from heedful.pretrained.model_types.gpt2 import GPT2
from heedful.pretrained.rules import Drop, Rename
from heedful.pretrained.special_config_keys import AttentionTypesKeys

OUR_BLOCK = "decoder.block.{i}"

GPT_NEO = ModelType(
    name="gpt_neo",
    prefix="transformer.",
    fixed={
        "kind": "decoder",
        "decoder.causal": True,
        "decoder.position.kind": "learned",
        "decoder.scale": "none",
        "decoder.attention_bias": "out",
    },
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 50257),
        ConfigKey("max_position_embeddings", "decoder.position.length", 2048),
        ConfigKey("hidden_size", "decoder.dim", 2048),
        ConfigKey("num_layers", "decoder.depth", 24, fallback="num_hidden_layers"),
        ConfigKey("num_heads", "decoder.heads", 16, fallback="num_attention_heads"),
        ConfigKey("intermediate_size", "decoder.ff_dim", None),
        AttentionTypesKeys(),
        ConfigKey("activation_function", "decoder.activation", "gelu_new", ACTIVATIONS),
        ConfigKey("layer_norm_epsilon", "decoder.norm_eps", 1e-5),
        ConfigKey("embed_dropout", "decoder.dropout.embedding", 0.0),
        ConfigKey("attention_dropout", "decoder.dropout.attention", 0.0),
        ConfigKey("resid_dropout", "decoder.dropout.residual", 0.0),
        ConfigKey("initializer_range", "decoder.init_std", 0.02),
        TokenIdKey("bos_token_id", "special.start", 50256),
        TokenIdKey("eos_token_id", "special.end", 50256, several=True),
        TokenIdKey("pad_token_id", "special.pad", None),
        *required_values(is_causal=True),
    ),
    rules=(
        Drop("h.{i}.attn.attention.bias"),  # the mask
        Drop("h.{i}.attn.attention.masked_bias"),
        Rename("wte.weight", "embedding.token.weight"),
        Rename("wpe.weight", "decoder.position.table.weight"),
        Rename("h.{i}.ln_1.{p}", OUR_BLOCK + ".attention_residual.before.{p}"),
        Rename("h.{i}.attn.attention.q_proj.{p}", OUR_BLOCK + ".attention.query.{p}"),
        Rename("h.{i}.attn.attention.k_proj.{p}", OUR_BLOCK + ".attention.key.{p}"),
        Rename("h.{i}.attn.attention.v_proj.{p}", OUR_BLOCK + ".attention.value.{p}"),
        Rename("h.{i}.attn.attention.out_proj.{p}", OUR_BLOCK + ".attention.out.{p}"),
        Rename("h.{i}.ln_2.{p}", OUR_BLOCK + ".feed_forward_residual.before.{p}"),
        Rename("h.{i}.mlp.c_fc.{p}", OUR_BLOCK + ".feed_forward.up.{p}"),
        Rename("h.{i}.mlp.c_proj.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
        Rename("ln_f.{p}", "decoder.norm.{p}"),
    ),
    architectures=rename_architectures(
        rename_architectures(GPT2.architectures, "GPT2LMHeadModel", "GPTNeoForCausalLM"), "GPT2", "GPTNeo"
    ),
)
