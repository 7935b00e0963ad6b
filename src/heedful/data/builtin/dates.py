"""`cldr-dates`: dates and times written out in two languages, from the Unicode CLDR patterns in Babel.

Translating them requires the model to reorder (March 5, 1997 = 5 mars 1997), inflect (Russian's genitive months),
abbreviate, pad, and convert a 12-hour clock to a 24-hour clock. Each text has one right translation.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from functools import cache
from hashlib import blake2b
from typing import TYPE_CHECKING

from heedful.errors import HeedfulError, nearest

if TYPE_CHECKING:
    from babel import Locale

DEFAULT_PAIR = "en-fr"
# Number of drawn rows. In "valid" and "test" repeated texts are dropped, which leaves about 1,000 and 2,000 rows.
DRAWN = {"train": 50_000, "valid": 1_150, "test": 2_800}
FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
HELD_OUT = {0: "test", 1: "valid"}  # of ten buckets

# format -> the part of a date that it shows. A name without "-" is a CLDR skeleton; else it is what is written, "-" and
# CLDR's length.
FORMATS = {
    "date-full": "date",  # Wednesday, March 5, 1997
    "date-long": "date",  # March 5, 1997
    "date-medium": "date",  # Mar 5, 1997
    "date-short": "date",  # 3/5/97
    "yMMMEd": "date",  # Wed, Mar 5, 1997
    "yMEd": "date",  # Wed, 3/5/1997
    "yMMMM": "quarter",  # March 1997
    "yQQQQ": "quarter",  # 1st quarter 1997
    "MMMMd": "day",  # March 5
    "MMMEd": "day",  # Wed, Mar 5
    "time-short": "time",  # 3:05 PM
    "time-medium": "time",  # 3:05:22 PM
    "datetime-full": "date",  # the full date with the short time
    "datetime-medium": "date",  # both medium
    "datetime-short": "date",  # both short
}


def rows(pair: str | None, split: str, seed: int = 0) -> list[dict[str, str]]:
    """Returns the rows of a split: ``source``, ``target``, ``format`` and ``exact``.

    Each format has the same number of rows.

    `pair` names the two languages by their codes in CLDR, joined by a hyphen: "en-fr" (default), "de-fr",
    "en_GB-zh_Hant".

    Quarters of a year and days (month and day) are each divided among the splits. A date from 1900 to 2099 is in the
    test or validation split only if both its quarter and its day are. A format that shows only a quarter or a day
    follows the split of that part; times of day are split by the minute. So no form of a test date is in the training
    rows, not even its "March 5" or "March 1997": the test rows combine known parts in new ways. Years that differ by
    100 are in the same split, since "3/5/97" has no century.

    ``exact`` is "no" if the source text has more than one right target: another century for a year of two digits, or
    another format with the same text ("May" is both the long and the short name). Evaluation leaves these rows out.

    The same `seed` gives the same rows; the split does not depend on it. Rows of the training split may repeat.
    """
    languages = _languages(pair or DEFAULT_PAIR)
    writers = {name: (_writer(name, languages[0]), _writer(name, languages[1])) for name in FORMATS}
    alternatives = _alternative_readings(writers)
    generator = random.Random(f"{split} {seed}")
    drawn_rows, sources = [], set()
    for rank, (name, (read, write)) in enumerate(writers.items()):
        share = DRAWN[split] // len(writers) + (rank < DRAWN[split] % len(writers))
        for _ in range(share):
            moment = _moment(generator, FORMATS[name], split)
            source, target = read(moment), write(moment)
            if split != "train" and source in sources:
                continue
            sources.add(source)
            exact = all(
                writers[other][1](moved) == target
                for other, years in alternatives[name]
                if (moved := _years_away(moment, years)) and writers[other][0](moved) == source
            )
            drawn_rows.append({"source": source, "target": target, "format": name, "exact": "yes" if exact else "no"})
    generator.shuffle(drawn_rows)
    return drawn_rows


Writer = Callable[[datetime], str]


def _languages(pair: str) -> tuple[Locale, Locale]:
    from babel import Locale, UnknownLocaleError
    from babel.localedata import locale_identifiers

    codes = pair.split("-")
    if len(codes) != 2 or codes[0] == codes[1]:
        raise HeedfulError(
            f"builtin:cldr-dates/{pair}: {pair!r} is not a pair of two different languages; write for example en-fr"
        )
    for code in codes:
        try:
            Locale.parse(code)
        except (UnknownLocaleError, ValueError) as error:
            known = [name for name in locale_identifiers() if len(name) == 2 or "_" in code]
            hint = nearest(code, known)
            hint = (
                hint
                if hint.startswith("did you")
                else "write a language code of CLDR, such as en, fr, de, pt_BR or zh_Hant"
            )
            raise HeedfulError(f"builtin:cldr-dates/{pair}: unknown language {code!r}; {hint}") from error
    return Locale.parse(codes[0]), Locale.parse(codes[1])


def _writer(name: str, locale: Locale) -> Writer:
    """Returns the function that writes a moment in a format and language."""
    shown, _, length = name.partition("-")
    if not length:
        skeleton = locale.datetime_skeletons[name]
        return lambda moment: skeleton.apply(moment, locale)
    day = locale.date_formats[length if shown != "time" else "medium"]
    clock = locale.time_formats["short" if length == "full" else length if shown != "date" else "medium"]
    if shown == "date":
        return lambda moment: day.apply(moment, locale)
    if shown == "time":
        return lambda moment: clock.apply(moment, locale)
    joined = str(locale.datetime_formats[length]).replace("'", "")
    return lambda moment: joined.format(clock.apply(moment, locale), day.apply(moment, locale))


def _alternative_readings(writers: dict[str, tuple[Writer, Writer]]) -> dict[str, list[tuple[str, int]]]:
    """Returns, for each format, the other readings of its source texts: (format, difference in years).

    They are found by writing each day of a leap year, in this and another century: two readings are alternatives if
    they give an equal text.
    """
    probes = [datetime(2000, 1, 1, 15, 4, 5) + timedelta(days=count) for count in range(366)]
    here = {name: [read(probe) for probe in probes] for name, (read, _) in writers.items()}
    # 1900 was no leap year and has other weekdays; 1600 has the same weekdays, leap day and "00" as 2000.
    away = {name: [read(probe.replace(year=1600)) for probe in probes] for name, (read, _) in writers.items()}
    return {
        name: [
            (other, years)
            for other in writers
            for texts, reach in ((here, (0,)), (away, (-100, 100)))
            for years in reach
            if (other, years) != (name, 0) and any(map(str.__eq__, here[name], texts[other]))
        ]
        for name in writers
    }


def _years_away(moment: datetime, years: int) -> datetime | None:
    """Returns the same day ``years`` later; None if it is outside the range or does not exist (February 29)."""
    try:
        moved = moment.replace(year=moment.year + years)
    except ValueError:  # February 29
        return None
    return moved if FIRST <= moved.date() <= LAST else None


def _moment(generator: random.Random, shown: str, split: str) -> datetime:
    """Returns a random moment whose ``shown`` part is in the split."""
    day = generator.choice(_days(shown, split))
    minute = generator.choice(_minutes(split)) if shown == "time" else generator.randrange(24 * 60)
    return datetime.combine(day, time(minute // 60, minute % 60, generator.randrange(60)))


@cache
def _days(shown: str, split: str) -> list[date]:
    days = (FIRST + timedelta(days=count) for count in range((LAST - FIRST).days + 1))
    split_of_part = {"date": date_split, "quarter": _quarter, "day": _day}.get(shown)
    return [day for day in days if split_of_part is None or split_of_part(day) == split]


@cache
def _minutes(split: str) -> list[int]:
    return [minute for minute in range(24 * 60) if _bucket(f"minute {minute}") == split]


def date_split(day: date) -> str:
    """Returns the split of a date: "test" or "valid" if both its quarter and its day are in it, else "train"."""
    quarter = _quarter(day)
    return quarter if quarter == _day(day) else "train"


def _quarter(day: date) -> str:
    return _bucket(f"quarter {day.year % 100} {(day.month - 1) // 3}")


def _day(day: date) -> str:
    return _bucket(f"day {day.month} {day.day}")


@cache
def _bucket(key: str) -> str:
    return HELD_OUT.get(int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) % 10, "train")
