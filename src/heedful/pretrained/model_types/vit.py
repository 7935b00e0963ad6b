"""ViT (Dosovitskiy et al. 2021): pre-norm over image patches, a class token before them."""

from __future__ import annotations

from heedful.pretrained.config_keys import ACTIVATIONS, Key, Labels, Size, Stored, only
from heedful.pretrained.model_type import Case, Family
from heedful.pretrained.rules import Rename, Rule, Squeeze
from heedful.pretrained.special_config_keys import PatchTokens

LAYER, BLOCK = "encoder.layer.{i}", "encoder.block.{i}"

BODY: tuple[Rule, ...] = (  # DeiT's too
    Rename("embeddings.patch_embeddings.projection.{p}", "embedding.projection.{p}"),
    Squeeze("embeddings.position_embeddings", "encoder.position.table.weight"),
    Rename(LAYER + ".layernorm_before.{p}", BLOCK + ".attention_residual.before.{p}"),
    Rename(LAYER + ".attention.attention.query.{p}", BLOCK + ".attention.query.{p}"),
    Rename(LAYER + ".attention.attention.key.{p}", BLOCK + ".attention.key.{p}"),
    Rename(LAYER + ".attention.attention.value.{p}", BLOCK + ".attention.value.{p}"),
    Rename(LAYER + ".attention.output.dense.{p}", BLOCK + ".attention.out.{p}"),
    Rename(LAYER + ".layernorm_after.{p}", BLOCK + ".feed_forward_residual.before.{p}"),
    Rename(LAYER + ".intermediate.dense.{p}", BLOCK + ".feed_forward.up.{p}"),
    Rename(LAYER + ".output.dense.{p}", BLOCK + ".feed_forward.down.{p}"),
    Rename("layernorm.{p}", "encoder.norm.{p}"),
    Rename("pooler.dense.{p}", "head.pooler.dense.{p}"),
)

VIT = Family(
    name="vit",
    prefix="vit.",
    fixed={
        "kind": "vision",
        "patches.prefix": "class",
        "encoder.position.kind": "learned",
        "encoder.init": "truncated",
    },
    facts=(
        Size("image_size", "patches.image_size", 224),
        Size("patch_size", "patches.patch_size", 16, square=True),
        Key("num_channels", "patches.channels", 3),
        PatchTokens(),
        Key("hidden_size", "encoder.dim", 768),
        Key("num_hidden_layers", "encoder.depth", 12),
        Key("num_attention_heads", "encoder.heads", 12),
        Key("intermediate_size", "encoder.ff_dim", 3072),
        Key("hidden_act", "encoder.activation", "gelu", ACTIVATIONS),
        Key("layer_norm_eps", "encoder.norm_eps", 1e-12),
        Key("qkv_bias", "encoder.attention_bias", True, {True: "all", False: "out"}),
        Key("hidden_dropout_prob", ("encoder.dropout.embedding", "encoder.dropout.residual"), 0.0),
        Key("attention_probs_dropout_prob", "encoder.dropout.attention", 0.0),
        Key("initializer_range", "encoder.init_std", 0.02),
        *only(pooler_act="tanh"),
    ),
    rules=(Rename("embeddings.cls_token", "embedding.prefix"), *BODY),
    cases=(
        Case(
            name="ViTModel",
            fixed={"head.kind": "no-head"},
            facts=(Stored("pooler.dense.weight", "head.pooler", False),),
            prefix="",
        ),
        Case(
            name="ViTForImageClassification",
            fixed={"head.kind": "image"},
            facts=(Labels("id2label", "head.labels", 2),),
            rules=(Rename("classifier.{p}", "head.output.0.{p}"),),
        ),
    ),
)
