"""Attention maps as figures: one head as a heat map or as lines, and every layer and head at a glance."""

from __future__ import annotations

import math

import numpy as np

from heedful.errors import HeedfulError
from heedful.views.attention_data import AttentionMaps, block_means
from heedful.views.figures.cells import Values, along, down, figure, number, overhang, rise, scale, shaded, widest
from heedful.views.svg import LINE, label, thread, titled
from heedful.views.text import shortened, visible, width

NAMED = 100  # pieces a side that are drawn one by one; of more, block means
BLOCKS = 128  # blocks a side
LINED = 60  # pieces a side of a figure with lines
FAINT = 0.05  # smaller weights have no line
ROW = 25  # pixels from one piece to the next, beside lines
THUMB, LARGE = 72, 150  # pixels of a map in the sheet of all maps; LARGE for few heads
SHEET = 40_000  # cells of all maps in the sheet together
STEPS = 32  # shades in the sheet
MAPS = 1024  # maps in the sheet


def matrix(maps: AttentionMaps, layer: int, head: int | None = None, title: str = "") -> str:
    """Returns one head's weights as a heat map: rows are queries, columns are keys, with numbers in % if they fit.

    If a side has over 100 pieces, means over blocks are drawn, with positions instead of names. If ``maps`` is a
    window of a longer text, its overview is drawn beside it, with a frame around the window.

    Args:
        maps: the attention maps from which one is drawn.
        layer: number of the layer in the model.
        head: number of the head in the model; None is the mean over the heads of ``maps``.
        title: the heading; by default the name of the maps.

    Raises:
        HeedfulError: an unknown layer or head.
    """
    weights, name = np.asarray(maps.weights_of(layer, head), dtype=np.float64), _map_name(maps, layer, head)
    sums = "; each row sums to 1" if np.allclose(weights.sum(axis=1), 1, atol=1e-3) else ""
    rows, columns = weights.shape
    if max(rows, columns) <= NAMED:
        parts, size, note = _named_cells(maps, weights)
    else:
        parts, size, note = _block_cells(weights, maps.rows[0], maps.columns[0])
    notes = [f"{name}; {window_words(maps)}queries down, keys across{sums}", note, maps.note]
    if maps.overview is not None and not maps.is_whole_text:
        by_head = np.asarray(maps.overview[maps.layers.index(layer)], dtype=np.float64)
        overview = by_head.mean(axis=0) if head is None else by_head[maps.heads.index(head)]
        more, overview_size = _overview(maps, overview, size[0] + 40)
        parts, size = parts + more, (size[0] + 40 + overview_size[0], max(size[1], overview_size[1]))
    return figure(title or visible(maps.name), notes, size, parts, _strongest(maps, weights))


def _named_cells(maps: AttentionMaps, weights: Values) -> tuple[list[str], tuple[float, float], str]:
    queries, keys = _pieces(maps)
    rows, columns = weights.shape
    most = max(rows, columns)
    side = 34 if most <= 12 else 28 if most <= 24 else 19 if most <= 60 else 14
    wide = 90 if most > 24 else 160
    left, top = widest(queries, wide) + 10, rise(keys, side, wide)
    middles = [left + (c + 0.5) * side for c in range(columns)]
    tops = [top + (r + 0.5) * side for r in range(rows)]
    parts = along(keys, middles, top, side, wide) + down(queries, left - 8, tops, wide)
    has_numbers = side >= 28
    shares, peak = (weights, 1.0) if has_numbers else _scaled(weights)
    parts += shaded(shares, (left, top), (side, side))
    if has_numbers:
        parts += [
            number(f"{100 * w:.0f}", w, middles[c], tops[r])
            for r, row in enumerate(weights)
            for c, w in enumerate(row)
            if w >= 0.01
        ]
    bottom = top + rows * side
    parts += scale("0", "1" if has_numbers else f"{100 * peak:.2g} %", left, bottom + 12)
    size = max(left + columns * side, overhang(keys, middles, side, wide), left + 160), bottom + 26
    note = "numbers are weights in %, from 1 % on" if has_numbers else f"the darkest is {100 * peak:.2g} %"
    return parts, size, note


