"""Shared parts of SVG figures: frame, accessible name, light and dark styles, labels and lines."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from heedful.views.text import SCRIPT_FAMILIES, escaped, width

EDGE = 24  # margin of a figure
SPARE = 1.12  # safety factor of text widths: some sans-serif fonts are wider than ``width`` estimates

BASE = """
text{font-family:system-ui,'Segoe UI','Noto Sans','DejaVu Sans','Liberation Sans',Arial,Helvetica,sans-serif,@SCRIPTS@}
text{font-size:13px;fill:#22201d}
.ground{fill:#fbfaf7}.title{font-size:17px;font-weight:600}.quiet{fill:#6b665e}
@media(prefers-color-scheme:dark){text{fill:#ecebe7}.ground{fill:#16171b}.quiet{fill:#a09c94}}
""".replace("@SCRIPTS@", SCRIPT_FAMILIES)

# style of ``thread``
LINE = """
.line{stroke:#3a3fb0;fill:none;stroke-linecap:round}
@media(prefers-color-scheme:dark){.line{stroke:#ffc35c}}
"""


class SvgFigure(str):
    """SVG file as text. A notebook shows it as an image, so that its styles do not reach the notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        name = self.partition("<title>")[2].partition("</title>")[0]
        return f'<img alt="{name}" src="data:image/svg+xml;base64,{base64.b64encode(self.encode()).decode()}">'


def document(size: tuple[float, float], title: str, description: str, style: str, parts: Iterable[str]) -> SvgFigure:
    """Returns an SVG file of ``size`` (width, height), wider if the title needs more room.

    Its own background makes it readable on a page of any colour.
    """
    wide, high = f"{max(size[0], width_for(title, 17, bold=True)):.0f}", f"{size[1]:.0f}"
    return SvgFigure(
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{wide}" height="{high}"'
        f' viewBox="0 0 {wide} {high}">\n'
        f"<title>{escaped(title)}</title>\n<desc>{escaped(description)}</desc>\n<style>{BASE}{style}</style>\n"
        f'<rect class="ground" width="{wide}" height="{high}" rx="10"/>\n'
        f'<text class="title" x="{EDGE}" y="36">{escaped(title)}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def width_for(text: str, size: float, bold: bool = False) -> float:
    """Returns the width of a figure that has room for ``text`` in one line, between margins, in any sans-serif font."""
    return 2 * EDGE + SPARE * width(text, size, bold)


def label(text: str, x: float, y: float, kind: str, anchor: str = "start", more: str = "") -> str:
    """Returns the SVG part of a text whose baseline begins at (x, y).

    With ``anchor`` "middle" or "end" the text is centred or ends there. ``kind`` is its CSS class.
    """
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escaped(text)}</text>'


def thread(x: float, y: float, u: float, v: float, w: float) -> str:
    """Returns the SVG part of a curve from (x, y) in one column to (u, v) in another, as thick as the weight ``w``."""
    bend = 0.45 * (u - x)
    path = f"M{x:.1f} {y:.1f}C{x + bend:.1f} {y:.1f} {u - bend:.1f} {v:.1f} {u:.1f} {v:.1f}"
    return f'<path class="line" d="{path}" stroke-width="{0.6 + 6 * w:.2f}" stroke-opacity="{0.15 + 0.7 * w:.2f}"/>'


def ink(share: float, negative: bool = False) -> str:
    """Returns the CSS class that keeps a text readable on a cell with the shade ``share``; "" if none is needed.

    ``deep`` inverts the text's colour in light and dark mode, ``half`` in dark mode only. ``negative`` is True for the
    shades of negative values, which have another colour.
    """
    deep, half = (0.81, 0.6) if negative else (0.68, 0.48)
    return " deep" if share > deep else " half" if share > half else ""


def titled(title: str, part: str) -> str:
    """Returns the SVG ``part`` with a title, which appears under the pointer and is read by screen readers."""
    return f"<g><title>{escaped(title)}</title>{part}</g>"
