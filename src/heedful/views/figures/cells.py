"""Shared parts of figures: frame with notes, shaded cells, their numbers, names of rows and columns.

A figure is drawn from (0, 0) in its own coordinates; ``figure`` places it below title and notes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.errors import HeedfulError
from heedful.views.svg import EDGE, SPARE, document, ink, label, titled, width_for
from heedful.views.text import shortened, visible, width

Values = NDArray[np.float64]

WIDE = 460  # width to wrap notes at if the figure is narrower
LEVELS = 100  # shades
SIZE = 13  # of names, in pixels

STYLE = """
.chip{fill:#f0eee8}.cell{fill:#3a3fb0}.minus{fill:#b3461f}.deep{fill:#fff}
.number{font-size:11px;font-variant-numeric:tabular-nums}.small{font-size:11px;fill:#6b665e}.name{font-weight:600}
.axis{stroke:#8d877d;fill:none}.frame{stroke:#22201d;fill:none;stroke-width:1.5}
@media(prefers-color-scheme:dark){.chip{fill:#22242b}.cell{fill:#ffc35c}.minus{fill:#ff8f6b}.deep,.half{fill:#16171b}
.small{fill:#a09c94}.axis{stroke:#77736b}.frame{stroke:#ecebe7}}
"""


def array(data: Any, dims: str, name: str) -> Values:
    """Returns ``data`` (an array, nested lists, a tensor) as float64, with one axis for each letter of ``dims``.

    Raises ``HeedfulError`` for another number of axes, an empty axis, or values that are not finite.
    """
    if hasattr(data, "detach"):  # a tensor: numpy supports neither other devices nor bfloat16
        data = data.detach().cpu().double()
    values = np.asarray(data, dtype=np.float64)
    if values.ndim != len(dims) or not values.size:
        raise HeedfulError(f"cannot draw {name} of shape {values.shape}; give {len(dims)} axes: ({', '.join(dims)})")
    if not np.isfinite(values).all():
        raise HeedfulError(f"{name}: a value is not finite; leave the value out, or give a finite value")
    return values


def checked_names(names: Sequence[Any], count: int, kind: str) -> list[str]:
    """Returns ``names`` without control characters; raises ``HeedfulError`` unless their number is ``count``."""
    if len(names) != count:
        raise HeedfulError(f"{len(names)} names for {count} {kind}; give one name for each")
    return [visible(str(name)) for name in names]


def figure(
    title: str,
    notes: Iterable[str],
    size: tuple[float, float],
    parts: Iterable[str],
    described: str,
    style: str = "",
) -> str:
    """Returns a figure as SVG: the title, the notes in lines, and the ``parts``, which fill ``size`` (width, height).

    ``described`` is the description that screen readers read.
    """
    wide = max(size[0], width_for(title, 17, bold=True) - 2 * EDGE)
    lines = [line for note in notes if note for line in wrapped(note, max(wide, WIDE))]
    top = 54 + 19 * len(lines) + (6 if lines else 0)
    wide = max([wide, *(SPARE * width(line, SIZE) for line in lines)])
    head = [label(line, EDGE, 57 + 19 * i, "quiet") for i, line in enumerate(lines)]
    body = f'<g transform="translate({EDGE} {top})">\n' + "\n".join(parts) + "\n</g>"
    description = ". ".join(part.rstrip(".") for part in (*lines, described) if part)
    return document((wide + 2 * EDGE, top + size[1] + EDGE), title, description, STYLE + style, [*head, body])


def wrapped(text: str, wide: float) -> list[str]:
    """Returns ``text`` in lines of at most ``wide`` pixels, broken between words."""
    lines: list[str] = []
    for word in text.split():
        if lines and SPARE * width(f"{lines[-1]} {word}", SIZE) <= wide:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def shaded(
    shares: Values,
    at: tuple[float, float],
    side: tuple[float, float],
    *,
    gap: float = 1.0,
    kind: str = "cell",
    levels: int = LEVELS,
    inset: float = 0.0,
    chips: bool = True,
) -> list[str]:
    """Returns the SVG parts of cells whose opacity is their share, rounded to ``levels`` steps.

    ``shares`` is (R, C); the first cell is ``at`` (x, y), and ``side`` is the (width, height) of a cell.

    All cells of one shade are one path, so that even 10,000 cells are a small file. ``chips`` draws a box below each
    cell, which is visible if the share is 0. ``inset`` shrinks a cell by this share on each side.
    """
    rows, columns = shares.shape
    (x, y), (wide, high) = at, side
    tall, broad = high - gap, wide - gap
    parts = []
    if chips and gap:
        boxes = "".join(
            _box(x + c * wide + gap / 2, y + r * high + gap / 2, broad, tall)
            for r in range(rows)
            for c in range(columns)
        )
        parts.append(f'<path class="chip" d="{boxes}"/>')
    elif chips:
        parts.append(f'<path class="chip" d="{_box(x, y, columns * wide, rows * high)}"/>')
    steps = np.rint(shares.clip(0, 1) * levels).astype(int)
    across, down = inset * wide + gap / 2, inset * high + gap / 2
    for level in np.unique(steps[steps > 0]):
        path = "".join(
            _box(x + c * wide + across, y + r * high + down, run * wide - 2 * across, high - 2 * down)
            for r, c, run in _runs(steps == level, joined=not gap and not inset)
        )
        parts.append(f'<path class="{kind}" fill-opacity="{level / levels:g}" d="{path}"/>')
    return ['<g shape-rendering="crispEdges">', *parts, "</g>"]


def _runs(cells: NDArray[np.bool_], joined: bool) -> Iterable[tuple[int, int, int]]:
    """Yields (row, column, length) of runs of True cells in a row if ``joined``, else of each cell."""
    for r, c in np.argwhere(cells):
        if not joined:
            yield int(r), int(c), 1
        elif c == 0 or not cells[r, c - 1]:
            ends = np.flatnonzero(~cells[r, c:])
            yield int(r), int(c), int(ends[0]) if ends.size else cells.shape[1] - int(c)


def _box(x: float, y: float, wide: float, high: float) -> str:
    return f"M{_short(x)} {_short(y)}h{_short(wide)}v{_short(high)}h{_short(-wide)}z"


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def number(text: str, share: float, x: float, y: float, negative: bool = False) -> str:
    """Returns the SVG part of a number centred at (x, y), whose colour contrasts with a shade of ``share``."""
    return label(text, x, y + 4, "number" + ink(share, negative), "middle")


def down(names: Sequence[str], x: float, tops: Sequence[float], most: float = 160) -> list[str]:
    """Returns the SVG parts of row names that end at ``x`` and are centred at the heights ``tops``.

    A name wider than ``most`` pixels is cut; its title is complete.
    """
    return [_named(name, most, x, y + 4.5, "end") for name, y in zip(names, tops, strict=True)]


def along(names: Sequence[str], middles: Sequence[float], y: float, step: float, most: float = 160) -> list[str]:
    """Returns the SVG parts of column names above ``y``.

    They are horizontal if they fit into ``step`` pixels, else rotated by 45 degrees.
    """
    if level(names, step):
        return [_named(name, most, x, y - 6, "middle") for name, x in zip(names, middles, strict=True)]
    return [
        _named(name, most, x + 4, y - 7, "start", f' transform="rotate(-45 {x + 4:.1f} {y - 7:.1f})"')
        for name, x in zip(names, middles, strict=True)
    ]


def level(names: Sequence[str], step: float) -> bool:
    """Returns True if the names of columns fit into ``step`` pixels each without rotation."""
    return all(width(name, SIZE) <= step - 5 for name in names)


def rise(names: Sequence[str], step: float, most: float = 160) -> float:
    """Returns the height of column names in pixels, rotated or not."""
    return 20.0 if level(names, step) else 18 + 0.71 * max(width(shortened(name, most, SIZE), SIZE) for name in names)


def overhang(names: Sequence[str], middles: Sequence[float], step: float, most: float = 160) -> float:
    """Returns the position x at which rotated column names end; 0 if they are not rotated."""
    if level(names, step):
        return 0.0
    return max(x + 8 + 0.71 * width(shortened(name, most, SIZE), SIZE) for name, x in zip(names, middles, strict=True))


def _named(name: str, most: float, x: float, y: float, anchor: str, more: str = "") -> str:
    short = shortened(name, most, SIZE)
    part = label(short, x, y, "piece", anchor, more)
    return part if short == name else titled(name, part)


def widest(names: Sequence[str], most: float = 160) -> float:
    """Returns the width in pixels of the widest of the names, which are cut to ``most`` pixels."""
    return max(width(shortened(name, most, SIZE), SIZE) for name in names)


def scale(low: str, high: str, x: float, y: float, kind: str = "cell", wide: float = 120) -> list[str]:
    """Returns the SVG parts of a legend: the shades from 0 to 1, with the texts ``low`` and ``high`` at their ends."""
    x += width(low, 11) + 7
    steps = (np.arange(10) + 1)[None] / 10
    return [
        label(low, x - 7, y + 9, "small", "end"),
        *shaded(steps, (x, y), (wide / 10, 11), gap=0, kind=kind),
        label(high, x + wide + 7, y + 9, "small"),
    ]


def formatted(value: float, digits: int = 2) -> str:
    """Returns a number with ``digits`` significant digits, a true minus sign and no ``-0``.

    >>> formatted(-0.0123), formatted(12345.6), formatted(0.0), formatted(0.98765, 3), formatted(2.4e-9)
    ('−0.012', '12,346', '0', '0.988', '2.4e−9')
    """
    if value == 0:
        return "0"
    size = abs(value)
    if 1e-4 <= size < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(size)))
        text = f"{size:,.{places}f}"
        text = text.rstrip("0").rstrip(".") if "." in text and float(text.replace(",", "")) >= 10 else text
    else:
        mantissa, power = f"{size:.{digits - 1}e}".split("e")
        text = f"{mantissa}e{int(power)}".replace("-", "−")
    return ("−" if value < 0 else "") + text


def plain(value: float, digits: int = 3) -> str:
    """Returns a number as ``formatted`` does, without trailing zeros: for ticks, bars and legends.

    >>> plain(0.3), plain(-2.0), plain(0.125)
    ('0.3', '−2', '0.125')
    """
    text = formatted(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
