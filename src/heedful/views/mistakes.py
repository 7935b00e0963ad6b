"""A classifier's most confident mistakes: images as a figure (SVG), texts as a page (HTML)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heedful.views import raster
from heedful.views.page import page
from heedful.views.svg import EDGE, document, label, width_for
from heedful.views.text import escaped, shortened, visible, width

MAX_IMAGES = 40  # images of a figure
ACROSS = 8  # images side by side
TILE = 104  # pixels a side of an image, which is stored at twice the density
WIDEST = 150  # pixels of a caption
LONGEST = 1000  # characters of a text

STYLE = (
    raster.STYLE
    + """
.tile{fill:#f0eee8}.truth{font-weight:600}.said{font-weight:600;fill:#b3461f}
@media(prefers-color-scheme:dark){.tile{fill:#22242b}.said{fill:#ff8f6b}}
"""
)
PAGE_STYLE = """
table { border-collapse: collapse; width: 100%; margin-top: 1.2rem; }
th { font-size: .82rem; font-weight: 600; color: var(--quiet); text-align: start; }
th, td { padding: .5rem .8rem .5rem 0; border-bottom: 1px solid var(--edge); vertical-align: top; }
td { overflow-wrap: anywhere; }
td:first-child { width: 60%; }
.truth { font-weight: 600; }
.said { font-weight: 600; color: var(--wrong); }
.sure { white-space: nowrap; text-align: end; font-variant-numeric: tabular-nums; padding-inline-end: 0; }
.bar { width: 4.5rem; height: .5rem; margin-inline-end: .6rem; vertical-align: middle; fill: var(--wrong); }
.bar :first-child { fill: var(--edge); }
@media (max-width: 40rem) {
  tbody, td:first-child { display: block; }
  tr { display: grid; grid-template-columns: 1fr 1fr 5.4rem; column-gap: .4rem; border-bottom: 1px solid var(--edge); }
  th, td { border: 0; padding-inline-end: 0; }
  th:first-child { display: none; }
  td:first-child { grid-column: 1 / -1; width: auto; padding-bottom: 0; }
  .bar { display: none; }
}
:root { --wrong: #b3461f; }
@media (prefers-color-scheme: dark) { :root { --wrong: #ff8f6b; } }
"""


class Mistake(NamedTuple):
    """Wrong prediction of a classifier: the input, the true and the predicted label, and its probability."""

    input: np.ndarray | str  # pixels, uint8 (H, W, 1 or 3), or a text
    expected: str
    output: str
    score: float  # probability of ``output``, 0 to 1
    place: str = ""  # file:line of a text


def mistakes_svg(mistakes: Sequence[Mistake], title: str, total: int | None = None) -> str:
    """Returns misclassified images in a grid, at most 40, each with "truth → prediction 93 %".

    Images of few pixels are scaled up by a whole factor, so that every pixel is a square; large images are scaled down.

    Args:
        mistakes: the mistakes, whose inputs are images, in the order to show.
        title: the heading.
        total: number of all mistakes, if ``mistakes`` holds only a part.

    Raises:
        HeedfulError: an input that is no image.
    """
    shown = mistakes[:MAX_IMAGES]
    captions = [
        (visible(mistake.expected), visible(mistake.output), f"{100 * mistake.score:.0f} %") for mistake in shown
    ]
    wide = max(
        [TILE, *(width(" ".join((truth, "→", output, share)), 13, bold=True) for truth, output, share in captions)]
    )
    stacked = wide > WIDEST  # truth and prediction on two lines
    across, column, row = min(ACROSS, max(1, len(shown))), min(wide, WIDEST) + 18, TILE + (62 if stacked else 42)
    note = _note(len(shown), max(total or 0, len(mistakes)))
    parts = [label(note, EDGE, 57, "quiet")]
    for index, (mistake, (truth, output, share)) in enumerate(zip(shown, captions, strict=True)):
        x, y = EDGE + index % across * column, 78 + index // across * row
        name = f"{truth}, taken for {output}, {share}"
        middle = x + (column - 18) / 2
        parts.append(_tile(raster.as_uint8(mistake.input, f"mistake {index}"), middle - TILE / 2, y, name))
        if stacked:
            room = WIDEST - width(f"→ {share} ", 13, bold=True)
            parts.append(label(shortened(truth, WIDEST, 13, bold=True), middle, y + TILE + 19, "truth", "middle"))
            parts.append(_caption("", shortened(output, room, 13, bold=True), share, middle, y + TILE + 37))
        else:
            parts.append(_caption(truth, output, share, middle, y + TILE + 19))
    size = (
        max(2 * EDGE + across * column - 18, width_for(note, 13)),
        78 + row * -(-len(shown) // across),
    )
    return document(size, title, _described(captions, note), STYLE, parts)


def _tile(pixels: raster.Pixels, x: float, y: float, name: str) -> str:
    """Returns an image centred on a square tile."""
    high, wide = pixels.shape[:2]
    scale = TILE / max(high, wide)
    scale = int(scale) if scale >= 2 else scale
    size = wide * scale, high * scale
    at = x + (TILE - size[0]) / 2, y + (TILE - size[1]) / 2
    ground = f'<rect class="tile" x="{x:.1f}" y="{y:.1f}" width="{TILE}" height="{TILE}" rx="4"/>'
    return ground + raster.image(pixels, at, size, 2 * TILE, name)


def _caption(truth: str, output: str, share: str, x: float, y: float) -> str:
    first = f'<tspan class="truth">{escaped(truth)}</tspan> ' if truth else ""
    rest = f'→ <tspan class="said">{escaped(output)}</tspan> <tspan class="quiet">{share}</tspan>'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{first}{rest}</text>'


def _note(shown: int, total: int) -> str:
    if not total:
        return "no mistakes"
    number = f"all {total:,} mistakes" if shown == total else f"{shown:,} of {total:,} mistakes"
    return f"{number}, the most confident first: truth → prediction, and its probability"


def _described(captions: Sequence[tuple[str, str, str]], note: str) -> str:
    return f"{note}. " + "; ".join(f"{truth}, taken for {output}, {share}" for truth, output, share in captions)


def mistakes_html(mistakes: Sequence[Mistake], title: str, total: int | None = None) -> str:
    """Returns a self-contained page with a table of misclassified texts: text with its file and line, truth,
    prediction, probability.

    A text of over 1,000 characters is cut and ends in ``…``.

    Args:
        mistakes: the mistakes, whose inputs are texts, in the order to show.
        title: the heading.
        total: number of all mistakes, if ``mistakes`` holds only a part.

    >>> "1 of 7 mistakes" in mistakes_html([Mistake("cheap watches", "spam", "ham", 0.93)], "mail", total=7)
    True
    """
    note = f'<p class="quiet">{escaped(_note(len(mistakes), max(total or 0, len(mistakes))))}</p>'
    rows = "\n".join(map(_row, mistakes))
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("text", "truth", "prediction"))
    table = f'<table>\n<tr>{heads}<th scope="col" class="sure">probability</th></tr>\n{rows}\n</table>'
    return page(title, f"{note}\n{table}" if mistakes else note, PAGE_STYLE)


def _row(mistake: Mistake) -> str:
    text = str(mistake.input)
    text = text if len(text) <= LONGEST else text[:LONGEST].rstrip() + "…"
    lines = [escaped(line) for line in text.splitlines() if line.strip()] or [escaped(text)]
    cells = "".join(
        f'<td class="{kind}"><bdi>{escaped(name)}</bdi></td>'
        for kind, name in (("truth", mistake.expected), ("said", mistake.output))
    )
    rects = "".join(f'<rect width="{share:.0f}" height="10" rx="3"/>' for share in (100, 100 * mistake.score))
    bar = f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{rects}</svg>'
    probability = f"{bar}{100 * mistake.score:.0f} %"
    place = f'<div class="quiet" dir="ltr">{escaped(mistake.place)}</div>' if mistake.place else ""
    return f'<tr><td dir="auto">{"<br>".join(lines)}{place}</td>{cells}<td class="sure">{probability}</td></tr>'
