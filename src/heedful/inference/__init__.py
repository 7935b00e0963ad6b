"""Inference: a trained model applied to inputs.

- ``pipeline``: start here. ``heedful predict MODEL "a text"`` calls ``pipeline()``, which loads the model and its task,
  and then the pipeline, which resolves the options once and calls the task's ``predict``;
- ``predict_file``: predictions for a whole file, in blocks (``input_blocks``), written to an ``output_file``; if a call
  is stopped, a later call continues the file;
- ``neighbours``: the nearest of many texts.

This package knows no task by name, except in ``HEADS``, the table of published heads.
"""

from __future__ import annotations
