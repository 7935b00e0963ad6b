"""Attention of every layer and head at a glance."""

from __future__ import annotations

import math

import numpy as np

from heedful.errors import HeedfulError
from heedful.views.attention_maps import AttentionMaps, block_means
from heedful.views.figures.cells import figure, shaded
from heedful.views.figures.one_head import span
from heedful.views.svg import label, titled
from heedful.views.text import visible, width

THUMB, LARGE = 72, 150  # pixels of one map in the sheet of all, and where there are few heads
SHEET = 40_000  # cells of all maps in the sheet together
STEPS = 32  # shades in the sheet
MAPS = 1024  # in the sheet


def model(maps: AttentionMaps, title: str = "") -> str:
    """Every layer and head at a glance: a row a layer, a column a head, each map small, queries down, keys across.

    Where a map has more cells than are drawn (32 a side, fewer where there are many maps) its block means are, shaded
    against the largest of the map, so that the shape of a long text's pattern is seen; the picture says so.

    Raises:
        HeedfulError: over 1,024 maps.
    """
    layers, heads, rows, columns = maps.weights.shape
    if layers * heads > MAPS:
        raise HeedfulError(f"{layers * heads:,} maps in one picture cannot be told apart; choose at most {MAPS:,}")
    most = min(32, max(4, math.isqrt(SHEET // (layers * heads))))
    weights = np.asarray(maps.weights, dtype=np.float64)
    noted = f"the shade is the weight, in {STEPS} steps"
    if max(rows, columns) > most:
        means = block_means(weights, min(rows, most), min(columns, most))
        weights = means / np.maximum(means.max(axis=(2, 3), keepdims=True), 1e-12)
        noted = (
            f"{rows:,} × {columns:,} weights each, as the means of {means.shape[2]} × {means.shape[3]} blocks; the"
            f" shade is a block's share of its map's largest, in {STEPS} steps"
        )
    thumb = LARGE if heads <= 4 else THUMB
    side = min(14.0, max(1.0, round(2 * thumb / max(weights.shape[2:])) / 2))
    wide, high = weights.shape[3] * side, weights.shape[2] * side
    step, pitch = max(wide + 8, 30.0), high + 8
    left = 8 + max(width(f"layer {layer}", 13) for layer in maps.layers)
    parts = []
    for h, head in enumerate(maps.heads):
        parts.append(
            label(f"head {head}" if step > 50 else str(head), left + h * step + wide / 2, 10, "small", "middle")
        )
    for n, layer in enumerate(maps.layers):
        parts.append(label(f"layer {layer}", left - 8, 18 + n * pitch + high / 2 + 4, "piece", "end"))
        for h, head in enumerate(maps.heads):
            cells = shaded(weights[n, h], (left + h * step, 18 + n * pitch), (side, side), gap=0, levels=STEPS)
            parts.append(titled(f"layer {layer}, head {head}", "".join(cells)))
    notes = [
        f"{layers} layer{'s' * (layers > 1)} × {heads} head{'s' * (heads > 1)}; {span(maps)}queries down, keys across;"
        f" {noted}",
        maps.note,
    ]
    size = left + (heads - 1) * step + wide, 18 + layers * pitch - 8
    return figure(
        title or visible(maps.name),
        notes,
        size,
        parts,
        f"{maps.name}: {len(maps.queries):,} queries and {len(maps.keys):,} keys",
    )
