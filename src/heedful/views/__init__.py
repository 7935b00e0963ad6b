"""What people look at: SVG pictures and self-contained HTML pages, which need no network and no plotting library.

- ``curve``: lines against steps (the loss curve of a run), as SVG;
- ``attention``: cross-attention of one pair of sentences, as a page (HTML) and as a picture (SVG, ``picture``);
  ``attention.css`` and ``attention.js`` are the page's looks and movements;
- ``weights``: the numbers behind both: shapes checked, pieces merged to words, the clearest layer, 8-bit storage;
- ``text``: untrusted text made fit to be shown; ``draw``: the curve of a run's folder.

Everything takes plain lists or arrays and gives a ``str``. Nothing here imports torch or knows a model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.views.attention import attention_page, attention_svg
    from heedful.views.curve import loss_curve
    from heedful.views.weights import merge_words

__all__ = ["attention_page", "attention_svg", "loss_curve", "merge_words"]

_HOME = {
    "attention_page": "attention",
    "attention_svg": "attention",
    "loss_curve": "curve",
    "merge_words": "weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
