"""The example with which a run ends: an input that can be copied to ``heedful predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from answering_folders import made
from heedful.data import LazyImage, Row

LONG = "so many words " * 9


@pytest.mark.parametrize(
    ("task", "values", "expected"),
    [
        ("translation", {"source": "How\nare you?"}, "How are you?"),
        ("translation", {"source": LONG}, " ".join(LONG.split()[:13])),
        ("translation", {"source": "x" * 99}, "x" * 60),
        ("translation", {"source": "--json"}, None),
        ("fill-mask", {"text": "the pear is"}, "the pear <mask>"),
        ("token-classification", {"words": ("the", "pear"), "tags": ("O", "O")}, "the pear"),
        ("question-answering", {"question": "what?", "context": "a pear"}, None),
        ("text-generation", {"messages": [{"role": "user", "content": "hi"}]}, None),
    ],
)
def test_an_example_of_the_data(task: str, values: dict[str, Any], expected: str | None) -> None:
    assert made(task)[0].example_input(Row(values, "f", 1)) == expected


def test_an_image_is_its_file(tmp_path: Path) -> None:
    task, pixels = made("image-classification")[0], np.zeros((28, 28), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    assert task.example_input(Row({"image": LazyImage.of(tmp_path / "x.png")}, "f", 1)) == str(tmp_path / "x.png")
    assert task.example_input(Row({"image": LazyImage.of(pixels, "row 1")}, "f", 1)) is None
