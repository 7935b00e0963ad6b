"""Bloom (BigScience 2022): ALiBi, a norm of the embedding; query, key and value stored as one, head by head."""

from __future__ import annotations

from dataclasses import replace

from heedful.pretrained.config_keys import ConfigKey, LabelKeys, TokenIdKey, required_values
from heedful.pretrained.model_type import ModelType, rename_architectures
from heedful.pretrained.model_types.gpt2 import GPT2
from heedful.pretrained.rules import Rename, SplitProjections
from heedful.pretrained.special_config_keys import RepeatedKey

OUR_BLOCK = "decoder.block.{i}"
LANGUAGE_MODEL, BODY, SEQUENCE, TOKEN, SPAN = GPT2.architectures
TOKEN = replace(
    TOKEN,
    config_keys=(
        LabelKeys("id2label", "head.labels", 2),
        ConfigKey("classifier_dropout", "head.dropout", 0.0, fallback="hidden_dropout"),
    ),
)

BLOOM = ModelType(
    name="bloom",
    prefix="transformer.",
    fixed={
        "kind": "decoder",
        "decoder.causal": True,
        "decoder.position.kind": "alibi",
        "decoder.embedding_norm": True,
        "decoder.activation": "gelu_tanh",
    },
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 250880),
        ConfigKey("hidden_size", "decoder.dim", 64, fallback="n_embed"),
        ConfigKey("n_layer", "decoder.depth", 2, fallback="num_hidden_layers"),
        ConfigKey("n_head", "decoder.heads", 8, fallback="num_attention_heads"),
        ConfigKey("layer_norm_epsilon", "decoder.norm_eps", 1e-5),
        ConfigKey("hidden_dropout", "decoder.dropout.residual", 0.0),
        ConfigKey("attention_dropout", "decoder.dropout.attention", 0.0),
        ConfigKey("initializer_range", "decoder.init_std", 0.02),
        TokenIdKey("bos_token_id", "special.start", 1),
        TokenIdKey("eos_token_id", "special.end", 2, several=True),
        TokenIdKey("pad_token_id", "special.pad", None),
        RepeatedKey("n_embed", "decoder.dim"),
        RepeatedKey("num_hidden_layers", "decoder.depth"),
        RepeatedKey("num_attention_heads", "decoder.heads"),
        *required_values(is_causal=True, apply_residual_connection_post_layernorm=False, slow_but_exact=False),
    ),
    rules=(
        Rename("word_embeddings.weight", "embedding.token.weight"),
        Rename("word_embeddings_layernorm.{p}", "decoder.embedding_norm.{p}"),
        Rename("h.{i}.input_layernorm.{p}", OUR_BLOCK + ".attention_residual.before.{p}"),
        SplitProjections(
            "h.{i}.self_attention.query_key_value.{p}",
            (OUR_BLOCK + ".attention.query.{p}", OUR_BLOCK + ".attention.key.{p}", OUR_BLOCK + ".attention.value.{p}"),
            by_group=True,
        ),
        Rename("h.{i}.self_attention.dense.{p}", OUR_BLOCK + ".attention.out.{p}"),
        Rename("h.{i}.post_attention_layernorm.{p}", OUR_BLOCK + ".feed_forward_residual.before.{p}"),
        Rename("h.{i}.mlp.dense_h_to_4h.{p}", OUR_BLOCK + ".feed_forward.up.{p}"),
        Rename("h.{i}.mlp.dense_4h_to_h.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
        Rename("ln_f.{p}", "decoder.norm.{p}"),
    ),
    architectures=rename_architectures(
        rename_architectures((LANGUAGE_MODEL, BODY, SEQUENCE, TOKEN, SPAN), "GPT2LMHeadModel", "BloomForCausalLM"),
        "GPT2",
        "Bloom",
    ),
)
