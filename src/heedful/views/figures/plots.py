"""Points, lines and bars: embeddings, functions such as GELU, named numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.views.curve import ticks
from heedful.views.figures.cells import Values, array, checked_names, figure, formatted, plain, widest
from heedful.views.svg import label, titled
from heedful.views.text import escaped, shortened, visible, width

POINTS, BARS, LINES = 2000, 80, 6
WIDE, HIGH = 560, 400
DASHES = ("", "7 4", "2 4", "10 3 2 3", "1 3", "14 5")
NAME_OFFSETS = (  # positions of a name beside its point, in order of preference: dx, dy, anchor
    (8, 4, "start"),
    (-8, 4, "end"),
    (0, -9, "middle"),
    (0, 17, "middle"),
    (7, -6, "start"),
    (7, 14, "start"),
)

STYLE = """
.grid{stroke:#e3dfd7}.run{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}
.s0{stroke:#3a3fb0}.s1{stroke:#b3461f}.s2{stroke:#0d7a5f}.s3{stroke:#6b665e}.s4{stroke:#8a2f7c}.s5{stroke:#22201d}
.f0{fill:#3a3fb0}.f1{fill:#b3461f}.f2{fill:#0d7a5f}.f3{fill:#6b665e}.f4{fill:#8a2f7c}.f5{fill:#22201d}
@media(prefers-color-scheme:dark){.grid{stroke:#2c2e35}
.s0{stroke:#ffc35c}.s1{stroke:#ff8f6b}.s2{stroke:#6fd3b4}.s3{stroke:#a09c94}.s4{stroke:#e59ad8}.s5{stroke:#ecebe7}
.f0{fill:#ffc35c}.f1{fill:#ff8f6b}.f2{fill:#6fd3b4}.f3{fill:#a09c94}.f4{fill:#e59ad8}.f5{fill:#ecebe7}}
"""


def scatter(
    points: Any,
    labels: Sequence[str],
    title: str = "",
    *,
    groups: Sequence[str] | None = None,
    axes: tuple[str, str] = ("", ""),
    note: str = "",
) -> str:
    """Returns named points, both axes on one scale, so that distances are comparable.

    Names do not overlap; a point without room for its name shows it as a title only, and the figure says how many.

    Args:
        points: (N, 2), finite.
        labels: names of the N points.
        title: the heading.
        groups: the group of each point; there may be six groups, which differ by the mark's shape as well as by colour.
        axes: names of the axes x and y, such as "first component, 43 %".
        note: a line below the title.

    Raises:
        HeedfulError: other shapes, over 2,000 points, or over six groups.
    """
    spots, names = array(points, "N2", "points"), checked_names(labels, len(points), "points")
    if spots.shape[1] != 2 or len(spots) > POINTS:
        raise HeedfulError(
            f"cannot draw points of shape {spots.shape}; give at most {POINTS:,} points of two numbers each"
        )
    kinds = list(dict.fromkeys(groups or [""]))
    if len(kinds) > LINES or (groups is not None and len(groups) != len(names)):
        raise HeedfulError(
            f"{len(groups or [])} groups, {len(kinds)} of them different, do not fit {len(names)} points; give one "
            f"group per point, at most {LINES} different"
        )
    low, high = spots.min(axis=0), spots.max(axis=0)
    unit = min(WIDE / ((high - low)[0] or 1e-9), HIGH / ((high - low)[1] or 1e-9)) if np.any(high > low) else 1.0
    span = np.maximum((high - low) * unit, 60.0)
    at = (spots - (low + high) / 2) * (unit, -unit) + span / 2 + (40, 24)
    wide, tall = span[0] + 80, span[1] + 48
    parts = [f'<rect class="axis" x="0" y="0" width="{wide:.1f}" height="{tall:.1f}" rx="4"/>']
    name_labels = _name_labels(at, names, (wide, tall))
    for i, ((x, y), name) in enumerate(zip(at, names, strict=True)):
        style = kinds.index(groups[i]) if groups else 0
        part = mark(style, x, y) + name_labels[i]
        parts.append(titled(f"{name}: {formatted(spots[i, 0], 3)}, {formatted(spots[i, 1], 3)}", part))
    if groups:
        x = 0.0
        for style, kind in enumerate(kinds):
            parts += [mark(style, x + 5, tall + 38), label(kind, x + 14, tall + 42, "piece")]
            x += 34 + width(visible(kind), 13)
    parts.append(label(axes[0], wide / 2, tall + 16, "small", "middle") if axes[0] else "")
    parts.append(
        label(axes[1], -8, tall / 2, "small", "middle", f' transform="rotate(-90 -8 {tall / 2:.1f})"')
        if axes[1]
        else ""
    )
    hidden = name_labels.count("")
    left_out = f"{hidden} of {len(names)} points have no room for their names" if hidden else ""
    size_all = max(wide, x if groups else 0.0), tall + (54 if groups else 24 if axes[0] else 4)
    return figure(title, [note, left_out], size_all, parts, f"{len(names)} points", STYLE + ".point{font-size:12px}")


def _name_labels(points: Values, names: Sequence[str], size: tuple[float, float]) -> list[str]:
    """Returns a label for each point (N, 2) that overlaps no other point or label within ``size``, or ""."""
    boxes = [(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    labels = []
    for i, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        short = shortened(name, 140, 12)
        wide, text = width(short, 12), ""
        for dx, dy, anchor in NAME_OFFSETS:
            left = x + dx - (0 if anchor == "start" else wide if anchor == "end" else wide / 2)
            box = (left, y + dy - 10, left + wide, y + dy + 3)
            is_inside = box[0] > 3 and box[2] < size[0] - 3 and box[1] > 3 and box[3] < size[1] - 3
            if is_inside and not any(_overlap(box, other) for j, other in enumerate(boxes) if j != i):
                text = label(short, x + dx, y + dy, "point", anchor)
                boxes.append(box)
                break
        labels.append(text)
    return labels


def _overlap(box: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def mark(style: int, x: float, y: float) -> str:
    """Returns the SVG part of a point's mark: ``style`` 0 to 5 is circle, square, diamond, triangle, ring or cross."""
    shapes = (
        f'<circle class="f{style}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>',
        f'<rect class="f{style}" x="{x - 3.7:.1f}" y="{y - 3.7:.1f}" width="7.4" height="7.4"/>',
        f'<path class="f{style}" d="M{x:.1f} {y - 5.2:.1f}l5.2 5.2-5.2 5.2-5.2-5.2z"/>',
        f'<path class="f{style}" d="M{x:.1f} {y - 5:.1f}l5 9h-10z"/>',
        f'<circle class="s{style}" cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="none" stroke-width="2"/>',
        f'<path class="s{style}" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8" stroke-width="2"/>',
    )
    return shapes[style]


def functions(xs: Any, ys: Mapping[str, Any], title: str = "", *, x_label: str = "x", note: str = "") -> str:
    """Returns up to six named functions of the same x with a legend; they differ by dash as well as by colour.

    Args:
        xs: (N,), increasing.
        ys: names and their (N,) values, such as ``{"ReLU": ..., "GELU": ...}``.
        title: the heading.
        x_label: name of x.
        note: a line below the title.

    Raises:
        HeedfulError: no function or over six, other lengths, values that are not finite, or x that does not increase.
    """
    across = array(xs, "N", "x")
    if not 1 <= len(ys) <= LINES:
        raise HeedfulError(f"{len(ys)} functions in one figure; give one to {LINES}")
    lines = {visible(name): array(values, "N", f"values of {name}") for name, values in ys.items()}
    other = next((len(values) for values in lines.values() if values.shape != across.shape), None)
    if other is not None or len(across) < 2 or (np.diff(across) <= 0).any():
        count = len(across) if other is None else other
        raise HeedfulError(
            f"{len(across)} values of x and {count} of y cannot be drawn; give the same number of each, at least 2, "
            "with x increasing"
        )
    y_ticks = ticks(float(min(v.min() for v in lines.values())), float(max(v.max() for v in lines.values())))
    x_ticks = [t for t in ticks(float(across[0]), float(across[-1])) if across[0] <= t <= across[-1]]
    left, high = 12 + max(width(plain(t), 13) for t in y_ticks), 280

    def at(x: float, y: float) -> tuple[float, float]:
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return left + WIDE * (x - across[0]) / (across[-1] - across[0]), 8 + high * (1 - up)

    parts = []
    for t in y_ticks:
        y = at(0, t)[1]
        parts.append(f'<path class="{"axis" if t == 0 else "grid"}" d="M{left:.1f} {y:.1f}h{WIDE}"/>')
        parts.append(label(plain(t), left - 8, y + 4, "quiet", "end"))
    for t in x_ticks:
        x = at(t, 0)[0]
        parts.append(f'<path class="{"axis" if t == 0 else "grid"}" d="M{x:.1f} 8v{high}"/>')
        parts.append(label(plain(t), x, high + 27, "quiet", "middle"))
    for style, (name, values) in enumerate(lines.items()):
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*p) for p in zip(across, values, strict=True)))
        dash = f' stroke-dasharray="{DASHES[style]}"' if DASHES[style] else ""
        parts.append(f'<path class="run s{style}"{dash} d="{path}"><title>{escaped(name)}</title></path>')
        y = 20 + 24 * style
        parts.append(f'<path class="run s{style}"{dash} d="M{left + WIDE + 20:.1f} {y}h34"/>')
        parts.append(label(name, left + WIDE + 62, y + 4.5, f"name f{style}"))
    parts.append(label(x_label, left + WIDE / 2, high + 46, "quiet", "middle"))
    size = left + WIDE + 62 + max(width(name, 13, bold=True) for name in lines), high + 52
    ranges = "; ".join(f"{name}: {formatted(v.min(), 3)} to {formatted(v.max(), 3)}" for name, v in lines.items())
    return figure(title, [note], size, parts, ranges, STYLE)


def bars(names: Sequence[str], values: Any, title: str = "", *, note: str = "") -> str:
    """Returns named numbers as bars from zero, each with its number; negative bars have another colour.

    Raises:
        HeedfulError: lengths that do not fit, values that are not finite, or over 80 bars.

    >>> "0.25" in bars(["head 0", "head 1"], [0.25, -0.5], "t")
    True
    """
    numbers = array(values, "N", "values")
    shown = checked_names(names, len(numbers), "values")
    if len(shown) > BARS:
        raise HeedfulError(f"{len(shown)} bars in one figure are not readable; draw the largest {BARS}")
    low, high = min(0.0, float(numbers.min())), max(0.0, float(numbers.max()))
    unit = 360 / ((high - low) or 1.0)
    left = widest(shown) + 12 + (max(width(plain(v), 11) for v in numbers) + 8 if low < 0 else 0)
    zero = left - low * unit
    parts = [f'<path class="axis" d="M{zero:.1f} 0v{24 * len(shown)}"/>']
    for i, (name, value) in enumerate(zip(shown, numbers, strict=True)):
        y, wide = 24 * i + 3, abs(value) * unit
        x, kind = (zero, "cell") if value >= 0 else (zero - wide, "minus")
        parts.append(label(shortened(name, 160, 13), widest(shown), y + 13.5, "piece", "end"))
        parts.append(f'<rect class="{kind}" x="{x:.2f}" y="{y}" width="{wide:.2f}" height="18" rx="2"/>')
        end, anchor = (x - 6, "end") if value < 0 else (x + wide + 6, "start")
        parts.append(label(plain(value), end, y + 13, "number", anchor))
    size = left + 360 + max(width(plain(v), 11) for v in numbers) + 8, 24 * len(shown)
    return figure(title, [note], size, parts, _listed(zip(shown, numbers, strict=True)))


def _listed(pairs: Iterable[tuple[str, float]]) -> str:
    return "; ".join(f"{name} {formatted(float(value), 3)}" for name, value in pairs)
