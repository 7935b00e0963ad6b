"""Held-out rows: no text on both sides, the same rows whatever the order of the file."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from heedful.data import LazyImage, Row, split
from heedful.data.split import Same, earlier_digest, exact_bytes, split_text
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
    assert len(held) == {None: 100, 0.1: 100, 37: 37}[valid]
    assert held == sorted(held, key=lambda row: row.line)


@pytest.mark.parametrize("seed", range(5))
def test_texts_that_differ_in_case_and_blanks_alone_stay_together(seed: int) -> None:
    texts = [text for i in range(20) for text in (f"the word {i}", f"The  word {i}", f" THE WORD\t{i} ")]
    train, valid = split(rows(texts), 6, seed)
    assert len(valid) == 6
    sides = [{" ".join(row.values["source"].split()).lower() for row in side} for side in (train, valid)]
    assert not sides[0] & sides[1]


def test_the_order_of_the_file_does_not_matter_and_the_seed_does() -> None:
    every = rows(TEXTS)
    shuffled = random.Random(0).sample(every, len(every))
    held = {row.line for row in split(every, 0.1, seed=3)[1]}
    assert {row.line for row in split(shuffled, 0.1, seed=3)[1]} == held
    assert {row.line for row in split(every, 0.1, seed=4)[1]} != held


def test_the_automatic_size() -> None:
    sizes = {2: 1, 10: 2, 240: 48, 397: 79, 500: 100, 1000: 100, 2000: 100, 3000: 150, 60_000: 2000}
    assert {size: len(split(rows([str(n) for n in range(size)]))[1]) for size in sizes} == sizes


def labelled(counts: dict[str, int], repeats: int = 1) -> list[Row]:
    """Rows of classes with so many texts each, every one of which stands ``repeats`` times."""
    texts = [(f"{name} {i}", name) for name, count in counts.items() for i in range(count) for _ in range(repeats)]
    return [Row({"text": text, "label": name}, "a.tsv", line) for line, (text, name) in enumerate(texts, 1)]


@pytest.mark.parametrize(
    ("counts", "valid", "held"),
    [
        ({"a": 60, "b": 60, "c": 60, "d": 60}, None, {"a": 12, "b": 12, "c": 12, "d": 12}),
        ({"a": 300, "b": 85, "c": 12}, None, {"a": 60, "b": 17, "c": 2}),
        ({"a": 1800, "b": 180, "c": 20}, None, {"a": 90, "b": 9, "c": 1}),
        ({"a": 70, "b": 30}, 0.5, {"a": 35, "b": 15}),
        ({"a": 96, "b": 3, "c": 1}, None, {"a": 19, "b": 1}),  # the only example of a class is learned
    ],
)
def test_each_class_has_its_share_of_few_rows(
    counts: dict[str, int], valid: float | None, held: dict[str, int]
) -> None:
    every = labelled(counts)
    drawn = set()
    for seed in range(3):
        shuffled = random.Random(seed).sample(every, len(every))
        lines = {row.line for row in split(every, valid, seed, by="text", label="label")[1]}
        assert lines == {row.line for row in split(shuffled, valid, seed, by="text", label="label")[1]}
        assert Counter(row.values["label"] for row in every if row.line in lines) == held
        drawn.add(frozenset(lines))
    assert len(drawn) == 3


def test_shares_of_classes_keep_equal_texts_together() -> None:
    every = labelled({"a": 40, "b": 20}, repeats=3)
    every[0].values["label"] = "b"  # of three equal texts
    train, held = split(every, 0.2, by="text", label="label")
    assert not {row.values["text"] for row in train} & {row.values["text"] for row in held}
    assert Counter(row.values["label"] for row in held) == {"a": 24, "b": 12}


@pytest.mark.parametrize("same", [earlier_digest, exact_bytes])
def test_earlier_rules_keep_their_split(same: Same) -> None:
    every = labelled({"a": 200, "b": 197})
    held = split(every, by="text", same=same, label="label")[1]
    assert held == split(every, 20, by="text", same=same)[1]
    assert len(held) == 20
    assert Counter(row.values["label"] for row in held) != {"a": 10, "b": 10}


def test_classes_of_many_rows_and_several_labels_do_not_matter() -> None:
    many = labelled({"a": 1900, "b": 101})
    assert split(many, by="text", label="label") == split(many, by="text")
    several = [Row({"text": row.values["text"], "label": (row.values["label"],)}, "a", row.line) for row in many[:200]]
    assert split(several, by="text", label="label") == split(several, by="text")


def test_a_text_in_most_rows_is_left_in_training() -> None:
    train, held = split(rows(["often"] * 98 + ["once", "else"]), 1)
    assert len(held) == 1
    assert len(train) == 99
    assert len(split(rows(["often"] * 9 + ["twice"] * 2), 1)[1]) == 2  # no text stands once: the rarest is held back


def test_another_column_can_rule() -> None:
    train, held = split([Row({"text": str(n % 5)}, "a", n) for n in range(10)], 2, by="text")
    assert len({row.values["text"] for row in held}) == 1
    assert len(train) == 8


def test_the_draw_for_texts_is_the_same_in_every_version() -> None:
    """The rows held back of a file stay the same for runs that began earlier."""
    held = split(rows([f"text {number}" for number in range(200)]), 4, seed=0)[1]
    assert [row.values["source"] for row in held] == ["text 15", "text 19", "text 22", "text 61"]


def test_equal_images_stay_together(tmp_path: Path) -> None:
    """Arrays by their values and shapes, files by their bytes, whatever they are called."""
    arrays = [np.full((2, 3, 1), value, np.uint8) for value in range(20)]
    arrays += [np.full((3, 2, 1), 0, np.uint8), *(array.copy() for array in arrays[:10])]
    pictures = [LazyImage.of(array, f"{number}") for number, array in enumerate(arrays)]
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"bytes")
        pictures.append(LazyImage.of(tmp_path / name))
    every = [Row({"image": picture, "label": "x"}, "a", line) for line, picture in enumerate(pictures, 1)]
    train, held = split(every, 12, by="image")
    contents = [{row.values["image"].digest_bytes() for row in side} for side in (train, held)]
    assert not contents[0] & contents[1]
    assert len(contents[0] | contents[1]) == 22
    assert (len(train), len(held)) == (21, 12)


def test_tuples_of_texts_are_values_too() -> None:
    every = [Row({"label": ("a", str(n % 4))}, "x", n) for n in range(8)]
    train, held = split(every, 2, by="label")
    assert len({row.values["label"] for row in held}) == 1
    assert len(train) == 6


@pytest.mark.parametrize(
    ("texts", "valid", "message"),
    [
        (
            ["same"] * 9,
            None,
            r"9 rows with 1 different value of 'source' are too few for a validation split; give more rows, or",
        ),
        ([], None, r"0 rows with 0 different values of 'source' are too few"),
        (["a", "b"], 2, r"cannot use 2 of 2 rows for validation; .* from 1 to 1"),
        (["a", "b"], 0, r"cannot use 0 of 2 rows"),
        (["a", "b"], 1.5, r"cannot use 1\.5 of 2 rows"),
    ],
)
def test_impossible_splits_are_errors(texts: list[str], valid: float | int | None, message: str) -> None:
    with pytest.raises(HeedfulError, match=message):
        split(rows(texts), valid)


TEXT = "".join(f"line {number}\n" for number in range(1000))


@pytest.mark.parametrize("fraction", [0.001, 0.05, 0.5, 0.999])
@pytest.mark.parametrize("text", [TEXT, TEXT.rstrip(), f"\n \n{TEXT}\n\n"])
def test_a_text_is_cut_at_the_line_end_that_is_nearest(text: str, fraction: float) -> None:
    head, tail = split_text(text, fraction)
    assert head + tail == text
    assert head.endswith("\n")
    assert head.strip()
    assert tail.strip()
    places = [place for place, character in enumerate(text, 1) if character == "\n"]
    fair = [place for place in places if text[:place].strip() and text[place:].strip()]
    wanted = len(text) * (1 - fraction)
    assert abs(len(head) - wanted) <= min(abs(place - wanted) for place in fair) + 1


@pytest.mark.parametrize("text", ["", "\n\n", "one line", "\none line\n \n"])
def test_one_line_cannot_be_cut(text: str) -> None:
    with pytest.raises(
        HeedfulError, match=r"one line \([0-9]+ characters\) cannot be split .*; give more text, or a valid"
    ):
        split_text(text, 0.5)


@pytest.mark.parametrize("fraction", [0, 1, 1.5, 5])
def test_a_text_is_cut_by_a_fraction(fraction: float) -> None:
    with pytest.raises(HeedfulError, match=rf"fraction of a text must be (above 0|below 1), not {fraction}"):
        split_text("a\nb\n", fraction)


def test_half_a_character_is_a_value_like_others() -> None:
    rows = [Row({"source": text}, "a.json", number) for number, text in enumerate(("\ud800", "a", "b", "\ud800"), 1)]
    train, valid = split(rows, valid=1)
    assert not {row.values["source"] for row in train} & {row.values["source"] for row in valid}
