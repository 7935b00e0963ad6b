"""Model folders for tests: one of each task, with random weights, as a run writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import heedful
from heedful.data import LazyImage, Row, Rows
from heedful.data.rows import Span
from heedful.models import Model
from heedful.pretrained.preprocessing import Preprocessing
from heedful.pretrained.writing import save
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings, resolve
from heedful.tasks import get
from heedful.tasks.image_classification import ImageClassification
from heedful.tasks.task import Task

WORDS = ["apple", "pear", "plum", "quince", "hammer", "saw", "chisel", "drill"]
LABELS = ("fruit", "other", "tool")
SIZE = ModelSettings(dim=16, heads=2, depth=1)


def _rows(task: str, tagged: bool) -> Rows:
    made = []
    for i, word in enumerate(WORDS):
        text = f"the {word} is a {LABELS[i // 4 * 2]}, and {word}"
        values: dict[str, object] = {
            "translation": {"source": text, "target": text[::-1]},
            "summarization": {"text": text, "summary": word},
            "text-classification": {"text": text, "label": LABELS[i % 3]},
            "token-classification": {
                "words": tuple(text.split()),
                "tags": tuple("B-THING" if one == word else "O" for one in text.split()),
            },
            "question-answering": {"question": f"what is {word}?", "context": text, "answers": (Span(word, 4),)},
            "generative-question-answering": {"question": f"what is {word}?", "context": text, "answers": (word,)},
            "feature-extraction": {"text": text, "text_pair": word},
            "image-to-text": {"image": LazyImage.of(np.full((8, 8, 3), 30 * i, np.uint8), word), "text": text},
        }.get(task, {"text": text})
        if tagged:
            values["language"] = "de" if i % 2 else "fr"
        made.append(Row(values, "words.tsv", i + 1))
    return Rows(made, 0, tuple(made[0].values))


def made(task: str, *, length: int = 32, tagged: bool = False) -> tuple[Task, Model]:
    """The task, and a model of it in evaluation mode whose answers differ from input to input; a ``tagged`` translator
    has the target languages "de" and "fr".
    """
    if task == "image-classification":
        images = ImageClassification(list(LABELS), Preprocessing(size=28, mean=(0.5,), std=(0.5,)))
        model = heedful.create("vit-micro", num_labels=3, seed=0).eval()
        model.labels = list(LABELS)
        images.check_model(model)
        return images, model
    rows = _rows(task, tagged)
    writes = ("text-generation", "translation", "summarization", "image-to-text")
    kind = "character" if task in writes else "wordpiece"
    asked = RunSettings(
        task=task,
        train=("words.tsv",),
        out="out",
        max_steps=1,
        model=SIZE,
        data=DataSettings(max_length=length),
        tokenizer=TokenizerSettings(kind=kind, size=200),  # type: ignore[arg-type]
    )
    cls = get(task)
    settings = resolve(asked, cls.suggested_settings(rows, asked))
    its = cls.prepare(rows, settings)
    model = heedful.create(its.config(settings), seed=0).eval()
    its.before_training(model, settings)
    its.check_model(model)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return its, model


def saved(task: str, folder: Path, **given: Any) -> Path:
    """The folder of such a model."""
    its, model = made(task, **given)
    save(model, folder, extra={"task": task, "columns": dict(its.columns), **its.card_entries()})
    its.save(folder)
    return folder
