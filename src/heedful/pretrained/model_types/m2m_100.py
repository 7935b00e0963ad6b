"""M2M-100 (Fan et al. 2021) and NLLB-200 (NLLB team 2022): mBART's blocks, with sinusoids and no embedding norm."""

from __future__ import annotations

from heedful.pretrained.config_keys import ConfigKey, TokenIdKey, WrittenKey, pair_layer_keys, required_values
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types.mbart import FINAL_NORM_RULES, PRE_NORM_LAYER_RULES
from heedful.pretrained.rules import Drop, Rename, Rule, Tie
from heedful.pretrained.special_config_keys import RepeatedKey, ShiftedSinusoidKey

SINUSOIDAL = {  # Pegasus' too
    "kind": "encoder-decoder",
    "source.kind": "embedding",
    "target": None,
    "encoder.placement": "pre",
    "encoder.position.kind": "sinusoidal",
    "encoder.position.order": "halves",
    "decoder.placement": "pre",
    "decoder.position.kind": "sinusoidal",
    "decoder.position.order": "halves",
    "decoder.causal": True,
    "decoder.cross": True,
}
EMBEDDING_RULES: tuple[Rule, ...] = (  # Pegasus' too
    Tie(("shared.weight", "encoder.embed_tokens.weight"), "embedding.token.weight"),
    Rename("decoder.embed_tokens.weight", "target_embedding.token.weight"),
)

M2M_100 = ModelType(
    name="m2m_100",
    prefix="model.",
    fixed=SINUSOIDAL,
    config_keys=(
        *pair_layer_keys("relu", 128112, 0.1),
        ConfigKey("scale_embedding", "source.scale", True, {True: "sqrt", False: "none"}),
        TokenIdKey("decoder_start_token_id", "special.start", 2),
        TokenIdKey("eos_token_id", "special.end", 2, several=True),
        ShiftedSinusoidKey(),
        WrittenKey("max_position_embeddings", 1024),  # length of the sinusoid in other programs
        RepeatedKey("num_attention_heads", "encoder.heads"),
        *required_values(is_causal=True, is_decoder=False, is_encoder_decoder=True, tie_word_embeddings=True),
    ),
    rules=(
        Drop("encoder.embed_positions.weights"),  # the sinusoid, in older files
        Drop("decoder.embed_positions.weights"),
        *EMBEDDING_RULES,
        *FINAL_NORM_RULES,
        *PRE_NORM_LAYER_RULES,
    ),
    architectures=(
        Architecture(
            name="M2M100ForConditionalGeneration",
            fixed={"head.kind": "language-model"},
            rules=(Rename("lm_head.weight", "head.output.weight"),),
        ),
        Architecture(name="M2M100Model", fixed={"head.kind": "no-head", "head.pooler": False}, prefix=""),
    ),
)
