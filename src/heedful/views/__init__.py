"""What people look at: SVG pictures and self-contained HTML pages, which need no network and no plotting library.

- ``curve``: lines against steps (the loss curve of a run), as SVG;
- ``maps``: attention weights with the pieces that they lie between, for a whole text or a window of it;
- ``attention``: what they draw, as a page (HTML) and as a picture (SVG, ``picture``); ``attention.css`` and
  ``attention.js`` are the page's looks and movements (those of each of its sections in ``attention_*.js``), ``packing``
  makes weights of any length fit it;
- ``weights``: the numbers behind both: shapes checked, pieces merged to words, the clearest layer;
- ``steps``: generated text step by step; ``lens``: the logit lens; ``image``: an image with its patches; ``watch``: a
  run's attention over its steps: pages (HTML) with looks and movements of their own (``.css``, ``.js``) and what all
  pages that move share (``parts``); ``chips``, ``sparse`` and ``blocks`` make what they hold fit;
- ``confusion``: which classes a classifier takes for which (SVG); ``mistakes``: its surest wrong answers, images as a
  picture (SVG), texts as a page (HTML);
- ``patches``: an image as the patches and tokens that a vision Transformer sees, and feature maps (SVG);
- ``figures``: pictures for papers and lessons (SVG); ``convert`` makes PNG and PDF of any SVG, with ``lowered`` (its
  style applied), ``pdf`` and ``fonts``;
- ``draw``: what of these a run's folder or an evaluation gives, written to files;
- ``svg``, ``page``, ``raster``, ``text``: what the pictures, the pages, the images in them and the texts share.

Everything takes plain lists or arrays and gives a ``str`` (but ``draw``, which takes what a task measured and writes
files). Nothing here imports torch or knows a model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.views.attention_html import attention_page
    from heedful.views.attention_picture import attention_svg
    from heedful.views.confusion import confusion_svg
    from heedful.views.curve import loss_curve
    from heedful.views.image_html import ImageMaps, image_page
    from heedful.views.lens_html import Lens, lens_page
    from heedful.views.map_data import Maps, merge_words
    from heedful.views.mistakes import mistakes_html, mistakes_svg
    from heedful.views.patches import feature_maps_svg, patch_grid_svg, strip_svg
    from heedful.views.steps_html import Steps, steps_page

__all__ = [
    "ImageMaps",
    "Lens",
    "Maps",
    "Steps",
    "attention_page",
    "attention_svg",
    "confusion_svg",
    "feature_maps_svg",
    "image_page",
    "lens_page",
    "loss_curve",
    "merge_words",
    "mistakes_html",
    "mistakes_svg",
    "patch_grid_svg",
    "steps_page",
    "strip_svg",
]

_HOME = {
    "ImageMaps": "image_html",
    "Lens": "lens_html",
    "Maps": "map_data",
    "Steps": "steps_html",
    "attention_page": "attention_html",
    "attention_svg": "attention_picture",
    "confusion_svg": "confusion",
    "feature_maps_svg": "patches",
    "image_page": "image_html",
    "lens_page": "lens_html",
    "loss_curve": "curve",
    "merge_words": "map_data",
    "mistakes_html": "mistakes",
    "mistakes_svg": "mistakes",
    "patch_grid_svg": "patches",
    "steps_page": "steps_html",
    "strip_svg": "patches",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
