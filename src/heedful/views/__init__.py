"""Views: SVG pictures and self-contained HTML pages, which need no network and no plotting library.

    inspect/            ``heedful.inspect``: a model run under probes, and its views (this folder alone imports models)
    figures/            pictures for papers and lessons (SVG)
    map_data            attention maps: weights checked, windows and overviews, pieces merged to words
    attention_html      the page of attention maps          attention_picture  one map as SVG
    steps_html          the page of generated text          lens_html          the page of the logit lens
    image_html          the page of an image's patches      watch_html         the page of attention over a run
    runs_html           the page of ``heedful watch``       page               the frame and data of all pages
    curve               loss curves (SVG)                   confusion, mistakes  a classifier's errors
    patches             patches and feature maps (SVG)      run_figures        figures of a run folder, as files
    svg, text, raster   shared parts of pictures, texts, images
    convert             SVG to PNG and PDF              fonts   families by script

Style and script of a page are the ``.css`` and ``.js`` files beside it. Functions take plain lists or arrays and return
``str``; outside ``inspect/`` nothing imports torch or knows a model. To add a page, write it over ``page``.
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
