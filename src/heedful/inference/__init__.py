"""Inference: the pipeline (``pipeline``), prediction for files (``predict_file``), the nearest of many texts
(``neighbours``). Files are worked through in blocks, and a stopped call is continued.
"""

from __future__ import annotations

from typing import Any

from heedful.renamed import old_attribute


def __getattr__(name: str) -> Any:
    return old_attribute(__name__, name)
