"""Marian (Junczys-Dowmunt et al. 2018): the paper's post-norm Transformer, its sines stored first, then its cosines."""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, Always, Fact, Id, Key, Only, Stored, only
from heedful.pretrained.model_type import Case, Family
from heedful.pretrained.rules import Drop, Rename, Rule, SqueezeUnlessZero, Tie
from heedful.pretrained.special_config_keys import Repeated

ENCODER, DECODER = "encoder.layers.{i}", "decoder.layers.{i}"
ENCODER_BLOCK, DECODER_BLOCK = "encoder.block.{i}", "decoder.block.{i}"
HEAD: tuple[Rule, ...] = (
    SqueezeUnlessZero("final_logits_bias", "head.output.bias"),
    Rename("lm_head.weight", "head.output.weight"),
)
LAYERS: tuple[Rule, ...] = (  # BART's too
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
HAS_BIAS: tuple[Fact, ...] = (Stored("final_logits_bias", "head.bias", False),)

MARIAN = Family(
    name="marian",
    prefix="model.",
    fixed={
        "kind": "encoder-decoder",
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
    facts=(
        Key("vocab_size", "source.vocab_size", 58101),
        Key("d_model", ("encoder.dim", "decoder.dim"), 1024),
        Key("encoder_layers", "encoder.depth", 12),
        Key("encoder_attention_heads", "encoder.heads", 16),
        Key("encoder_ffn_dim", "encoder.ff_dim", 4096),
        Key("decoder_layers", "decoder.depth", 12),
        Key("decoder_attention_heads", "decoder.heads", 16),
        Key("decoder_ffn_dim", "decoder.ff_dim", 4096),
        Key("activation_function", ("encoder.activation", "decoder.activation"), "gelu", ACTIVATIONS),
        Key(
            "dropout",
            (
                "encoder.dropout.embedding",
                "encoder.dropout.residual",
                "decoder.dropout.embedding",
                "decoder.dropout.residual",
            ),
            0.1,
        ),
        Key("attention_dropout", ("encoder.dropout.attention", "decoder.dropout.attention"), 0.0),
        Key("activation_dropout", ("encoder.dropout.hidden", "decoder.dropout.hidden"), 0.0),
        Key("init_std", ("encoder.init_std", "decoder.init_std"), 0.02),
        Id("decoder_start_token_id", "special.start", 58100, needed=True),
        Id("eos_token_id", "special.end", 0, several=True),
        Id("pad_token_id", "special.pad", 58100),
        Always("is_encoder_decoder", True),
        Always("max_position_embeddings", 1024),  # how far other programs compute the sinusoid
        Always("forced_eos_token_id", None),  # otherwise 0, whatever the end token is
        Repeated("num_attention_heads", "encoder.heads"),
        *only(normalize_embedding=False, normalize_before=False, static_position_embeddings=True),
        *only(is_causal=True, is_decoder=False, is_encoder_decoder=True),
    ),
    rules=(
        Drop("encoder.embed_positions.weight"),  # the sinusoid
        Drop("decoder.embed_positions.weight"),
        *LAYERS,
    ),
    cases=(
        Case(
            name="MarianMTModel",
            fixed={"head.kind": "language-model", "target": None},
            facts=(
                Key("scale_embedding", "source.scale", False, {True: "sqrt", False: "none"}),
                *only(share_encoder_decoder_embeddings=True, tie_word_embeddings=True),
                *HAS_BIAS,
            ),
            rules=HEAD,
            body=(
                Tie(("shared.weight", "encoder.embed_tokens.weight"), "embedding.token.weight"),
                Rename("decoder.embed_tokens.weight", "target_embedding.token.weight"),
            ),
        ),
        Case(
            name="MarianMTModel",
            fixed={"head.kind": "language-model", "target.kind": "embedding"},
            facts=(
                Only("share_encoder_decoder_embeddings", False, True),
                Key("decoder_vocab_size", "target.vocab_size", 58101, otherwise="vocab_size"),
                Key("scale_embedding", ("source.scale", "target.scale"), False, {True: "sqrt", False: "none"}),
                Key("tie_word_embeddings", "head.tied", True),
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
