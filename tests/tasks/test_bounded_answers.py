"""Many inputs of which some are absurd: every answer is what it is alone, in order, and no batch is out of bounds."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.pretrained.preprocessing import Preprocessing
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks.image_classification import ImageClassification
from heedful.tasks.task import EVALUATED
from heedful.tasks.text_classification import TextClassification
from tolerances import approx

WORDS = ["apple", "pear", "plum", "quince", "hammer", "saw", "chisel", "drill"]


def classifier(max_length: int) -> tuple[TextClassification, Model]:
    data = Rows(Row({"text": f"a {word} and {word}", "label": str(i % 2)}, "w.tsv", i) for i, word in enumerate(WORDS))
    settings = RunSettings(
        task="text-classification",
        train=("w.tsv",),
        out="w",
        preset="bert-tiny",
        model=ModelSettings(dim=32, heads=2, depth=1),
        tokenizer=TokenizerSettings(size=200),
        data=DataSettings(max_length=max_length),
    )
    task = TextClassification.prepare(data, settings)
    model = heedful.create(task.config(settings), seed=0).eval()
    task.before_training(model, settings)
    task.check_model(model)
    for parameter in model.double().parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return task, model


def seen_by(model: Model) -> list[tuple[int, int]]:
    """(B, T) of each batch from now on."""
    shapes: list[tuple[int, int]] = []
    model.embedding.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
    return shapes


def test_a_thousand_texts_and_one_that_is_absurd(caplog: pytest.LogCaptureFixture) -> None:
    task, model = classifier(max_length=64)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, random.integers(1, 30))) for _ in range(1000)]
    texts[437] = " ".join(random.choice(WORDS, 50_000))
    with caplog.at_level(logging.WARNING):
        shapes = seen_by(model)
        answers = task.predict(model, texts)
    assert caplog.messages == ["1 of 1,000 inputs cut to 64 tokens (the model takes no more)"]
    assert [answer.input for answer in answers] == texts
    assert all(rows * columns <= EVALUATED for rows, columns in shapes)
    assert max(columns for _, columns in shapes) == 64
    assert len(shapes) < 20
    for i in (0, 436, 437, 438, 999):
        alone = task.predict(model, [texts[i]])[0]
        assert answers[i].output == alone.output
        assert answers[i].score == approx(alone.score, "layer")


def test_no_warning_where_nothing_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    task, model = classifier(max_length=64)
    with caplog.at_level(logging.WARNING):
        task.predict(model, ["an apple", "a saw"])
    assert not caplog.messages


def images(sides: Any = "both") -> tuple[ImageClassification, Model]:
    plain = Preprocessing(size=28, mean=(0.5,), std=(0.5,), sides=sides, crop=28 if sides == "shorter" else None)
    task = ImageClassification(["a", "b", "c"], plain)
    model = heedful.create("vit-micro", num_labels=3, seed=0).eval()
    model.labels = list(task.labels)
    task.check_model(model)
    return task, model


def test_images_of_very_different_sizes_are_answered_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = images()
    random = np.random.default_rng(0)
    files = []
    for i in range(300):
        height, width = (800, 600) if i == 7 else (1, 3) if i == 8 else random.integers(5, 60, 2)
        pixels = random.integers(0, 256, (height, width), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        files.append(tmp_path / f"{i}.png")
    held, most = 0, 0
    fitted, collate = Preprocessing.fitted, ImageClassification.collate

    def counting(self: Preprocessing, pixels: np.ndarray) -> np.ndarray:
        nonlocal held, most
        held += 1
        most = max(most, held)
        return fitted(self, pixels)

    def emptying(self: ImageClassification, *given: Any) -> Any:
        nonlocal held
        held = 0
        return collate(self, *given)

    monkeypatch.setattr(Preprocessing, "fitted", counting)
    monkeypatch.setattr(ImageClassification, "collate", emptying)
    answers = task.predict(model, files)
    assert [answer.input for answer in answers] == list(map(str, files))
    assert 1 < most <= EVALUATED // model.config.patches.tokens  # decoded a batch at a time, not all at once
    for i in (0, 7, 8, 299):
        alone = task.predict(model, [files[i]])[0]
        assert answers[i].output == alone.output
        assert answers[i].score == approx(alone.score)


def test_a_strip_that_would_fill_the_memory_is_refused() -> None:
    task, model = images("shorter")
    with pytest.raises(HeedfulError, match=r"cannot resize an image of 90,000 × 1 pixels to 2,520,000 × 28"):
        task.predict(model, [np.zeros((1, 90_000), dtype=np.uint8)])
    assert task.predict(model, [np.zeros((2, 9_000), dtype=np.uint8)])[0].output in task.labels
