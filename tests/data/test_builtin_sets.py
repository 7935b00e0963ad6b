"""All built-in sets: no item in two parts, the same in every process; and what each of them holds."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from babel import Locale, dates

from heedful.data import Kind, LazyImage, builtin, read, splits
from heedful.data.builtin import languages, stdlib
from heedful.data.read_source import TYPES
from heedful.errors import HeedfulError

# set -> what a task asks of it; the first column is the item
COLUMNS: dict[str, dict[str, Kind]] = {
    "cldr-dates": {"source": "text", "target": "text"},
    "cldr-languages": {"text": "text", "text_pair": "text?", "label": "label"},
    "digits": {"image": "image", "label": "label"},
    "shapes": {"image": "image", "text": "texts"},
    "stdlib": {"text": "document"},
}
WITHOUT_ARGUMENT = sorted(set(COLUMNS) - {"cldr-dates"})


def content(value: Any) -> bytes:
    return value.digest_bytes() if isinstance(value, LazyImage) else str(value).encode()


@cache
def made(name: str, part: str) -> list[dict[str, Any]]:
    return builtin.load(f"builtin:{name}", part)


def digest(name: str) -> str:
    """Of the smaller parts of a set, in order."""
    total = hashlib.sha256()
    for row in (*made(name, "valid"), *made(name, "test")):
        for key, value in row.items():
            total.update(b"%s\0%s\0" % (key.encode(), content(value)))
    return total.hexdigest()


def test_every_set_is_tested_here() -> None:
    assert set(COLUMNS) == set(builtin.names())


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_no_item_is_in_two_parts(name: str) -> None:
    first = next(iter(COLUMNS[name]))
    items = {part: {content(row[first]) for row in made(name, part)} for part in builtin.SPLITS}
    assert all(items.values())
    assert not items["train"] & items["valid"]
    assert not items["train"] & items["test"]
    assert not items["valid"] & items["test"]
    assert len(items["train"]) > len(items["test"]) > 0


@pytest.mark.full
def test_two_processes_make_the_same_rows() -> None:
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    program += "from test_builtin_sets import COLUMNS, digest\nprint(*map(digest, COLUMNS))"
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == [digest(name) for name in COLUMNS]


@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_reading_a_set(name: str) -> None:
    source, kinds = f"builtin:{name}", COLUMNS[name]
    assert splits(source) == splits([source]) == ("train", "valid", "test")
    assert splits(f"{source}:test") == ()
    rows = read([source], kinds, split="test", limit=3)
    assert [(row.file, row.line) for row in rows] == [(source, line) for line in (1, 2, 3)]
    assert [row.values for row in read(f"{source}:test", kinds, split="train", limit=3)] == [row.values for row in rows]
    assert rows.columns == tuple(column for column, kind in kinds.items() if kind != "text?")
    for column in rows.columns:
        assert isinstance(rows[0].values[column], TYPES.get(kinds[column], str))


@pytest.mark.parametrize("name", WITHOUT_ARGUMENT)
def test_an_argument_is_refused(name: str) -> None:
    with pytest.raises(HeedfulError, match=f"unknown argument 'x', in builtin:{name}/x; write builtin:{name}"):
        read(f"builtin:{name}/x", COLUMNS[name])


def test_a_set_of_another_kind_is_refused() -> None:
    with pytest.raises(
        HeedfulError, match=r"no column 'text' in builtin:digits; choose one of its columns: image, label"
    ):
        read("builtin:digits", COLUMNS["cldr-languages"])
    with pytest.raises(
        HeedfulError, match=r"'image' of builtin:digits has images and cannot be used as 'text'; give other"
    ):
        read("builtin:digits", COLUMNS["cldr-languages"], names=("image", "label"))
    with pytest.raises(
        HeedfulError, match=r"'text' of builtin:stdlib has text and cannot be used as 'image'; give other"
    ):
        read("builtin:stdlib", COLUMNS["digits"], names=("text", "module"))
    with pytest.raises(HeedfulError, match=r"'builtin:digits' has all columns and cannot be combined"):
        read(["builtin:digits", "a.txt"], {"text": "text", "label": "label"})


# ------------------------------------------------------------------------------------------------------------ languages


@pytest.fixture(scope="module")
def named() -> dict[str, str]:
    """Text → language of all parts."""
    rows = [row for part in builtin.SPLITS for row in languages.rows(None, part)]
    assert len({row["text"] for row in rows}) == len(rows)
    return {row["text"]: row["label"] for row in rows}


def test_many_languages_of_about_the_same_size(named: dict[str, str]) -> None:
    counts = Counter(named.values())
    assert len(counts) == len(languages.LANGUAGES) >= 20
    assert 10_000 <= len(named) <= 30_000
    assert max(counts.values()) == languages.MOST
    assert min(counts.values()) >= languages.MOST / 2
    shares = {part: len(languages.rows(None, part)) / len(named) for part in builtin.SPLITS}
    assert shares == pytest.approx({"train": 0.8, "valid": 0.1, "test": 0.1}, abs=0.02)
    for part in builtin.SPLITS:
        assert {row["label"] for row in languages.rows(None, part)} == set(counts)


def test_texts_stand_in_their_language_and_in_no_other(named: dict[str, str]) -> None:
    """By the library's own look-ups, and by Python's own comparison of cases."""
    english = {code: Locale.parse(code).get_language_name("en") for code in languages.LANGUAGES}
    months = {
        (word, english[code])
        for code in english
        for word in dates.get_month_names("wide", "stand-alone", code).values()
    }
    found = {(text, label) for text, label in named.items() if (text, label) in months}
    assert len(found) > 50
    texts = {code: set(map(str.casefold, Locale.parse(code).territories.values())) for code in english}
    checked = 0
    for text, label in named.items():
        holders = {english[code] for code, known in texts.items() if text.casefold() in known}
        assert holders <= {label}, text
        checked += len(holders)
    assert checked > 1_000


def test_no_text_differs_from_another_by_case_or_figures_alone(named: dict[str, str]) -> None:
    assert len({text.casefold() for text in named}) == len(named)
    assert len({"".join(filter(str.isalpha, text)).casefold() for text in named}) > 0.99 * len(named)
    assert languages.letters("3. März 1999") == languages.letters("12. MÄRZ (2001)") == "märz"
    assert languages.letters("हिन्दी 7") == "हिन्दी"  # vowel signs are marks, and tell words apart


# --------------------------------------------------------------------------------------------------------------- stdlib


@pytest.fixture(scope="module")
def modules() -> dict[str, list[dict[str, str]]]:
    return {part: stdlib.rows(None, part) for part in builtin.SPLITS}


def test_the_library_is_whole_modules_in_shares(modules: dict[str, list[dict[str, str]]]) -> None:
    sizes = {part: sum(len(row["text"].encode()) for row in rows) for part, rows in modules.items()}
    total = sum(sizes.values())
    assert total > 4_000_000
    assert [sizes[part] / total for part in builtin.SPLITS] == pytest.approx([0.9, 0.05, 0.05], abs=0.015)
    assert min(len(rows) for rows in modules.values()) > 15
    names = {row["module"] for rows in modules.values() for row in rows}
    assert {"argparse", "json.decoder", "email.__init__", "typing"} <= names
    left_out = ("test", "idlelib", "site-packages", "lib2to3", "encodings", "pydoc_data", "_sysconfigdata", "config-")
    assert not [name for name in names if name.startswith(left_out) or ".test." in name or ".tests." in name]


def test_modules_are_those_that_python_runs(modules: dict[str, list[dict[str, str]]]) -> None:
    for row in (row for part in ("valid", "test") for row in modules[part]):
        assert ast.parse(row["text"]).body
    for row in modules["test"]:
        path = Path(sysconfig.get_path("stdlib"), *row["module"].split(".")).with_suffix(".py")
        assert path.read_text(encoding="utf-8") == row["text"]


def test_a_python_without_source_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(
        HeedfulError, match=f"no Python source in {tmp_path}; install Python with the source of its library"
    ):
        read("builtin:stdlib", COLUMNS["stdlib"])
