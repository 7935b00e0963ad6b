"""DeBERTa v1, v2 and v3 (He et al. 2021, 2023): disentangled attention, post-norm, no absolute positions."""

from __future__ import annotations

from heedful.pretrained.config_keys import (
    ACTIVATIONS,
    ConfigKey,
    LabelKeys,
    OnlyValue,
    TokenIdKey,
    encoder_layer_keys,
    required_values,
)
from heedful.pretrained.model_type import Architecture, ModelType, rename_architectures
from heedful.pretrained.model_types.bert import (
    LAYER_OUTPUT_RULES,
    MASKED_HEAD,
    MASKED_KEYS,
    OUR_BLOCK,
    THEIR_LAYER,
)
from heedful.pretrained.rules import Drop, Rename, SplitProjections, Tie
from heedful.pretrained.special_config_keys import ConvolutionKeys, OptionalKey, RepeatedKey, SpanKey, TermsKey

LABELS = LabelKeys("id2label", "head.labels", 2)
DROP_DISCRIMINATOR = (  # v3's pre-training head of replaced tokens, which no class of transformers reads
    Drop("mask_predictions.dense.{p}"),
    Drop("mask_predictions.LayerNorm.{p}"),
    Drop("mask_predictions.classifier.{p}"),
)
DROP_LANGUAGE_MODEL = (
    Drop("lm_predictions.lm_head.dense.{p}"),
    Drop("lm_predictions.lm_head.LayerNorm.{p}"),
    Drop("lm_predictions.lm_head.bias"),
)

DEBERTA_V2 = ModelType(
    name="deberta-v2",
    prefix="deberta.",
    unnamed="DebertaV2Model",  # the published config.json has no architectures
    fixed={
        "kind": "encoder",
        "encoder.placement": "post",
        "encoder.embedding_norm": True,
        "encoder.position.kind": "disentangled",
    },
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 128100),
        ConfigKey("type_vocab_size", "embedding.segments", 0, minimum=0),
        *encoder_layer_keys(1536, 24, 24, 6144, 1e-7),
        OptionalKey("attention_head_size", "encoder.head_dim", 1),
        ConfigKey("max_position_embeddings", "encoder.position.length", 512),
        SpanKey("max_relative_positions", "encoder.position.max_distance", -1),
        SpanKey("position_buckets", "encoder.position.buckets", -1),
        TermsKey("pos_att_type", "encoder.position.terms", None),
        ConfigKey("share_att_key", "encoder.position.projections", False, {True: "content", False: "own"}),
        ConfigKey("norm_rel_ebd", "encoder.position.norm", "none", {"layer_norm": True, "none": False}),
        TokenIdKey("bos_token_id", "special.start", None),
        TokenIdKey("eos_token_id", "special.end", None, several=True),
        TokenIdKey("pad_token_id", "special.pad", 0),
        RepeatedKey("embedding_size", "encoder.dim"),
        OnlyValue("relative_attention", True, False),
        OnlyValue("position_biased_input", False, True),
        ConvolutionKeys(),
        *required_values(conv_groups=1),
    ),
    rules=(
        Drop("embeddings.position_ids"),
        Drop("embeddings.position_embeddings.weight"),  # not read without position_biased_input
        Rename("embeddings.word_embeddings.weight", "embedding.token.weight"),
        Rename("embeddings.token_type_embeddings.weight", "embedding.segment.weight"),
        Rename("embeddings.LayerNorm.{p}", "encoder.embedding_norm.{p}"),
        Rename("encoder.rel_embeddings.weight", "encoder.position.table.weight"),
        Rename("encoder.LayerNorm.{p}", "encoder.position.norm.{p}"),
        Rename("encoder.conv.conv.{p}", "encoder.block.0.convolution.conv.{p}"),
        Rename("encoder.conv.LayerNorm.{p}", "encoder.block.0.convolution.norm.{p}"),
        Rename(THEIR_LAYER + ".attention.self.query_proj.{p}", OUR_BLOCK + ".attention.query.{p}"),
        Rename(THEIR_LAYER + ".attention.self.key_proj.{p}", OUR_BLOCK + ".attention.key.{p}"),
        Rename(THEIR_LAYER + ".attention.self.value_proj.{p}", OUR_BLOCK + ".attention.value.{p}"),
        Rename(THEIR_LAYER + ".attention.self.pos_key_proj.{p}", OUR_BLOCK + ".attention.relative.key.{p}"),
        Rename(THEIR_LAYER + ".attention.self.pos_query_proj.{p}", OUR_BLOCK + ".attention.relative.query.{p}"),
        *LAYER_OUTPUT_RULES,
    ),
    architectures=(
        Architecture(
            name="DebertaV2Model",
            fixed={"head.kind": "no-head", "head.pooler": False},
            rules=(*DROP_LANGUAGE_MODEL, *DROP_DISCRIMINATOR),
            prefix="",
        ),
        Architecture(
            name="DebertaV2ForMaskedLM",
            fixed=MASKED_HEAD,
            config_keys=(*MASKED_KEYS, *required_values(legacy=True)),
            rules=(
                *DROP_LANGUAGE_MODEL,
                *DROP_DISCRIMINATOR,
                Rename("cls.predictions.transform.dense.{p}", "head.dense.{p}"),
                Rename("cls.predictions.transform.LayerNorm.{p}", "head.norm.{p}"),
                Rename("cls.predictions.decoder.weight", "head.output.weight"),
                Tie(("cls.predictions.bias", "cls.predictions.decoder.bias"), "head.output.bias"),
            ),
        ),
        Architecture(
            name="DebertaV2ForMaskedLM",  # the same function; "legacy" names the tensors only
            fixed=MASKED_HEAD,
            config_keys=(*MASKED_KEYS, OnlyValue("legacy", False, True)),
            rules=(
                *DROP_DISCRIMINATOR,
                Rename("lm_predictions.lm_head.dense.{p}", "head.dense.{p}"),
                Rename("lm_predictions.lm_head.LayerNorm.{p}", "head.norm.{p}"),
                Rename("lm_predictions.lm_head.bias", "head.output.bias"),
            ),
        ),
        Architecture(
            name="DebertaV2ForSequenceClassification",
            fixed={"head.kind": "sequence", "head.pooling": "first", "head.pooler": True, "head.bias": True},
            config_keys=(
                LABELS,
                ConfigKey("cls_dropout", "head.dropout", 0.1, fallback="hidden_dropout_prob"),
                ConfigKey("pooler_dropout", "head.pooler_dropout", 0.0),
                ConfigKey("pooler_hidden_act", "head.pooler_activation", "gelu", ACTIVATIONS),
                RepeatedKey("pooler_hidden_size", "encoder.dim"),
            ),
            rules=(Rename("pooler.dense.{p}", "head.pooler.dense.{p}"), Rename("classifier.{p}", "head.output.{p}")),
        ),
        Architecture(
            name="DebertaV2ForTokenClassification",
            fixed={"head.kind": "token"},
            config_keys=(LABELS, ConfigKey("hidden_dropout_prob", "head.dropout", 0.1)),
            rules=(Rename("classifier.{p}", "head.output.{p}"),),
        ),
        Architecture(
            name="DebertaV2ForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(Rename("qa_outputs.{p}", "head.output.{p}"),),
        ),
    ),
)

