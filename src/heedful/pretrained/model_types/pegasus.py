"""Pegasus (Zhang et al. 2020): mBART's blocks, with sinusoids whose table the file holds, and no embedding norm."""

from __future__ import annotations

from heedful.pretrained.config_keys import ConfigKey, StoredTensor, TokenIdKey, pair_layer_keys, required_values
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types.m2m_100 import EMBEDDING_RULES, SINUSOIDAL
from heedful.pretrained.model_types.marian import HEAD
from heedful.pretrained.model_types.mbart import FINAL_NORM_RULES, PRE_NORM_LAYER_RULES
from heedful.pretrained.rules import SinusoidTable
from heedful.pretrained.special_config_keys import RepeatedKey, StoredSinusoidKey

PEGASUS = ModelType(
    name="pegasus",
    prefix="model.",
    fixed=SINUSOIDAL,
    config_keys=(
        *pair_layer_keys("gelu", 50265, 0.0),
        ConfigKey("scale_embedding", "source.scale", False, {True: "sqrt", False: "none"}),
        TokenIdKey("decoder_start_token_id", "special.start", 0),
        TokenIdKey("eos_token_id", "special.end", 1, several=True),
        TokenIdKey("pad_token_id", "special.pad", 0),
        StoredSinusoidKey("max_position_embeddings", 1024),
        RepeatedKey("num_attention_heads", "encoder.heads"),
        *required_values(is_causal=True, is_decoder=False, is_encoder_decoder=True, tie_word_embeddings=True),
        *required_values(normalize_before=True, normalize_embedding=False, add_final_layer_norm=True),
        *required_values(static_position_embeddings=True),
    ),
    rules=(
        SinusoidTable("encoder.embed_positions.weight", "encoder.position.table"),
        SinusoidTable("decoder.embed_positions.weight", "decoder.position.table"),
        *EMBEDDING_RULES,
        *FINAL_NORM_RULES,
        *PRE_NORM_LAYER_RULES,
    ),
    architectures=(
        Architecture(
            name="PegasusForConditionalGeneration",
            fixed={"head.kind": "language-model"},
            config_keys=(StoredTensor("final_logits_bias", "head.bias", False),),
            rules=HEAD,
        ),
        Architecture(name="PegasusModel", fixed={"head.kind": "no-head", "head.pooler": False}, prefix=""),
    ),
)
