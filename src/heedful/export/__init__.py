"""Export: a model in another program's format, written atomically.

    formats             the table of formats, and ``export``; to add a format, write a module and a line there
    target              the folder or file that is written, and the files copied beside the weights
    hugging_face        Hugging Face's layout, adapters merged
    ctranslate2_writer  CTranslate2, through its own converter on that layout
    gguf_writer         GGUF for llama.cpp, by the package gguf             gguf_vocabulary   tokenizers in it
    onnx_writer         ONNX, through ``torch.onnx``           traceable   a model that can be traced
    openvino_writer     OpenVINO, by its own converter         traced_decoding   the same, with its cache

The formats' own tools are imported when needed; a missing one is an error that says how to install it. Nothing here
imports torch before ``export`` is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.export.formats import export as export

__all__ = ["export"]


if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name == "export":
            return import_module("heedful.export.formats").export
        raise AttributeError(f"module 'heedful.export' has no attribute {name!r}")