def _block_cells(weights: Values, first_row: int, first_column: int) -> tuple[list[str], tuple[float, float], str]:
    rows, columns = weights.shape
    tall, broad = min(rows, BLOCKS), min(columns, BLOCKS)
    means, peak = _scaled(block_means(weights, tall, broad))
    side = max(3, round(480 / max(tall, broad)))
    left, top = 14 + width(f"{first_row + rows:,}", 11), 22
    parts = shaded(means, (left, top), (side, side), gap=0)
    parts += _positions(first_row, rows, first_column, columns, (left, top), (broad * side, tall * side))
    parts += scale("0", f"{100 * peak:.2g} %", left, top + tall * side + 12)
    note = (
        f"{rows:,} × {columns:,} weights as the means of {tall} × {broad} blocks, against positions; the darkest is"
        f" {100 * peak:.2g} %"
    )
    return parts, (max(left + broad * side + 8, left + 190), top + tall * side + 26), note


def _positions(
    row: int, rows: int, column: int, columns: int, at: tuple[float, float], size: tuple[float, float]
) -> list[str]:
    """Returns labels of five positions, first to last, along both sides of a map of blocks."""
    (left, top), (wide, high) = at, size
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        y, x = top + share * high, left + share * wide
        parts.append(
            label(f"{row + round(share * (rows - 1)):,}", left - 8, y + (9 if share == 0 else 0), "small", "end")
        )
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        parts.append(label(f"{column + round(share * (columns - 1)):,}", x, top - 8, "small", anchor))
    return parts


def _overview(maps: AttentionMaps, overview: Values, x: float) -> tuple[list[str], tuple[float, float]]:
    """Returns the overview at ``x`` with a frame around the window, and its size."""
    total, across = len(maps.queries), len(maps.keys)
    means, peak = _scaled(overview)
    side = max(2, round(220 / max(overview.shape)))
    wide, high = overview.shape[1] * side, overview.shape[0] * side
    left, top = x + 14 + width(f"{total:,}", 11), 44
    frame = [
        left + wide * maps.columns[0] / across,
        top + high * maps.rows[0] / total,
        wide * (maps.columns[1] - maps.columns[0]) / across,
        high * (maps.rows[1] - maps.rows[0]) / total,
    ]
    fx, fy, fw, fh = frame[0], frame[1], max(4.0, frame[2]), max(4.0, frame[3])
    parts = [
        label("the whole, as block means; the frame is the window", x, 12, "small"),
        *shaded(means, (left, top), (side, side), gap=0),
        *_positions(0, total, 0, across, (left, top), (wide, high)),
        f'<rect class="frame" x="{fx:.1f}" y="{fy:.1f}" width="{fw:.1f}" height="{fh:.1f}"/>',
        *scale("0", f"{100 * peak:.2g} %", left, top + high + 12, wide=80),
    ]
    return parts, (
        max(left - x + wide + 8, width("the whole, as block means; the frame is the window", 11)),
        top + high + 26,
    )


