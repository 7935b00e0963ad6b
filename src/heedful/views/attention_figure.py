"""Figure of one attention map as SVG: two columns of words with lines between them, and a heat map."""

from __future__ import annotations

from typing import Literal

import numpy as np

from heedful.errors import HeedfulError
from heedful.views.attention_data import AttentionMaps, Weights, most_informative_layer
from heedful.views.svg import EDGE, LINE, document, ink, label, thread, width_for
from heedful.views.text import shortened, visible, width

SIZE = 14  # of the words, in pixels
ROW = 25  # pixels from one word to the next
GAP = 150  # pixels between the columns, for the lines
MAX_PIECES = 120  # readable queries, and readable keys
WIDEST = 160  # pixels of a word; a longer one is cut
FAINT = 0.05  # smaller weights have no line and no number

STYLE = (
    LINE
    + """
.word{font-size:14px}
.chip{fill:#f0eee8}.cell{fill:#3a3fb0}.number{font-size:11px}.deep{fill:#fff}
@media(prefers-color-scheme:dark){.chip{fill:#22242b}.cell{fill:#ffc35c}.deep,.half{fill:#16171b}}
"""
)


def draw(source: list[str], target: list[str], weights: Weights, title: str, note: str) -> str:
    """Returns a figure, as SVG, of the ``weights`` (T, S) of T target words on S source words.

    The words must have no control characters.
    """
    strongest = "; ".join(
        f"{word}: {source[row.argmax()]} {100 * row.max():.0f} %" for word, row in zip(target, weights, strict=True)
    )
    source, target = ([shortened(word, WIDEST, SIZE) for word in words] for words in (source, target))
    cell = 32 if len(source) <= 24 else 26

    line_left = EDGE + max(width(word, SIZE) for word in source) + 8
    line_right = line_left + GAP
    grid_left = line_right + 8 + max(width(word, SIZE) for word in target) + 12
    overhang = max((s + 0.5) * cell + 0.71 * width(word, SIZE) for s, word in enumerate(source))
    right = grid_left + max(cell * len(source), overhang)

    head = EDGE + (38 if note else 18)
    rise = 0.71 * max(width(word, SIZE) for word in source) + 24
    rows = max(len(source), len(target))
    source_step = ROW * min(1.6, max(1.0, len(target) / len(source)))
    source_top = head + rise + (rows * ROW - source_step * len(source)) / 2
    grid_top = head + rise + (rows - len(target)) * ROW / 2

    source_y = [source_top + (s + 0.5) * source_step for s in range(len(source))]
    target_y = [grid_top + (t + 0.5) * ROW for t in range(len(target))]
    parts = [label(note, EDGE, EDGE + 33, "quiet")] if note else []
    for t, s in sorted(zip(*(weights >= FAINT).nonzero(), strict=True), key=lambda at: weights[at]):
        parts.append(thread(line_left, source_y[s], line_right, target_y[t], weights[t, s]))
    parts += [label(word, line_left - 8, y + 5, "word", "end") for word, y in zip(source, source_y, strict=True)]
    parts += [label(word, line_right + 8, y + 5, "word") for word, y in zip(target, target_y, strict=True)]
    for s, word in enumerate(source):
        x, y = grid_left + (s + 0.5) * cell + 3, grid_top - 8
        parts.append(label(word, x, y, "word", more=f' transform="rotate(-45 {x:.1f} {y:.1f})"'))
    for t, row in enumerate(weights):
        for s, w in enumerate(row):
            parts += _cell(grid_left + s * cell, grid_top + t * ROW, cell, w)
    size = max(right + EDGE, width_for(note, 13)), head + rise + rows * ROW + EDGE
    return document(size, title, f"Strongest key of each query: {strongest}", STYLE, parts)


def _cell(x: float, y: float, wide: float, w: float) -> list[str]:
    """Returns a cell of the heat map: a box, the weight as its shade, and its number if it is at least ``FAINT``."""
    box = f'x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{wide - 1}" height="{ROW - 1}" rx="2"'
    parts = [f'<rect class="chip" {box}/>']
    if w >= 0.005:
        parts.append(f'<rect class="cell" {box} fill-opacity="{w:.2f}"/>')
    if w >= FAINT:
        parts.append(label(f"{100 * w:.0f}", x + wide / 2, y + ROW / 2 + 4, "number" + ink(w), "middle"))
    return parts


def attention_svg(
    maps: AttentionMaps,
    *,
    title: str,
    layer: int | None = None,
    head: int | Literal["mean"] = "mean",
    note: str | None = None,
) -> str:
    """Returns a figure, as SVG, of one attention map: lines between two columns of pieces, and a heat map.

    The left column has the keys. A line goes from each key to each query that attends to it, as thick as the weight
    (none below 5 %). The queries are also the rows of the heat map; its columns are the keys, its cells the weights in
    % (from 5 % on). If ``maps`` is a window of a longer text, only the window is drawn, and the note says so.

    Args:
        maps: the attention maps from which one is drawn.
        title: the heading and accessible name.
        layer: a layer's number; the ``most_informative_layer`` by default.
        head: a head's number, or "mean", the mean over the heads.
        note: the line under the heading; by default it names the map.

    Raises:
        HeedfulError: an unknown layer or head, or over 120 queries or keys.
    """
    layer = maps.layers[most_informative_layer(maps.weights)] if layer is None else layer
    weights = maps.weights_of(layer, None if head == "mean" else head)
    if max(weights.shape) > MAX_PIECES:
        raise HeedfulError(
            f"a figure of {weights.shape[1]} keys and {weights.shape[0]} queries is not readable; draw a page instead,"
            f" or choose at most {MAX_PIECES} of each"
        )
    if note is None:
        head_name = f"head {head}" if head != "mean" else f"mean of {len(maps.heads)} heads"
        note = f"{maps.name}, layer {layer}, {head_name}. {maps.note}".strip()
    queries, keys = maps.queries[slice(*maps.rows)], maps.keys[slice(*maps.columns)]
    return draw([visible(word) for word in keys], [visible(word) for word in queries], np.asarray(weights), title, note)
