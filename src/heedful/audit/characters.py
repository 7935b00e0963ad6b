"""Suspicious characters: broken, invisible, or decoded with the wrong encoding."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from heedful.audit.findings import Finding, location
from heedful.data import Row
from heedful.data.documents import line_of_character
from heedful.data.rows import Kind
from heedful.errors import plural

# name: (pattern, description and remedy)
SUSPICIOUS: dict[str, tuple[re.Pattern[str], str]] = {
    "broken": (re.compile("\ufffd"), "with U+FFFD, which a wrong decoding leaves; decode the original file again"),
    "mojibake": (
        # UTF-8 of two or three bytes read as Latin-1 or Windows-1252: "Ã©" for "é", "â€™" for an apostrophe
        re.compile("[ÃÂ][\u0080-\u00bf]|â(?:€|\u0080)[\u0080-\u00bf™œ˜\u201c\u201d\u2013\u2014\u0153]"),
        "with what looks like UTF-8 read as another encoding (é for é); decode the original file as UTF-8",
    ),
    "windows": (
        re.compile("(?<![ÃÂâ€])[\u0080-\u009f]"),
        "with U+0080 to U+009F (U+0092 for ’): Windows-1252 read as Latin-1; decode the original file as Windows-1252",
    ),
    "controls": (
        re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"),
        "with control characters; remove them unless they are intended",
    ),
    "invisible": (
        re.compile("[\u00ad\u200b\u2060\ufeff\u202a-\u202e\u2066-\u2069]"),
        "with invisible characters (soft hyphens, zero-width spaces, direction marks); remove them unless intended",
    ),
    "halves": (
        re.compile("[\ud800-\udfff]"),
        "with half of a UTF-16 surrogate pair, which UTF-8 cannot encode; decode the original file again",
    ),
    "markup": (
        re.compile(r"&(?:amp|lt|gt|quot|nbsp|#\d+|#x[0-9a-fA-F]+);|</?(?:p|br|div|span|a|b|i|li|ul)\b[^>]{0,200}>"),
        "with HTML (&amp;, <br>); remove it unless the model is to learn it",
    ),
}


def row_texts(row: Row, columns: dict[str, Kind]) -> Iterator[str]:
    """Yields the texts of a row one by one: texts, messages and labels. The words of a column are joined by spaces.

    >>> row = Row({"words": ("in", "Rome"), "tags": ("O", "LOC")}, "a", 1)
    >>> list(row_texts(row, {"words": "words", "tags": "tags"}))
    ['in Rome', 'O LOC']
    """
    for name, kind in columns.items():
        value = row.values.get(name, ())
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple | list) and value and isinstance(value[0], Mapping):
            yield from (message["content"] for message in value)
        elif value and kind in ("words", "tags", "label"):
            yield " ".join(value)


def check_characters(rows: Sequence[Row], columns: dict[str, Kind]) -> list[Finding]:
    """Returns a finding for each kind of suspicious character in the texts, and one for texts not in Unicode NFC.

    >>> rows = [Row({"text": "caf\\ufffd"}, "a.txt", 1), Row({"text": "tea"}, "a.txt", 2)]
    >>> print(check_characters(rows, {"text": "text"})[0].line())
    ! broken      1 example with U+FFFD, which a wrong decoding leaves; decode the original file again (a.txt:1)
    """
    locations: dict[str, list[str]] = {name: [] for name in (*SUSPICIOUS, "forms")}
    for row in rows:
        for text in row_texts(row, columns):
            if text.isascii() and min(text, default=" ") >= "\x00" and not _may_be_suspicious(text):
                continue
            for name, (pattern, _) in SUSPICIOUS.items():
                if match := pattern.search(text):
                    locations[name].append(location(row, line_of_character(row, text, match.start())))
            if not unicodedata.is_normalized("NFC", text):
                locations["forms"].append(location(row))
    descriptions = {name: description for name, (_, description) in SUSPICIOUS.items()}
    descriptions["forms"] = (
        "with accents as separate characters (not NFC), so that equal words differ; convert all texts to NFC"
    )
    return [
        Finding(name, "warning", len(unique), f"{plural(len(unique))} {descriptions[name]}", unique)
        for name, unique in ((name, list(dict.fromkeys(places))) for name, places in locations.items())
        if unique
    ]


def _may_be_suspicious(text: str) -> bool:
    """Returns False if an ASCII text has no suspicious character; quick, but may return True for other texts too."""
    return "&" in text or "<" in text or not text.isprintable()
