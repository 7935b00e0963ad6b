"""Handing a model on: a folder of another layout, written beside and renamed.

    formats        the table: what a model can be handed on as
    target         the folder that is written, and the files that travel beside the weights
    hugging_face   Hugging Face's layout, adapters merged
    engine         CTranslate2, through its own converter on that layout
    graph          ONNX, through ``torch.onnx``           traceable   a model that can be traced

The engines' own tools are imported when they are asked for; a missing one is an error that says how to install it.
Nothing here imports torch before ``export`` is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.export.formats import export as export

__all__ = ["export"]


def __getattr__(name: str) -> Any:
    if name == "export":
        return import_module("heedful.export.formats").export
    raise AttributeError(f"module 'heedful.export' has no attribute {name!r}")
