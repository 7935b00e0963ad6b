"""The machine's fonts: where their files lie, which characters they have, which one draws which part of a text."""

from __future__ import annotations

import os
import struct
import sys
import unicodedata
from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path

# Regular and bold faces of sans-serif families, the best first; Bitstream Vera comes with reportlab.
FACES = (
    ("NotoSans-Regular.ttf", "NotoSans-Bold.ttf"),
    ("segoeui.ttf", "segoeuib.ttf"),
    ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"),
    ("LiberationSans-Regular.ttf", "LiberationSans-Bold.ttf"),
    ("Arial.ttf", "Arial Bold.ttf"),
    ("arial.ttf", "arialbd.ttf"),
    ("Vera.ttf", "VeraBd.ttf"),
)

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


@cache
def files() -> dict[str, Path]:
    """Font files of this machine by name, and those that reportlab brings."""
    home = Path.home()
    places = [Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), home / ".fonts", home / ".local/share/fonts"]
    if sys.platform == "darwin":
        places = [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"]
    elif sys.platform == "win32":
        places = [Path(os.environ.get("WINDIR", r"C:\Windows")) / "Fonts"]
    places.append(brought())
    found: dict[str, Path] = {}
    for place in places:
        for path in sorted(place.rglob("*")) if place.is_dir() else ():
            if path.suffix.lower() in (".ttf", ".otf", ".ttc"):
                found.setdefault(path.name, path)
    return found


def brought() -> Path:
    """Returns the folder of the fonts that reportlab brings: a machine without any can write too."""
    from importlib.util import find_spec

    spec = find_spec("reportlab")
    return Path(spec.origin).parent / "fonts" if spec and spec.origin else Path("/nonexistent")


@cache
def characters(path: Path) -> frozenset[int]:
    """Returns the code points that a font file has: its ``cmap`` tables of formats 4 and 12 (OpenType 1.9)."""
    try:
        data = path.read_bytes()
        start = struct.unpack(">I", data[12:16])[0] if data[:4] == b"ttcf" else 0
        count = struct.unpack(">H", data[start + 4 : start + 6])[0]
        tables = [struct.unpack(">4sIII", data[start + 12 + 16 * i : start + 28 + 16 * i]) for i in range(count)]
        base = next(offset for tag, _, offset, _ in tables if tag == b"cmap")
        number = struct.unpack(">H", data[base + 2 : base + 4])[0]
        found: set[int] = set()
        for i in range(number):
            kind, encoding, offset = struct.unpack(">HHI", data[base + 4 + 8 * i : base + 12 + 8 * i])
            if kind == 0 or (kind == 3 and encoding in (1, 10)):
                found |= _mapped(data, base + offset)
    except (OSError, struct.error, StopIteration):
        return frozenset()
    return frozenset(found)


def _mapped(data: bytes, at: int) -> set[int]:
    kind = struct.unpack(">H", data[at : at + 2])[0]
    found: set[int] = set()
    if kind == 12:
        groups = struct.unpack(">I", data[at + 12 : at + 16])[0]
        for first, last, _ in struct.iter_unpack(">III", data[at + 16 : at + 16 + 12 * groups]):
            found.update(range(first, last + 1))
    elif kind == 4:
        count = struct.unpack(">H", data[at + 6 : at + 8])[0] // 2
        ends, starts, deltas, offsets = (
            struct.unpack(f">{count}H", data[at + 14 + skip : at + 14 + skip + 2 * count])
            for skip in (0, 2 * count + 2, 4 * count + 2, 6 * count + 2)
        )
        table = at + 14 + 6 * count + 2
        for i in range(count):
            for code in range(starts[i], min(ends[i], 0xFFFE) + 1):
                place = table + 2 * i + offsets[i] + 2 * (code - starts[i])
                glyph = struct.unpack(">H", data[place : place + 2])[0] if offsets[i] else (code + deltas[i]) & 0xFFFF
                if glyph:
                    found.add(code)
    return found


def embeddable(path: Path) -> bool:
    """Returns whether the outlines are TrueType's, the only ones that reportlab embeds; not those of a collection."""
    with path.open("rb") as file:
        return file.read(4) in (b"\x00\x01\x00\x00", b"true")


def chosen(character: str, bold: bool) -> Path | None:
    """Returns the embeddable font that draws ``character``: of the known families, else any; None where none has it."""
    known = [files()[pair[bold]] for pair in FACES if pair[bold] in files()]
    plain = [files()[pair[0]] for pair in FACES if pair[0] in files()]
    return next((path for path in (*known, *plain, *_others()) if ord(character) in characters(path)), None)


@cache
def _others() -> tuple[Path, ...]:
    return tuple(path for path in files().values() if embeddable(path))


def runs(text: str, bold: bool) -> list[tuple[Path | None, str]]:
    """``text`` in parts of one font each."""
    return [(path, "".join(part)) for path, part in groupby(text, lambda character: chosen(character, bold))]


def missing(text: str) -> list[str]:
    """Returns the characters of ``text`` that no font of this machine has, each once."""
    return [one for one in dict.fromkeys(text) if not one.isspace() and not _has(ord(one))]


@cache
def _has(code: int) -> bool:
    known = [files()[name] for pair in FACES for name in pair[:1] if name in files()]
    return any(code in characters(path) for path in (*known, *files().values()))
