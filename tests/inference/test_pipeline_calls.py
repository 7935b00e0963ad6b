"""``heedful.pipeline`` as people call it: a folder alone, all labels, what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heedful
from answering_folders import LABELS, saved
from heedful.errors import HeedfulError


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("text-classification", tmp_path_factory.mktemp("models") / "texts")


def test_a_folder_alone_is_opened_for_its_own_task(texts: Path) -> None:
    alone, named = heedful.pipeline(texts, device="cpu"), heedful.pipeline("text-classification", texts, device="cpu")
    assert alone.task.name == named.task.name == "text-classification"
    assert heedful.pipeline(str(texts), device="cpu")("an apple") == named("an apple")
    assert repr(alone) == f"<Pipeline for text-classification of {str(texts)!r} on cpu>"
    (texts / "heedful.json").rename(texts / "aside.json")
    try:
        assert heedful.pipeline(texts, device="cpu").task.name == "text-classification"  # by its head
    finally:
        (texts / "aside.json").rename(texts / "heedful.json")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("text-classification", r"no model is given for text-classification; .*pipeline\('text-classification', 'runs"),
        (None, "no model is given; name its folder or Hub id"),
        (3, "no model is given; name its folder or Hub id"),
    ],
)
def test_a_task_alone_is_refused(given: Any, message: str) -> None:
    with pytest.raises(HeedfulError, match=message):
        heedful.pipeline(given)


@pytest.mark.parametrize("task", ["text-classification", "image-classification"])
def test_top_k_none_lists_all_labels(task: str, tmp_path: Path) -> None:
    pipe = heedful.pipeline(saved(task, tmp_path / "model"), device="cpu")
    value = "an apple" if task.startswith("text") else np.zeros((28, 28), np.uint8)
    listed = pipe(value, top_k=None)["output"]
    assert listed == pipe(value, top_k=len(LABELS))["output"]
    assert sorted(label["label"] for label in listed) == sorted(pipe.labels) == sorted(LABELS)
    assert sum(label["score"] for label in listed) == pytest.approx(1, abs=1e-5)
    assert pipe(value)["output"] == listed[0]["label"]
    assert heedful.pipeline(saved("translation", tmp_path / "translator"), device="cpu").labels == []
