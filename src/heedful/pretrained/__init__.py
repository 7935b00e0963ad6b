"""Pretrained folders: Hugging Face model folders, read and written, for every supported model type.

    model_types/         one data file a model type: to add one, write such a file and a line in its ``__init__``
    model_type           the classes of such a file: model type and architecture; configurations both ways
    rules                tensor rules: their names ↔ ours, reversible
    config_keys          keys of ``config.json`` ↔ our fields, reversible; rare ones in ``special_config_keys``
    flat_config          our configuration by whole paths
    folder               folders found locally or on the Hub, JSON files, atomic writes
    configuration        the model configuration and generation settings of a folder
    reading, writing     ``load``, ``save``      upload      ``push``      model_card  the folder's README.md
    weights              tensors of a folder's files
    fill_model           tensors put into a model without weights
    resizing             more positions, other images, more tokens
    scaled_output        outputs that train in another unit than they are saved in
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
    from heedful.pretrained.reading import load
    from heedful.pretrained.upload import push
    from heedful.pretrained.writing import save

_HOMES = {"load": "reading", "push": "upload", "read_card": "folder", "save": "writing"}

__all__ = ["load", "push", "read_card", "save"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"heedful.pretrained.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'heedful.pretrained' has no attribute {name!r}")
