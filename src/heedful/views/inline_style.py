"""A picture's own style sheet applied: SVG with plain attributes, for programs that know less than a browser does.

Renderers differ in which CSS they know, and leave the rest out in silence. So it is applied here, in its light form,
and what is not understood here is refused.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from heedful.errors import HeedfulError

NAME = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}href"
Rules = list[tuple[tuple[int, int, int], str, frozenset[str], dict[str, str]]]

SELECTOR = re.compile(r"([a-zA-Z]*|\*)((?:\.[\w-]+)*)")


def lowered(svg: str) -> ET.Element:
    """Returns the picture as a tree in which every element has the attributes that the style sheet gives it.

    Only the light form is kept: rules under ``@media`` for dark screens are dropped, as paper is white. Known are
    selectors by element and by class (``text``, ``.cell``, ``rect.cell``), alone or in a list.

    Raises:
        HeedfulError: no SVG, another kind of selector, or a style that stands on ``var(...)``.
    """
    try:
        root = ET.fromstring(svg.encode("utf-8"))
    except ET.ParseError as error:
        raise HeedfulError(f"not an SVG picture ({error}); give what a figure returned") from None
    if root.tag != NAME + "svg":
        raise HeedfulError(f"not an SVG picture but <{root.tag}>; give what a figure returned")
    rules: Rules = []
    for parent in list(root.iter()):
        for element in list(parent):
            if element.tag == NAME + "style":
                rules += parsed(element.text or "", len(rules))
                parent.remove(element)
    rules.sort(key=lambda rule: rule[0])
    for element in root.iter():
        tag, classes = element.tag.removeprefix(NAME), frozenset(element.get("class", "").split())
        for _, wanted, among, properties in rules:
            if wanted in ("", "*", tag) and among <= classes:
                for key, value in properties.items():
                    element.set(key, value)
        for key, value in _properties(element.attrib.pop("style", "")).items():
            element.set(key, value)
    return root


def parsed(sheet: str, before: int = 0) -> Rules:
    """Returns the rules of a style sheet for light surroundings, with their weights (classes, elements, order)."""
    sheet = re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL)
    sheet = re.sub(r"@media\s*\(\s*prefers-color-scheme\s*:\s*dark\s*\)\s*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", sheet)
    if "@" in sheet or "var(" in sheet:
        raise HeedfulError("a style with @-rules or var(...) cannot be made a PNG or PDF; write plain rules")
    rules: Rules = []
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", sheet):
        for selector in selectors.split(","):
            match = SELECTOR.fullmatch(selector.strip())
            if match is None:
                raise HeedfulError(
                    f"style {selector.strip()!r} cannot be made a PNG or PDF; select by element and class"
                )
            tag, among = match[1], frozenset(match[2].split(".")[1:])
            weight = (len(among), int(tag not in ("", "*")), before + len(rules))
            rules.append((weight, tag, among, _properties(body)))
    return rules


def _properties(body: str) -> dict[str, str]:
    pairs = (part.split(":", 1) for part in body.split(";") if ":" in part)
    return {key.strip(): value.strip().removesuffix("!important").strip() for key, value in pairs}


def steps(path: str) -> list[tuple[str, tuple[float, ...]]]:
    """Returns a path's ``d`` as the calls of reportlab's path: ``moveTo``, ``lineTo``, ``curveTo``, ``close``.

    Known are M, L, H, V, C, Q and Z, relative ones too; others are refused.

    >>> steps("M1 2h3v4z")
    [('moveTo', (1.0, 2.0)), ('lineTo', (4.0, 2.0)), ('lineTo', (4.0, 6.0)), ('close', ())]
    """
    calls: list[tuple[str, tuple[float, ...]]] = []
    x = y = begin_x = begin_y = 0.0
    for letter, rest in re.findall(r"([a-zA-Z])([^a-zA-Z]*)", path):
        kind, given = letter.upper(), numbers(rest)
        if kind == "Z":
            calls.append(("close", ()))
            x, y = begin_x, begin_y
            continue
        if kind not in "MLHVCQ":
            raise HeedfulError(f"a picture with {letter!r} in a path cannot be made a PDF; write it as .svg or .png")
        size = {"H": 1, "V": 1, "C": 6, "Q": 4}.get(kind, 2)
        for start in range(0, len(given), size):
            part = given[start : start + size]
            if kind in "HV":
                across, down = (x, y) if letter.islower() else (0.0, 0.0)
                part = [across + part[0], y] if kind == "H" else [x, down + part[0]]
            elif letter.islower():
                part = [value + (y if i % 2 else x) for i, value in enumerate(part)]
            if kind == "Q":  # the same curve as a cubic one
                u, v = part[:2]
                part = [
                    x + 2 / 3 * (u - x),
                    y + 2 / 3 * (v - y),
                    *(p + 2 / 3 * (q - p) for p, q in zip(part[2:], (u, v), strict=True)),
                    *part[2:],
                ]
            call = "curveTo" if kind in "CQ" else "moveTo" if kind == "M" and not start else "lineTo"
            calls.append((call, tuple(part)))
            x, y = part[-2:]
            if call == "moveTo":
                begin_x, begin_y = x, y
    return calls


def numbers(text: str) -> list[float]:
    """Returns the numbers in an attribute, with whatever stands between them."""
    return [float(number) for number in re.findall(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", text)]
