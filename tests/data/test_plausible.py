"""Columns that cannot be what they are taken for are said, and what only looks odd is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.data import Kind, read
from heedful.data.column_inference import implausible_classes
from heedful.errors import HeedfulError

TAGGED: dict[str, Kind] = {"source": "text", "target": "text", "language": "tag?"}
LABELLED: dict[str, Kind] = {"text": "text", "text_pair": "text?", "label": "label"}
TEXTS = [f"a text of {number} words" for number in range(30)]


def written(folder: Path, name: str, lines: list[str]) -> str:
    (folder / name).write_text("".join(line + "\n" for line in lines))
    return str(folder / name)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["fr", "de", "es"], None),  # three rows, three languages
        (TEXTS, "text"),
        (["0.5", "-1e-3", "7", "9"], "numbers"),
        (["0", "1"] * 4, None),
        ([f"intent_{number}" for number in range(21)], "ids"),
        ([f"intent_{number}" for number in range(20)], None),
        ([f"intent_{number}" for number in range(50)] * 2, None),
        (["one of two", "two of two"] * 2, None),  # names may hold blanks
        (["nan", "inf", "x", "y"], None),
    ],
)
def test_implausible_class_names(values: list[str], expected: str | None) -> None:
    assert implausible_classes(values) == expected


def test_a_third_parallel_text_is_no_language(tmp_path: Path) -> None:
    sides = [written(tmp_path, name, TEXTS) for name in ("a.en", "a.fr", "a.de")]
    with pytest.raises(HeedfulError) as caught:
        read(sides, TAGGED)
    assert str(caught.value) == (
        f"30 different values of 'language' in 30 rows, such as 'a text of 0 words', in {sides[2]}:1; give source and "
        "target alone, or a language that many rows share, such as fr"
    )
    written(tmp_path, "a.de", [f"它们{number}" for number in range(30)])  # no blanks
    with pytest.raises(HeedfulError, match="30 different values of 'language'"):
        read(sides, TAGGED)


def test_languages_beside_texts_are_read(tmp_path: Path) -> None:
    sides = [written(tmp_path, name, TEXTS) for name in ("a.en", "a.xx")]
    tags = written(tmp_path, "a.tags", ["fr", "de", "Simplified Chinese"] * 10)
    assert {row.values["language"] for row in read([*sides, tags], TAGGED)} == {"fr", "de", "Simplified Chinese"}
    assert read(sides, TAGGED)[0].values.keys() == {"source", "target"}
    table = written(tmp_path, "a.tsv", ["source\ttarget\tlanguage", "red\trouge\tfr", "red\trot\tde"])
    assert [row.values["language"] for row in read(table, TAGGED)] == ["fr", "de"]


def test_a_column_of_texts_is_no_language(tmp_path: Path) -> None:
    table = written(tmp_path, "a.tsv", [f"{text}\t{text}\t{text}" for text in TEXTS])
    with pytest.raises(HeedfulError, match=r"30 different values of 'language' .*a\.tsv:1; give source"):
        read(table, TAGGED, names=["1", "2", "3"])


def labelled(*labels: str) -> list[str]:
    return [f"{text}\t{labels[place % len(labels)]}" for place, text in enumerate(TEXTS)]


def test_a_header_that_would_be_an_example(tmp_path: Path) -> None:
    table = written(tmp_path, "a.tsv", ["statement\tverdict", *labelled("0", "1")])
    rows = read(table, LABELLED)
    assert (len(rows), rows.mapping) == (30, {"text": "statement", "label": "verdict"})
    undecided = written(tmp_path, "b.tsv", ["one\ttwo", *(f"{label}\t{label}" for label in "abab")])
    with pytest.raises(HeedfulError, match=r"no other row has the label 'two', .*b\.tsv:1; .*--data\.columns one,two"):
        read(undecided, LABELLED)
    assert len(read(table, LABELLED, names=["statement", "verdict"])) == 30
    assert len(read(table, LABELLED, names=["1", "2"])) == 31


@pytest.mark.parametrize(
    "lines",
    [
        ["a fine film\tgood", *labelled("bad", "middling")],  # a text
        ["film\t5", *labelled("0", "1")],  # a number
        ["film\tgood", *labelled("good", "bad")],  # a label that another row has
        ["film\tgood", *labelled("bad", "middling"), "a lone one\trare"],  # others are alone too
        ["film\tgood", *labelled("bad")],
    ],
)
def test_first_rows_that_are_rows(tmp_path: Path, lines: list[str]) -> None:
    assert len(read(written(tmp_path, "a.tsv", lines), LABELLED)) == len(lines)
