"""GPT (Radford et al. 2018): GPT-2's linear maps, in post-norm blocks without a norm after the last."""

from __future__ import annotations

from dataclasses import replace

from heedful.pretrained.config_keys import ConfigKey, TokenIdKey, required_values
from heedful.pretrained.model_type import ModelType, rename_architectures
from heedful.pretrained.model_types.gpt2 import GPT2, OUR_BLOCK, SUBLAYER_RULES
from heedful.pretrained.rules import Drop, Rename
from heedful.pretrained.special_config_keys import RepeatedKey

# "gelu" is the tanh approximation here
ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
ARCHITECTURES = rename_architectures(GPT2.architectures[:3], "GPT2", "OpenAIGPT")
LANGUAGE_MODEL = ARCHITECTURES[0]

OPENAI_GPT = ModelType(
    name="openai-gpt",
    prefix="transformer.",
    fixed={
        "kind": "decoder",
        "decoder.causal": True,
        "decoder.placement": "post",
        "decoder.position.kind": "learned",
    },
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 40478),
        ConfigKey("n_positions", "decoder.position.length", 512),
        ConfigKey("n_embd", "decoder.dim", 768),
        ConfigKey("n_layer", "decoder.depth", 12),
        ConfigKey("n_head", "decoder.heads", 12),
        ConfigKey("afn", "decoder.activation", "gelu", ACTIVATIONS),
        ConfigKey("layer_norm_epsilon", "decoder.norm_eps", 1e-5),
        ConfigKey("embd_pdrop", "decoder.dropout.embedding", 0.1),
        ConfigKey("attn_pdrop", "decoder.dropout.attention", 0.1),
        ConfigKey("resid_pdrop", "decoder.dropout.residual", 0.1),
        ConfigKey("initializer_range", "decoder.init_std", 0.02),
        TokenIdKey("bos_token_id", "special.start", None),
        TokenIdKey("eos_token_id", "special.end", None, several=True),
        TokenIdKey("pad_token_id", "special.pad", None),
        RepeatedKey("num_attention_heads", "decoder.heads"),
        *required_values(is_causal=True),
    ),
    rules=(
        Drop("position_ids"),  # 0, 1, 2, ...
        *SUBLAYER_RULES,
        Rename("tokens_embed.weight", "embedding.token.weight"),
        Rename("positions_embed.weight", "decoder.position.table.weight"),
        Rename("h.{i}.ln_1.{p}", OUR_BLOCK + ".attention_residual.after.{p}"),
        Rename("h.{i}.ln_2.{p}", OUR_BLOCK + ".feed_forward_residual.after.{p}"),
    ),
    architectures=(
        *ARCHITECTURES,
        replace(  # read as a language model, without its classifier of answers
            LANGUAGE_MODEL,
            name="OpenAIGPTDoubleHeadsModel",
            rules=(*LANGUAGE_MODEL.rules, Drop("multiple_choice_head.summary.{p}")),
        ),
    ),
)
