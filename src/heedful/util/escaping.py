"""Escaping of untrusted text: no character moves the cursor, changes text direction, or is invisible."""

from __future__ import annotations

import re

UNSEEN = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]")
JOINERS = "\u200c\u200d"  # which an emoji and a Persian word need; alone they are unseen as well


def visible(text: str) -> str:
    """``text`` as one line that may stand in XML and HTML.

    Control characters become their pictures (a tab ``␉``), what is no character (lone surrogates, U+FFFE, U+FFFF)
    becomes U+FFFD, spaces around are dropped, and what is nothing but spaces becomes ``␣``. What has no looks of its
    own but hides, or turns the text around it, stands by its number: ``<U+202E>``.

    >>> visible("  a\\tb"), visible("\\u202egnp.exe")
    ('a␉b', '<U+202E>gnp.exe')
    """
    shown = pictured(text.strip(" "))
    return shown if shown.strip() else "␣"


def pictured(text: str) -> str:
    """``visible(text)``, spaces kept as they are.

    >>> pictured(" a\\x1b[2J"), pictured("")
    (' a␛[2J', '')
    """
    if text.isprintable():
        return text
    shown = UNSEEN.sub(_number, "".join(map(_picture, text)))
    return shown if shown.strip(JOINERS) else re.sub(".", _number, shown)


def named(label: str, most: int = 40) -> str:
    """The name of a class as a person reads it, its end left off where it is long.

    >>> named("not\\nsure"), named("a" * 50, 8)
    ('not␊sure', 'aaaaaaa…')
    """
    shown = pictured(label[: most + 1])
    return shown if len(label) <= most else shown[: most - 1] + "…"


def _number(found: re.Match[str]) -> str:
    return f"<U+{ord(found[0]):04X}>"


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if 0x80 <= code < 0xA0 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code < 0xFDF0:
        return "\ufffd"
    return character if character not in "\u2028\u2029" else "␤"
