"""DistilBERT (Sanh et al. 2019): BERT without segments and pooler, its layers under shorter names."""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, Id, Key, Labels
from heedful.pretrained.model_type import Case, Family
from heedful.pretrained.rules import Drop, Rename
from heedful.pretrained.special_config_keys import Repeated

LAYER, BLOCK = "transformer.layer.{i}", "encoder.block.{i}"
LABELS = Labels("id2label", "head.labels", 2)

DISTILBERT = Family(
    name="distilbert",
    prefix="distilbert.",
    fixed={
        "kind": "encoder",
        "encoder.placement": "post",
        "encoder.norm_eps": 1e-12,
        "encoder.embedding_norm": True,
        "encoder.position.kind": "learned",
    },
    facts=(  # sinusoidal_pos_embds tells how the stored rows began, no more
        Key("vocab_size", "embedding.vocab_size", 30522),
        Key("max_position_embeddings", "encoder.position.length", 512),
        Key("dim", "encoder.dim", 768),
        Key("n_layers", "encoder.depth", 6),
        Key("n_heads", "encoder.heads", 12),
        Key("hidden_dim", "encoder.ff_dim", 3072),
        Key("activation", "encoder.activation", "gelu", ACTIVATIONS),
        Key("dropout", ("encoder.dropout.embedding", "encoder.dropout.residual"), 0.1),
        Key("attention_dropout", "encoder.dropout.attention", 0.1),
        Key("initializer_range", "encoder.init_std", 0.02),
        Id("bos_token_id", "special.start", None),
        Id("eos_token_id", "special.end", None, several=True),
        Id("pad_token_id", "special.pad", 0),
        Repeated("num_attention_heads", "encoder.heads"),
    ),
    rules=(
        Drop("embeddings.position_ids"),
        Rename("embeddings.word_embeddings.weight", "embedding.token.weight"),
        Rename("embeddings.position_embeddings.weight", "encoder.position.table.weight"),
        Rename("embeddings.LayerNorm.{p}", "encoder.embedding_norm.{p}"),
        Rename(LAYER + ".attention.q_lin.{p}", BLOCK + ".attention.query.{p}"),
        Rename(LAYER + ".attention.k_lin.{p}", BLOCK + ".attention.key.{p}"),
        Rename(LAYER + ".attention.v_lin.{p}", BLOCK + ".attention.value.{p}"),
        Rename(LAYER + ".attention.out_lin.{p}", BLOCK + ".attention.out.{p}"),
        Rename(LAYER + ".sa_layer_norm.{p}", BLOCK + ".attention_residual.after.{p}"),
        Rename(LAYER + ".ffn.lin1.{p}", BLOCK + ".feed_forward.up.{p}"),
        Rename(LAYER + ".ffn.lin2.{p}", BLOCK + ".feed_forward.down.{p}"),
        Rename(LAYER + ".output_layer_norm.{p}", BLOCK + ".feed_forward_residual.after.{p}"),
    ),
    cases=(
        Case(name="DistilBertModel", fixed={"head.kind": "no-head", "head.pooler": False}, prefix=""),
        Case(
            name="DistilBertForMaskedLM",
            fixed={"head.kind": "masked-language-model", "head.norm_eps": 1e-12},
            facts=(
                Key("tie_word_embeddings", "head.tied", True),
                Key("activation", "head.activation", "gelu", ACTIVATIONS),
            ),
            rules=(
                Rename("vocab_transform.{p}", "head.dense.{p}"),
                Rename("vocab_layer_norm.{p}", "head.norm.{p}"),
                Rename("vocab_projector.{p}", "head.output.{p}"),
            ),
        ),
        Case(
            name="DistilBertForSequenceClassification",
            fixed={
                "head.kind": "sequence",
                "head.pooling": "first",
                "head.pooler": True,
                "head.pooler_activation": "relu",
                "head.bias": True,
            },
            facts=(LABELS, Key("seq_classif_dropout", "head.dropout", 0.2)),
            rules=(
                Rename("pre_classifier.{p}", "head.pooler.dense.{p}"),
                Rename("classifier.{p}", "head.output.{p}"),
            ),
        ),
        Case(
            name="DistilBertForTokenClassification",
            fixed={"head.kind": "token"},
            facts=(LABELS, Key("dropout", "head.dropout", 0.1)),
            rules=(Rename("classifier.{p}", "head.output.{p}"),),
        ),
        Case(
            name="DistilBertForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(Rename("qa_outputs.{p}", "head.output.{p}"),),
        ),
    ),
)
