"""I-JEPA (Assran et al. 2023): ViT without a class token, whose classifier reads the mean of the patches."""

from __future__ import annotations

from heedful.pretrained.config_keys import LabelKeys, StoredTensor
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types.vit import BODY, POOLER, VIT
from heedful.pretrained.rules import Rename

IJEPA = ModelType(
    name="ijepa",
    prefix="ijepa.",
    fixed={**VIT.fixed, "patches.prefix": "none"},
    config_keys=VIT.config_keys,
    rules=(*BODY, POOLER),
    architectures=(
        Architecture(
            name="IJepaModel",
            fixed={"head.kind": "no-head"},
            config_keys=(StoredTensor("pooler.dense.weight", "head.pooler", False),),
            prefix="",
        ),
        Architecture(
            name="IJepaForImageClassification",
            fixed={"head.kind": "image"},
            config_keys=(LabelKeys("id2label", "head.labels", 2),),
            rules=(Rename("classifier.{p}", "head.output.0.{p}"),),
        ),
    ),
)
