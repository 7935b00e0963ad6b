"""Text in pages and figures: escaping, estimated widths, writing direction, font families."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable

from heedful.util.escaping import visible


def escaped(text: str) -> str:
    """Returns ``text`` for HTML and SVG, safe in an element and in a quoted attribute.

    Control characters become visible symbols, and ``& < > " '`` become entities.
    """
    return html.escape(visible(text), quote=True)


def width(text: str, size: float, bold: bool = False) -> float:
    """Returns the estimated width of ``text`` in a proportional sans-serif font of ``size`` pixels, in pixels.

    SVG has no layout, so boxes are sized by this estimate. Wide East Asian characters take 1 em, most others 0.57 em;
    capitals, digits and signs such as × take more, narrow characters less, and combining marks nothing.
    """
    return size * (1.14 if bold else 1.0) * sum(_ems(character) for character in text)


def shortened(text: str, most: float, size: float, bold: bool = False) -> str:
    """Returns ``text``, or its beginning and ``…`` if it is wider than ``most`` pixels."""
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
    """Returns the writing direction of texts: "rtl" if the first letter is Hebrew or Arabic, else "ltr".

    Characters without a direction, such as digits, do not count.
    """
    kinds = (unicodedata.bidirectional(character) for text in texts for character in text)
    first = next((kind for kind in kinds if kind in ("L", "R", "AL")), "L")
    return "ltr" if first == "L" else "rtl"


# Scripts that a sans-serif font often lacks: first words of their characters' Unicode names, and font families (the one
# to install, then those of Windows and macOS).
SCRIPTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Arabic": (("ARABIC",), ("Noto Sans Arabic", "Segoe UI", "Geeza Pro")),
    "Hebrew": (("HEBREW",), ("Noto Sans Hebrew", "Segoe UI", "Arial Hebrew")),
    "Chinese, Japanese or Korean": (
        ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH"),
        ("Noto Sans CJK SC", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "PingFang SC", "Hiragino Sans"),
    ),
    "Devanagari": (("DEVANAGARI",), ("Noto Sans Devanagari", "Nirmala UI", "Kohinoor Devanagari")),
    "Bengali": (("BENGALI",), ("Noto Sans Bengali", "Nirmala UI", "Kohinoor Bangla")),
    "Tamil": (("TAMIL",), ("Noto Sans Tamil", "Nirmala UI", "Tamil Sangam MN")),
    "Thai": (("THAI",), ("Noto Sans Thai", "Leelawadee UI", "Thonburi")),
}
EMOJI = ("Noto Color Emoji", "Segoe UI Emoji", "Apple Color Emoji")


# A style lists them after ``sans-serif``: they are used only where that lacks a character.
SCRIPT_FAMILIES = ",".join(
    f"'{name}'" for name in dict.fromkeys([*(name for _, families in SCRIPTS.values() for name in families), *EMOJI])
)


def fonts_to_install(characters: Iterable[str]) -> dict[str, str]:
    """Returns the font family to install for each script among the characters; unknown scripts are left out.

    >>> fonts_to_install("نعم語😀q")
    {'Arabic': 'Noto Sans Arabic', 'Chinese, Japanese or Korean': 'Noto Sans CJK SC', 'emoji': 'Noto Color Emoji'}
    """
    families: dict[str, str] = {}
    for character in characters:
        first_word = unicodedata.name(character, "").partition(" ")[0]
        script = next((name for name, (first_words, _) in SCRIPTS.items() if first_word in first_words), None)
        if script is not None:
            families[script] = SCRIPTS[script][1][0]
        elif ord(character) >= 0x1F000:
            families["emoji"] = EMOJI[0]
    return families
