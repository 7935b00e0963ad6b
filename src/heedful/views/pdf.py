"""Our SVG drawn on a page of PDF, by reportlab's canvas: areas, lines, letters and images stay what they are.

Known is the part of SVG that our pictures are made of; any other element is refused, so that nothing is lost silently.
"""

from __future__ import annotations

import base64
import io
import re
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError
from heedful.views import fonts
from heedful.views.inline_style import NAME, XLINK, numbers, steps

POINT = 0.75  # of a pixel: 96 pixels and 72 points are an inch
SHARP = 600 / 96  # of texts that become pictures
INHERITED = {
    "fill": "#000",
    "stroke": "none",
    "stroke-width": "1",
    "fill-opacity": "1",
    "stroke-opacity": "1",
    "stroke-dasharray": "none",
    "stroke-linecap": "butt",
    "stroke-linejoin": "miter",
    "font-size": "16px",
    "font-weight": "400",
    "text-anchor": "start",
    "image-rendering": "auto",
    "fill-rule": "nonzero",
}
SILENT = {"title", "desc", "metadata", "defs"}
CAPS, JOINS = {"butt": 0, "round": 1, "square": 2}, {"miter": 0, "round": 1, "bevel": 2}
Render = Callable[[str, float], bytes]


def drawn(root: ET.Element, render: Render) -> bytes:
    """The picture (its style applied, see ``lowered``) as PDF; ``render`` makes PNG of texts that must be pictures."""
    from reportlab.pdfgen.canvas import Canvas

    wide, high = (_length(root.get(side, "0")) for side in ("width", "height"))
    stream = io.BytesIO()
    canvas = Canvas(stream, pagesize=(wide * POINT, high * POINT), invariant=1, pageCompression=1)
    canvas.setTitle("".join(root.findtext(NAME + "title") or ""))
    canvas.setSubject("".join(root.findtext(NAME + "desc") or ""))
    canvas.setCreator("Heedful")
    canvas.translate(0, high * POINT)
    canvas.scale(POINT, -POINT)
    page = _Page(canvas, {key: element for element in root.iter() if (key := element.get("id"))}, render)
    for element in root:
        page.draw(element, {**INHERITED, **_own(root)}, 1.0)
    canvas.save()
    return stream.getvalue()


