"""`cldr-dates`: dates and times written out in two languages, from the Unicode CLDR patterns in Babel.

What a translator has to do here is real, and has one right answer: reorder (March 5, 1997 = 5 mars 1997), inflect
(Russian's genitive months), abbreviate, pad, and turn a clock of 12 hours into one of 24.
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

# Rows drawn; in "valid" and "test" what comes twice counts once, which leaves about 1,000 and 2,000 (only some thirty
# days can be held back as "March 5").
DRAWN = {"train": 50_000, "valid": 1_150, "test": 2_800}
FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
HELD_OUT = {0: "test", 1: "valid"}  # of ten buckets

# format -> what it shows. One word is a CLDR skeleton; otherwise what is written, then CLDR's length of it.
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
    """The rows of one split, each format taking an equal share: ``source``, ``target``, ``format`` and ``exact``.

    `pair` names the two languages as CLDR does, joined by a hyphen: "en-fr" (the default), "de-fr", "en_GB-zh_Hant".

    A date of 1900 to 2099 belongs to the test (or validation) split when the quarter of its year *and* its day of the
    year (month and day) both do. What shows only a part goes where that part does, and times of day are split by the
    minute. So no form of a test date stands in the training rows, not even "March 5" or "March 1997" of it; what is
    tested is putting known parts together anew. The centuries are split alike, since "3/5/97" shows none.

    ``exact`` is "no" where the source text has more than one right target: another century for a year of two digits, or
    another format that reads the same ("May" is both the long and the short name). Evaluation leaves these out.

    The same `seed` gives the same rows; the split does not depend on it. Rows of the training split may repeat.
    """
    languages = _languages(pair or "en-fr")
    writers = {name: (_writer(name, languages[0]), _writer(name, languages[1])) for name in FORMATS}
    doubts = _doubts(writers)
    generator = random.Random(f"{split} {seed}")
    made, seen = [], set()
    for rank, (name, (read, write)) in enumerate(writers.items()):
        share = DRAWN[split] // len(writers) + (rank < DRAWN[split] % len(writers))
        for _ in range(share):
            moment = _moment(generator, FORMATS[name], split)
            source, target = read(moment), write(moment)
            if split != "train" and source in seen:
                continue
            seen.add(source)
            exact = all(
                writers[other][1](moved) == target
                for other, years in doubts[name]
                if (moved := _years_away(moment, years)) and writers[other][0](moved) == source
            )
            made.append({"source": source, "target": target, "format": name, "exact": "yes" if exact else "no"})
    generator.shuffle(made)
    return made


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
            known = [one for one in locale_identifiers() if len(one) == 2 or "_" in code]
            hint = nearest(code, known)
            hint = (
                hint
                if hint.startswith("did you")
                else "write a language code of CLDR, such as en, fr, de, pt_BR or zh_Hant"
            )
            raise HeedfulError(f"builtin:cldr-dates/{pair}: unknown language {code!r}; {hint}") from error
    return Locale.parse(codes[0]), Locale.parse(codes[1])


def _writer(name: str, locale: Locale) -> Writer:
    """The function that writes a moment in one format."""
    what, _, length = name.partition("-")
    if not length:
        skeleton = locale.datetime_skeletons[name]
        return lambda moment: skeleton.apply(moment, locale)
    day = locale.date_formats[length if what != "time" else "medium"]
    clock = locale.time_formats["short" if length == "full" else length if what != "date" else "medium"]
    if what == "date":
        return lambda moment: day.apply(moment, locale)
    if what == "time":
        return lambda moment: clock.apply(moment, locale)
    joined = str(locale.datetime_formats[length]).replace("'", "")
    return lambda moment: joined.format(clock.apply(moment, locale), day.apply(moment, locale))


def _doubts(writers: dict[str, tuple[Writer, Writer]]) -> dict[str, list[tuple[str, int]]]:
    """For each format the other readings that its source texts may have: (format, centuries away in years).

    Found by writing every day of a leap year in each century: two readings are confusable when some text is equal.
    """
    probes = [datetime(2000, 1, 1, 15, 4, 5) + timedelta(days=count) for count in range(366)]
    here = {name: [read(probe) for probe in probes] for name, (read, _) in writers.items()}
    # 1900 was no leap year, and its days fall on other weekdays; 1600 has both in common with 2000, and "00" besides.
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
    """The same day some years away, or None outside the range or on a day that year lacks."""
    try:
        moved = moment.replace(year=moment.year + years)
    except ValueError:  # February 29
        return None
    return moved if FIRST <= moved.date() <= LAST else None


def _moment(generator: random.Random, shown: str, split: str) -> datetime:
    """A random moment whose shown part belongs to the split."""
    day = generator.choice(_days(shown, split))
    minute = generator.choice(_minutes(split)) if shown == "time" else generator.randrange(24 * 60)
    return datetime.combine(day, time(minute // 60, minute % 60, generator.randrange(60)))


@cache
def _days(shown: str, split: str) -> list[date]:
    every = (FIRST + timedelta(days=count) for count in range((LAST - FIRST).days + 1))
    belongs = {"date": split_of, "quarter": _quarter, "day": _day}.get(shown)
    return [one for one in every if belongs is None or belongs(one) == split]


@cache
def _minutes(split: str) -> list[int]:
    return [minute for minute in range(24 * 60) if _bucket(f"minute {minute}") == split]


def split_of(day: date) -> str:
    """The split of a calendar date: "test" or "valid" when its quarter and its day both are, else "train"."""
    quarter = _quarter(day)
    return quarter if quarter == _day(day) else "train"


def _quarter(day: date) -> str:
    return _bucket(f"quarter {day.year % 100} {(day.month - 1) // 3}")


def _day(day: date) -> str:
    return _bucket(f"day {day.month} {day.day}")


@cache
def _bucket(key: str) -> str:
    return HELD_OUT.get(int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) % 10, "train")
