"""XLNet (Yang et al. 2019): Transformer-XL's positions, relative segments, post-norm, the class token last."""

from __future__ import annotations

from heedful.pretrained.config_keys import (
    ACTIVATIONS,
    ConfigKey,
    LabelKeys,
    TokenIdKey,
    required_values,
)
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.rules import Rename, SplitHeads, Squeeze
from heedful.pretrained.special_config_keys import HeadSizeKey, SpanKey

THEIR_LAYER, OUR_BLOCK = "layer.{i}", "encoder.block.{i}"
HEADS = OUR_BLOCK + ".attention.relative.biases.content"
LABELS = LabelKeys("id2label", "head.labels", 2)

XLNET = ModelType(
    name="xlnet",
    prefix="transformer.",
    fixed={
        "kind": "encoder",
        "class_token": "last",
        "embedding.query": True,
        "encoder.placement": "post",
        "encoder.attention_bias": "none",
        "encoder.position.kind": "transformer-xl",
        "encoder.position.biases": "layer",
        "encoder.position.segments": True,
    },
    config_keys=(
        ConfigKey("vocab_size", "embedding.vocab_size", 32000),
        ConfigKey("d_model", "encoder.dim", 1024),
        ConfigKey("n_layer", "encoder.depth", 24),
        ConfigKey("n_head", "encoder.heads", 16),
        HeadSizeKey(),
        ConfigKey("d_inner", "encoder.ff_dim", 4096),
        ConfigKey("ff_activation", "encoder.activation", "gelu", ACTIVATIONS),
        ConfigKey("layer_norm_eps", "encoder.norm_eps", 1e-12),
        ConfigKey(
            "dropout",
            (
                *("encoder.dropout.embedding", "encoder.dropout.attention"),
                *("encoder.dropout.hidden", "encoder.dropout.residual"),
            ),
            0.1,
        ),
        ConfigKey("initializer_range", "encoder.init_std", 0.02),
        SpanKey("clamp_len", "encoder.position.max_distance", -1),
        TokenIdKey("bos_token_id", "special.start", 1),
        TokenIdKey("eos_token_id", "special.end", 2, several=True),
        TokenIdKey("pad_token_id", "special.pad", 5),
        *required_values(attn_type="bi", bi_data=False),
    ),
    rules=(
        Rename("word_embedding.weight", "embedding.token.weight"),
        Squeeze("mask_emb", "embedding.query"),
        Rename(THEIR_LAYER + ".rel_attn.r_w_bias", HEADS),
        Rename(THEIR_LAYER + ".rel_attn.r_r_bias", OUR_BLOCK + ".attention.relative.biases.position"),
        Rename(THEIR_LAYER + ".rel_attn.r_s_bias", OUR_BLOCK + ".attention.relative.segment.query"),
        Rename(THEIR_LAYER + ".rel_attn.seg_embed", OUR_BLOCK + ".attention.relative.segment.rows"),
        SplitHeads(THEIR_LAYER + ".rel_attn.q", OUR_BLOCK + ".attention.query.weight", HEADS, transposed=True),
        SplitHeads(THEIR_LAYER + ".rel_attn.k", OUR_BLOCK + ".attention.key.weight", HEADS, transposed=True),
        SplitHeads(THEIR_LAYER + ".rel_attn.v", OUR_BLOCK + ".attention.value.weight", HEADS, transposed=True),
        SplitHeads(
            THEIR_LAYER + ".rel_attn.r", OUR_BLOCK + ".attention.relative.position.weight", HEADS, transposed=True
        ),
        SplitHeads(THEIR_LAYER + ".rel_attn.o", OUR_BLOCK + ".attention.out.weight", HEADS, transposed=False),
        Rename(THEIR_LAYER + ".rel_attn.layer_norm.{p}", OUR_BLOCK + ".attention_residual.after.{p}"),
        Rename(THEIR_LAYER + ".ff.layer_1.{p}", OUR_BLOCK + ".feed_forward.up.{p}"),
        Rename(THEIR_LAYER + ".ff.layer_2.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
        Rename(THEIR_LAYER + ".ff.layer_norm.{p}", OUR_BLOCK + ".feed_forward_residual.after.{p}"),
    ),
    architectures=(
        Architecture(name="XLNetModel", fixed={"head.kind": "no-head", "head.pooler": False}, prefix=""),
        Architecture(
            name="XLNetLMHeadModel",
            fixed={"head.kind": "language-model", "head.bias": True},
            config_keys=(ConfigKey("tie_word_embeddings", "head.tied", True),),
            rules=(Rename("lm_loss.{p}", "head.output.{p}"),),
        ),
        Architecture(
            name="XLNetForSequenceClassification",
            fixed={"head.kind": "sequence", "head.pooler": True, "head.bias": True},
            config_keys=(
                LABELS,
                # without a class token's index, their "cls_index" is the last token too
                ConfigKey("summary_type", "head.pooling", "last", {"last": "last", "cls_index": "last"}),
                ConfigKey("summary_activation", "head.pooler_activation", "tanh", ACTIVATIONS),
                ConfigKey("summary_last_dropout", "head.dropout", 0.1),
                ConfigKey("dropout", "head.pooler_dropout", 0.1),
                *required_values(summary_use_proj=True, summary_proj_to_labels=False, summary_first_dropout=0),
            ),
            rules=(
                Rename("sequence_summary.summary.{p}", "head.pooler.dense.{p}"),
                Rename("logits_proj.{p}", "head.output.{p}"),
            ),
        ),
        Architecture(
            name="XLNetForTokenClassification",
            fixed={"head.kind": "token"},
            config_keys=(LABELS, ConfigKey("dropout", "head.dropout", 0.1)),
            rules=(Rename("classifier.{p}", "head.output.{p}"),),
        ),
        Architecture(
            name="XLNetForQuestionAnsweringSimple",
            fixed={"head.kind": "span"},
            rules=(Rename("qa_outputs.{p}", "head.output.{p}"),),
        ),
    ),
)
