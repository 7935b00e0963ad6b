"""Pictures for papers, READMEs and lessons, as SVG: arrays and lists in, ``str`` out.

- ``attention``: ``matrix``, ``heads``: one head as a heat map, or as lines; ``sheet``: ``model``: all at a glance;
- ``tables``: ``heat``, ``grid``, ``lens``: any matrix, one number a head, the logit lens;
- ``images``: ``overlay``, ``saliency``, ``filters``: over an image, over a text, filters side by side;
- ``plots``: ``scatter``, ``functions``, ``bars``;
- ``schemes``: ``masks``, ``flow``: which position sees which, and small block diagrams;
- ``parts``: what they share.

All are readable without colour, and in light and dark. What one picture cannot hold is averaged in blocks or refused,
and either way it is said. ``heedful.views.figure_files.write`` makes PNG and PDF of them.
"""

from __future__ import annotations

from heedful.views.figures.all_heads import model
from heedful.views.figures.diagrams import Arrow, Box, flow, masks
from heedful.views.figures.matrices import grid, heat, lens
from heedful.views.figures.one_head import heads, matrix
from heedful.views.figures.overlays import filters, overlay, saliency
from heedful.views.figures.plots import bars, functions, scatter

__all__ = [
    "Arrow",
    "Box",
    "bars",
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
