"""Marian (Junczys-Dowmunt et al. 2018): the paper's post-norm Transformer; sines are stored before cosines."""

from __future__ import annotations

from heedful.pretrained.config_keys import (
    AnyConfigKey,
    ConfigKey,
    OnlyValue,
    StoredTensor,
    TokenIdKey,
    WrittenKey,
    pair_layer_keys,
    required_values,
)
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.rules import Drop, Rename, Rule, SqueezeUnlessZero, Tie
from heedful.pretrained.special_config_keys import RepeatedKey

ENCODER, DECODER = "encoder.layers.{i}", "decoder.layers.{i}"
ENCODER_BLOCK, DECODER_BLOCK = "encoder.block.{i}", "decoder.block.{i}"
HEAD: tuple[Rule, ...] = (
    SqueezeUnlessZero("final_logits_bias", "head.output.bias"),
    Rename("lm_head.weight", "head.output.weight"),
)
LAYER_RULES: tuple[Rule, ...] = (  # BART's too
    Rename(ENCODER + ".self_attn.q_proj.{p}", ENCODER_BLOCK + ".attention.query.{p}"),
    Rename(ENCODER + ".self_attn.k_proj.{p}", ENCODER_BLOCK + ".attention.key.{p}"),
    Rename(ENCODER + ".self_attn.v_proj.{p}", ENCODER_BLOCK + ".attention.value.{p}"),
    Rename(ENCODER + ".self_attn.out_proj.{p}", ENCODER_BLOCK + ".attention.out.{p}"),
    Rename(ENCODER + ".self_attn_layer_norm.{p}", ENCODER_BLOCK + ".attention_residual.after.{p}"),
    Rename(ENCODER + ".fc1.{p}", ENCODER_BLOCK + ".feed_forward.up.{p}"),
    Rename(ENCODER + ".fc2.{p}", ENCODER_BLOCK + ".feed_forward.down.{p}"),
    Rename(ENCODER + ".final_layer_norm.{p}", ENCODER_BLOCK + ".feed_forward_residual.after.{p}"),
    Rename(DECODER + ".self_attn.q_proj.{p}", DECODER_BLOCK + ".attention.query.{p}"),
    Rename(DECODER + ".self_attn.k_proj.{p}", DECODER_BLOCK + ".attention.key.{p}"),
    Rename(DECODER + ".self_attn.v_proj.{p}", DECODER_BLOCK + ".attention.value.{p}"),
    Rename(DECODER + ".self_attn.out_proj.{p}", DECODER_BLOCK + ".attention.out.{p}"),
    Rename(DECODER + ".self_attn_layer_norm.{p}", DECODER_BLOCK + ".attention_residual.after.{p}"),
    Rename(DECODER + ".encoder_attn.q_proj.{p}", DECODER_BLOCK + ".cross_attention.query.{p}"),
    Rename(DECODER + ".encoder_attn.k_proj.{p}", DECODER_BLOCK + ".cross_attention.key.{p}"),
    Rename(DECODER + ".encoder_attn.v_proj.{p}", DECODER_BLOCK + ".cross_attention.value.{p}"),
    Rename(DECODER + ".encoder_attn.out_proj.{p}", DECODER_BLOCK + ".cross_attention.out.{p}"),
    Rename(DECODER + ".encoder_attn_layer_norm.{p}", DECODER_BLOCK + ".cross_residual.after.{p}"),
    Rename(DECODER + ".fc1.{p}", DECODER_BLOCK + ".feed_forward.up.{p}"),
    Rename(DECODER + ".fc2.{p}", DECODER_BLOCK + ".feed_forward.down.{p}"),
    Rename(DECODER + ".final_layer_norm.{p}", DECODER_BLOCK + ".feed_forward_residual.after.{p}"),
)
HAS_BIAS: tuple[AnyConfigKey, ...] = (StoredTensor("final_logits_bias", "head.bias", False),)

MARIAN = ModelType(
    name="marian",
    prefix="model.",
    fixed={
        "kind": "encoder-decoder",
        "source.kind": "embedding",
        "encoder.placement": "post",
        "encoder.position.kind": "sinusoidal",
        "encoder.position.order": "halves",
        "encoder.init": "xavier",
        "decoder.placement": "post",
        "decoder.position.kind": "sinusoidal",
        "decoder.position.order": "halves",
        "decoder.init": "xavier",
        "decoder.causal": True,
        "decoder.cross": True,
    },
    config_keys=(
        *pair_layer_keys("gelu", 58101, 0.0),
        TokenIdKey("decoder_start_token_id", "special.start", 58100, required=True),
        TokenIdKey("eos_token_id", "special.end", 0, several=True),
        TokenIdKey("pad_token_id", "special.pad", 58100),
        WrittenKey("is_encoder_decoder", True),
        WrittenKey("max_position_embeddings", 1024),  # length of the sinusoid in other programs
        WrittenKey("forced_eos_token_id", None),  # fallback 0, whatever the end token is
        RepeatedKey("num_attention_heads", "encoder.heads"),
        *required_values(normalize_embedding=False, normalize_before=False, static_position_embeddings=True),
        *required_values(is_causal=True, is_decoder=False, is_encoder_decoder=True),
    ),
    rules=(
        Drop("encoder.embed_positions.weight"),  # the sinusoid
        Drop("decoder.embed_positions.weight"),
        *LAYER_RULES,
    ),
    architectures=(
        Architecture(
            name="MarianMTModel",
            fixed={"head.kind": "language-model", "target": None},
            config_keys=(
                ConfigKey("scale_embedding", "source.scale", False, {True: "sqrt", False: "none"}),
                *required_values(share_encoder_decoder_embeddings=True, tie_word_embeddings=True),
                *HAS_BIAS,
            ),
            rules=HEAD,
            body=(
                Tie(("shared.weight", "encoder.embed_tokens.weight"), "embedding.token.weight"),
                Rename("decoder.embed_tokens.weight", "target_embedding.token.weight"),
            ),
        ),
        Architecture(
            name="MarianMTModel",
            fixed={"head.kind": "language-model", "target.kind": "embedding"},
            config_keys=(
                OnlyValue("share_encoder_decoder_embeddings", False, True),
                ConfigKey("decoder_vocab_size", "target.vocab_size", 58101, fallback="vocab_size"),
                ConfigKey("scale_embedding", ("source.scale", "target.scale"), False, {True: "sqrt", False: "none"}),
                ConfigKey("tie_word_embeddings", "head.tied", True),
                *HAS_BIAS,
            ),
            rules=HEAD,
            body=(
                Rename("encoder.embed_tokens.weight", "embedding.token.weight"),
                Rename("decoder.embed_tokens.weight", "target_embedding.token.weight"),
            ),
        ),
    ),
)
