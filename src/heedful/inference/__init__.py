"""Inference: a trained model applied to inputs.

- ``pipeline``: start here. ``heedful predict MODEL "a text"`` calls ``pipeline()``, which loads the model and its task,
  and then the pipeline, which resolves the options once and calls the task's ``predict``;
- ``predict_file``: predictions for a whole file, in blocks (``input_blocks``), written to an ``output_file``; if a call
  is stopped, a later call continues the file;
- ``neighbours``: the nearest of many texts.

This package knows no task by name, except in ``HEADS``, the table of published heads.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.inference.neighbours import Index, Near
    from heedful.inference.pipeline import Pipeline

_HOMES = {"Index": "neighbours", "Near": "neighbours", "Pipeline": "pipeline"}

__all__ = ["Index", "Near", "Pipeline"]


if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"heedful.inference.{_HOMES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
