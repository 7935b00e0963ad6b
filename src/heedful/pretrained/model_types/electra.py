"""ELECTRA (Clark et al. 2020): BERT's body, whose embedding may be narrower; a generator and a discriminator."""

from __future__ import annotations

from heedful.pretrained.config_keys import (
    ACTIVATIONS,
    ConfigKey,
    LabelKeys,
    TokenIdKey,
    encoder_layer_keys,
    required_values,
)
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types.bert import BERT, LABEL_KEYS
from heedful.pretrained.rules import Drop, Rename
from heedful.pretrained.special_config_keys import EmbeddingSizeKey

DROP_GENERATOR = (
    Drop("generator_predictions.dense.{p}"),
    Drop("generator_predictions.LayerNorm.{p}"),
    Drop("generator_lm_head.{p}"),
)
DROP_DISCRIMINATOR = (
    Drop("discriminator_predictions.dense.{p}"),
    Drop("discriminator_predictions.dense_prediction.{p}"),
)

ELECTRA = ModelType(
    name="electra",
    prefix="electra.",
    fixed=BERT.fixed,
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 30522),
        ConfigKey("type_vocab_size", "embedding.segments", 2),
        ConfigKey("max_position_embeddings", "encoder.position.length", 512),
        *encoder_layer_keys(256, 12, 4, 1024, 1e-12),
        EmbeddingSizeKey(),
        TokenIdKey("bos_token_id", "special.start", None),
        TokenIdKey("eos_token_id", "special.end", None, several=True),
        TokenIdKey("pad_token_id", "special.pad", 0),
        *required_values(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False),
    ),
    rules=(*BERT.rules[:-1], Rename("embeddings_project.{p}", "encoder.projection.{p}")),  # there is no pooler
    architectures=(
        Architecture(
            name="ElectraModel",
            fixed={"head.kind": "no-head", "head.pooler": False},
            rules=(*DROP_GENERATOR, *DROP_DISCRIMINATOR),
            prefix="",
        ),
        Architecture(
            name="ElectraForMaskedLM",
            fixed={"head.kind": "masked-language-model", "head.activation": "gelu"},
            config_keys=(
                ConfigKey("layer_norm_eps", "head.norm_eps", 1e-12),
                ConfigKey("tie_word_embeddings", "head.tied", True),
            ),
            rules=(
                *DROP_DISCRIMINATOR,
                Rename("generator_predictions.dense.{p}", "head.dense.{p}"),
                Rename("generator_predictions.LayerNorm.{p}", "head.norm.{p}"),
                Rename("generator_lm_head.{p}", "head.output.{p}"),
            ),
        ),
        Architecture(
            name="ElectraForSequenceClassification",
            fixed={
                "head.kind": "sequence",
                "head.pooling": "first",
                "head.pooler": True,
                "head.pooler_activation": "gelu",
                "head.bias": True,
            },
            config_keys=(
                LabelKeys("id2label", "head.labels", 2),
                ConfigKey(
                    "classifier_dropout", ("head.dropout", "head.pooler_dropout"), 0.1, fallback="hidden_dropout_prob"
                ),
            ),
            rules=(
                Rename("classifier.dense.{p}", "head.pooler.dense.{p}"),
                Rename("classifier.out_proj.{p}", "head.output.{p}"),
            ),
        ),
        Architecture(
            name="ElectraForTokenClassification",
            fixed={"head.kind": "token"},
            config_keys=LABEL_KEYS,
            rules=(Rename("classifier.{p}", "head.output.{p}"),),
        ),
        Architecture(  # the discriminator: one logit for each token, that it was replaced
            name="ElectraForPreTraining",
            fixed={
                "head.kind": "token",
                "head.labels": 1,
                "head.dropout": 0.0,
                "head.dense.kind": "dense",
                "head.dense.norm": False,
            },
            config_keys=(ConfigKey("hidden_act", "head.dense.activation", "gelu", ACTIVATIONS),),
            rules=(
                *DROP_GENERATOR,
                Rename("discriminator_predictions.dense.{p}", "head.hidden.dense.{p}"),
                Rename("discriminator_predictions.dense_prediction.{p}", "head.output.{p}"),
            ),
        ),
        Architecture(
            name="ElectraForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(Rename("qa_outputs.{p}", "head.output.{p}"),),
        ),
    ),
)
