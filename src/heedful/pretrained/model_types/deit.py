"""DeiT (Touvron et al. 2021): ViT with a second token before the patches, which learned from a teacher."""

from __future__ import annotations

from heedful.pretrained.config_keys import Labels, Stored
from heedful.pretrained.model_type import Case, Family
from heedful.pretrained.model_types.vit import BODY, VIT
from heedful.pretrained.rules import Join, Rename

LABELS = (Labels("id2label", "head.labels", 2),)

DEIT = Family(
    name="deit",
    prefix="deit.",
    fixed={**VIT.fixed, "patches.prefix": "class+distillation"},
    facts=VIT.facts,
    rules=(Join(("embeddings.cls_token", "embeddings.distillation_token"), "embedding.prefix"), *BODY),
    cases=(
        Case(
            name="DeiTModel",
            fixed={"head.kind": "no-head"},
            facts=(Stored("pooler.dense.weight", "head.pooler", False),),
            prefix="",
        ),
        Case(
            name="DeiTForImageClassificationWithTeacher",
            fixed={"head.kind": "image"},
            facts=LABELS,
            rules=(
                Rename("cls_classifier.{p}", "head.output.0.{p}"),
                Rename("distillation_classifier.{p}", "head.output.1.{p}"),
            ),
        ),
        Case(
            name="DeiTForImageClassification",
            fixed={"head.kind": "image", "head.tokens": "class"},
            facts=LABELS,
            rules=(Rename("classifier.{p}", "head.output.0.{p}"),),
        ),
    ),
)
