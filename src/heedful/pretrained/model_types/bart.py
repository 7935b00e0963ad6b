"""BART (Lewis et al. 2020): post-norm encoder and decoder, a norm after the embedding, positions from table row 2."""

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
from heedful.pretrained.model_types.marian import HEAD, LAYER_RULES
from heedful.pretrained.rules import Drop, Rename, Rule, Tie
from heedful.pretrained.special_config_keys import RepeatedKey

FIXED = {  # mBART's too, but for the placement
    "kind": "encoder-decoder",
    "source.kind": "embedding",
    "target": None,
    "encoder.placement": "post",
    "encoder.embedding_norm": True,
    "encoder.position.kind": "learned",
    "encoder.position.offset": 2,
    "decoder.placement": "post",
    "decoder.embedding_norm": True,
    "decoder.position.kind": "learned",
    "decoder.position.offset": 2,
    "decoder.causal": True,
    "decoder.cross": True,
}
EMBEDDING_RULES: tuple[Rule, ...] = (  # mBART's too
    Tie(("shared.weight", "encoder.embed_tokens.weight"), "embedding.token.weight"),
    Rename("decoder.embed_tokens.weight", "target_embedding.token.weight"),
    Rename("encoder.embed_positions.weight", "encoder.position.table.weight"),
    Rename("decoder.embed_positions.weight", "decoder.position.table.weight"),
    Rename("encoder.layernorm_embedding.{p}", "encoder.embedding_norm.{p}"),
    Rename("decoder.layernorm_embedding.{p}", "decoder.embedding_norm.{p}"),
)

BART = ModelType(
    name="bart",
    prefix="model.",
    fixed=FIXED,
    config_keys=(
        *pair_layer_keys("gelu", 50265, 0.0),
        ConfigKey("max_position_embeddings", ("encoder.position.length", "decoder.position.length"), 1024),
        ConfigKey("scale_embedding", "source.scale", False, {True: "sqrt", False: "none"}),
        TokenIdKey("decoder_start_token_id", "special.start", 2, required=True),
        TokenIdKey("eos_token_id", "special.end", 2, several=True),
        TokenIdKey("pad_token_id", "special.pad", 1),
        RepeatedKey("num_attention_heads", "encoder.heads"),
        *required_values(
            is_causal=True,
            is_decoder=False,
            is_encoder_decoder=True,
            tie_word_embeddings=True,
            normalize_before=False,  # mBART's and Pegasus' variants
            normalize_embedding=True,
            add_final_layer_norm=False,
            static_position_embeddings=False,
        ),
    ),
    rules=(*EMBEDDING_RULES, *LAYER_RULES),
    architectures=(
        Architecture(
            name="BartForConditionalGeneration",
            fixed={"head.kind": "language-model"},
            config_keys=(StoredTensor("final_logits_bias", "head.bias", False),),
            rules=HEAD,
        ),
        Architecture(name="BartModel", fixed={"head.kind": "no-head", "head.pooler": False}, prefix=""),
        Architecture(
            name="BartForSequenceClassification",
            fixed={"head.kind": "sequence", "head.pooling": "last", "head.pooler": True, "head.bias": True},
            config_keys=(LabelKeys("id2label", "head.labels", 3), ConfigKey("classifier_dropout", "head.dropout", 0.0)),
            rules=(
                Drop("final_logits_bias"),  # of the pre-training class, in published files
                Rename("classification_head.dense.{p}", "head.pooler.dense.{p}"),
                Rename("classification_head.out_proj.{p}", "head.output.{p}"),
            ),
        ),
        Architecture(
            name="BartForQuestionAnswering",
            fixed={"head.kind": "span"},
            rules=(Drop("final_logits_bias"), Rename("qa_outputs.{p}", "head.output.{p}")),
        ),
    ),
)
