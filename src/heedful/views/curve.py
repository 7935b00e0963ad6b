"""Curves as SVG: the loss curve of a run, readable in light, in dark and without colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from heedful.errors import HeedfulError
from heedful.metrics.registry import label_of, most_telling
from heedful.views.svg import document, label
from heedful.views.text import width

Point = tuple[float, float]
Line = tuple[str, int, Sequence[Point]]  # name, style (0 to 3), points
Scale = Literal["linear", "log"]

MAX_POINTS = 400  # points of a line; more are averaged in groups, and their range is drawn as a pale band
WIDE, HIGH = 560, 250  # pixels of a panel
LEFT, TOP, GAP = 76, 84, 66

STYLE = """
.grid{stroke:#e3dfd7}.axis{stroke:#8d877d}.name{font-weight:600}
.run{fill:none;stroke-width:2;stroke-linejoin:round}.band{opacity:.16}
.s0{stroke:#6b665e}.f0{fill:#6b665e}.s1{stroke:#3a3fb0;stroke-dasharray:7 4}.f1{fill:#3a3fb0}
.s2{stroke:#b3461f;stroke-dasharray:2 4;stroke-linecap:round}.f2{fill:#b3461f}.s3{stroke:#0d7a5f}.f3{fill:#0d7a5f}
@media(prefers-color-scheme:dark){.grid{stroke:#2c2e35}.axis{stroke:#77736b}
.s0{stroke:#a09c94}.f0{fill:#a09c94}.s1{stroke:#ffc35c}.f1{fill:#ffc35c}
.s2{stroke:#ff8f6b}.f2{fill:#ff8f6b}.s3{stroke:#6fd3b4}.f3{fill:#6fd3b4}}
"""
MARKS = ("", "circle", "square", "diamond")  # by style; marks and dashes tell lines apart without colour


def loss_curve(points: Iterable[Mapping[str, float]], title: str, *, metric: str | None = None) -> str:
    """Returns the loss curve of a run from the lines of its ``metrics.jsonl``, as SVG.

    The upper panel has ``loss`` (training) and ``valid_loss`` against ``step``, on a logarithmic axis if the largest
    loss is over 20 times the smallest. The lower panel has a validation metric, if there is one.

    Args:
        points: mappings with ``"step"`` and any of ``"loss"``, ``"valid_loss"``, ``"valid_..."``.
        title: the heading.
        metric: the key of the lower panel, such as ``"valid_bleu"``; by default the key that ``chief`` returns.

    Raises:
        HeedfulError: no point has a loss, or the metric.
    """
    rows = list(points)
    metric = metric or chief(rows)
    lines: list[Line] = [("training", 0, _column(rows, "loss")), ("validation", 1, _column(rows, "valid_loss"))]
    parts = [("loss", _scale(lines), lines)]
    if metric is not None:
        lines = [("validation", 1, _column(rows, metric))]
        scale = _scale(lines) if metric == "valid_perplexity" else "linear"
        parts.append((label_of(metric.removeprefix("valid_")), scale, lines))
    return _panels(parts, title, "step")


def chief(points: Iterable[Mapping[str, float]]) -> str | None:
    """Returns the key of a run's most telling validation metric, such as "valid_bleu"; None if there is none.

    ``valid_loss`` does not count as a metric, nor does a metric without a finite value.
    """
    keys = {
        key: None
        for row in points
        for key, value in row.items()
        if key.startswith("valid_") and key != "valid_loss" and value is not None and math.isfinite(value)
    }
    name = most_telling(key.removeprefix("valid_") for key in keys)
    return None if name is None else f"valid_{name}"


def _scale(lines: Sequence[Line]) -> Scale:
    values = [y for *_, line in lines for x, y in line if _finite((x, y))]
    return "log" if values and 0 < 20 * min(values) < max(values) else "linear"


def _column(rows: Sequence[Mapping[str, float]], key: str) -> list[Point]:
    return [(float(row["step"]), float(row[key])) for row in rows if row.get(key) is not None]


def curve(
    series: Mapping[str, Sequence[Point]], *, title: str, x_label: str, y_label: str, y_scale: Scale = "linear"
) -> str:
    """Returns up to four named lines of (x, y) in one panel, as SVG; a line ends with its name and last value.

    Lines differ by dash and mark as well as by colour. Values that are not finite (on a logarithmic axis: not positive)
    leave a gap. A linear y axis begins at zero if the values come near it. A line of more than 400 points is drawn as
    the averages of groups of neighbours, with their range as a pale band, so that the file stays small.

    Raises:
        HeedfulError: more than four lines, or no point that can be drawn.
    """
    if len(series) > len(MARKS):
        raise HeedfulError(f"{len(series)} lines in one figure cannot be distinguished; give at most {len(MARKS)}")
    lines = [(name, i, line) for i, (name, line) in enumerate(series.items())]
    return _panels([(y_label, y_scale, lines)], title, x_label)


def _panels(panels: Sequence[tuple[str, Scale, list[Line]]], title: str, x_label: str) -> str:
    """Returns panels below each other with the same x axis."""
    steps = [x for _, _, lines in panels for *_, line in lines for x, y in line if _finite((x, y))]
    ends = [(name, _end(name, line)) for _, _, lines in panels for name, _, line in lines]
    parts = []
    for i, (name, scale, lines) in enumerate(panels):
        floor = 0.0 if scale == "log" else -math.inf
        drawable: list[Line] = [
            (who, style, [p if p[1] > floor else (p[0], math.nan) for p in line]) for who, style, line in lines
        ]
        if not any(_finite(p) for *_, line in drawable for p in line):
            raise HeedfulError(
                f"nothing to draw for {name!r} in {title!r}: no point has a finite value; give at least one"
            )
        parts += _panel(drawable, name, scale, (min(steps), max(steps)), TOP + i * (HIGH + GAP))
    bottom = TOP + len(panels) * (HIGH + GAP)
    right = LEFT + WIDE + 36 + max(width(end, 13, bold=True) for _, end in ends)
    parts.append(label(x_label, LEFT + WIDE / 2, bottom - 22, "quiet", "middle"))
    return document((right, bottom), title, "Last values: " + "; ".join(end for _, end in ends), STYLE, parts)


def _panel(lines: list[Line], name: str, scale: Scale, x_range: Point, top: float) -> list[str]:
    values = [y for *_, line in lines for x, y in line if _finite((x, y))]
    low, high = min(values), max(values)
    y_ticks = log_ticks(low, high) if scale == "log" else ticks(0.0 if 0 < low < 0.4 * high else low, high)
    unit: Callable[[float], float] = math.log10 if scale == "log" else float
    x_low, x_high = x_range
    x_low = 0.0 if 0 < x_low < 0.2 * x_high or 0 < x_low == x_high else x_low
    x_high = x_high if x_high > x_low else x_low + 1

    def at(point: Point) -> Point:
        up = (unit(point[1]) - unit(y_ticks[0])) / (unit(y_ticks[-1]) - unit(y_ticks[0]))
        return LEFT + WIDE * (point[0] - x_low) / (x_high - x_low), top + HIGH * (1 - up)

    floor = top + HIGH
    parts = [label(name + (", log scale" if scale == "log" else ""), 24, top - 16, "name")]
    for tick in y_ticks:
        y = at((x_low, tick))[1]
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}h{WIDE}"/>')
        parts.append(label(_number(tick), LEFT - 8, y + 4, "quiet", "end"))
    parts.append(f'<path class="axis" d="M{LEFT} {floor}h{WIDE}"/>')
    for tick in ticks(x_low, x_high):
        if x_low <= tick <= x_high:
            x = at((tick, y_ticks[0]))[0]
            parts.append(f'<path class="axis" d="M{x:.1f} {floor}v5"/>')
            parts.append(label(_number(tick), x, floor + 20, "quiet", "middle"))

    ends: list[tuple[float, float, int, str]] = []
    for who, style, line in lines:
        runs, band = thinned(line)
        if band:
            edge = [(x, up) for x, _, up in band] + [(x, down) for x, down, _ in reversed(band)]
            parts.append(f'<path class="band f{style}" d="{_path(map(at, edge))}Z"/>')
        parts += [f'<path class="run s{style}" d="{_path(map(at, run))}"/>' for run in runs]
        drawn = [at(p) for run in runs for p in run]
        if MARKS[style] or len(drawn) == 1:
            parts += [_mark(style, *p) for p in drawn[:: -max(1, len(drawn) // 12)]]
        if drawn:
            ends.append((drawn[-1][1], drawn[-1][0], style, _end(who, line)))
    return parts + _names(sorted(ends), floor)


def _names(ends: list[tuple[float, float, int, str]], floor: float) -> list[str]:
    """Returns the names at the ends of the lines; names that would overlap, or leave the panel, are moved up."""
    parts, limit = [], floor - 4
    for y, x, style, text in reversed(ends):
        limit = min(y, limit)
        parts.append(label(text, x + 12, limit + 4, f"name f{style}"))
        limit -= 17
    return parts


def thinned(line: Sequence[Point]) -> tuple[list[list[Point]], list[tuple[float, float, float]]]:
    """Averages a line of many points in groups of neighbours, and splits it at gaps.

    Returns the unbroken runs of finite points, and (x, lowest, highest) of each group, [] if nothing was averaged.
    """
    size = max(1, math.ceil(len(line) / MAX_POINTS))
    runs: list[list[Point]] = [[]]
    band = []
    for start in range(0, len(line), size):
        group = [p for p in line[start : start + size] if _finite(p)]
        if not group:
            runs.append([])
            continue
        x = sum(x for x, _ in group) / len(group)
        runs[-1].append((x, sum(y for _, y in group) / len(group)))
        band.append((x, min(y for _, y in group), max(y for _, y in group)))
    return [run for run in runs if run], band if size > 1 else []


def ticks(low: float, high: float) -> list[float]:
    """Returns at most eight round numbers, 1, 2 or 5 times a power of ten apart, that enclose ``low`` and ``high``."""
    span = high - low or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / 6))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if span / (power * factor) <= 6 + 1e-9)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Returns ticks of a logarithmic axis that enclose ``low`` and ``high``: 1, 2 and 5 times powers of ten.

    For more than three decades these are the powers alone.
    """
    factors = (1, 2, 5) if high / low < 1000 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [factor * 10.0**power for power in powers for factor in factors]
    first = max(i for i, mark in enumerate(marks) if mark <= low * (1 + 1e-9))
    last = min(i for i, mark in enumerate(marks) if mark >= high * (1 - 1e-9))
    return marks[first : max(last, first + 1) + 1]


def _finite(point: Point) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def _end(name: str, line: Sequence[Point]) -> str:
    """Returns the label at the end of a line: its name and its last finite value."""
    last = [y for x, y in line if _finite((x, y))][-1:]
    return " ".join([name, *(f"{y:.4g}" if abs(y) < 1000 else f"{y:,.0f}" for y in last)])


def _path(points: Iterable[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _mark(style: int, x: float, y: float) -> str:
    if MARKS[style] == "square":
        return f'<rect class="f{style}" x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7"/>'
    if MARKS[style] == "diamond":
        return f'<path class="f{style}" d="M{x:.1f} {y - 5:.1f}l5 5-5 5-5-5z"/>'
    return f'<circle class="f{style}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
