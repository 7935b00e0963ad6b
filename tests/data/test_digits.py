"""The built-in digits: scikit-learn's own images and labels, none in two parts."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from heedful.data import LazyImage
from heedful.data.builtin import digits
from heedful.errors import HeedfulError

datasets = pytest.importorskip("sklearn.datasets")
PARTS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def sets() -> dict[str, list[dict[str, Any]]]:
    return {part: digits.rows(None, part) for part in PARTS}


def test_every_digit_is_in_one_part(sets: dict[str, list[dict[str, Any]]]) -> None:
    assert {part: len(rows) for part, rows in sets.items()} == {"train": 1260, "valid": 152, "test": 385}
    rows = [row for part in PARTS for row in sets[part]]
    loaded = datasets.load_digits()
    known = Counter((image.tobytes(), str(label)) for image, label in zip(loaded.images, loaded.target, strict=True))
    back = [np.round(row["image"].pixels()[..., 0] * (16 / 255)) for row in rows]  # 0 to 16 again
    assert Counter((image.tobytes(), row["label"]) for image, row in zip(back, rows, strict=True)) == known


def test_no_image_is_in_two_parts(sets: dict[str, list[dict[str, Any]]]) -> None:
    images = {part: {row["image"].pixels().tobytes() for row in rows} for part, rows in sets.items()}
    assert not images["train"] & images["test"]
    assert not images["train"] & images["valid"]
    assert not images["valid"] & images["test"]
    # a part is a function of the pixels: whatever lies beside an image, it stays where it is
    assert all(digits.digit_part(image) == part for part in PARTS for image in images[part])


def test_every_part_shows_every_digit_and_the_full_range(sets: dict[str, list[dict[str, Any]]]) -> None:
    for rows in sets.values():
        assert {row["label"] for row in rows} == set("0123456789")
        assert all(isinstance(row["image"], LazyImage) and row["image"].size == (8, 8) for row in rows)
        pixels = np.stack([row["image"].pixels() for row in rows])
        assert (pixels.dtype, pixels.min(), pixels.max()) == (np.uint8, 0, 255)


def test_missing_digits_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HeedfulError, match="unknown argument 'roman', in builtin:digits/roman; write builtin:digits"):
        digits.rows("roman", "train")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(HeedfulError) as caught:
        digits.rows(None, "train")
    assert str(caught.value) == "builtin:digits needs scikit-learn; pip install scikit-learn"
