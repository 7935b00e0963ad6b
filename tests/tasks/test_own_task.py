"""A task that the package does not know: with an entry in `TASKS` it trains, resumes, evaluates, compares, predicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful import tasks
from heedful.audit.audit import audit
from heedful.config import ModelConfig, SequenceHead, SpecialTokens
from heedful.data import Kind, Row, Rows
from heedful.errors import HeedfulError
from heedful.evaluation.compare import compare
from heedful.evaluation.evaluate import evaluate
from heedful.inference.pipeline import pipeline
from heedful.metrics.example_scores import Sums, overall
from heedful.models import Model
from heedful.presets import get
from heedful.serving.runs import WatchedRun
from heedful.settings import RunSettings
from heedful.tasks.task import Batch, Encoded, Measured, Prediction, Task
from heedful.tasks.translation import Translation
from heedful.training.run import train

PARITIES = ("even", "odd")


class DigitParity(Task):
    """Predicts if the sum of the digits of a text is even or odd: one token a digit, no tokenizer."""

    name: ClassVar[str] = "digit-parity"
    columns: Mapping[str, Kind] = MappingProxyType({"text": "text", "label": "label"})
    unit = "examples"
    main_metric = "right"
    used_settings: ClassVar[frozenset[str]] = frozenset({"data.max_length"})

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        training = replace(
            given.training, lr=1e-3, schedule="constant", warmup=1, batch_size=4, accumulate=1, clip=1.0, log_every=1
        )
        training = replace(training, label_smoothing=0.0, weight_decay=0.0, betas=(0.9, 0.99), eps=1e-8, patience=10)
        return replace(given, preset="bert-tiny", max_epochs=2, training=training)

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        return cls()

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        return cls()

    def save(self, folder: str | Path) -> None:
        (Path(folder) / "digits.json").write_text(json.dumps({"base": 10}), encoding="utf-8")

    def config(self, settings: RunSettings) -> ModelConfig:
        config: Any = get("bert-tiny")
        embedding = replace(config.embedding, vocab_size=12)
        encoder = replace(config.encoder, dim=16, heads=2, depth=1, ff_dim=32)
        return replace(
            config, embedding=embedding, encoder=encoder, head=SequenceHead(labels=2), special=SpecialTokens()
        )

    def check_model(self, model: Model) -> None:
        assert model.config.head.kind == SequenceHead.kind

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        return Encoded(
            [([11, *map(int, row.values["text"])], PARITIES.index(row.values["label"])) for row in rows], rows
        )

    def lengths(self, examples: Sequence[Any]) -> np.ndarray:
        return np.array([[len(ids)] for ids, _ in examples])

    def collate(self, examples: Sequence[Any], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        width = max(len(ids) for ids, _ in examples)
        ids = torch.tensor([[*ids, *[10] * (width - len(ids))] for ids, _ in examples])
        return {"ids": ids, "mask": ids != 10, "labels": torch.tensor([label for _, label in examples])}

    def count(self, batch: Batch) -> int:
        return len(batch["labels"])

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(model(batch["ids"], batch["mask"]), batch["labels"], reduction="sum")

    def measure(
        self, model: Model, examples: Sequence[Any], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        outputs = [answer.output for answer in self.predict(model, [row.values["text"] for row in rows])]
        right = [[float(said == row.values["label"]), 1.0] for said, row in zip(outputs, rows, strict=True)]
        loss, count = self.loss(model, examples)
        scored = Sums(right, lambda sums: {"right": 100 * sums[0] / sums[1]})
        return Measured({"loss": loss / count, **overall(scored)}, example_scores=scored, outputs=outputs)

    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        examples = [([11, *map(int, text)], 0) for text in inputs]
        answers: list[Prediction] = [Prediction(text, None, None) for text in inputs]
        for places, p in self.map_batches(model, examples, lambda batch: model(batch["ids"], batch["mask"]).softmax(1)):
            for place, row in zip(places, p.tolist(), strict=True):
                answers[place] = Prediction(inputs[place], PARITIES[int(row[1] > row[0])], max(row))
        return answers

    def row_line(self, row: Row) -> str:
        return f"{row.values['text']} → {row.values['label']}"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = tasks.TaskEntry(path=f"{__name__}:DigitParity", summary="parity of digits", main_metrics=("right",))
    monkeypatch.setitem(tasks.TASKS, DigitParity.name, entry)


def table(path: Path, numbers: range) -> str:
    rows = [f"{number}\t{PARITIES[sum(map(int, str(number))) % 2]}\n" for number in numbers]
    path.write_text("".join(rows), encoding="utf-8")
    return str(path)


def settings(folder: Path, **more: Any) -> RunSettings:
    train, valid = table(folder / "train.tsv", range(10, 50)), table(folder / "valid.tsv", range(60, 80))
    given = {"task": DigitParity.name, "train": [train], "valid": [valid], "out": str(folder / "run")}
    return RunSettings.from_dict(given | more)


def test_it_trains_resumes_evaluates_compares_and_predicts(tmp_path: Path) -> None:
    train(settings(tmp_path, max_steps=4), quiet=True)
    run, valid = tmp_path / "run", str(tmp_path / "valid.tsv")
    assert (run / "digits.json").is_file()
    resumed = train(settings(tmp_path, max_steps=6, resume=True), quiet=True)

    measured = evaluate(str(run), [valid])
    assert measured["metrics"]["right"] == pytest.approx(resumed["metrics"]["right"])
    assert "right" in measured["intervals"]
    assert compare([str(run)] * 2, [valid], say=lambda line: None)["main_metric"] == "right"

    pipe = pipeline(None, run)
    assert isinstance(pipe.task, DigitParity)
    assert pipe("123")["output"] in PARITIES
    assert [answer["output"] for answer in pipe(["12", "345"])] == [pipe(text)["output"] for text in ("12", "345")]

    watched = WatchedRun(run, "run")
    watched.update()
    assert watched.as_dict(0.0)["best"]["metric"] == "right"


def test_settings_of_other_tasks_are_refused_for_it(tmp_path: Path) -> None:
    with pytest.raises(HeedfulError, match=r"--masking\.probability has no effect for digit-parity"):
        train(settings(tmp_path, masking={"probability": 0.2}), quiet=True)


def test_an_audit_of_it_knows_no_labels_of_its_model(tmp_path: Path) -> None:
    """The task has no attribute ``labels``: every validation label was called unknown."""
    findings = audit(settings(tmp_path)).findings
    assert "labels" in {finding.name for finding in findings}
    assert "unseen labels" not in {finding.name for finding in findings}


class PlainTranslation(Translation):
    """Encodes examples as lists of ids, without the starts of their words."""

    name: ClassVar[str] = "plain-translation"

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        encoded = super().encode(rows, max_length)
        return encoded._replace(examples=[(list(source), list(target)) for source, target in encoded.examples])


def test_bpe_dropout_needs_examples_with_the_starts_of_their_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tasks.TaskEntry(path=f"{__name__}:PlainTranslation", summary="", main_metrics=("bleu",))
    monkeypatch.setitem(tasks.TASKS, PlainTranslation.name, entry)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"number {n}\tzahl {n}\n" for n in range(60)), encoding="utf-8")
    small = {"dim": 16, "heads": 2, "depth": 1}
    given = {"task": PlainTranslation.name, "train": [str(pairs)], "preset": "transformer-tiny", "model": small}

    def one_step(out: str, **tokenizer: float) -> RunSettings:
        return RunSettings.from_dict(
            {**given, "out": str(tmp_path / out), "max_steps": 1, "tokenizer": {"size": 300, **tokenizer}}
        )

    assert train(one_step("whole"), quiet=True)["steps"] == 1
    with pytest.raises(HeedfulError, match=r"--tokenizer\.dropout needs examples with the starts of their words"):
        train(one_step("dropped", dropout=0.5), quiet=True)
