"""Font families by script: named in every page and figure, and proposed where a machine has none of them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

# Of scripts that a sans-serif font often lacks: how Unicode's names of their characters begin, and the families that
# have them (the first is the one to install; then those of Windows and macOS).
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


# As a style names them after its own, and after ``sans-serif``: only where that lacks a character.
SCRIPT_FAMILIES = ",".join(
    f"'{name}'" for name in dict.fromkeys([*(name for _, families in SCRIPTS.values() for name in families), *EMOJI])
)


def to_install(characters: Iterable[str]) -> dict[str, str]:
    """Of each script among some characters the family to install; other characters are not told.

    >>> to_install("نعم語😀q")
    {'Arabic': 'Noto Sans Arabic', 'Chinese, Japanese or Korean': 'Noto Sans CJK SC', 'emoji': 'Noto Color Emoji'}
    """
    found: dict[str, str] = {}
    for character in characters:
        first = unicodedata.name(character, "").partition(" ")[0]
        script = next((name for name, (begins, _) in SCRIPTS.items() if first in begins), None)
        if script is not None:
            found[script] = SCRIPTS[script][1][0]
        elif ord(character) >= 0x1F000:
            found["emoji"] = EMOJI[0]
    return found
