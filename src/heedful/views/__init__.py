"""Views: SVG figures and self-contained HTML pages. They need no network and no plotting library.

    inspect/            ``heedful.inspect``: runs a model under probes; only this folder imports models
    figures/            SVG figures for papers and lessons

    page                the frame and the data of all pages
    attention_html      page of attention maps              image_html     page of attention in an image
    generation_html     page of generated text              lens_html      page of the logit lens
    watch_html          page of attention over a run        runs_html      page of ``heedful watch``

    curve               loss curves                         confusion, mistakes  a classifier's errors
    patches             patches and feature maps            attention_figure     one attention map
    run_figures         writes the figures of a run         figure_files         SVG as files: .svg, .png, .pdf

    attention_data      checked weights, windows and overviews, pieces merged to words
    svg, text, raster   shared parts: SVG, texts and fonts, images

Style and script of a page are the ``.css`` and ``.js`` files beside it. Functions take plain lists or arrays and return
``str``; outside ``inspect/`` nothing imports torch or knows a model. To add a page, write it over ``page``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.views.attention_data import AttentionMaps, merge_words
    from heedful.views.attention_figure import attention_svg
    from heedful.views.attention_html import attention_page
    from heedful.views.confusion import confusion_svg
    from heedful.views.curve import loss_curve
    from heedful.views.generation_html import GenerationSteps, steps_page
    from heedful.views.image_html import ImageMaps, image_page
    from heedful.views.lens_html import LensPredictions, lens_page
    from heedful.views.mistakes import mistakes_html, mistakes_svg
    from heedful.views.patches import feature_maps_svg, patch_grid_svg, strip_svg

__all__ = [
    "AttentionMaps",
    "GenerationSteps",
    "ImageMaps",
    "LensPredictions",
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
    "LensPredictions": "lens_html",
    "AttentionMaps": "attention_data",
    "GenerationSteps": "generation_html",
    "attention_page": "attention_html",
    "attention_svg": "attention_figure",
    "confusion_svg": "confusion",
    "feature_maps_svg": "patches",
    "image_page": "image_html",
    "lens_page": "lens_html",
    "loss_curve": "curve",
    "merge_words": "attention_data",
    "mistakes_html": "mistakes",
    "mistakes_svg": "mistakes",
    "patch_grid_svg": "patches",
    "steps_page": "generation_html",
    "strip_svg": "patches",
}


if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
