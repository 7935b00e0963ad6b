"""DeiT (Touvron et al. 2021): ViT with a second token before the patches, trained by distillation from a teacher."""

from __future__ import annotations

from heedful.pretrained.config_keys import LabelKeys, StoredTensor
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types.vit import BODY, POOLER, VIT
from heedful.pretrained.rules import Join, Rename

TOKENS = Join(("embeddings.cls_token", "embeddings.distillation_token"), "embedding.prefix")
LABELS = (LabelKeys("id2label", "head.labels", 2),)

DEIT = ModelType(
    name="deit",
    prefix="deit.",
    fixed={**VIT.fixed, "patches.prefix": "class+distillation"},
    config_keys=VIT.config_keys,
    rules=(TOKENS, *BODY, POOLER),
    architectures=(
        Architecture(
            name="DeiTModel",
            fixed={"head.kind": "no-head"},
            config_keys=(StoredTensor("pooler.dense.weight", "head.pooler", False),),
            prefix="",
        ),
        Architecture(
            name="DeiTForImageClassificationWithTeacher",
            fixed={"head.kind": "image"},
            config_keys=LABELS,
            rules=(
                Rename("cls_classifier.{p}", "head.output.0.{p}"),
                Rename("distillation_classifier.{p}", "head.output.1.{p}"),
            ),
        ),
        Architecture(
            name="DeiTForImageClassification",
            fixed={"head.kind": "image", "head.tokens": "class"},
            config_keys=LABELS,
            rules=(Rename("classifier.{p}", "head.output.0.{p}"),),
        ),
    ),
)
