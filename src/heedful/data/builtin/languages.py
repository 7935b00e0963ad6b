"""`cldr-languages`: names and phrases from the Unicode CLDR data in Babel, with their language.

Names of languages, scripts, territories, cities, currencies, time zones, units, months and weekdays, and dates written
out: short, real texts in which endings and spelling tell languages apart that share an alphabet.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from datetime import date, timedelta
from functools import cache
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any

from heedful.errors import HeedfulError

if TYPE_CHECKING:
    from babel import Locale

LANGUAGES = (
    *("ar", "bg", "ca", "cs", "cy", "da", "de", "el", "en", "es", "et", "fa", "fi", "fr", "he", "hi", "hr", "hu"),
    *("id", "is", "it", "ja", "ko", "lt", "nl", "no", "pl", "pt", "ro", "ru", "sv", "sw", "tr", "uk", "vi", "zh"),
)
MOST = 600  # maximum number of texts of a language
SHARES = {"test": 10, "valid": 10, "train": 80}  # in percent


def rows(argument: str | None, split: str) -> list[dict[str, str]]:
    """Returns the rows of a split: ``text``, and ``label``, the English name of its language.

    Texts are compared by their letters, without regard to case. A hash of the letters determines the split, and a
    language has each text once. Texts that occur in two languages (cognates, untranslated names: some 4,000) and texts
    of fewer than three letters are left out. Each of the 36 languages has up to 600 texts, drawn by a hash, and the
    rows are shuffled.

    Raises `HeedfulError` for any `argument`, since the set takes none.
    """
    if argument:
        raise HeedfulError(
            f"unknown argument {argument!r}, in builtin:cldr-languages/{argument}; write builtin:cldr-languages"
        )
    return [{"text": text, "label": label} for key, text, label in _all_texts() if part_of(key) == split]


def part_of(key: str) -> str:
    """Returns the split ("train", "valid" or "test") of a text, determined by a hash of its letters ``key``."""
    percentile = _hash(key) % 100
    for split, share in SHARES.items():
        if percentile < share:
            return split
        percentile -= share
    raise AssertionError("the percentages of the splits do not add up to 100")


class _Letters(dict[int, int | None]):
    """Table for `str.translate` that keeps letters and marks."""

    def __missing__(self, code: int) -> int | None:
        self[code] = code if unicodedata.category(chr(code))[0] in "LM" else None
        return self[code]


LETTERS = _Letters()


def letters(text: str) -> str:
    """Returns the letters of a text and their combining marks, in lower case. Texts are compared by these letters."""
    return text.casefold().translate(LETTERS)


def _hash(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest())


@cache
def _all_texts() -> list[tuple[str, str, str]]:
    """Returns (letters, text, label) for each text of all splits, in the order of a hash."""
    from babel import Locale

    english = Locale.parse("en").languages
    texts = {code: _by_letters(Locale.parse(code)) for code in LANGUAGES}
    owners: dict[str, int] = defaultdict(int)
    for key in chain.from_iterable(texts.values()):
        owners[key] += 1
    drawn = []
    for code, texts_by_letters in texts.items():
        keys = sorted((key for key in texts_by_letters if owners[key] == 1), key=_hash)  # of this language only
        drawn += [(key, texts_by_letters[key], english[code]) for key in keys[:MOST]]
    return sorted(drawn, key=lambda row: blake2b(row[0].encode(), digest_size=8, salt=b"order").digest())


def _by_letters(locale: Locale) -> dict[str, str]:
    """Returns letters → text for the texts of a language."""
    texts_by_letters: dict[str, str] = {}
    for text in _texts(locale):
        key = letters(text)
        if len(key) >= 3:
            texts_by_letters.setdefault(key, text.strip())
    return texts_by_letters


def _texts(locale: Locale) -> Iterator[str]:
    """Yields the texts of a language: one form of each name, since others would be near-duplicates."""
    for table in (locale.languages, locale.territories, locale.scripts, locale.currencies):
        yield from (text for text in table.values() if text)
    yield from _nested_values(locale.time_zones, "city")
    yield from _nested_values(locale.meta_zones, "long", "standard")
    yield from _nested_values(locale.unit_display_names, "long")
    for words in (locale.months, locale.days, locale.quarters):
        yield from words["stand-alone"]["wide"].values()
    written = locale.date_formats["full"]
    for count in range(24):  # two days of each month, on all days of the week
        yield written.apply(date(1999, 1, 5) + timedelta(days=round(15.2 * count)), locale)


def _nested_values(table: Any, *path: str) -> Iterator[str]:
    """Yields the value at the keys `path` of each entry of a table that has one."""
    for value in table.values():
        for name in path:
            value = value.get(name) if value else None
        if value:
            yield value
