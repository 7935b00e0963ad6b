"""Image captioners: a ViT or DeiT encoder with a GPT-2 decoder, the structure of TrOCR (Li et al. 2023).

``config.json`` holds the two models' own configurations under ``encoder`` and ``decoder``, and the tensors have their
names after ``encoder.`` and ``decoder.``. The decoder's blocks have cross-attention; ``enc_to_dec_proj`` joins the two
widths if they differ.
"""

from __future__ import annotations

from heedful.pretrained.config_keys import ConfigKey, OnlyValue, StoredTensor, WrittenKey, required_values
from heedful.pretrained.model_type import EVERYWHERE, Architecture, ModelType
from heedful.pretrained.model_types import gpt2, vit
from heedful.pretrained.model_types.deit import DEIT, TOKENS
from heedful.pretrained.rules import Drop, Rename, RenameUnlessZero, Split, Transpose, rename_rules
from heedful.pretrained.special_config_keys import OuterTokenIdKey, SubConfig

ENCODERS = ("vit", "deit")
PATCHES, TOKEN = (("patches.", "source."),), (("embedding.", "target."),)  # their paths here
CROSS, OUR_CROSS = "decoder.transformer.h.{i}.crossattention.", gpt2.OUR_BLOCK + ".cross_attention"

VISION_ENCODER_DECODER = ModelType(
    name="vision-encoder-decoder",
    fixed={
        "kind": "encoder-decoder",
        "source.kind": "patches",
        "target.kind": "embedding",
        "encoder.position.kind": "learned",
        "encoder.init": "truncated",
        "decoder.causal": True,
        "decoder.cross": True,
        "decoder.position.kind": "learned",
        "decoder.init": "scaled",
    },
    config_keys=(
        SubConfig(
            "decoder",
            "gpt2",
            None,
            config_keys=(
                *EVERYWHERE,
                *gpt2.CONFIG_KEYS,
                OnlyValue("add_cross_attention", True, False),
                WrittenKey("is_decoder", True),
                *required_values(cross_attention_hidden_size=None),
                ConfigKey("tie_word_embeddings", "head.tied", True),
            ),
            moved=TOKEN,
            known=("gpt2",),
        ),
        OuterTokenIdKey(
            "decoder_start_token_id", "special.start", 50256, fallback="bos_token_id", inner="bos_token_id"
        ),
        OuterTokenIdKey("eos_token_id", "special.end", 50256, several=True, inner="eos_token_id"),
        OuterTokenIdKey("pad_token_id", "special.pad", None, inner="pad_token_id"),
        StoredTensor("encoder.pooler.dense.weight", "pooler", False),
        WrittenKey("is_encoder_decoder", True),
        WrittenKey("tie_word_embeddings", False),  # of encoder and decoder; the decoder has its own key
    ),
    rules=(
        RenameUnlessZero("encoder.pooler.dense.{p}", "pooler.dense.{p}"),
        *rename_rules(vit.BODY, "encoder."),
        Rename("enc_to_dec_proj.{p}", "memory_projection.{p}"),
        *rename_rules(gpt2.GPT2.rules, "decoder.transformer.", (("embedding.", "target_embedding."),)),
        Drop(CROSS + "bias"),  # a causal mask, which cross-attention does not use
        Drop(CROSS + "masked_bias"),
        Rename("decoder.transformer.h.{i}.ln_cross_attn.{p}", gpt2.OUR_BLOCK + ".cross_residual.before.{p}"),
        Transpose(CROSS + "q_attn.{p}", OUR_CROSS + ".query.{p}"),
        Split(CROSS + "c_attn.{p}", (OUR_CROSS + ".key.{p}", OUR_CROSS + ".value.{p}"), transposed=True),
        Transpose(CROSS + "c_proj.{p}", OUR_CROSS + ".out.{p}"),
        Rename("decoder.lm_head.weight", "head.output.weight"),
    ),
    architectures=(
        Architecture(
            name="VisionEncoderDecoderModel",
            fixed={"head.kind": "language-model", "source.prefix": "class"},
            config_keys=(SubConfig("encoder", "vit", None, (*EVERYWHERE, *vit.VIT.config_keys), PATCHES, ENCODERS),),
            body=rename_rules((vit.CLASS_TOKEN,), "encoder."),
        ),
        Architecture(
            name="VisionEncoderDecoderModel",
            fixed={"head.kind": "language-model", "source.prefix": "class+distillation"},
            config_keys=(SubConfig("encoder", "deit", None, (*EVERYWHERE, *DEIT.config_keys), PATCHES, ENCODERS),),
            body=rename_rules((TOKENS,), "encoder."),
        ),
    ),
)
