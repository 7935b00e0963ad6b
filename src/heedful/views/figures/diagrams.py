"""Diagrams for lessons: attention masks side by side, and small block diagrams with arrows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from heedful.errors import HeedfulError, nearest
from heedful.views.figures.cells import along, checked_names, down, figure, rise, widest
from heedful.views.svg import label
from heedful.views.text import visible, width

SIDE, SQUARE = 40, 22  # largest number of positions a side, and pixels of a position

STYLE = """
.shut{fill:none;stroke:#a8a296}.cross{stroke:#a8a296}
.step{fill:#f0eee8;stroke:#8d877d}.data{fill:none;stroke:#8d877d;stroke-dasharray:4 3}
.sum{fill:#fbfaf7;stroke:#3a3fb0;stroke-width:2}
.main{fill:#e2e3f5;stroke:#3a3fb0}.arrow{fill:none;stroke:#6b665e;stroke-width:1.5}.tip{fill:#6b665e}
@media(prefers-color-scheme:dark){.shut,.cross{stroke:#5c5e66}.step{fill:#22242b;stroke:#77736b}.data{stroke:#77736b}
.sum{fill:#16171b;stroke:#ffc35c}.main{fill:#3a3222;stroke:#ffc35c}.arrow{stroke:#a09c94}.tip{fill:#a09c94}}
"""


def masks(
    masks: Mapping[str, Any],
    title: str = "",
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    note: str = "",
) -> str:
    """Returns attention masks side by side: a full square if a query (row) may attend to a key (column), else a cross.

    Args:
        masks: names and their boolean (T, S), True for "may attend".
        title: the heading.
        queries: names of the T rows of all masks; none by default.
        keys: names of the S columns; none by default.
        note: a line below the title.

    Raises:
        HeedfulError: no mask, a mask that is not boolean with two axes, or over 40 rows or columns.
    """
    if not masks:
        raise HeedfulError("no mask to draw; give at least one")
    parts, x, high = [], 0.0, 0.0
    for name, values in masks.items():
        mask = np.asarray(values)
        if mask.dtype != np.bool_ or mask.ndim != 2 or not mask.size or max(mask.shape) > SIDE:
            raise HeedfulError(
                f"mask {name!r} has shape {mask.shape} and type {mask.dtype}; give booleans of at most {SIDE} × {SIDE}"
            )
        rows = checked_names(queries, mask.shape[0], "queries") if queries is not None else []
        columns = checked_names(keys, mask.shape[1], "keys") if keys is not None else []
        left = x + (widest(rows) + 10 if rows else 0)
        top = 24 + (rise(columns, SQUARE) if columns else 0)
        parts.append(label(name, left, 12, "name"))
        parts += down(rows, left - 8, [top + (r + 0.5) * SQUARE for r in range(len(rows))]) if rows else []
        parts += (
            along(columns, [left + (c + 0.5) * SQUARE for c in range(len(columns))], top, SQUARE) if columns else []
        )
        for value, kind in ((True, "cell"), (False, "shut")):
            boxes = "".join(
                f"M{left + c * SQUARE + 2:.1f} {top + r * SQUARE + 2:.1f}h{SQUARE - 4}v{SQUARE - 4}h{4 - SQUARE}z"
                for r, c in np.argwhere(mask == value)
            )
            parts.append(f'<path class="{kind}" d="{boxes}"/>' if boxes else "")
        crosses = "".join(
            f"M{left + c * SQUARE + 8:.1f} {top + r * SQUARE + 8:.1f}l6 6m0-6l-6 6" for r, c in np.argwhere(~mask)
        )
        parts.append(f'<path class="cross" d="{crosses}"/>' if crosses else "")
        tail = 0.71 * width(columns[-1], 13) if columns else 0.0
        x = max(left + mask.shape[1] * SQUARE + max(0.0, tail - 10), left + width(visible(name), 13, bold=True)) + 30
        high = max(high, top + mask.shape[0] * SQUARE)
    counts = "; ".join(f"{name}: {int(np.sum(mask))} of {np.size(mask)} may attend" for name, mask in masks.items())
    legend = "full: may attend; crossed: may not. Queries down, keys across"
    return figure(title, [note, legend], (x - 30, high), parts, counts, STYLE)


@dataclass(frozen=True, kw_only=True)
class Box:
    """Box of a block diagram. Columns and rows count from the lower left: data goes upwards, as in the papers' figures.

    Attributes:
        text: text in the box; ``+`` with ``kind="sum"`` is a small circle.
        column: 0 is the leftmost; fractions are allowed.
        row: 0 is the lowest.
        kind: "step" is a box, "main" a highlighted one, "data" a dashed one, "sum" a circle.
    """

    text: str
    column: float = 0
    row: float = 0
    kind: Literal["step", "main", "data", "sum"] = "step"


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """Arrow of a block diagram, between two boxes.

    Attributes:
        start: name of the first box.
        end: name of the box that it points to.
        way: "straight"; or "left" or "right", around the boxes between on this side, as a residual connection.
        text: text beside the arrow.
    """

    start: str
    end: str
    way: Literal["straight", "left", "right"] = "straight"
    text: str = ""


def flow(boxes: Mapping[str, Box], arrows: Sequence[Arrow], title: str = "", *, note: str = "") -> str:
    """Returns a small block diagram: named boxes on a grid, and arrows between them.

    Raises:
        HeedfulError: no box, or an arrow from or to an unknown box.

    >>> picture = flow({"x": Box(text="x"), "f": Box(text="f(x)", row=1)}, [Arrow(start="x", end="f")], "t")
    >>> picture.count('class="tip"')
    1
    """
    if not boxes:
        raise HeedfulError("no box to draw; give at least one")
    wide = max(90.0, *(width(visible(box.text), 13) + 26 for box in boxes.values()))
    high, pitch = 34.0, 62.0
    lanes = [sum(arrow.way == way for arrow in arrows) for way in ("left", "right")]
    left, right = (16.0 + 18 * min(n, 1) for n in lanes)
    step = wide + max(56.0, left + right)
    top = max(box.row for box in boxes.values())
    low = min(box.column for box in boxes.values())
    at = {n: (left + wide / 2 + (b.column - low) * step, (top - b.row) * pitch + high / 2) for n, b in boxes.items()}
    half = {n: (13.0, 13.0) if b.kind == "sum" else (wide / 2, high / 2) for n, b in boxes.items()}
    parts = []
    for arrow in arrows:
        for name in (arrow.start, arrow.end):
            if name not in boxes:
                raise HeedfulError(f"an arrow names {name!r}, which is not a box; {nearest(name, boxes)}")
        parts += _arrow(arrow, at, half, wide)
    for name, box in boxes.items():
        (x, y), (across, down) = at[name], half[name]
        if box.kind == "sum":
            parts.append(f'<circle class="sum" cx="{x:.1f}" cy="{y:.1f}" r="13"/>')
        else:
            frame = f'x="{x - across:.1f}" y="{y - down:.1f}" width="{2 * across:.1f}" height="{2 * down:.1f}"'
            parts.append(f'<rect class="{box.kind}" {frame} rx="6"/>')
        parts.append(label(box.text, x, y + 4.5, "name" if box.kind in ("main", "sum") else "piece", "middle"))
    size = max(x for x, _ in at.values()) + wide / 2 + right, top * pitch + high
    described = "; ".join(f"{boxes[a.start].text} → {boxes[a.end].text}" for a in arrows)
    return figure(title, [note], size, parts, described, STYLE)


def _arrow(
    arrow: Arrow, at: dict[str, tuple[float, float]], half: dict[str, tuple[float, float]], wide: float
) -> list[str]:
    (x, y), (u, v) = at[arrow.start], at[arrow.end]
    (a, b), (c, d) = half[arrow.start], half[arrow.end]
    if arrow.way != "straight":  # out above the first box, around, and into the side of the second
        sign = -1 if arrow.way == "left" else 1
        lane, begin = x + sign * (wide / 2 + 16), y - b - 9
        end = u + sign * c
        path = f"M{x:.1f} {begin:.1f}H{lane:.1f}V{v:.1f}H{end:.1f}"
        tip, spot = (end, v, sign, 0), (lane + sign * 6, (begin + v) / 2)
    elif abs(y - v) < 1:  # side by side
        sign = 1 if u > x else -1
        path = f"M{x + sign * a:.1f} {y:.1f}H{u - sign * c:.1f}"
        tip, spot = (u - sign * c, v, -sign, 0), ((x + sign * a + u - sign * c) / 2, y - 7)
    elif abs(x - u) < 1:
        sign = 1 if v < y else -1
        path = f"M{x:.1f} {y - sign * b:.1f}V{v + sign * d:.1f}"
        tip, spot = (u, v + sign * d, 0, sign), (x + 8, (y + v) / 2 + 4)
    else:  # from the side of the first, then up and into the side of the second
        sign = 1 if u > x else -1
        middle = u - sign * (wide / 2 + 24)
        path = f"M{x + sign * a:.1f} {y:.1f}H{middle:.1f}V{v:.1f}H{u - sign * c:.1f}"
        tip, spot = (u - sign * c, v, -sign, 0), (middle + 6, (y + v) / 2)
    px, py, dx, dy = tip
    wing = f"M{px:.1f} {py:.1f}l{7 * dx - 4 * dy:.1f} {7 * dy + 4 * dx:.1f}l{8 * dy:.1f} {-8 * dx:.1f}z"
    parts = [f'<path class="arrow" d="{path}"/>', f'<path class="tip" d="{wing}"/>']
    anchor = "end" if arrow.way == "left" else "middle" if "H" in path and "V" not in path else "start"
    return parts + ([label(arrow.text, *spot, "small", anchor)] if arrow.text else [])
