"""The four families, a file each: embed → stack → head. ``build`` makes the model of a configuration."""

from collections.abc import Callable

from heedful.config import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig, VisionConfig
from heedful.models.base import Model
from heedful.models.decoder import Decoder
from heedful.models.encoder import Encoder
from heedful.models.encoder_decoder import EncoderDecoder
from heedful.models.vision import VisionTransformer

FAMILIES: dict[type[ModelConfig], Callable[..., Model]] = {
    EncoderConfig: Encoder,
    DecoderConfig: Decoder,
    EncoderDecoderConfig: EncoderDecoder,
    VisionConfig: VisionTransformer,
}


def build(config: ModelConfig) -> Model:
    """Returns the model of a configuration, with newly initialised weights from torch's current random state."""
    return FAMILIES[type(config)](config)


__all__ = ["FAMILIES", "Decoder", "Encoder", "EncoderDecoder", "Model", "VisionTransformer", "build"]