def heads(maps: AttentionMaps, layer: int, head: int | None = None, title: str = "") -> str:
    """Returns one head's weights as lines from the queries (left) to the keys (right), as thick as the weight.

    Weights below 5 % have no line. The arguments are those of ``matrix``.

    Raises:
        HeedfulError: an unknown layer or head, or over 60 queries or keys.
    """
    weights = np.asarray(maps.weights_of(layer, head), dtype=np.float64)
    if max(weights.shape) > LINED:
        raise HeedfulError(
            f"lines between {weights.shape[0]} queries and {weights.shape[1]} keys are not readable; draw the matrix,"
            f" or choose at most {LINED} of each (queries, keys)"
        )
    queries, keys = _pieces(maps)
    most = max(weights.shape)
    steps = [ROW * min(1.6, max(1.0, most / size)) for size in weights.shape]
    tops = [22 + (ROW * most - step * size) / 2 for step, size in zip(steps, weights.shape, strict=True)]
    left = max(widest(queries), width("query", 11)) + 8
    right = left + 190
    starts, ends = (
        [top + (i + 0.5) * step for i in range(size)]
        for top, step, size in zip(tops, steps, weights.shape, strict=True)
    )
    parts = [label("query", left - 8, 8, "small", "end"), label("key", right + 8, 8, "small")]
    for t, s in sorted(zip(*(weights >= FAINT).nonzero(), strict=True), key=lambda at: weights[at]):
        parts.append(thread(left, starts[t], right, ends[s], weights[t, s]))
    parts += down(queries, left - 8, starts)
    parts += [label(shortened(key, 160, 13), right + 8, y + 4.5, "piece") for key, y in zip(keys, ends, strict=True)]
    omission = f"weights below {100 * FAINT:.0f} % are not drawn"
    notes = [
        f"{_map_name(maps, layer, head)}; {window_words(maps)}the thicker a line, the larger the weight; {omission}",
        maps.note,
    ]
    size = right + 8 + max(widest(keys), width("key", 11)), 22 + ROW * most
    return figure(title or visible(maps.name), notes, size, parts, _strongest(maps, weights), LINE)


def _scaled(means: Values) -> tuple[Values, float]:
    """Returns weights divided by the largest, and the largest: weights on many keys, or of blocks, are small."""
    peak = float(means.max())
    return means / max(peak, 1e-12), peak


def _pieces(maps: AttentionMaps) -> tuple[list[str], list[str]]:
    """Returns the window's queries and keys without control characters."""
    return [visible(p) for p in maps.queries[slice(*maps.rows)]], [visible(p) for p in maps.keys[slice(*maps.columns)]]


def _map_name(maps: AttentionMaps, layer: int, head: int | None) -> str:
    head_name = (
        f"head {head}" if head is not None else f"mean of {len(maps.heads)} heads" if len(maps.heads) > 1 else "1 head"
    )
    return f"{visible(maps.name)}, layer {layer}, {head_name}"


def window_words(maps: AttentionMaps) -> str:
    """Returns in words which queries and keys of the text a window shows; "" for the whole text."""
    if maps.is_whole_text:
        return ""
    (top, bottom), (left, right) = maps.rows, maps.columns
    return f"queries {top}–{bottom - 1} of {len(maps.queries):,}, keys {left}–{right - 1} of {len(maps.keys):,}; "


def _strongest(maps: AttentionMaps, weights: Values) -> str:
    """Returns the strongest key of each of the first forty queries, in words."""
    queries, keys = _pieces(maps)
    strongest = [
        f"{query}: {keys[int(row.argmax())]} {100 * row.max():.0f} %"
        for query, row in zip(queries, weights, strict=True)
    ]
    rest = f"; and {len(strongest) - 40} more" if len(strongest) > 40 else ""
    return "Strongest key of each query: " + "; ".join(strongest[:40]) + rest


def model(maps: AttentionMaps, title: str = "") -> str:
    """Returns a figure with a small map of every layer (down) and head (across); a map has queries down, keys across.

    If a map has more than 32 rows or columns (fewer with many maps), the means of its blocks are drawn. They are shaded
    relative to the largest of the map, so that the pattern of a long text is visible; the figure says so.

    Raises:
        HeedfulError: over 1,024 maps.
    """
    layers, heads, rows, columns = maps.weights.shape
    if layers * heads > MAPS:
        raise HeedfulError(f"{layers * heads:,} maps in one figure cannot be distinguished; choose at most {MAPS:,}")
    most = min(32, max(4, math.isqrt(SHEET // (layers * heads))))
    weights = np.asarray(maps.weights, dtype=np.float64)
    shading = f"the shade is the weight, in {STEPS} steps"
    if max(rows, columns) > most:
        means = block_means(weights, min(rows, most), min(columns, most))
        weights = means / np.maximum(means.max(axis=(2, 3), keepdims=True), 1e-12)
        shading = (
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
        f"{layers} layer{'s' * (layers > 1)} × {heads} head{'s' * (heads > 1)}; {window_words(maps)}queries down, keys "
        f"across; {shading}",
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
