"""Pictures for papers and slides: our SVG as it is, as PNG, and as PDF with its lines and letters kept."""

from __future__ import annotations

import copy
import os
import xml.etree.ElementTree as ET
from pathlib import Path

from heedful.errors import HeedfulError
from heedful.util import files
from heedful.views import fonts
from heedful.views.inline_style import NAME, lowered
from heedful.views.text import width

SUFFIXES = (".svg", ".png", ".pdf")
SCALE = 3.0  # pixels of a PNG for one of the picture: 288 to the inch


def write(svg: str, path: str | os.PathLike[str], *, scale: float = SCALE) -> Path:
    """Writes a picture to ``path``, in the format that its suffix names, whole or not at all.

    - ``.svg``: as it is, in light and dark;
    - ``.png``: in its light form, ``scale`` pixels for one of the picture;
    - ``.pdf``: in its light form, one page of the picture's size (96 pixels are an inch), as lines, areas and text.

    In PNG and PDF a line is added under the picture where no font of this machine has a character of it.

    Raises:
        HeedfulError: another suffix, a missing package, or a place where nothing may be written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise HeedfulError(f"cannot write a picture as {path.name!r}; name a file that ends in {', '.join(SUFFIXES)}")
    return files.write(path, svg if suffix == ".svg" else png(svg, scale=scale) if suffix == ".png" else pdf(svg))


def png(svg: str, *, scale: float = SCALE) -> bytes:
    """Returns the picture as PNG, in its light form, ``scale`` pixels for one of the picture."""
    return _rendered(ET.tostring(_complete(svg), encoding="unicode"), scale)


def pdf(svg: str) -> bytes:
    """Returns the picture as one page of PDF, in its light form; its text can be searched and copied.

    What needs shaping or other than TrueType outlines (Arabic, Devanagari, most fonts for Chinese) is a picture of its
    own, 600 dots to the inch, and cannot be searched. The same picture gives the same bytes.
    """
    try:
        import reportlab  # noqa: F401
    except ImportError:
        raise HeedfulError("writing PDF needs reportlab; run: pip install 'heedful[figures]'") from None
    from heedful.views.pdf import drawn

    return drawn(_complete(svg), _rendered)


def _complete(svg: str) -> ET.Element:
    """Returns the picture with its style applied, and with a line more where characters of it cannot be drawn here."""
    root = lowered(svg)
    gone = fonts.missing("".join(text for element in root.iter(NAME + "text") for text in element.itertext()))
    if not gone:
        return root
    wide, high = (float(root.get(side, "0")) for side in ("width", "height"))
    codes = ", ".join(f"U+{ord(one):04X}" for one in gone[:8]) + (f" and {len(gone) - 8} more" if len(gone) > 8 else "")
    fonts_to_install = fonts.to_install(gone)
    remedy = "; install " + ", ".join(f"{family} ({script})" for script, family in fonts_to_install.items())
    told = f"No font of this machine has {codes}: an empty box stands for each{remedy if fonts_to_install else ''}."
    root.set("width", f"{max(wide, width(told, 11) + 48):.0f}")
    root.set("height", f"{high + 22:.0f}")
    root.set("viewBox", f"0 0 {root.get('width')} {root.get('height')}")
    ground = next((element for element in root if element.get("class") == "ground"), None)
    if ground is not None:
        ground.set("width", root.get("width", ""))
        ground.set("height", root.get("height", ""))
    like = next(element for element in root.iter(NAME + "text"))
    line = ET.SubElement(root, NAME + "text", {**copy.copy(like.attrib), "x": "24", "y": f"{high + 4:.0f}"})
    line.attrib.update({"font-size": "11px", "font-weight": "400", "fill": "#6b665e", "text-anchor": "start"})
    line.attrib.pop("transform", None)
    line.text = told
    return root


def _rendered(svg: str, scale: float) -> bytes:
    try:
        import resvg_py
    except ImportError:
        raise HeedfulError("writing PNG needs resvg_py; run: pip install 'heedful[figures]'") from None
    # without any font resvg draws no text, and does not say so: those that reportlab brings are always given to it
    brought = [str(path) for path in fonts.files().values() if path.parent == fonts.brought()]
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=scale, font_files=brought, sans_serif_family="DejaVu Sans"))
