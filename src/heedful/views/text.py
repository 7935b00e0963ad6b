"""Untrusted text made fit to be shown: control characters seen, markup escaped, widths estimated."""

from __future__ import annotations

import html
import unicodedata

from heedful.util.escaping import visible


def escaped(text: str) -> str:
    """``visible(text)`` with ``& < > " '`` as entities: safe in an element and in a quoted attribute."""
    return html.escape(visible(text), quote=True)


def width(text: str, size: float, bold: bool = False) -> float:
    """Returns the estimated width of ``text`` in a proportional sans-serif font of ``size`` pixels, in pixels.

    SVG has no layout, so boxes are sized by this: wide East Asian characters take 1 em, capitals, digits and signs
    such as × more than most others (0.57), narrow ones less, marks that combine with their neighbour none.
    """
    return size * (1.14 if bold else 1.0) * sum(_ems(character) for character in text)


def cut(text: str, most: float, size: float, bold: bool = False) -> str:
    """``text``, or where it is wider than ``most`` pixels as much of its beginning as fits, with ``…`` after it."""
    if width(text, size, bold) <= most:
        return text
    while text and width(text + "…", size, bold) > most:
        text = text[:-1]
    return text.rstrip() + "…"


def _ems(character: str) -> float:
    if unicodedata.combining(character):
        return 0.0
    if unicodedata.east_asian_width(character) in "WF":
        return 1.0
    if character in "iljtfrI.,:;'’|!()[] -":
        return 0.34
    if character in "+=×→←<>√≤−":
        return 0.84
    if character.isdecimal():
        return 0.63
    return 0.72 if character.isupper() or character in "mwMW%–—" else 0.57


def direction(texts: list[str]) -> str:
    """``"rtl"`` where the first letter with a direction runs from right to left (Hebrew, Arabic), else ``"ltr"``."""
    kinds = (unicodedata.bidirectional(character) for text in texts for character in text)
    first = next((kind for kind in kinds if kind in ("L", "R", "AL")), "L")
    return "ltr" if first == "L" else "rtl"
