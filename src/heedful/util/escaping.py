"""Escaping of untrusted text, so that no character moves the cursor, changes the text direction or is invisible."""

from __future__ import annotations

import re

INVISIBLE = re.compile(
    "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb]"
)
JOINERS = "\u200c\u200d"  # needed inside emoji and Persian words, invisible by themselves


def visible(text: str) -> str:
    """Returns ``text`` as one line that is safe in terminals, XML and HTML.

    Control characters become visible symbols (a tab ``␉``); non-characters (lone surrogates, U+FFFE, U+FFFF) become
    U+FFFD. Spaces around the text are removed; a text of only spaces becomes ``␣``. Invisible characters and those that
    change the text direction become their code: ``<U+202E>``.

    >>> visible("  a\\tb"), visible("\\u202egnp.exe")
    ('a␉b', '<U+202E>gnp.exe')
    """
    escaped = pictured(text.strip(" "))
    return escaped if escaped.strip() else "␣"


def pictured(text: str) -> str:
    """Returns ``text`` as one line that is safe in terminals, XML and HTML, like ``visible``, but with all its spaces.

    >>> pictured(" a\\x1b[2J"), pictured("")
    (' a␛[2J', '')
    """
    if text.isprintable():
        return text
    escaped = INVISIBLE.sub(_number, "".join(map(_picture, text)))
    return escaped if escaped.strip(JOINERS) else re.sub(".", _number, escaped)


def safe_in_terminals(text: str) -> str:
    """Returns a text of several lines, in which only line ends and tabs move the cursor of a terminal.

    >>> safe_in_terminals("a\\n\\tb\\x1b[2J")
    'a\\n\\tb␛[2J'
    """
    return "".join(part if part in "\n\t" else pictured(part) for part in re.split(r"([\n\t])", text))


def named(label: str, length: int = 40) -> str:
    """Returns the name of a label as it is displayed: escaped, and shortened to ``length`` characters.

    >>> named("not\\nsure"), named("a" * 50, 8)
    ('not␊sure', 'aaaaaaa…')
    """
    escaped = pictured(label[: length + 1])
    return escaped if len(label) <= length else escaped[: length - 1] + "…"


def _number(match: re.Match[str]) -> str:
    return f"<U+{ord(match[0]):04X}>"


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if 0x80 <= code < 0xA0 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code < 0xFDF0:
        return "\ufffd"
    return character if character not in "\u2028\u2029" else "␤"
