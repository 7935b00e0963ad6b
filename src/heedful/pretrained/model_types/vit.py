"""ViT (Dosovitskiy et al. 2021): pre-norm over image patches, a class token before the patches."""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, ConfigKey, LabelKeys, SizeKey, StoredTensor, required_values
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.rules import Rename, Rule, Squeeze
from heedful.pretrained.special_config_keys import PatchTokensKey

THEIR_LAYER, OUR_BLOCK = "encoder.layer.{i}", "encoder.block.{i}"

BODY: tuple[Rule, ...] = (  # DeiT's too
    Rename("embeddings.patch_embeddings.projection.{p}", "embedding.projection.{p}"),
    Squeeze("embeddings.position_embeddings", "encoder.position.table.weight"),
    Rename(THEIR_LAYER + ".layernorm_before.{p}", OUR_BLOCK + ".attention_residual.before.{p}"),
    Rename(THEIR_LAYER + ".attention.attention.query.{p}", OUR_BLOCK + ".attention.query.{p}"),
    Rename(THEIR_LAYER + ".attention.attention.key.{p}", OUR_BLOCK + ".attention.key.{p}"),
    Rename(THEIR_LAYER + ".attention.attention.value.{p}", OUR_BLOCK + ".attention.value.{p}"),
    Rename(THEIR_LAYER + ".attention.output.dense.{p}", OUR_BLOCK + ".attention.out.{p}"),
    Rename(THEIR_LAYER + ".layernorm_after.{p}", OUR_BLOCK + ".feed_forward_residual.before.{p}"),
    Rename(THEIR_LAYER + ".intermediate.dense.{p}", OUR_BLOCK + ".feed_forward.up.{p}"),
    Rename(THEIR_LAYER + ".output.dense.{p}", OUR_BLOCK + ".feed_forward.down.{p}"),
    Rename("layernorm.{p}", "encoder.norm.{p}"),
)
CLASS_TOKEN = Rename("embeddings.cls_token", "embedding.prefix")
POOLER = Rename("pooler.dense.{p}", "head.pooler.dense.{p}")

VIT = ModelType(
    name="vit",
    prefix="vit.",
    fixed={
        "kind": "vision",
        "patches.prefix": "class",
        "encoder.position.kind": "learned",
        "encoder.init": "truncated",
    },
    config_keys=(
        SizeKey("image_size", "patches.image_size", 224),
        SizeKey("patch_size", "patches.patch_size", 16, square=True),
        ConfigKey("num_channels", "patches.channels", 3),
        PatchTokensKey(),
        ConfigKey("hidden_size", "encoder.dim", 768),
        ConfigKey("num_hidden_layers", "encoder.depth", 12),
        ConfigKey("num_attention_heads", "encoder.heads", 12),
        ConfigKey("intermediate_size", "encoder.ff_dim", 3072),
        ConfigKey("hidden_act", "encoder.activation", "gelu", ACTIVATIONS),
        ConfigKey("layer_norm_eps", "encoder.norm_eps", 1e-12),
        ConfigKey("qkv_bias", "encoder.attention_bias", True, {True: "all", False: "out"}),
        ConfigKey("hidden_dropout_prob", ("encoder.dropout.embedding", "encoder.dropout.residual"), 0.0),
        ConfigKey("attention_probs_dropout_prob", "encoder.dropout.attention", 0.0),
        ConfigKey("initializer_range", "encoder.init_std", 0.02),
        *required_values(pooler_act="tanh"),
    ),
    rules=(CLASS_TOKEN, *BODY, POOLER),
    architectures=(
        Architecture(
            name="ViTModel",
            fixed={"head.kind": "no-head"},
            config_keys=(StoredTensor("pooler.dense.weight", "head.pooler", False),),
            prefix="",
        ),
        Architecture(
            name="ViTForImageClassification",
            fixed={"head.kind": "image"},
            config_keys=(LabelKeys("id2label", "head.labels", 2),),
            rules=(Rename("classifier.{p}", "head.output.0.{p}"),),
        ),
    ),
)
