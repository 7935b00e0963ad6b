"""SVG figures for papers, READMEs and lessons: arrays and lists in, ``str`` out.

    attention_heads  ``matrix``, ``heads``, ``model``: one head as a heat map or as lines, all heads at a glance
    matrices         ``heat``, ``grid``, ``lens``: any matrix, one number for each head, the logit lens
    overlays         ``overlay``, ``bright_images``, ``saliency``, ``filters``: values over an image or a text, filters
    plots            ``scatter``, ``functions``, ``bars``
    diagrams         ``masks``, ``flow``: attention masks, and block diagrams
    cells            shared parts

All figures are readable without colour, in light and dark. Data that does not fit is averaged in blocks, and the figure
says so, or raises an error. ``heedful.views.figure_files.write_figure`` writes them as PNG and PDF.
"""

from __future__ import annotations

from heedful.views.figures.attention_heads import heads, matrix, model
from heedful.views.figures.diagrams import Arrow, Box, flow, masks
from heedful.views.figures.matrices import grid, heat, lens
from heedful.views.figures.overlays import bright_images, filters, overlay, saliency
from heedful.views.figures.plots import bars, functions, scatter

__all__ = [
    "Arrow",
    "Box",
    "bars",
    "bright_images",
    "filters",
    "flow",
    "functions",
    "grid",
    "heads",
    "heat",
    "lens",
    "masks",
    "matrix",
    "model",
    "overlay",
    "saliency",
    "scatter",
]
