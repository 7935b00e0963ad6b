"""T5 (Raffel et al. 2020), 1.0 and 1.1: RMS pre-norm, relative positions, unscaled scores, no biases."""

from __future__ import annotations

from heedful.pretrained.config_keys import (
    ACTIVATIONS,
    AnyConfigKey,
    ConfigKey,
    LabelKeys,
    TokenIdKey,
    WordKey,
    WrittenKey,
    required_values,
)
from heedful.pretrained.model_type import Architecture, ModelType, rename_architectures
from heedful.pretrained.rules import Rename, RenameBeside, Rule, Tie
from heedful.pretrained.special_config_keys import OwnHeadKeys, RepeatedKey

ENCODER, DECODER = "encoder.block.{i}.layer", "decoder.block.{i}.layer"
ENCODER_BLOCK, DECODER_BLOCK = "encoder.block.{i}", "decoder.block.{i}"
FEED_FORWARD = {
    "relu": ("relu", False),
    "gated-gelu": ("gelu_tanh", True),  # this name means the tanh approximation
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "silu": ("silu", False),
    "gated-relu": ("relu", True),
    "gated-silu": ("silu", True),
    "gated-gelu_new": ("gelu_tanh", True),
}
DROPOUT = (
    "encoder.dropout.embedding",
    "encoder.dropout.attention",
    "encoder.dropout.hidden",
    "encoder.dropout.residual",
    "decoder.dropout.embedding",
    "decoder.dropout.attention",
    "decoder.dropout.hidden",
    "decoder.dropout.residual",
)
LABELS = LabelKeys("id2label", "head.labels", 2)

