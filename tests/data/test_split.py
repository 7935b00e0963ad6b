"""Held-out rows: no text on both sides, the same rows whatever the order of the file."""

from __future__ import annotations

import random

import pytest

from heedful.data import Row, split
from heedful.errors import HeedfulError


def rows(texts: list[str]) -> list[Row]:
    return [Row({"source": text, "target": f"target {line}"}, "a.tsv", line) for line, text in enumerate(texts, 1)]


TEXTS = [f"text {number % 700}" for number in range(1000)]  # 300 texts stand twice


@pytest.mark.parametrize("valid", [None, 0.1, 37])
def test_no_text_is_on_both_sides(valid: float | int | None) -> None:
    every = rows(TEXTS)
    train, held = split(every, valid, seed=1)
    assert not {row.values["source"] for row in train} & {row.values["source"] for row in held}
    assert sorted([*train, *held], key=lambda row: row.line) == every
    assert len(held) == {None: 50, 0.1: 100, 37: 37}[valid]
    assert held == sorted(held, key=lambda row: row.line)


def test_the_order_of_the_file_does_not_matter_and_the_seed_does() -> None:
    every = rows(TEXTS)
    shuffled = random.Random(0).sample(every, len(every))
    held = {row.line for row in split(every, 0.1, seed=3)[1]}
    assert {row.line for row in split(shuffled, 0.1, seed=3)[1]} == held
    assert {row.line for row in split(every, 0.1, seed=4)[1]} != held


def test_the_automatic_size() -> None:
    assert [len(split(rows([str(n) for n in range(size)]))[1]) for size in (2, 10, 400, 60_000)] == [1, 1, 20, 2000]


def test_a_text_in_most_rows_is_left_in_training() -> None:
    train, held = split(rows(["often"] * 98 + ["once", "else"]), 1)
    assert len(held) == 1
    assert len(train) == 99
    assert len(split(rows(["often"] * 9 + ["twice"] * 2), 1)[1]) == 2  # no text stands once: the rarest is held back


def test_another_column_can_rule() -> None:
    train, held = split([Row({"text": str(n % 5)}, "a", n) for n in range(10)], 2, by="text")
    assert len({row.values["text"] for row in held}) == 1
    assert len(train) == 8


@pytest.mark.parametrize(
    ("texts", "valid", "message"),
    [
        (["same"] * 9, None, r"9 rows with 1 different source texts are too few to hold some back; give more rows, or"),
        ([], None, r"0 rows with 0 different source texts are too few"),
        (["a", "b"], 2, r"2 of 2 rows cannot be held back for validation; .* from 1 to 1"),
        (["a", "b"], 0, r"0 of 2 rows cannot be held back"),
        (["a", "b"], 1.5, r"1\.5 of 2 rows cannot be held back"),
    ],
)
def test_what_cannot_be_split_is_said(texts: list[str], valid: float | int | None, message: str) -> None:
    with pytest.raises(HeedfulError, match=message):
        split(rows(texts), valid)
