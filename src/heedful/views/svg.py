"""Shared parts of SVG pictures: frame, accessible name, light and dark styles, labels and lines."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from heedful.views.text import SCRIPT_FAMILIES, escaped

BASE = """
text{font-family:system-ui,'Segoe UI','Noto Sans','DejaVu Sans','Liberation Sans',Arial,Helvetica,sans-serif,@SCRIPTS@}
text{font-size:13px;fill:#22201d}
.ground{fill:#fbfaf7}.title{font-size:17px;font-weight:600}.quiet{fill:#6b665e}
@media(prefers-color-scheme:dark){text{fill:#ecebe7}.ground{fill:#16171b}.quiet{fill:#a09c94}}
""".replace("@SCRIPTS@", SCRIPT_FAMILIES)

# of ``thread``
LINE = """
.line{stroke:#3a3fb0;fill:none;stroke-linecap:round}
@media(prefers-color-scheme:dark){.line{stroke:#ffc35c}}
"""


class SvgFigure(str):
    """The text of a whole SVG file, which a notebook shows as an image of its own: its styles act on nothing else."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        name = self.partition("<title>")[2].partition("</title>")[0]
        return f'<img alt="{name}" src="data:image/svg+xml;base64,{base64.b64encode(self.encode()).decode()}">'


def document(size: tuple[float, float], title: str, description: str, style: str, parts: Iterable[str]) -> SvgFigure:
    """A whole SVG file of ``size`` (width, height), on its own ground: it can be read on a page of any colour."""
    wide, high = (f"{side:.0f}" for side in size)
    return SvgFigure(
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{wide}" height="{high}"'
        f' viewBox="0 0 {wide} {high}">\n'
        f"<title>{escaped(title)}</title>\n<desc>{escaped(description)}</desc>\n<style>{BASE}{style}</style>\n"
        f'<rect class="ground" width="{wide}" height="{high}" rx="10"/>\n'
        f'<text class="title" x="24" y="36">{escaped(title)}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def label(text: str, x: float, y: float, kind: str, anchor: str = "start", more: str = "") -> str:
    """Returns a text whose baseline begins (or with ``anchor`` is centred, or ends) at (x, y)."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escaped(text)}</text>'


def thread(x: float, y: float, u: float, v: float, w: float) -> str:
    """A line from (x, y) in one column to (u, v) in another: level at both ends, as thick as the weight ``w``."""
    bend = 0.45 * (u - x)
    path = f"M{x:.1f} {y:.1f}C{x + bend:.1f} {y:.1f} {u - bend:.1f} {v:.1f} {u:.1f} {v:.1f}"
    return f'<path class="line" d="{path}" stroke-width="{0.6 + 6 * w:.2f}" stroke-opacity="{0.15 + 0.7 * w:.2f}"/>'


def ink(share: float, negative: bool = False) -> str:
    """The class more of a text that stands on a shade of ``share``: the other ink reads better there in light and in
    dark (``deep``), in dark alone (``half``), or not at all. Such contrasts are those of the shades' own colours, of
    which ``negative`` is the second.
    """
    deep, half = (0.81, 0.6) if negative else (0.68, 0.48)
    return " deep" if share > deep else " half" if share > half else ""


def titled(title: str, part: str) -> str:
    """``part`` with a name of its own, which a pointer resting on it brings up and a screen reader says."""
    return f"<g><title>{escaped(title)}</title>{part}</g>"
