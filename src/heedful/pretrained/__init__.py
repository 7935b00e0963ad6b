"""Pretrained folders: reads and writes Hugging Face model folders of every supported model type.

    model_types/         a file of data per model type; to add a model type, write a file and list it in ``__init__``
    model_type           ``ModelType`` and ``Architecture``: a layout as data; converts configurations to and from it
    rules                tensor rules: their names ↔ ours, reversible
    config_keys          keys of ``config.json`` ↔ our fields, reversible; rare ones in ``special_config_keys``
    flat_config          configurations as flat mappings from paths to values
    folder               finds folders locally or on the Hub, reads JSON, writes atomically
    configuration        reads the model configuration and generation settings of a folder
    reading, writing     ``load``, ``save``      upload      ``push``
    model_card           the folder's README.md, with the code of ``snippets``
    weights              reads the tensors of a folder
    fill_model           builds a model without weights and fills it with tensors
    resizing             more positions, other image sizes, more tokens
    scaled_output        output layers that are trained in another unit than the unit they are saved in
    pooling              pooling of a sentence-transformers folder
    preprocessing        preprocessing of images
    peft                 adapters in PEFT's files (``peft_names``, ``peft_config``)

Nothing here imports torch before ``load`` or ``save`` is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.pretrained.folder import read_card
    from heedful.pretrained.model_type import Architecture, ModelType
    from heedful.pretrained.reading import load
    from heedful.pretrained.upload import push
    from heedful.pretrained.writing import save

_HOMES = {
    "Architecture": "model_type",
    "ModelType": "model_type",
    "load": "reading",
    "push": "upload",
    "read_card": "folder",
    "save": "writing",
}

__all__ = ["Architecture", "ModelType", "load", "push", "read_card", "save"]


if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"heedful.pretrained.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'heedful.pretrained' has no attribute {name!r}")
