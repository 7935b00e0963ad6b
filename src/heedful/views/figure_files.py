"""Figures as files: SVG as it is, PNG and PDF drawn by typst."""

from __future__ import annotations

import base64
import copy
import io
import os
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError
from heedful.util import files
from heedful.views.text import fonts_to_install, width

SUFFIXES = (".svg", ".png", ".pdf")
SCALE = 3.0  # pixels of a PNG for each pixel of the figure: 288 to the inch
SVG = "{http://www.w3.org/2000/svg}"
ET.register_namespace("", SVG.strip("{}"))  # typst finds what it cannot draw by plain names
CRISP = 512  # pixels a side to which small images are enlarged in a PDF: many viewers blur what they enlarge

# 96 pixels of SVG are an inch of 72 points. A figure without a date gives the same bytes each time.
PAGE = b"""
#set document(title: sys.inputs.title, description: sys.inputs.description, date: none)
#set page(width: float(sys.inputs.width) * 0.75pt, height: float(sys.inputs.height) * 0.75pt, margin: 0pt, fill: none)
#image(bytes(sys.inputs.svg), format: "svg", alt: sys.inputs.description, width: 100%)
"""


def write_figure(svg: str, path: str | os.PathLike[str], *, scale: float = SCALE) -> Path:
    """Writes a figure to ``path`` in the format of its suffix, atomically.

    - ``.svg``: as it is, in light and dark;
    - ``.png``: in its light form, ``scale`` pixels for each pixel of the figure;
    - ``.pdf``: in its light form, one page of the figure's size (96 pixels are an inch), as vectors and text.

    PNG and PDF get a line below the figure that names the characters for which this machine has no font.

    Raises:
        HeedfulError: another suffix, text that is not SVG, an element that typst cannot draw, typst not installed,
            or a path where nothing can be written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise HeedfulError(f"cannot write a figure as {path.name!r}; use a name that ends in {', '.join(SUFFIXES)}")
    return files.write(path, svg if suffix == ".svg" else png(svg, scale=scale) if suffix == ".png" else pdf(svg))


def png(svg: str, *, scale: float = SCALE) -> bytes:
    """Returns the figure as PNG, in its light form, with ``scale`` pixels for each pixel of the figure."""
    return _drawn(_with_font_note(_parsed(svg)), "png", ppi=96 * scale)


def pdf(svg: str) -> bytes:
    """Returns the figure as one page of PDF, in its light form.

    Lines and areas are vectors, text is text in embedded fonts, Arabic and Devanagari too. The PDF has the title and
    the description of the figure. The same figure gives the same bytes.
    """
    root = _with_font_note(_parsed(svg))
    for element in root.iter(SVG + "image"):
        if "crisp" in element.get("class", "").split():
            element.set("href", _enlarged(element.get("href", "")))
    return _drawn(root, "pdf")


def _parsed(svg: str) -> ET.Element:
    try:
        root = ET.fromstring(svg.encode("utf-8"))
    except ET.ParseError as error:
        raise HeedfulError(f"not an SVG figure ({error}); pass the text that a figure function returns") from None
    if root.tag != SVG + "svg":
        raise HeedfulError(f"not an SVG figure but <{root.tag}>; pass the text that a figure function returns")
    return root


def _with_font_note(root: ET.Element) -> ET.Element:
    """Adds a line below the figure if this machine has no font for one of its characters."""
    missing = _missing("".join(text for element in root.iter(SVG + "text") for text in element.itertext()))
    if not missing:
        return root
    figure_width, height = (float(root.get(side, "0")) for side in ("width", "height"))
    codes = ", ".join(f"U+{ord(character):04X}" for character in missing[:8])
    codes += f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    families = [f"{family} ({script})" for script, family in fonts_to_install(missing).items()]
    remedy = f"; install {', '.join(families)}" if families else ""
    note = f"No font of this machine has {codes}: an empty box stands for each{remedy}."
    root.set("width", f"{max(figure_width, width(note, 11) + 48):.0f}")
    root.set("height", f"{height + 22:.0f}")
    root.set("viewBox", f"0 0 {root.get('width')} {root.get('height')}")
    ground = next((element for element in root if element.get("class") == "ground"), None)
    if ground is not None:
        ground.set("width", root.get("width", ""))
        ground.set("height", root.get("height", ""))
    line = copy.copy(next(root.iter(SVG + "text")))
    line.attrib = {"class": "quiet", "x": "24", "y": f"{height + 4:.0f}", "style": "font-size:11px"}
    line.text = note
    root.append(line)
    return root


def _missing(text: str) -> list[str]:
    """Returns the characters of ``text`` that no font of this machine has, each once.

    PDF/A-2 forbids boxes in place of characters, so typst refuses to write such a text in that format.
    """
    characters = [character for character in dict.fromkeys(text) if character > "~" and not character.isspace()]
    if not characters or _has_fonts_for("".join(characters)):
        return []
    return [character for character in characters if not _has_fonts_for(character)]


@cache
def _has_fonts_for(characters: str) -> bool:
    typst = _typst()
    paragraphs = b"#for character in sys.inputs.characters.clusters() [#character #parbreak()]"
    try:
        _compiler().compile(paragraphs, sys_inputs={"characters": characters}, format="pdf", pdf_standards=["a-2b"])
    except typst.TypstError:
        return False
    return True


def _enlarged(address: str) -> str:
    """Returns an embedded image (a ``data:`` address) with its pixels repeated up to ``CRISP`` pixels a side."""
    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])), formats=["PNG"])
    times = max(1, CRISP // max(image.size))
    stream = io.BytesIO()
    image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST).save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"


def _drawn(root: ET.Element, file_format: str, **options: float) -> bytes:
    typst = _typst()
    inputs = {
        "svg": ET.tostring(root, encoding="unicode"),
        "title": root.findtext(SVG + "title") or "",
        "description": root.findtext(SVG + "desc") or "",
        "width": root.get("width", "").removesuffix("px"),
        "height": root.get("height", "").removesuffix("px"),
    }
    try:
        data, warnings = _compiler().compile_with_warnings(PAGE, sys_inputs=inputs, format=file_format, **options)
    except typst.TypstError as error:
        raise HeedfulError(f"typst cannot draw the figure: {error.message}; write it as .svg") from None
    if warnings:  # an element was left out
        raise HeedfulError(f"typst cannot draw the whole figure: {warnings[0].message}; write it as .svg")
    return bytes(data)


@cache
def _compiler() -> Any:
    return _typst().Compiler()


def _typst() -> Any:
    try:
        import typst
    except ImportError:
        raise HeedfulError("writing PNG and PDF needs typst; run: pip install 'heedful[figures]'") from None
    return typst
