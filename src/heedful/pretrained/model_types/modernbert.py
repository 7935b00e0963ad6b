"""ModernBERT (Warner et al. 2024): an encoder of rotary positions, most of whose blocks attend within a window.

Two maps of the feed-forward are stored as one, as are queries, keys and values. The first block's attention has no
norm, since the embedding has one; every head has a dense layer with a norm.
"""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, AnyConfigKey, ConfigKey, LabelKeys, TokenIdKey, required_values
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.rules import Rename, Split
from heedful.pretrained.special_config_keys import TwoBasesKeys, TwoSidedWindowKeys

THEIR_LAYER, OUR_BLOCK = "layers.{i}", "encoder.block.{i}"
HIDDEN = (Rename("head.dense.{p}", "head.hidden.dense.{p}"), Rename("head.norm.{p}", "head.hidden.norm.{p}"))
CLASSIFIER = (*HIDDEN, Rename("classifier.{p}", "head.output.{p}"))
DENSE_KEYS: tuple[AnyConfigKey, ...] = (
    ConfigKey("classifier_activation", "head.dense.activation", "gelu", ACTIVATIONS),
    ConfigKey("classifier_bias", "head.dense.bias", False),
    ConfigKey("norm_eps", "head.dense.norm_eps", 1e-5),
    ConfigKey("norm_bias", "head.dense.norm_bias", False),
    ConfigKey("classifier_dropout", "head.dropout", 0.0),
)
LABELS = LabelKeys("id2label", "head.labels", 2)

MODERNBERT = ModelType(
    name="modernbert",
    prefix="model.",
    fixed={
        "kind": "encoder",
        "encoder.gated": True,
        "encoder.embedding_norm": True,
        "encoder.first_norm": False,
        "encoder.position.kind": "rotary",
    },
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 50368),
        ConfigKey("hidden_size", "encoder.dim", 768),
        ConfigKey("intermediate_size", "encoder.ff_dim", 1152),
        ConfigKey("num_hidden_layers", "encoder.depth", 22),
        ConfigKey("num_attention_heads", "encoder.heads", 12),
        ConfigKey("hidden_activation", "encoder.activation", "gelu", ACTIVATIONS),
        ConfigKey("max_position_embeddings", "encoder.position.length", 8192),
        ConfigKey("norm_eps", "encoder.norm_eps", 1e-5),
        ConfigKey("norm_bias", "encoder.norm_bias", False),
        ConfigKey("attention_bias", "encoder.attention_bias", False, {True: "all", False: "none"}),
        ConfigKey("mlp_bias", "encoder.ff_bias", False),
        ConfigKey("embedding_dropout", "encoder.dropout.embedding", 0.0),
        ConfigKey("attention_dropout", "encoder.dropout.attention", 0.0),
        ConfigKey("mlp_dropout", "encoder.dropout.hidden", 0.0),
        ConfigKey("initializer_range", "encoder.init_std", 0.02),
        TwoSidedWindowKeys(),
        TwoBasesKeys(),
        TokenIdKey("bos_token_id", "special.start", 50281),
        TokenIdKey("eos_token_id", "special.end", 50282, several=True),
        TokenIdKey("pad_token_id", "special.pad", 50283),
        *required_values(head_dim=None, sliding_window=None),
    ),
    rules=(
        Rename("embeddings.tok_embeddings.weight", "embedding.token.weight"),
        Rename("embeddings.norm.{p}", "encoder.embedding_norm.{p}"),
        Rename(THEIR_LAYER + ".attn_norm.{p}", OUR_BLOCK + ".attention_residual.before.{p}"),
        Split(
            THEIR_LAYER + ".attn.Wqkv.{p}",
            (OUR_BLOCK + ".attention.query.{p}", OUR_BLOCK + ".attention.key.{p}", OUR_BLOCK + ".attention.value.{p}"),
        ),
        Rename(THEIR_LAYER + ".attn.Wo.{p}", OUR_BLOCK + ".attention.out.{p}"),
        Rename(THEIR_LAYER + ".mlp_norm.{p}", OUR_BLOCK + ".feed_forward_residual.before.{p}"),
        Split(THEIR_LAYER + ".mlp.Wi.{p}", (OUR_BLOCK + ".feed_forward.gate.{p}", OUR_BLOCK + ".feed_forward.up.{p}")),
        Rename(THEIR_LAYER + ".mlp.Wo.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
        Rename("final_norm.{p}", "encoder.norm.{p}"),
    ),
    architectures=(
        Architecture(name="ModernBertModel", fixed={"head.kind": "no-head"}, prefix=""),
        Architecture(
            name="ModernBertForMaskedLM",
            fixed={"head.kind": "masked-language-model"},
            config_keys=(
                ConfigKey("tie_word_embeddings", "head.tied", True),
                ConfigKey("classifier_activation", "head.activation", "gelu", ACTIVATIONS),
                ConfigKey("classifier_bias", "head.dense_bias", False),
                ConfigKey("decoder_bias", "head.bias", True),
                ConfigKey("norm_eps", "head.norm_eps", 1e-5),
                ConfigKey("norm_bias", "head.norm_bias", False),
            ),
            rules=(
                Rename("head.dense.{p}", "head.dense.{p}"),
                Rename("head.norm.{p}", "head.norm.{p}"),
                Rename("decoder.{p}", "head.output.{p}"),
            ),
        ),
        Architecture(
            name="ModernBertForSequenceClassification",
            fixed={"head.kind": "sequence", "head.pooler": False, "head.bias": True, "head.dense.kind": "dense"},
            config_keys=(
                LABELS,
                ConfigKey("classifier_pooling", "head.pooling", "cls", {"cls": "first", "mean": "mean"}),
                *DENSE_KEYS,
            ),
            rules=CLASSIFIER,
        ),
        Architecture(
            name="ModernBertForTokenClassification",
            fixed={"head.kind": "token", "head.dense.kind": "dense"},
            config_keys=(LABELS, *DENSE_KEYS),
            rules=CLASSIFIER,
        ),
        Architecture(
            name="ModernBertForQuestionAnswering",
            fixed={"head.kind": "span", "head.dense.kind": "dense"},
            config_keys=DENSE_KEYS,
            rules=CLASSIFIER,
        ),
    ),
)
