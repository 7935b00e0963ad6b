"""Shared parts of figures: frame with notes, shaded cells, their numbers, names of rows and columns.

A figure is drawn from (0, 0) in its own coordinates; ``figure`` puts it under the title and the notes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.errors import HeedfulError
from heedful.views.svg import document, ink, label, titled
from heedful.views.text import cut, visible, width

Values = NDArray[np.float64]

EDGE = 24  # free around everything
WIDE = 460  # notes are broken at this width where the figure itself is narrower
SPARE = 1.08  # of lines of text: some sans-serif fonts are wider than ``width`` takes them to be
LEVELS = 100  # shades
SIZE = 13  # of names, in pixels

STYLE = """
.chip{fill:#f0eee8}.cell{fill:#3a3fb0}.minus{fill:#b3461f}.deep{fill:#fff}
.number{font-size:11px;font-variant-numeric:tabular-nums}.small{font-size:11px;fill:#6b665e}.name{font-weight:600}
.axis{stroke:#8d877d;fill:none}.frame{stroke:#22201d;fill:none;stroke-width:1.5}
@media(prefers-color-scheme:dark){.chip{fill:#22242b}.cell{fill:#ffc35c}.minus{fill:#ff8f6b}.deep,.half{fill:#16171b}
.small{fill:#a09c94}.axis{stroke:#77736b}.frame{stroke:#ecebe7}}
"""


def array(given: Any, dims: str, what: str) -> Values:
    """``given`` (an array, nested lists, a tensor) as float64 with one axis a letter of ``dims``, all finite.

    Raises ``HeedfulError`` for another number of axes, an empty one, or values that are not finite.
    """
    if hasattr(given, "detach"):  # a tensor: numpy knows neither other devices nor bfloat16
        given = given.detach().cpu().double()
    values = np.asarray(given, dtype=np.float64)
    if values.ndim != len(dims) or not values.size:
        raise HeedfulError(f"{what} of shape {values.shape}; give ({', '.join(dims)})")
    if not np.isfinite(values).all():
        raise HeedfulError(f"{what} with a value that is not finite; leave it out, or draw it before it overflows")
    return values


def count(names: Sequence[Any], wanted: int, what: str) -> list[str]:
    """``names`` as they are shown; ``HeedfulError`` where there are not ``wanted`` of them."""
    if len(names) != wanted:
        raise HeedfulError(f"{len(names)} names for {wanted} {what}; give one each")
    return [visible(str(name)) for name in names]


def figure(
    title: str,
    notes: Iterable[str],
    size: tuple[float, float],
    parts: Iterable[str],
    described: str,
    style: str = "",
) -> str:
    """A whole SVG: the title, the notes (broken into lines), and the parts, which fill ``size`` (width, height)."""
    wide = max(size[0], width(title, 17, bold=True))
    lines = [line for note in notes if note for line in broken(note, max(wide, WIDE))]
    top = 54 + 19 * len(lines) + (6 if lines else 0)
    wide = max([wide, *(SPARE * width(line, SIZE) for line in lines)])
    head = [label(line, EDGE, 57 + 19 * i, "quiet") for i, line in enumerate(lines)]
    body = f'<g transform="translate({EDGE} {top})">\n' + "\n".join(parts) + "\n</g>"
    told = ". ".join(part.rstrip(".") for part in (*lines, described) if part)
    return document((wide + 2 * EDGE, top + size[1] + EDGE), title, told, STYLE + style, [*head, body])


def broken(text: str, wide: float) -> list[str]:
    """``text`` in lines of at most ``wide`` pixels, broken between words."""
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
    """Cells (R, C) of ``side`` (width, height) whose opacity is their share, to the nearest of ``levels`` steps.

    All cells of one shade are one path, so that even 10,000 are a small file. They stand on empty boxes (``chips``),
    which are seen where the share is nothing. ``inset`` makes a cell smaller on each side, by this part of it.
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
    """(row, column, length) of neighbours in a row that are drawn as one, or of each cell alone."""
    for r, c in np.argwhere(cells):
        if not joined:
            yield int(r), int(c), 1
        elif c == 0 or not cells[r, c - 1]:
            rest = np.flatnonzero(~cells[r, c:])
            yield int(r), int(c), int(rest[0]) if rest.size else cells.shape[1] - int(c)


def _box(x: float, y: float, wide: float, high: float) -> str:
    return f"M{_short(x)} {_short(y)}h{_short(wide)}v{_short(high)}h{_short(-wide)}z"


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def number(text: str, share: float, x: float, y: float, negative: bool = False) -> str:
    """Returns a number in the middle of a cell at (x, y), in the ink that reads on a shade of ``share``."""
    return label(text, x, y + 4, "number" + ink(share, negative), "middle")


def down(names: Sequence[str], x: float, tops: Sequence[float], most: float = 160) -> list[str]:
    """Returns names of rows, ending at ``x``, with their middles at ``tops``; what is cut off is whole in its title."""
    return [_named(name, most, x, y + 4.5, "end") for name, y in zip(names, tops, strict=True)]


def along(names: Sequence[str], middles: Sequence[float], y: float, step: float, most: float = 160) -> list[str]:
    """Returns names of columns above ``y``: level where they fit into ``step`` pixels, else turned by 45 degrees."""
    if level(names, step):
        return [_named(name, most, x, y - 6, "middle") for name, x in zip(names, middles, strict=True)]
    return [
        _named(name, most, x + 4, y - 7, "start", f' transform="rotate(-45 {x + 4:.1f} {y - 7:.1f})"')
        for name, x in zip(names, middles, strict=True)
    ]


def level(names: Sequence[str], step: float) -> bool:
    """Returns whether the names of columns need not be turned."""
    return all(width(name, SIZE) <= step - 5 for name in names)


def rise(names: Sequence[str], step: float, most: float = 160) -> float:
    """Returns the height of the turned column names."""
    return 20.0 if level(names, step) else 18 + 0.71 * max(width(cut(name, most, SIZE), SIZE) for name in names)


def overhang(names: Sequence[str], middles: Sequence[float], step: float, most: float = 160) -> float:
    """Returns the right end of the last turned column name."""
    if level(names, step):
        return 0.0
    return max(x + 8 + 0.71 * width(cut(name, most, SIZE), SIZE) for name, x in zip(names, middles, strict=True))


def _named(name: str, most: float, x: float, y: float, anchor: str, more: str = "") -> str:
    short = cut(name, most, SIZE)
    part = label(short, x, y, "piece", anchor, more)
    return part if short == name else titled(name, part)


def widest(names: Sequence[str], most: float = 160) -> float:
    """Returns the width of the longest name, where none is wider than ``most``."""
    return max(width(cut(name, most, SIZE), SIZE) for name in names)


def scale(low: str, high: str, x: float, y: float, kind: str = "cell", wide: float = 120) -> list[str]:
    """Returns a legend: the shades from nothing to all, with what they stand for on the left and on the right."""
    x += width(low, 11) + 7
    steps = (np.arange(10) + 1)[None] / 10
    return [
        label(low, x - 7, y + 9, "small", "end"),
        *shaded(steps, (x, y), (wide / 10, 11), gap=0, kind=kind),
        label(high, x + wide + 7, y + 9, "small"),
    ]


def said(value: float, digits: int = 2) -> str:
    """Returns a number as short as it can be told: ``digits`` significant ones, a true minus sign, no ``-0``.

    >>> said(-0.0123), said(12345.6), said(0.0), said(0.98765, 3), said(2.4e-9)
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
    """As ``said``, without the zeros at the end: for ticks, bars and legends.

    >>> plain(0.3), plain(-2.0), plain(0.125)
    ('0.3', '−2', '0.125')
    """
    text = said(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
