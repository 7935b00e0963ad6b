"""Heedful: the classic Transformer, all four families from one readable core.

The public names are loaded when first used: importing heedful, its configurations, presets and list of tasks never
imports torch.
"""

from __future__ import annotations

from importlib import import_module

from heedful import renamed

TYPE_CHECKING = False  # as in typing, whose import would take half of the time in which Ctrl-C is not yet handled

__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from heedful.api import evaluate, train
    from heedful.errors import HeedfulError
    from heedful.inference.pipeline import pipeline
    from heedful.inspection.record import record
    from heedful.inspection.summary import summary
    from heedful.kernels.optimize import optimize
    from heedful.models import Decoder, Encoder, EncoderDecoder, VisionTransformer
    from heedful.models.create import create
    from heedful.pretrained import load as from_pretrained
    from heedful.registration import register
    from heedful.stack import Block, Stack
    from heedful.views.inspect.inspect import inspect

__all__ = [
    "Block",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "HeedfulError",
    "Stack",
    "VisionTransformer",
    "create",
    "evaluate",
    "from_pretrained",
    "inspect",
    "optimize",
    "pipeline",
    "record",
    "register",
    "summary",
    "train",
]

# public name: the room it lives in, and its name there where that is another
_HOMES = {
    "Block": "heedful.stack",
    "Decoder": "heedful.models",
    "Encoder": "heedful.models",
    "EncoderDecoder": "heedful.models",
    "HeedfulError": "heedful.errors",
    "Stack": "heedful.stack",
    "VisionTransformer": "heedful.models",
    "create": "heedful.models.create",
    "evaluate": "heedful.api",
    "from_pretrained": "heedful.pretrained:load",
    "inspect": "heedful.views.inspect.inspect",
    "optimize": "heedful.kernels.optimize",
    "pipeline": "heedful.inference.pipeline",
    "record": "heedful.inspection.record",
    "register": "heedful.registration",
    "summary": "heedful.inspection.summary",
    "train": "heedful.api",
}
_ROOMS = ("adapters", "config", "layers", "presets", "tasks", "verify")

renamed.install()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(import_module(module), attribute or name)
    if name in _ROOMS or name in renamed.MODULES:
        return import_module(f"heedful.{name}")
    raise AttributeError(f"module 'heedful' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, "__version__"])
