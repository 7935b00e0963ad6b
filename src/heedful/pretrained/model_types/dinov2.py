"""DINOv2 (Oquab et al. 2024): ViT with layer scale, and a gated feed-forward network in the largest model.

The classifier reads the class token and the mean of the patches. The mask token of pre-training is stored, not used.
"""

from __future__ import annotations

from heedful.pretrained.config_keys import ConfigKey, LabelKeys, SizeKey
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types.vit import CLASS_TOKEN, OUR_BLOCK, THEIR_LAYER, VIT
from heedful.pretrained.rules import Rename, RenameBeside, Split, Squeeze
from heedful.pretrained.special_config_keys import FeedForwardRatioKeys, PatchTokensKey, SquareImageKey

GATE, UP, DOWN = (OUR_BLOCK + ".feed_forward.gate", OUR_BLOCK + ".feed_forward.up", OUR_BLOCK + ".feed_forward.down")

DINOV2 = ModelType(
    name="dinov2",
    prefix="dinov2.",
    fixed=VIT.fixed,
    config_keys=(
        SquareImageKey("image_size", "patches.image_size", 224),
        SizeKey("patch_size", "patches.patch_size", 14, square=True),
        ConfigKey("num_channels", "patches.channels", 3),
        ConfigKey("use_mask_token", "patches.mask_token", True),
        PatchTokensKey(),
        ConfigKey("hidden_size", "encoder.dim", 768),
        ConfigKey("num_hidden_layers", "encoder.depth", 12),
        ConfigKey("num_attention_heads", "encoder.heads", 12),
        FeedForwardRatioKeys(),
        ConfigKey("layer_norm_eps", "encoder.norm_eps", 1e-6),
        ConfigKey("layerscale_value", "encoder.layer_scale", 1.0),
        ConfigKey("qkv_bias", "encoder.attention_bias", True, {True: "all", False: "out"}),
        ConfigKey("hidden_dropout_prob", "encoder.dropout.embedding", 0.0),
        ConfigKey("attention_probs_dropout_prob", "encoder.dropout.attention", 0.0),
        ConfigKey("initializer_range", "encoder.init_std", 0.02),
    ),
    rules=(
        CLASS_TOKEN,
        Rename("embeddings.mask_token", "embedding.mask"),
        Rename("embeddings.patch_embeddings.projection.{p}", "embedding.projection.{p}"),
        Squeeze("embeddings.position_embeddings", "encoder.position.table.weight"),
        Rename(THEIR_LAYER + ".norm1.{p}", OUR_BLOCK + ".attention_residual.before.{p}"),
        Rename(THEIR_LAYER + ".attention.attention.query.{p}", OUR_BLOCK + ".attention.query.{p}"),
        Rename(THEIR_LAYER + ".attention.attention.key.{p}", OUR_BLOCK + ".attention.key.{p}"),
        Rename(THEIR_LAYER + ".attention.attention.value.{p}", OUR_BLOCK + ".attention.value.{p}"),
        Rename(THEIR_LAYER + ".attention.output.dense.{p}", OUR_BLOCK + ".attention.out.{p}"),
        Rename(THEIR_LAYER + ".layer_scale1.lambda1", OUR_BLOCK + ".attention_residual.out.weight"),
        Rename(THEIR_LAYER + ".norm2.{p}", OUR_BLOCK + ".feed_forward_residual.before.{p}"),
        Rename(THEIR_LAYER + ".mlp.fc1.{p}", UP + ".{p}"),
        Rename(THEIR_LAYER + ".mlp.fc2.{p}", DOWN + ".{p}"),
        Split(THEIR_LAYER + ".mlp.weights_in.{p}", (GATE + ".{p}", UP + ".{p}")),
        RenameBeside(THEIR_LAYER + ".mlp.weights_out.{p}", DOWN + ".{p}", GATE + ".{p}"),
        Rename(THEIR_LAYER + ".layer_scale2.lambda1", OUR_BLOCK + ".feed_forward_residual.out.weight"),
        Rename("layernorm.{p}", "encoder.norm.{p}"),
    ),
    architectures=(
        Architecture(name="Dinov2Model", fixed={"head.kind": "no-head"}, prefix=""),
        Architecture(
            name="Dinov2ForImageClassification",
            fixed={"head.kind": "image", "head.tokens": "class+mean"},
            config_keys=(LabelKeys("id2label", "head.labels", 2),),
            rules=(Rename("classifier.{p}", "head.output.0.{p}"),),
        ),
    ),
)
