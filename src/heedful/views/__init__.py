"""What people look at: SVG pictures and self-contained HTML pages, which need no network and no plotting library.

- ``curve``: lines against steps (the loss curve of a run), as SVG;
- ``attention``: cross-attention of one pair of sentences, as a page (HTML) and as a picture (SVG, ``picture``);
  ``attention.css`` and ``attention.js`` are the page's looks and movements;
- ``weights``: the numbers behind both: shapes checked, pieces merged to words, the clearest layer, 8-bit storage;
- ``confusion``: which classes a classifier takes for which (SVG); ``mistakes``: its surest wrong answers, images as a
  picture (SVG), texts as a page (HTML); ``report``: its scores by class, as lines of text;
- ``patches``: an image as the patches and tokens that a vision Transformer sees, and feature maps (SVG);
- ``draw``: what of these a run's folder or an evaluation gives, written to files;
- ``svg``, ``page``, ``raster``, ``text``: what the pictures, the pages, the images in them and the texts share.

Everything takes plain lists or arrays and gives a ``str`` (but ``draw``, which takes what a task measured and writes
files). Nothing here imports torch or knows a model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.views.attention import attention_page, attention_svg
    from heedful.views.confusion import confusion_svg
    from heedful.views.curve import loss_curve
    from heedful.views.mistakes import mistakes_html, mistakes_svg
    from heedful.views.patches import feature_maps_svg, patch_grid_svg, strip_svg
    from heedful.views.weights import merge_words

__all__ = [
    "attention_page",
    "attention_svg",
    "confusion_svg",
    "feature_maps_svg",
    "loss_curve",
    "merge_words",
    "mistakes_html",
    "mistakes_svg",
    "patch_grid_svg",
    "strip_svg",
]

_HOME = {
    "attention_page": "attention",
    "attention_svg": "attention",
    "confusion_svg": "confusion",
    "feature_maps_svg": "patches",
    "loss_curve": "curve",
    "merge_words": "weights",
    "mistakes_html": "mistakes",
    "mistakes_svg": "mistakes",
    "patch_grid_svg": "patches",
    "strip_svg": "patches",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
