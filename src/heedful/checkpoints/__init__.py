"""Model folders: reading, writing, and the families whose layout we speak.

    families/ the layouts that we speak, data only: add one as a file like those and a line in its ``__init__``
    rules     tensors: their names ↔ ours, reversible
    facts     configuration: their keys ↔ our fields, reversible (``family_facts``: those of a few families)
    flat      our configuration by whole paths
    family    a family is data in these; configurations there and back
    folder    finding a folder (here or on the Hub), its JSON files, files written beside and renamed
    configuration    what those files tell of the model and of how it generates
    hub       a folder brought from the Hub, a folder sent there: ``push``
    weights   tensors from a folder's files        shards   weights in several files
    fitting   tensors into a model without weights   resizing   more positions, other images, more tokens
    reading   ``load``          writing   ``save``          card   the folder's README.md
    pooling   how a folder of sentence-transformers makes one vector of a text
    peft      adapters in PEFT's files (names: peft_names, configuration: peft_config)

Nothing here imports torch before ``load`` or ``save`` is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.checkpoints.folder import read_card as read_card
    from heedful.checkpoints.hub import push as push
    from heedful.checkpoints.reading import load as load
    from heedful.checkpoints.writing import save as save

_HOMES = {"load": "reading", "push": "hub", "read_card": "folder", "save": "writing"}

__all__ = ["load", "push", "read_card", "save"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"heedful.checkpoints.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'heedful.checkpoints' has no attribute {name!r}")
