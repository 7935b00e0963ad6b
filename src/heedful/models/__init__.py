"""The four families, a file each: embed → stack → head; and ensembles. ``build`` makes the model of a configuration."""

from collections.abc import Callable

from heedful.config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    EnsembleConfig,
    ModelConfig,
    VisionConfig,
)
from heedful.models.base import Model
from heedful.models.decoder import Decoder
from heedful.models.encoder import Encoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.ensemble import Ensemble
from heedful.models.initial_weights import initialise
from heedful.models.vision import VisionTransformer

FAMILIES: dict[type[ModelConfig], Callable[..., Model]] = {
    EncoderConfig: Encoder,
    DecoderConfig: Decoder,
    EncoderDecoderConfig: EncoderDecoder,
    VisionConfig: VisionTransformer,
    EnsembleConfig: Ensemble,
}


def build(config: ModelConfig) -> Model:
    """Returns the model of a configuration, with newly initialised weights from torch's current random state."""
    return FAMILIES[type(config)](config)


__all__ = [
    "FAMILIES",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Ensemble",
    "Model",
    "VisionTransformer",
    "build",
    "initialise",
]