FIXED = {
    "kind": "encoder-decoder",
    "source.kind": "embedding",
    "target": None,
    "encoder.norm": "rms",
    "encoder.attention_bias": "none",
    "encoder.ff_bias": False,
    "encoder.scale": "none",
    "encoder.position.kind": "relative",
    "decoder.norm": "rms",
    "decoder.attention_bias": "none",
    "decoder.ff_bias": False,
    "decoder.scale": "none",
    "decoder.position.kind": "relative",
    "decoder.causal": True,
    "decoder.cross": True,
}
CONFIG_KEYS: tuple[AnyConfigKey, ...] = (
    ConfigKey("d_model", ("encoder.dim", "decoder.dim"), 512),
    ConfigKey("num_decoder_layers", "decoder.depth", None, fallback="num_layers"),
    ConfigKey("d_kv", ("encoder.head_dim", "decoder.head_dim"), 64),
    RepeatedKey("dense_act_fn", "encoder.activation", words=ACTIVATIONS),
    RepeatedKey("is_gated_act", "encoder.gated"),
    ConfigKey("relative_attention_num_buckets", ("encoder.position.buckets", "decoder.position.buckets"), 32),
    ConfigKey(
        "relative_attention_max_distance",
        ("encoder.position.max_distance", "decoder.position.max_distance"),
        128,
    ),
    ConfigKey("layer_norm_epsilon", ("encoder.norm_eps", "decoder.norm_eps"), 1e-6),
    ConfigKey("dropout_rate", DROPOUT, 0.1),
    TokenIdKey("decoder_start_token_id", "special.start", 0),
    TokenIdKey("eos_token_id", "special.end", 1, several=True),
    TokenIdKey("pad_token_id", "special.pad", 0),
    WrittenKey("is_encoder_decoder", True),
    *required_values(is_causal=True, is_decoder=False, is_encoder_decoder=True),
)
RULES: tuple[Rule, ...] = (  # of all but the feed-forward networks
    Tie(("shared.weight", "encoder.embed_tokens.weight"), "embedding.token.weight"),
    Rename("decoder.embed_tokens.weight", "target_embedding.token.weight"),
    Rename("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "encoder.position.table.weight"),
    Rename("decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "decoder.position.table.weight"),
    Rename(ENCODER + ".0.SelfAttention.q.weight", ENCODER_BLOCK + ".attention.query.weight"),
    Rename(ENCODER + ".0.SelfAttention.k.weight", ENCODER_BLOCK + ".attention.key.weight"),
    Rename(ENCODER + ".0.SelfAttention.v.weight", ENCODER_BLOCK + ".attention.value.weight"),
    Rename(ENCODER + ".0.SelfAttention.o.weight", ENCODER_BLOCK + ".attention.out.weight"),
    Rename(ENCODER + ".0.layer_norm.weight", ENCODER_BLOCK + ".attention_residual.before.weight"),
    Rename(ENCODER + ".1.layer_norm.weight", ENCODER_BLOCK + ".feed_forward_residual.before.weight"),
    Rename("encoder.final_layer_norm.weight", "encoder.norm.weight"),
    Rename(DECODER + ".0.SelfAttention.q.weight", DECODER_BLOCK + ".attention.query.weight"),
    Rename(DECODER + ".0.SelfAttention.k.weight", DECODER_BLOCK + ".attention.key.weight"),
    Rename(DECODER + ".0.SelfAttention.v.weight", DECODER_BLOCK + ".attention.value.weight"),
    Rename(DECODER + ".0.SelfAttention.o.weight", DECODER_BLOCK + ".attention.out.weight"),
    Rename(DECODER + ".0.layer_norm.weight", DECODER_BLOCK + ".attention_residual.before.weight"),
    Rename(DECODER + ".1.EncDecAttention.q.weight", DECODER_BLOCK + ".cross_attention.query.weight"),
    Rename(DECODER + ".1.EncDecAttention.k.weight", DECODER_BLOCK + ".cross_attention.key.weight"),
    Rename(DECODER + ".1.EncDecAttention.v.weight", DECODER_BLOCK + ".cross_attention.value.weight"),
    Rename(DECODER + ".1.EncDecAttention.o.weight", DECODER_BLOCK + ".cross_attention.out.weight"),
    Rename(DECODER + ".1.layer_norm.weight", DECODER_BLOCK + ".cross_residual.before.weight"),
    Rename(DECODER + ".2.layer_norm.weight", DECODER_BLOCK + ".feed_forward_residual.before.weight"),
    Rename("decoder.final_layer_norm.weight", "decoder.norm.weight"),
)
FEED_FORWARD_RULES: tuple[Rule, ...] = (
    Rename(ENCODER + ".1.DenseReluDense.wi.weight", ENCODER_BLOCK + ".feed_forward.up.weight"),
    Rename(ENCODER + ".1.DenseReluDense.wi_0.weight", ENCODER_BLOCK + ".feed_forward.gate.weight"),
    RenameBeside(
        ENCODER + ".1.DenseReluDense.wi_1.weight",
        ENCODER_BLOCK + ".feed_forward.up.weight",
        beside=ENCODER_BLOCK + ".feed_forward.gate.weight",
    ),
    Rename(ENCODER + ".1.DenseReluDense.wo.weight", ENCODER_BLOCK + ".feed_forward.down.weight"),
    Rename(DECODER + ".2.DenseReluDense.wi.weight", DECODER_BLOCK + ".feed_forward.up.weight"),
    Rename(DECODER + ".2.DenseReluDense.wi_0.weight", DECODER_BLOCK + ".feed_forward.gate.weight"),
    RenameBeside(
        DECODER + ".2.DenseReluDense.wi_1.weight",
        DECODER_BLOCK + ".feed_forward.up.weight",
        beside=DECODER_BLOCK + ".feed_forward.gate.weight",
    ),
    Rename(DECODER + ".2.DenseReluDense.wo.weight", DECODER_BLOCK + ".feed_forward.down.weight"),
)
HEAD_RULES = (Rename("lm_head.weight", "head.output.weight"),)
BODIES = (
    Architecture(name="T5Model", fixed={"head.kind": "no-head", "head.pooler": False}),
    Architecture(
        name="T5ForSequenceClassification",
        fixed={"head.kind": "sequence", "head.pooling": "last", "head.pooler": True, "head.bias": True},
        config_keys=(LABELS, ConfigKey("classifier_dropout", "head.dropout", 0.0)),
        rules=(
            Rename("classification_head.dense.{p}", "head.pooler.dense.{p}"),
            Rename("classification_head.out_proj.{p}", "head.output.{p}"),
        ),
        prefix="transformer.",
    ),
    Architecture(
        name="T5ForQuestionAnswering",
        fixed={"head.kind": "span"},
        rules=(Rename("qa_outputs.{p}", "head.output.{p}"),),
    ),
)

T5 = ModelType(
    name="t5",
    fixed=FIXED,
    config_keys=(
        ConfigKey("vocab_size", "source.vocab_size", 32128),
        ConfigKey("num_layers", "encoder.depth", 6),
        ConfigKey("num_heads", ("encoder.heads", "decoder.heads"), 8),
        ConfigKey("d_ff", ("encoder.ff_dim", "decoder.ff_dim"), 2048),
        WordKey("feed_forward_proj", ("encoder.activation", "encoder.gated"), "relu", FEED_FORWARD),
        WordKey("feed_forward_proj", ("decoder.activation", "decoder.gated"), "relu", FEED_FORWARD),
        *CONFIG_KEYS,
    ),
    rules=(*RULES, *FEED_FORWARD_RULES),
    architectures=(
        Architecture(
            name="T5ForConditionalGeneration",
            fixed={"head.kind": "language-model"},
            config_keys=(OwnHeadKeys(),),
            rules=HEAD_RULES,
        ),
        *BODIES,
    ),
)

MT5 = ModelType(
    name="mt5",
    fixed=FIXED,
    config_keys=(
        ConfigKey("vocab_size", "source.vocab_size", 250112),
        ConfigKey("num_layers", "encoder.depth", 8),
        ConfigKey("num_heads", ("encoder.heads", "decoder.heads"), 6),
        ConfigKey("d_ff", ("encoder.ff_dim", "decoder.ff_dim"), 1024),
        WordKey("feed_forward_proj", ("encoder.activation", "encoder.gated"), "gated-gelu", FEED_FORWARD),
        WordKey("feed_forward_proj", ("decoder.activation", "decoder.gated"), "gated-gelu", FEED_FORWARD),
        *CONFIG_KEYS,
    ),
    rules=(*RULES, *FEED_FORWARD_RULES),
    architectures=(
        Architecture(
            name="MT5ForConditionalGeneration",
            fixed={"head.kind": "language-model"},
            config_keys=(OwnHeadKeys(may_scale=False),),
            rules=HEAD_RULES,
        ),
        *rename_architectures(BODIES, "T5", "MT5"),
    ),
)
