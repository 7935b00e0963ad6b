"""Pretrained folders: Hugging Face model folders in and out, for every model type that is known.

    model_types/ one data file a model type: add one like those, and a line in its ``__init__``
    model type   what such a file holds; configurations both ways
    rules        tensors: their names ↔ ours, reversible
    config keys        configuration: their keys ↔ our fields, reversible (``model_type_facts``: those of a few types)
    flat         our configuration by whole paths
    folder       finding a folder (here or on the Hub), its JSON files, files written beside and renamed
    configuration   the model configuration and the generation settings of a folder
    hub          folders from the Hub and to it: ``push``
    weights      tensors from a folder's files          shards   weights in several files
    fitting      tensors into a model without weights   resizing   more positions, other images, more tokens
    reading      ``load``          writing   ``save``   card   the folder's README.md
    pooling      the pooling of a sentence-transformers folder
    peft         adapters in PEFT's files (names: ``peft_names``, configuration: ``peft_config``)

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
