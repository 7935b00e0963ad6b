"""mBART (Liu et al. 2020): BART with pre-norm blocks, final norms, and languages by tokens of their own."""

from __future__ import annotations

from heedful.pretrained.config_keys import (
    ConfigKey,
    LabelKeys,
    StoredTensor,
    TokenIdKey,
    pair_layer_keys,
    required_values,
)
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types.bart import EMBEDDING_RULES, FIXED
from heedful.pretrained.model_types.marian import HEAD, LAYER_RULES
from heedful.pretrained.rules import Drop, Rename, Rule, before_sublayers
from heedful.pretrained.special_config_keys import RepeatedKey

FINAL_NORM_RULES: tuple[Rule, ...] = (  # M2M-100's and Pegasus' too
    Rename("encoder.layer_norm.{p}", "encoder.norm.{p}"),
    Rename("decoder.layer_norm.{p}", "decoder.norm.{p}"),
)
PRE_NORM_LAYER_RULES = before_sublayers(LAYER_RULES)

MBART = ModelType(
    name="mbart",
    prefix="model.",
    fixed={**FIXED, "encoder.placement": "pre", "decoder.placement": "pre"},
    config_keys=(
        *pair_layer_keys("gelu", 50265, 0.0),
        ConfigKey("max_position_embeddings", ("encoder.position.length", "decoder.position.length"), 1024),
        ConfigKey("scale_embedding", "source.scale", False, {True: "sqrt", False: "none"}),
        TokenIdKey("decoder_start_token_id", "special.start", None),
        TokenIdKey("eos_token_id", "special.end", 2, several=True),
        TokenIdKey("pad_token_id", "special.pad", 1),
        RepeatedKey("num_attention_heads", "encoder.heads"),
        *required_values(is_causal=True, is_decoder=False, is_encoder_decoder=True, tie_word_embeddings=True),
        *required_values(normalize_before=True, normalize_embedding=True, add_final_layer_norm=True),
        *required_values(static_position_embeddings=False),
    ),
    rules=(*EMBEDDING_RULES, *FINAL_NORM_RULES, *PRE_NORM_LAYER_RULES),
    architectures=(
        Architecture(
            name="MBartForConditionalGeneration",
            fixed={"head.kind": "language-model"},
            config_keys=(StoredTensor("final_logits_bias", "head.bias", False),),
            rules=HEAD,
        ),
        Architecture(name="MBartModel", fixed={"head.kind": "no-head", "head.pooler": False}, prefix=""),
        Architecture(
            name="MBartForSequenceClassification",
            fixed={"head.kind": "sequence", "head.pooling": "last", "head.pooler": True, "head.bias": True},
            config_keys=(
                LabelKeys("id2label", "head.labels", 2),
                ConfigKey("classifier_dropout", "head.dropout", 0.0),
                TokenIdKey("eos_token_id", "special.start", 2),  # its decoder begins with the last token of the text
            ),
            rules=(
                Drop("final_logits_bias"),  # of the pre-training class, in published files
                Rename("classification_head.dense.{p}", "head.pooler.dense.{p}"),
                Rename("classification_head.out_proj.{p}", "head.output.{p}"),
            ),
        ),
        Architecture(
            name="MBartForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(Drop("final_logits_bias"), Rename("qa_outputs.{p}", "head.output.{p}")),
        ),
    ),
)
