"""The supported model types, in the order in which :func:`express` tries them, and our own layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, get_args

from heedful.config import Config, DecoderConfig, EncoderConfig, ModelConfig, NoHead, PooledHead, Pooling
from heedful.errors import HeedfulError, known_names
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types.albert import ALBERT
from heedful.pretrained.model_types.bart import BART
from heedful.pretrained.model_types.bert import BERT
from heedful.pretrained.model_types.bloom import BLOOM
from heedful.pretrained.model_types.deberta_v2 import DEBERTA, DEBERTA_V2
from heedful.pretrained.model_types.deit import DEIT
from heedful.pretrained.model_types.dinov2 import DINOV2
from heedful.pretrained.model_types.distilbert import DISTILBERT
from heedful.pretrained.model_types.electra import ELECTRA
from heedful.pretrained.model_types.gemma2 import GEMMA2
from heedful.pretrained.model_types.gpt2 import GPT2
from heedful.pretrained.model_types.gpt_neo import GPT_NEO
from heedful.pretrained.model_types.gpt_neox import GPT_NEOX
from heedful.pretrained.model_types.gptj import GPTJ
from heedful.pretrained.model_types.ijepa import IJEPA
from heedful.pretrained.model_types.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from heedful.pretrained.model_types.m2m_100 import M2M_100
from heedful.pretrained.model_types.marian import MARIAN
from heedful.pretrained.model_types.mbart import MBART
from heedful.pretrained.model_types.mixtral import MIXTRAL
from heedful.pretrained.model_types.modernbert import MODERNBERT
from heedful.pretrained.model_types.mpnet import MPNET
from heedful.pretrained.model_types.olmo2 import OLMO2
from heedful.pretrained.model_types.openai_gpt import OPENAI_GPT
from heedful.pretrained.model_types.opt import OPT
from heedful.pretrained.model_types.pegasus import PEGASUS
from heedful.pretrained.model_types.phi3 import PHI3
from heedful.pretrained.model_types.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from heedful.pretrained.model_types.switch_transformers import SWITCH_TRANSFORMERS
from heedful.pretrained.model_types.t5 import MT5, T5
from heedful.pretrained.model_types.vision_encoder_decoder import VISION_ENCODER_DECODER
from heedful.pretrained.model_types.vit import VIT
from heedful.pretrained.model_types.xlnet import XLNET
from heedful.pretrained.rules import Tensors

DECODERS = (
    GPT2,
    GPT_NEO,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    OPENAI_GPT,
    OPT,
    GPT_NEOX,
    GPTJ,
    PHI3,
    BLOOM,
    MIXTRAL,
    OLMO2,
    GEMMA2,
)
ENCODERS = (
    BERT,
    ROBERTA,
    XLM_ROBERTA,
    CAMEMBERT,
    DISTILBERT,
    DEBERTA_V2,
    XLNET,
    ELECTRA,
    ALBERT,
    MPNET,
    DEBERTA,
    MODERNBERT,
)
ENCODER_DECODERS = (MARIAN, T5, BART, VISION_ENCODER_DECODER, MBART, MT5, M2M_100, PEGASUS, SWITCH_TRANSFORMERS)
VISION = (VIT, DEIT, IJEPA, DINOV2)
MODEL_TYPES: dict[str, ModelType] = {
    model_type.name: model_type for model_type in (*DECODERS, *ENCODERS, *ENCODER_DECODERS, *VISION)
}


class OwnLayout(ModelType):
    """Our own layout, for models that no model type expresses: it has our configuration, and tensors by our names."""

    def architecture_of(self, hub: Mapping[str, Any]) -> Architecture:
        """Returns the only architecture."""
        return OWN_ARCHITECTURE

    def read(self, hub: Mapping[str, Any], architecture: Architecture, stored: Mapping[str, bool]) -> ModelConfig:
        """Returns the configuration, written by ``to_dict``."""
        labels, ids = ("id2label", "label2id", "problem_type"), ("bos_token_id", "eos_token_id", "pad_token_id")
        others = ("model_type", "dtype", *labels, *ids, "decoder_start_token_id")
        ours = {k: v for k, v in hub.items() if k not in others}
        return Config.from_dict(ours)  # type: ignore[return-value]  # only models are saved

    def tensors_in(
        self, stored: Tensors, architecture: Architecture, head: bool = True, config: ModelConfig | None = None
    ) -> Tensors:
        """Returns all tensors, unchanged."""
        loaded = dict(stored)
        stored.clear()
        return loaded

    def tensors_out(self, ours: Tensors, architecture: Architecture, config: ModelConfig | None = None) -> Tensors:
        """Returns all tensors, unchanged."""
        return ours


# heads that sentence-transformers files express
_POOLED = [PooledHead(pooling=pooling, normalise=unit) for pooling in get_args(Pooling) for unit in (True, False)]
OWN_ARCHITECTURE = Architecture(name="heedful", fixed={})
OWN = OwnLayout(name="heedful", fixed={}, config_keys=(), rules=(), architectures=())
BUILT_IN = frozenset((*MODEL_TYPES, OWN.name))  # names that cannot be registered


def model_type_of(hub: Mapping[str, Any]) -> ModelType:
    """Returns the model type that a ``config.json`` names."""
    known = {**MODEL_TYPES, OWN.name: OWN}
    name = hub.get("model_type")
    if not isinstance(name, str) or name not in known:
        raise HeedfulError(f"model_type {name!r} is not supported; {known_names(known)}")
    return known[name]


def express(
    config: ModelConfig, first: str = "", source: Mapping[str, Any] = MappingProxyType({})
) -> tuple[ModelType, Architecture, dict[str, Any]] | None:
    """Returns the first model type and architecture that express a configuration, with its ``config.json``, or None.

    The model type named ``first`` is tried before the others, so that a model is saved in the layout of its source, and
    of architectures with one name first those that the source's ``config.json`` fits. No model type expresses pooling:
    for a pooled model the body is expressed, and ``modules.json`` holds the rest (pooling.py).
    """
    if isinstance(config, EncoderConfig | DecoderConfig) and config.head in _POOLED:
        config = replace(config, head=NoHead())
    for model_type in sorted(MODEL_TYPES.values(), key=lambda model_type: model_type.name != first):
        for architecture in model_type.ordered(source if model_type.name == first else {}):
            if (hub := model_type.write(config, architecture)) is not None:
                return model_type.sized(config), architecture, hub
    return None