SELF = THEIR_LAYER + ".attention.self"
DEBERTA = ModelType(
    name="deberta",
    prefix=DEBERTA_V2.prefix,
    unnamed="DebertaModel",
    fixed={**DEBERTA_V2.fixed, "encoder.position.projections": "own", "encoder.attention_bias": "all-but-key"},
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 50265),
        ConfigKey("type_vocab_size", "embedding.segments", 0, minimum=0),
        *encoder_layer_keys(768, 12, 12, 3072, 1e-7),
        ConfigKey("max_position_embeddings", "encoder.position.length", 512),
        SpanKey("max_relative_positions", "encoder.position.max_distance", -1),
        TermsKey("pos_att_type", "encoder.position.terms", None),
        TokenIdKey("bos_token_id", "special.start", None),
        TokenIdKey("eos_token_id", "special.end", None, several=True),
        TokenIdKey("pad_token_id", "special.pad", 0),
        RepeatedKey("embedding_size", "encoder.dim"),
        OnlyValue("relative_attention", True, False),
        OnlyValue("position_biased_input", False, True),
        *required_values(talking_head=False),
    ),
    rules=(
        Drop("embeddings.position_ids"),
        Drop("embeddings.position_embeddings.weight"),  # not read without position_biased_input
        Rename("embeddings.word_embeddings.weight", "embedding.token.weight"),
        Rename("embeddings.token_type_embeddings.weight", "embedding.segment.weight"),
        Rename("embeddings.LayerNorm.{p}", "encoder.embedding_norm.{p}"),
        Rename("encoder.rel_embeddings.weight", "encoder.position.table.weight"),
        SplitProjections(
            SELF + ".in_proj.weight",
            (
                OUR_BLOCK + ".attention.query.weight",
                OUR_BLOCK + ".attention.key.weight",
                OUR_BLOCK + ".attention.value.weight",
            ),
            by_group=True,
            stack="encoder",
        ),
        Rename(SELF + ".q_bias", OUR_BLOCK + ".attention.query.bias"),
        Rename(SELF + ".v_bias", OUR_BLOCK + ".attention.value.bias"),
        Rename(SELF + ".pos_proj.weight", OUR_BLOCK + ".attention.relative.key.weight"),
        Rename(SELF + ".pos_q_proj.{p}", OUR_BLOCK + ".attention.relative.query.{p}"),
        *LAYER_OUTPUT_RULES,
    ),
    architectures=rename_architectures(DEBERTA_V2.architectures, "DebertaV2", "Deberta"),
)
