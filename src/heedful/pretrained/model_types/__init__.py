"""The families that we speak, in the order in which a configuration is offered to them, and our own layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from heedful.config import Config, DecoderConfig, EncoderConfig, ModelConfig, NoHead, PooledHead, Pooling
from heedful.errors import HeedfulError, nearest
from heedful.pretrained.model_type import Case, Family
from heedful.pretrained.model_types.bart import BART
from heedful.pretrained.model_types.bert import BERT
from heedful.pretrained.model_types.deit import DEIT
from heedful.pretrained.model_types.distilbert import DISTILBERT
from heedful.pretrained.model_types.gpt2 import GPT2
from heedful.pretrained.model_types.ijepa import IJEPA
from heedful.pretrained.model_types.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from heedful.pretrained.model_types.marian import MARIAN
from heedful.pretrained.model_types.roberta import ROBERTA, XLM_ROBERTA
from heedful.pretrained.model_types.t5 import T5
from heedful.pretrained.model_types.vit import VIT
from heedful.pretrained.rules import Tensors

DECODERS = (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3)
ENCODERS = (BERT, ROBERTA, XLM_ROBERTA, DISTILBERT)
ENCODER_DECODERS = (MARIAN, T5, BART)
VISION = (VIT, DEIT, IJEPA)
FAMILIES: dict[str, Family] = {family.name: family for family in (*DECODERS, *ENCODERS, *ENCODER_DECODERS, *VISION)}


class Own(Family):
    """Our own layout, for what no family can say: the configuration as it is, tensors by our names."""

    def case_of(self, theirs: Mapping[str, Any]) -> Case:
        """There is one."""
        return OWN_CASE

    def read(self, theirs: Mapping[str, Any], case: Case, stored: Mapping[str, bool]) -> ModelConfig:
        """The configuration, written by ``to_dict``."""
        labels, ids = ("id2label", "label2id", "problem_type"), ("bos_token_id", "eos_token_id", "pad_token_id")
        beside = ("model_type", "dtype", *labels, *ids, "decoder_start_token_id")
        ours = {k: v for k, v in theirs.items() if k not in beside}
        return Config.from_dict(ours)  # type: ignore[return-value]  # only models are saved

    def tensors_in(self, stored: Tensors, case: Case, head: bool = True) -> Tensors:
        """All of them."""
        made = dict(stored)
        stored.clear()
        return made

    def tensors_out(self, ours: Tensors, case: Case) -> Tensors:
        """All of them."""
        return ours


# what sentence-transformers can say: a pooling, and the length of the vector
_POOLED = [PooledHead(pooling=each, normalise=unit) for each in get_args(Pooling) for unit in (True, False)]
OWN_CASE = Case(name="heedful", fixed={})
OWN = Own(name="heedful", fixed={}, facts=(), rules=(), cases=())


def family_of(theirs: Mapping[str, Any]) -> Family:
    """The family that a ``config.json`` names."""
    known = {**FAMILIES, OWN.name: OWN}
    name = theirs.get("model_type")
    if not isinstance(name, str) or name not in known:
        raise HeedfulError(f"model_type {name!r} is not supported; {nearest(str(name), known)}")
    return known[name]


def express(config: ModelConfig, first: str = "") -> tuple[Family, Case, dict[str, Any]] | None:
    """The first family and class that can say a configuration exactly, and its ``config.json``; None: no one can.

    The family named ``first`` is asked before the others: a model goes back into the layout that it came in. No family
    has a word for pooling: of such a model the body is said, and ``modules.json`` says the rest (pooling.py).
    """
    if isinstance(config, EncoderConfig | DecoderConfig) and config.head in _POOLED:
        config = replace(config, head=NoHead())
    for family in sorted(FAMILIES.values(), key=lambda family: family.name != first):
        for case in family.cases:
            if (theirs := family.write(config, case)) is not None:
                return family, case, theirs
    return None
