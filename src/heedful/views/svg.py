"""What our pictures have in common: their frame, their name for people who do not see them, light and dark."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from heedful.views.text import escaped

BASE = """
text{font-family:system-ui,'Segoe UI','Noto Sans','DejaVu Sans',sans-serif;font-size:13px;fill:#22201d}
.ground{fill:#fbfaf7}.title{font-size:17px;font-weight:600}.quiet{fill:#6b665e}
@media(prefers-color-scheme:dark){text{fill:#ecebe7}.ground{fill:#16171b}.quiet{fill:#a09c94}}
"""


class Picture(str):
    """The text of a whole SVG file, which a notebook shows as an image of its own: its styles act on nothing else."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        name = self.partition("<title>")[2].partition("</title>")[0]
        return f'<img alt="{name}" src="data:image/svg+xml;base64,{base64.b64encode(self.encode()).decode()}">'


def document(size: tuple[float, float], title: str, description: str, style: str, parts: Iterable[str]) -> Picture:
    """A whole SVG file of ``size`` (width, height), on its own ground: it can be read on a page of any colour."""
    wide, high = (f"{side:.0f}" for side in size)
    return Picture(
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{wide}" height="{high}"'
        f' viewBox="0 0 {wide} {high}">\n'
        f"<title>{escaped(title)}</title>\n<desc>{escaped(description)}</desc>\n<style>{BASE}{style}</style>\n"
        f'<rect class="ground" width="{wide}" height="{high}" rx="10"/>\n'
        f'<text class="title" x="24" y="36">{escaped(title)}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def label(text: str, x: float, y: float, kind: str, anchor: str = "start", more: str = "") -> str:
    """A text whose baseline begins (or with ``anchor`` is centred, or ends) at (x, y)."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escaped(text)}</text>'


def titled(title: str, part: str) -> str:
    """``part`` with a name of its own, which a pointer resting on it brings up and a screen reader says."""
    return f"<g><title>{escaped(title)}</title>{part}</g>"
