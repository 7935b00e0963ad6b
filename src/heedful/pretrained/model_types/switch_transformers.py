"""Switch Transformers (Fedus et al. 2021): T5 with a mixture of experts in some blocks, of which a token has one."""

from __future__ import annotations

from heedful.pretrained.config_keys import (
    ACTIVATIONS,
    ConfigKey,
    OnlyValue,
    TokenIdKey,
    WrittenKey,
    required_values,
)
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types.t5 import (
    DECODER,
    DECODER_BLOCK,
    DROPOUT,
    ENCODER,
    ENCODER_BLOCK,
    FIXED,
    RULES,
)
from heedful.pretrained.rules import Rename
from heedful.pretrained.special_config_keys import SparseLayersKey

SWITCH_TRANSFORMERS = ModelType(
    name="switch_transformers",
    fixed={
        **FIXED,
        "encoder.experts.kind": "experts",
        "encoder.experts.per_token": 1,
        "encoder.experts.normalize": False,
        "decoder.experts.kind": "experts",
        "decoder.experts.per_token": 1,
        "decoder.experts.normalize": False,
    },
    config_keys=(
        ConfigKey("vocab_size", "source.vocab_size", 32128),
        ConfigKey("d_model", ("encoder.dim", "decoder.dim"), 768),
        ConfigKey("num_layers", "encoder.depth", 12),
        ConfigKey("num_decoder_layers", "decoder.depth", 12),
        ConfigKey("num_heads", ("encoder.heads", "decoder.heads"), 12),
        ConfigKey("d_kv", ("encoder.head_dim", "decoder.head_dim"), 64),
        ConfigKey("d_ff", ("encoder.ff_dim", "decoder.ff_dim"), 2048),
        ConfigKey("dense_act_fn", ("encoder.activation", "decoder.activation"), "relu", ACTIVATIONS),
        ConfigKey("relative_attention_num_buckets", ("encoder.position.buckets", "decoder.position.buckets"), 32),
        ConfigKey(
            "relative_attention_max_distance",
            ("encoder.position.max_distance", "decoder.position.max_distance"),
            128,
        ),
        ConfigKey("layer_norm_epsilon", ("encoder.norm_eps", "decoder.norm_eps"), 1e-6),
        ConfigKey("dropout_rate", DROPOUT, 0.1),
        ConfigKey("num_experts", ("encoder.experts.number", "decoder.experts.number"), 8),
        ConfigKey("expert_capacity", ("encoder.experts.capacity", "decoder.experts.capacity"), 64),
        ConfigKey("router_bias", ("encoder.experts.router_bias", "decoder.experts.router_bias"), False),
        ConfigKey("router_jitter_noise", ("encoder.experts.jitter", "decoder.experts.jitter"), 0.01),
        ConfigKey("router_aux_loss_coef", ("encoder.experts.balance", "decoder.experts.balance"), 0.001),
        ConfigKey("router_z_loss_coef", ("encoder.experts.z_loss", "decoder.experts.z_loss"), 0.001),
        OnlyValue("router_dtype", "float32", "float32"),
        SparseLayersKey("num_sparse_encoder_layers", "encoder", 3),
        SparseLayersKey("num_sparse_decoder_layers", "decoder", 3),
        TokenIdKey("decoder_start_token_id", "special.start", 0),
        TokenIdKey("eos_token_id", "special.end", 1, several=True),
        TokenIdKey("pad_token_id", "special.pad", 0),
        WrittenKey("is_encoder_decoder", True),
        *required_values(is_causal=True, is_decoder=False, is_encoder_decoder=True, add_cross_attention=False),
        *required_values(tie_word_embeddings=True),  # else theirs has two embeddings and a third that it does not use
    ),
    rules=(
        *RULES,
        Rename(ENCODER + ".1.mlp.wi.weight", ENCODER_BLOCK + ".feed_forward.up.weight"),
        Rename(ENCODER + ".1.mlp.wo.weight", ENCODER_BLOCK + ".feed_forward.down.weight"),
        Rename(ENCODER + ".1.mlp.router.classifier.{p}", ENCODER_BLOCK + ".feed_forward.router.{p}"),
        Rename(ENCODER + ".1.mlp.experts.expert_{e}.wi.weight", ENCODER_BLOCK + ".feed_forward.expert.{e}.up.weight"),
        Rename(ENCODER + ".1.mlp.experts.expert_{e}.wo.weight", ENCODER_BLOCK + ".feed_forward.expert.{e}.down.weight"),
        Rename(DECODER + ".2.mlp.wi.weight", DECODER_BLOCK + ".feed_forward.up.weight"),
        Rename(DECODER + ".2.mlp.wo.weight", DECODER_BLOCK + ".feed_forward.down.weight"),
        Rename(DECODER + ".2.mlp.router.classifier.{p}", DECODER_BLOCK + ".feed_forward.router.{p}"),
        Rename(DECODER + ".2.mlp.experts.expert_{e}.wi.weight", DECODER_BLOCK + ".feed_forward.expert.{e}.up.weight"),
        Rename(DECODER + ".2.mlp.experts.expert_{e}.wo.weight", DECODER_BLOCK + ".feed_forward.expert.{e}.down.weight"),
    ),
    architectures=(
        Architecture(
            name="SwitchTransformersForConditionalGeneration",
            fixed={"head.kind": "language-model", "head.tied": True, "head.scale": "sqrt"},
        ),
        Architecture(name="SwitchTransformersModel", fixed={"head.kind": "no-head", "head.pooler": False}),
    ),
)
