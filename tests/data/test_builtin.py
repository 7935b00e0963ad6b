"""The built-in dates: right by Babel's own functions, no leak, and what cannot be known marked so."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import date, datetime, timedelta

import pytest
from babel import dates as babel

from heedful.data import builtin, read
from heedful.data.builtin.dates import FIRST, FORMATS, LAST, date_split
from heedful.errors import HeedfulError
from heedful.text import Tokenizer

PAIRS = ("en-fr", "en-de", "de-fr", "en-ja", "en-ar", "fr-en")
SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def sets() -> dict[str, list[dict[str, str]]]:
    return {split: builtin.load("builtin:cldr-dates", split) for split in SPLITS}


def every_day() -> list[date]:
    return [FIRST + timedelta(days=count) for count in range((LAST - FIRST).days + 1)]


def written(day: date, name: str, language: str) -> str:
    """A format by the library's documented functions, which the package does not use."""
    if name.startswith("date-"):
        return babel.format_date(day, name.removeprefix("date-"), language)
    return babel.format_skeleton(name, day, fuzzy=False, locale=language)


def test_sizes_and_shares(sets: dict[str, list[dict[str, str]]]) -> None:
    assert len(sets["train"]) == 50_000
    assert 900 <= len(sets["valid"]) <= 1_100
    assert 1_900 <= len(sets["test"]) <= 2_200
    assert {row["format"] for row in sets["test"]} == set(FORMATS)
    assert set(Counter(row["format"] for row in sets["train"]).values()) <= {3333, 3334}
    assert all(len({row["source"] for row in sets[split]}) == len(sets[split]) for split in ("valid", "test"))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.full(keep=2)
def test_no_source_text_is_in_two_splits_and_no_text_is_falsely_exact(pair: str) -> None:
    rows = {split: builtin.load(f"builtin:cldr-dates/{pair}:{split}") for split in SPLITS}
    texts = {split: {row["source"] for row in rows[split]} for split in SPLITS}
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["valid"]
    assert not texts["valid"] & texts["test"]
    targets = defaultdict(set)
    for row in (row for split in SPLITS for row in rows[split]):
        targets[row["source"]].add(row["target"])
    several = {text for text, found in targets.items() if len(found) > 1}
    assert all(row["exact"] == "no" for split in SPLITS for row in rows[split] if row["source"] in several)


def test_no_form_of_a_held_out_date_is_trained_on(sets: dict[str, list[dict[str, str]]]) -> None:
    """Every test and validation date, written in every format that shows any of it, is no training text."""
    trained = {row["source"] for row in sets["train"]}
    names = [name for name in FORMATS if not name.startswith(("time", "datetime"))]
    held = [day for day in every_day() if date_split(day) != "train"]
    assert {date_split(day) for day in held} == {"valid", "test"}
    assert len(held) > 800
    for name in names:
        assert not {written(day, name, "en") for day in held} & trained, name
    short = {written(day, "date-short", "en") for day in held} | {written(day, "date-medium", "en") for day in held}
    assert not {text.rpartition(", ")[0] for text in trained if text.endswith(("AM", "PM"))} & short


def test_targets_are_those_of_babel(sets: dict[str, list[dict[str, str]]]) -> None:
    """Source and target of the date-only test rows are one date written by the library's own functions."""
    by_text = {
        (name, written(day, name, "en")): written(day, name, "fr")
        for name in ("date-full", "date-long", "yMEd", "yMMMM", "yQQQQ", "MMMMd")
        for day in every_day()
        if day.year in range(1990, 2000)
    }
    found = [row for split in SPLITS for row in sets[split] if (row["format"], row["source"]) in by_text]
    assert len(found) > 500
    assert all(by_text[row["format"], row["source"]] == row["target"] for row in found)
    for row in sets["test"]:
        if row["format"] == "time-medium":
            moment = datetime.strptime(row["source"].replace("\u202f", " "), "%I:%M:%S %p")
            assert row["target"] == moment.strftime("%H:%M:%S")


def test_the_hidden_century_is_marked(sets: dict[str, list[dict[str, str]]]) -> None:
    """English to French: the year has two digits on one side alone in the short formats, and there only."""
    for row in sets["train"] + sets["test"]:
        leap_day = row["source"].startswith("2/29/00")  # 1900 was no leap year
        assert (row["exact"] == "no") == (row["format"].endswith("-short") and "date" in row["format"] and not leap_day)


def test_a_format_that_reads_like_another_is_marked() -> None:
    """English to German: "May 5, 1997" is long (5. Mai 1997) and medium (05.05.1997)."""
    rows = builtin.load("builtin:cldr-dates/en-de:train")
    for row in rows:
        may = row["format"] in ("date-long", "date-medium") and row["source"].startswith("May ")
        assert (row["exact"] == "no") == may, row


def test_the_same_rows_every_time_and_nothing_lost_in_a_tokenizer(sets: dict[str, list[dict[str, str]]]) -> None:
    assert builtin.load("builtin:cldr-dates/en-fr:valid") == sets["valid"]
    texts = [text for row in sets["valid"] for text in (row["source"], row["target"])]
    assert any("\u202f" in text for text in texts)
    tokenizer = Tokenizer.train(texts, 500)
    assert tokenizer.decode(tokenizer.encode(texts)) == texts


def test_reading_them_as_a_file() -> None:
    rows = read("builtin:cldr-dates/en-de", ("source", "target"), split="valid", limit=5)
    assert [row.line for row in rows] == [1, 2, 3, 4, 5]
    assert rows[0].file == "builtin:cldr-dates/en-de"
    assert set(rows[0].values) == {"source", "target", "format", "exact"}
    named = read("builtin:cldr-dates/en-de:test", ("source", "target"), split="valid", limit=5)
    assert named[0].values["source"] != rows[0].values["source"]
    turned = read("builtin:cldr-dates/en-de", ("source", "target"), names=("target", "source"), split="valid", limit=1)
    assert turned[0].values["source"] == rows[0].values["target"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("builtin:cldr-date", r"unknown built-in set 'cldr-date', in builtin:cldr-date; did you mean 'cldr-dates'\?"),
        ("builtin:cldr-dates:tset", r"unknown split 'tset', in builtin:cldr-dates:tset; did you mean 'test'\?"),
        ("builtin:cldr-dates/en", r"'en' is not a pair of two different languages; write for example en-fr"),
        ("builtin:cldr-dates/en-en", r"'en-en' is not a pair of two different languages"),
        ("builtin:cldr-dates/en-qq", r"builtin:cldr-dates/en-qq: unknown language 'qq'; "),
        ("builtin:cldr-dates/en-pt_BT", r"unknown language 'pt_BT'; did you mean 'pt_[A-Z]+'\?"),
        ("builtin:cldr-dates/en-French", r"unknown language 'French'; write a language code of CLDR"),
        ("builtin:cldr-dates/en-../x", r"unknown language '../x'"),
    ],
)
def test_an_unknown_set_is_an_error(source: str, message: str) -> None:
    with pytest.raises(HeedfulError, match=message) as caught:
        read(source, ("source", "target"))
    assert "\n" not in str(caught.value)


def test_an_unknown_column_is_an_error() -> None:
    with pytest.raises(
        HeedfulError,
        match=r"no column 'label' in builtin:cldr-dates; choose one of its columns: source, target, format",
    ):
        read("builtin:cldr-dates", ("source", "label"), split="valid")


def test_the_listing_names_every_set() -> None:
    assert {"cldr-dates", "cldr-languages", "digits", "shapes", "stdlib"} <= set(builtin.names())
