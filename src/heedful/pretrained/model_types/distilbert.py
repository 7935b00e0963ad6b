"""DistilBERT (Sanh et al. 2019): BERT without segments and pooler, its layers under shorter names."""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, ConfigKey, LabelKeys, TokenIdKey
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.rules import Drop, Rename
from heedful.pretrained.special_config_keys import RepeatedKey

THEIR_LAYER, OUR_BLOCK = "transformer.layer.{i}", "encoder.block.{i}"
LABELS = LabelKeys("id2label", "head.labels", 2)

DISTILBERT = ModelType(
    name="distilbert",
    prefix="distilbert.",
    fixed={
        "kind": "encoder",
        "encoder.placement": "post",
        "encoder.norm_eps": 1e-12,
        "encoder.embedding_norm": True,
        "encoder.position.kind": "learned",
    },
    config_keys=(  # sinusoidal_pos_embds only says how the stored rows were initialised
        ConfigKey("vocab_size", "embedding.vocab_size", 30522),
        ConfigKey("max_position_embeddings", "encoder.position.length", 512),
        ConfigKey("dim", "encoder.dim", 768),
        ConfigKey("n_layers", "encoder.depth", 6),
        ConfigKey("n_heads", "encoder.heads", 12),
        ConfigKey("hidden_dim", "encoder.ff_dim", 3072),
        ConfigKey("activation", "encoder.activation", "gelu", ACTIVATIONS),
        ConfigKey("dropout", ("encoder.dropout.embedding", "encoder.dropout.residual"), 0.1),
        ConfigKey("attention_dropout", "encoder.dropout.attention", 0.1),
        ConfigKey("initializer_range", "encoder.init_std", 0.02),
        TokenIdKey("bos_token_id", "special.start", None),
        TokenIdKey("eos_token_id", "special.end", None, several=True),
        TokenIdKey("pad_token_id", "special.pad", 0),
        RepeatedKey("num_attention_heads", "encoder.heads"),
    ),
    rules=(
        Drop("embeddings.position_ids"),
        Rename("embeddings.word_embeddings.weight", "embedding.token.weight"),
        Rename("embeddings.position_embeddings.weight", "encoder.position.table.weight"),
        Rename("embeddings.LayerNorm.{p}", "encoder.embedding_norm.{p}"),
        Rename(THEIR_LAYER + ".attention.q_lin.{p}", OUR_BLOCK + ".attention.query.{p}"),
        Rename(THEIR_LAYER + ".attention.k_lin.{p}", OUR_BLOCK + ".attention.key.{p}"),
        Rename(THEIR_LAYER + ".attention.v_lin.{p}", OUR_BLOCK + ".attention.value.{p}"),
        Rename(THEIR_LAYER + ".attention.out_lin.{p}", OUR_BLOCK + ".attention.out.{p}"),
        Rename(THEIR_LAYER + ".sa_layer_norm.{p}", OUR_BLOCK + ".attention_residual.after.{p}"),
        Rename(THEIR_LAYER + ".ffn.lin1.{p}", OUR_BLOCK + ".feed_forward.up.{p}"),
        Rename(THEIR_LAYER + ".ffn.lin2.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
        Rename(THEIR_LAYER + ".output_layer_norm.{p}", OUR_BLOCK + ".feed_forward_residual.after.{p}"),
    ),
    architectures=(
        Architecture(name="DistilBertModel", fixed={"head.kind": "no-head", "head.pooler": False}, prefix=""),
        Architecture(
            name="DistilBertForMaskedLM",
            fixed={"head.kind": "masked-language-model", "head.norm_eps": 1e-12},
            config_keys=(
                ConfigKey("tie_word_embeddings", "head.tied", True),
                ConfigKey("activation", "head.activation", "gelu", ACTIVATIONS),
            ),
            rules=(
                Rename("vocab_transform.{p}", "head.dense.{p}"),
                Rename("vocab_layer_norm.{p}", "head.norm.{p}"),
                Rename("vocab_projector.{p}", "head.output.{p}"),
            ),
        ),
        Architecture(
            name="DistilBertForSequenceClassification",
            fixed={
                "head.kind": "sequence",
                "head.pooling": "first",
                "head.pooler": True,
                "head.pooler_activation": "relu",
                "head.bias": True,
            },
            config_keys=(LABELS, ConfigKey("seq_classif_dropout", "head.dropout", 0.2)),
            rules=(
                Rename("pre_classifier.{p}", "head.pooler.dense.{p}"),
                Rename("classifier.{p}", "head.output.{p}"),
            ),
        ),
        Architecture(
            name="DistilBertForTokenClassification",
            fixed={"head.kind": "token"},
            config_keys=(LABELS, ConfigKey("dropout", "head.dropout", 0.1)),
            rules=(Rename("classifier.{p}", "head.output.{p}"),),
        ),
        Architecture(
            name="DistilBertForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(Rename("qa_outputs.{p}", "head.output.{p}"),),
        ),
    ),
)
