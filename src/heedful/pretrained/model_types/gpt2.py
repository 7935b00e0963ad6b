"""GPT-2 (Radford et al. 2019): linear maps stored as (in, out); query, key and value stored as one."""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, AnyConfigKey, ConfigKey, LabelKeys, TokenIdKey, required_values
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.rules import Drop, Rename, Rule, Split, Transpose
from heedful.pretrained.special_config_keys import RepeatedKey

OUR_BLOCK = "decoder.block.{i}"
CONFIG_KEYS: tuple[AnyConfigKey, ...] = (  # of the decoder, with or without cross-attention
    ConfigKey("vocab_size", "embedding.vocab_size", 50257),
    ConfigKey("n_positions", "decoder.position.length", 1024),
    ConfigKey("n_embd", "decoder.dim", 768),
    ConfigKey("n_layer", "decoder.depth", 12),
    ConfigKey("n_head", "decoder.heads", 12),
    ConfigKey("n_inner", "decoder.ff_dim", None),
    ConfigKey("activation_function", "decoder.activation", "gelu_new", ACTIVATIONS),
    ConfigKey("layer_norm_epsilon", "decoder.norm_eps", 1e-5),
    ConfigKey("embd_pdrop", "decoder.dropout.embedding", 0.1),
    ConfigKey("attn_pdrop", "decoder.dropout.attention", 0.1),
    ConfigKey("resid_pdrop", "decoder.dropout.residual", 0.1),
    ConfigKey("initializer_range", "decoder.init_std", 0.02),
    RepeatedKey("num_attention_heads", "decoder.heads"),
    *required_values(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, is_causal=True),
)
SUBLAYER_RULES: tuple[Rule, ...] = (
    Drop("h.{i}.attn.bias"),  # the causal mask
    Drop("h.{i}.attn.masked_bias"),
    Split(
        "h.{i}.attn.c_attn.{p}",
        (OUR_BLOCK + ".attention.query.{p}", OUR_BLOCK + ".attention.key.{p}", OUR_BLOCK + ".attention.value.{p}"),
        transposed=True,
    ),
    Transpose("h.{i}.attn.c_proj.{p}", OUR_BLOCK + ".attention.out.{p}"),
    Transpose("h.{i}.mlp.c_fc.{p}", OUR_BLOCK + ".feed_forward.up.{p}"),
    Transpose("h.{i}.mlp.c_proj.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
)

GPT2 = ModelType(
    name="gpt2",
    prefix="transformer.",
    fixed={
        "kind": "decoder",
        "decoder.causal": True,
        "decoder.position.kind": "learned",
        "decoder.init": "scaled",
    },
    config_keys=(
        *CONFIG_KEYS,
        TokenIdKey("bos_token_id", "special.start", 50256),
        TokenIdKey("eos_token_id", "special.end", 50256, several=True),
        TokenIdKey("pad_token_id", "special.pad", None),
        *required_values(add_cross_attention=False),
    ),
    rules=(
        *SUBLAYER_RULES,
        Rename("wte.weight", "embedding.token.weight"),
        Rename("wpe.weight", "decoder.position.table.weight"),
        Rename("h.{i}.ln_1.{p}", OUR_BLOCK + ".attention_residual.before.{p}"),
        Rename("h.{i}.ln_2.{p}", OUR_BLOCK + ".feed_forward_residual.before.{p}"),
        Rename("ln_f.{p}", "decoder.norm.{p}"),
    ),
    architectures=(
        Architecture(
            name="GPT2LMHeadModel",
            fixed={"head.kind": "language-model"},
            config_keys=(ConfigKey("tie_word_embeddings", "head.tied", True),),
            rules=(Rename("lm_head.weight", "head.output.weight"),),
        ),
        Architecture(name="GPT2Model", fixed={"head.kind": "no-head"}, prefix=""),
        Architecture(
            name="GPT2ForSequenceClassification",
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
            name="GPT2ForTokenClassification",
            fixed={"head.kind": "token"},
            config_keys=(
                LabelKeys("id2label", "head.labels", 2),
                ConfigKey("classifier_dropout", "head.dropout", 0.1, fallback="hidden_dropout"),
            ),
            rules=(Rename("classifier.{p}", "head.output.{p}"),),
        ),
        Architecture(
            name="GPT2ForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(Rename("qa_outputs.{p}", "head.output.{p}"),),
        ),
    ),
)
