"""I-JEPA (Assran et al. 2023): ViT without a class token, whose classifier reads the mean of the patches."""

from __future__ import annotations

from heedful.pretrained.config_keys import Labels, Stored
from heedful.pretrained.model_type import Case, Family
from heedful.pretrained.model_types.vit import BODY, VIT
from heedful.pretrained.rules import Rename

IJEPA = Family(
    name="ijepa",
    prefix="ijepa.",
    fixed={**VIT.fixed, "patches.prefix": "none"},
    facts=VIT.facts,
    rules=BODY,
    cases=(
        Case(
            name="IJepaModel",
            fixed={"head.kind": "no-head"},
            facts=(Stored("pooler.dense.weight", "head.pooler", False),),
            prefix="",
        ),
        Case(
            name="IJepaForImageClassification",
            fixed={"head.kind": "image"},
            facts=(Labels("id2label", "head.labels", 2),),
            rules=(Rename("classifier.{p}", "head.output.0.{p}"),),
        ),
    ),
)