class _Page:
    def __init__(self, canvas: Any, named: dict[str, ET.Element], render: Render) -> None:
        self.canvas, self.named, self.render = canvas, named, render
        self.images: dict[str, Any] = {}

    def draw(self, element: ET.Element, above: dict[str, str], opacity: float) -> None:
        """One element and what is in it, with the properties of what is above it."""
        kind = str(element.tag).removeprefix(NAME)
        if kind in SILENT or element.get("display") == "none":
            return
        draw = getattr(self, f"_{kind}", None)
        if draw is None:
            raise HeedfulError(f"a picture with <{kind}> cannot be made a PDF; write it as .svg or .png")
        style = {**above, **_own(element)}
        opacity *= float(element.get("opacity", "1"))
        self.canvas.saveState()
        for name, given in re.findall(r"(\w+)\(([^)]*)\)", element.get("transform", "")):
            self._turn(name, numbers(given))
        draw(element, style, opacity)
        self.canvas.restoreState()

    def _turn(self, name: str, given: list[float]) -> None:
        if name == "translate":
            self.canvas.translate(given[0], given[1] if len(given) > 1 else 0)
        elif name == "scale":
            self.canvas.scale(given[0], given[-1])
        elif name == "rotate":
            x, y = given[1:] or (0.0, 0.0)
            self.canvas.translate(x, y)
            self.canvas.rotate(given[0])
            self.canvas.translate(-x, -y)
        else:
            raise HeedfulError(f"a picture with {name}(...) cannot be made a PDF; write it as .svg or .png")

    def _g(self, element: ET.Element, style: dict[str, str], opacity: float) -> None:
        for child in element:
            self.draw(child, style, opacity)

    _a = _g

    def _svg(self, element: ET.Element, style: dict[str, str], opacity: float) -> None:
        x, y, wide, high = (_length(element.get(key, "0")) for key in ("x", "y", "width", "height"))
        left, top, across, down = numbers(element.get("viewBox", f"0 0 {wide} {high}"))
        clip = self.canvas.beginPath()
        clip.rect(x, y, wide, high)
        self.canvas.clipPath(clip, stroke=0, fill=0)
        scale = min(wide / across, high / down)
        self.canvas.translate(x + (wide - scale * across) / 2, y + (high - scale * down) / 2)
        self.canvas.scale(scale, scale)
        self.canvas.translate(-left, -top)
        self._g(element, style, opacity)

    def _use(self, element: ET.Element, style: dict[str, str], opacity: float) -> None:
        target = self.named[_address(element).removeprefix("#")]
        self.canvas.translate(_length(element.get("x", "0")), _length(element.get("y", "0")))
        self.draw(target, style, opacity)

    def _rect(self, element: ET.Element, style: dict[str, str], opacity: float) -> None:
        x, y, wide, high = (_length(element.get(key, "0")) for key in ("x", "y", "width", "height"))
        path = self.canvas.beginPath()
        radius = min(_length(element.get("rx", "0")), wide / 2, high / 2)
        path.roundRect(x, y, wide, high, radius) if radius else path.rect(x, y, wide, high)
        self._paint(path, style, opacity)

    def _circle(self, element: ET.Element, style: dict[str, str], opacity: float) -> None:
        path = self.canvas.beginPath()
        path.circle(*(_length(element.get(key, "0")) for key in ("cx", "cy", "r")))
        self._paint(path, style, opacity)

    def _line(self, element: ET.Element, style: dict[str, str], opacity: float) -> None:
        path = self.canvas.beginPath()
        path.moveTo(_length(element.get("x1", "0")), _length(element.get("y1", "0")))
        path.lineTo(_length(element.get("x2", "0")), _length(element.get("y2", "0")))
        self._paint(path, style, opacity)

    def _path(self, element: ET.Element, style: dict[str, str], opacity: float) -> None:
        path = self.canvas.beginPath()
        for command, points in steps(element.get("d", "")):
            getattr(path, command)(*points)
        self._paint(path, style, opacity)

    def _paint(self, path: Any, style: dict[str, str], opacity: float) -> None:
        fill, stroke = _colour(style["fill"]), _colour(style["stroke"])
        if fill is not None:
            self.canvas.setFillColor(fill, alpha=opacity * float(style["fill-opacity"]))
        if stroke is not None:
            self.canvas.setStrokeColor(stroke, alpha=opacity * float(style["stroke-opacity"]))
            self.canvas.setLineWidth(_length(style["stroke-width"]))
            self.canvas.setLineCap(CAPS[style["stroke-linecap"]])
            self.canvas.setLineJoin(JOINS[style["stroke-linejoin"]])
            self.canvas.setDash([] if style["stroke-dasharray"] == "none" else numbers(style["stroke-dasharray"]))
        rule = 0 if style["fill-rule"] == "evenodd" else 1
        self.canvas.drawPath(path, stroke=stroke is not None, fill=fill is not None, fillMode=rule)

    def _image(self, element: ET.Element, style: dict[str, str], opacity: float) -> None:
        from PIL import Image
        from reportlab.lib.utils import ImageReader

        address = _address(element)
        crisp = style["image-rendering"] in ("pixelated", "crisp-edges")
        if address not in self.images:
            image = Image.open(io.BytesIO(base64.b64decode(address.split(",", 1)[1])))
            times = max(1, 512 // max(image.size)) if crisp else 1  # viewers smooth what they enlarge
            size = (image.width * times, image.height * times)
            self.images[address] = ImageReader(image.resize(size, Image.Resampling.NEAREST) if times > 1 else image)
        x, y, wide, high = (_length(element.get(key, "0")) for key in ("x", "y", "width", "height"))
        self.canvas.setFillAlpha(opacity)
        self.canvas.translate(x, y + high)
        self.canvas.scale(1, -1)
        self.canvas.drawImage(self.images[address], 0, 0, wide, high, mask="auto")

    def _text(self, element: ET.Element, style: dict[str, str], opacity: float) -> None:
        if len(element):
            raise HeedfulError("a picture with parts of a text cannot be made a PDF; write it as .svg or .png")
        text, size, bold = element.text or "", _length(style["font-size"]), _bold(style["font-weight"])
        fill = _colour(style["fill"])
        if not text.strip() or fill is None:
            return
        x, y = _length(element.get("x", "0")), _length(element.get("y", "0"))
        self.canvas.translate(x, y)
        self.canvas.scale(1, -1)
        runs = fonts.runs(text, bold)
        if any(path is None for path, _ in runs) or any(map(_shaped, text)):
            self._pictured(element, style, size, opacity)
            return
        from reportlab.pdfbase.pdfmetrics import stringWidth

        named = [(_registered(path), part) for path, part in runs if path is not None]
        total = sum(stringWidth(part, name, size) for name, part in named)
        at = -total * {"start": 0.0, "middle": 0.5, "end": 1.0}[style["text-anchor"]]
        self.canvas.setFillColor(fill, alpha=opacity * float(style["fill-opacity"]))
        for name, part in named:
            self.canvas.setFont(name, size)
            self.canvas.drawString(at, 0, part)
            at += stringWidth(part, name, size)

    def _pictured(self, element: ET.Element, style: dict[str, str], size: float, opacity: float) -> None:
        """A text that reportlab cannot set, as a picture of it."""
        from PIL import Image
        from reportlab.lib.utils import ImageReader

        wide, high = 2 * size * (len(element.text or "") + 2), 3 * size
        middle = {"start": size, "middle": wide / 2, "end": wide - size}[style["text-anchor"]]
        kept = {key: style[key] for key in ("fill", "fill-opacity", "font-size", "font-weight", "text-anchor")}
        attributes = {**kept, "x": f"{middle:.2f}", "y": f"{2 * size:.2f}", "font-family": style.get("font-family", "")}
        alone = ET.Element(NAME + "svg", {"width": f"{wide:.2f}", "height": f"{high:.2f}"})
        ET.SubElement(alone, NAME + "text", attributes).text = element.text
        image = Image.open(io.BytesIO(self.render(ET.tostring(alone, encoding="unicode"), SHARP)))
        self.canvas.setFillAlpha(opacity)
        place = (-middle, -size, image.width / SHARP, image.height / SHARP)
        self.canvas.drawImage(ImageReader(image), *place, mask="auto")


def _own(element: ET.Element) -> dict[str, str]:
    return {key: value for key, value in element.attrib.items() if key in INHERITED or key == "font-family"}


def _address(element: ET.Element) -> str:
    return element.get("href", "") or element.get(XLINK, "")


def _length(text: str) -> float:
    return float(text.removesuffix("px"))


def _bold(weight: str) -> bool:
    return weight in ("bold", "bolder") or (weight.isdecimal() and int(weight) >= 600)


def _colour(text: str) -> Any:
    from reportlab.lib.colors import HexColor, toColor

    if text in ("none", "transparent"):
        return None
    if text.startswith("#"):
        return HexColor("#" + "".join(2 * digit for digit in text[1:]) if len(text) == 4 else text)
    return toColor(text)


def _shaped(character: str) -> bool:
    """Returns whether a character's look depends on its neighbours, or its text does not run from left to right."""
    return unicodedata.bidirectional(character) in ("R", "AL") or unicodedata.category(character) in ("Mn", "Mc", "Cf")


def _registered(path: Path) -> str:
    from reportlab.pdfbase.pdfmetrics import getRegisteredFontNames, registerFont
    from reportlab.pdfbase.ttfonts import TTFont

    if path.name not in getRegisteredFontNames():
        registerFont(TTFont(path.name, str(path)))
    return path.name
