"""Heedful: the classic Transformer, all four families from one readable core.

The public names are loaded when first used: importing heedful, its configurations, presets and list of tasks never
imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from heedful.errors import HeedfulError as HeedfulError
    from heedful.models import Decoder as Decoder
    from heedful.models import Encoder as Encoder
    from heedful.models import EncoderDecoder as EncoderDecoder
    from heedful.models import VisionTransformer as VisionTransformer
    from heedful.models.create import create as create
    from heedful.stack import Block as Block
    from heedful.stack import Stack as Stack

# public name: the module it lives in
_HOMES = {
    "Block": "heedful.stack",
    "Decoder": "heedful.models",
    "Encoder": "heedful.models",
    "EncoderDecoder": "heedful.models",
    "HeedfulError": "heedful.errors",
    "Stack": "heedful.stack",
    "VisionTransformer": "heedful.models",
    "create": "heedful.models.create",
}
_ROOMS = ["config", "layers", "presets"]

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return import_module(f"heedful.{name}")
    raise AttributeError(f"module 'heedful' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
