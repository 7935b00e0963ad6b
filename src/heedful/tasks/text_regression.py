"""Regression: a number for a text or a pair of texts, by a classifier's head with one output."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import SequenceHead
from heedful.data import Kind, Row, Rows, split
from heedful.data.cell_values import as_number
from heedful.data.split import Same, content
from heedful.errors import HeedfulError, many
from heedful.metrics.example_scores import overall
from heedful.metrics.regression import Regression
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.pretrained.configuration import config_of, read_configs
from heedful.pretrained.folder import find, regression
from heedful.pretrained.scaled_output import scale_output
from heedful.settings import RunSettings
from heedful.tasks.baselines import ridge_text
from heedful.tasks.labels import check_classifier, classifier_in
from heedful.tasks.model_setup import reads, tokenizer_of
from heedful.tasks.task import TEXTS, Baseline, Batch, Measured, Prediction, short
from heedful.tasks.text_classification import TextClassification, columns_of
from heedful.tasks.text_pairs import Example, examples_of, sides_of
from heedful.text import Tokenizer
from heedful.util.input_warnings import CountWarning

log = logging.getLogger("heedful")

OUTPUT = "LABEL_0"  # how transformers calls the only output of such a model


class TextRegression(TextClassification):
    """Text classification whose labels are numbers: the model's one output is the number itself
    (``problem_type="regression"``), learned by the mean squared error.

    In training the weights of the output are those of standardised labels: the output is multiplied by ``factor``, the
    power of two nearest to the labels' standard deviation, and a fresh bias begins at their mean, so that learning
    rates suit labels of any unit. Saving multiplies the factor into the weights, exactly, since it is a power of two.

    Args:
        tokenizer: of the texts.
        columns: what an example holds; ``text_pair`` is optional until training says.
        mean: of the training labels.
        factor: by which errors are divided in the loss.
    """

    columns: Mapping[str, Kind] = MappingProxyType({"text": "text", "text_pair": "text?", "label": "number"})
    main_metric: str = "r2"
    used_settings: ClassVar[frozenset[str]] = TEXTS | {"data.label_kind"}
    options: ClassVar[frozenset[str]] = frozenset({"batch_tokens"})
    display_options: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self, tokenizer: Tokenizer, *, columns: Mapping[str, Kind] | None = None, mean: float = 0.0, factor: float = 1.0
    ) -> None:
        super().__init__(tokenizer, [OUTPUT], columns=columns)
        self.mean, self.factor = mean, factor

    # ------------------------------------------------------------------------------------------------------- making it

    @classmethod
    def for_rows(cls, rows: Rows, settings: RunSettings) -> type[TextClassification]:
        """This class: its rows hold numbers."""
        return cls

    @classmethod
    def convert_rows(cls, rows: Rows) -> Rows:
        """The rows with their labels as floats. Raises for one that is no number, with file and line."""
        values = []
        for row in rows:
            number = as_number(row.values["label"])
            if number is None:
                raise HeedfulError(
                    f"{row.file}:{row.line}: the label {row.values['label']!r} is no number; correct it, or learn "
                    "classes: --data.label-kind class"
                )
            values.append(replace(row, values={**row.values, "label": number}))
        made = Rows(values, rows.skipped, rows.columns)
        made.blank = rows.blank
        made.read_as(rows)
        return made

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content) -> tuple[Rows, Rows]:
        """Rows with the same text stay together."""
        train, held = split(rows, valid, seed, by="text", same=same)
        return Rows(train, rows.skipped, rows.columns), Rows(held, 0, rows.columns)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], asked: RunSettings) -> RunSettings:
        """As of classes, without smoothing, which has no meaning for numbers."""
        idle = {
            "--training.label-smoothing": asked.training.label_smoothing,
            "--model.r-drop": asked.model.r_drop,
            "--data.label-separator": asked.data.label_separator,
        }
        for flag, given in idle.items():
            if given:
                raise HeedfulError(f"{flag} has no effect on labels that are numbers; leave it out")
        made = super().suggested_settings(rows, asked)
        return replace(
            made,
            data=replace(made.data, label_kind="number"),
            training=replace(made.training, label_smoothing=0.0),
        )

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Train the tokenizer on the training texts, and take mean and deviation from the labels."""
        columns = columns_of(rows, "number")
        return cls(cls._tokenizer(rows, columns, settings), columns=columns, **_spread(rows))

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """The folder's model, with a fresh output where it does not give one number."""
        folder = reads(cls.name, find(folder))
        head = config_of(folder).head
        own = isinstance(head, SequenceHead) and head.labels == 1 and regression(read_configs(folder)[0])
        model = classifier_in(folder, "sequence", None if own else 1, settings.seed or 0)
        task = cls(tokenizer_of(folder), columns=columns_of(rows, "number"), **_spread(rows))
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The tokenizer of a model folder; of one that a run of ours wrote also mean and factor."""
        folder = Path(folder)
        card = read_card(reads(cls.name, folder))
        numbers = card.get("numbers", {})
        mean, factor = (as_number(numbers.get(name)) for name in ("mean", "factor"))
        return cls(tokenizer_of(folder), columns=card.get("columns"), mean=mean or 0.0, factor=factor or 1.0)

    def card_entries(self) -> dict[str, Any]:
        """``numbers``: the mean of the training labels, and the factor of the loss."""
        return {"numbers": {"mean": self.mean, "factor": self.factor}}

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Let the output learn standardised labels; what starts anew has words hidden from it."""
        super().before_training(model, settings)
        model.labels, model.regression = [OUTPUT], True
        fresh = not settings.resume and (not settings.start_from or "head.output.weight" in model.fresh)
        scale_output(model.get_submodule("head"), self.factor, self.mean if fresh else None)

    def check_model(self, model: Model) -> None:
        """A model of text with one output and a row for every token."""
        head = model.config.head
        if isinstance(head, SequenceHead) and head.labels != 1:
            raise HeedfulError(f"the model gives {head.labels} numbers, and one is wanted; take a model of one output")
        check_classifier(self.name, model, self.labels, SequenceHead)
        self._check_texts(model)

    # ------------------------------------------------------------------------------------------- examples and learning

    def _label_ids(self, row: Row) -> tuple[float, ...]:
        return (float(row.values["label"]),)

    def _targets(self, examples: Sequence[Example]) -> Tensor:
        """(B, 1): the numbers; 0 where none is known."""
        return torch.tensor([[*example.labels, 0.0][:1] for example in examples], dtype=torch.float32)

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Σ over examples of ((ŷ − y) / factor)²."""
        found = self._logits(model, batch)
        return F.mse_loss(found / self.factor, batch["labels"] / self.factor, reduction="sum")

    # ------------------------------------------------------------------------------------ measuring, answering, telling

    @torch.no_grad()
    def measure(
        self, model: Model, examples: Sequence[Example], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """R², Pearson's and Spearman's correlation, the mean absolute error; always of all examples."""
        found = np.zeros(len(examples))

        def read(batch: Batch) -> Tensor:
            return self._logits(model, batch)[:, 0].cpu()

        for places, numbers in self.map_batches(model, examples, read, options.get("batch_tokens")):
            found[places] = numbers.double().numpy()
        scored = Regression(found, [example.labels[0] for example in examples], self.factor)
        return Measured(overall(scored), each=scored, outputs=found.tolist())

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """TF-IDF and ridge regression: ``heedful.tasks.baselines.ridge_text``."""
        known = learned()
        texts, asked = ([" ".join(self._texts(row)) for row in part] for part in (known, rows))
        found = ridge_text(texts, [row.values["label"] for row in known], asked)
        scored = Regression(found, [row.values["label"] for row in rows], self.factor)
        figures = overall(scored)
        # its loss has no meaning beside the model's: it was not trained by it
        kept = {name: value for name, value in figures.items() if name != "loss"}
        return Baseline("TF-IDF and ridge regression", kept, scored)

    def quick_baseline(self, examples: Sequence[Example], rows: Rows, learned: Rows) -> Baseline | None:
        """The ``baseline``, which is quick."""
        return self.baseline(rows, lambda: learned)

    def guess(self, examples: Sequence[Example], rows: Rows, learned: Rows) -> Baseline | None:
        """The mean of the training labels."""
        mean = float(np.mean([row.values["label"] for row in learned]))
        scored = Regression([mean] * len(rows), [row.values["label"] for row in rows], self.factor)
        return Baseline("the mean of the training labels", overall(scored), scored)

    @torch.no_grad()
    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """The number of each input, a float, without a score; an input without text gets None.

        A pair is given as to classifiers. What is longer than the model takes is cut, and a warning says so.
        """
        answers = [Prediction(one, None, None) for one in inputs]
        pair = self.columns.get("text_pair")
        texts = {i: sides for i, one in enumerate(inputs) if (sides := sides_of(one, pair))}
        asked = list(texts)
        if not asked:
            return answers
        examples, cut = examples_of(self.tokenizer, texts.values(), [()] * len(texts), self.longest)
        if cut:
            log.warning(
                CountWarning(len(cut), len(inputs), f"cut to {self.longest:,} tokens (the model takes no more)")
            )

        def read(batch: Batch) -> list[float]:
            made: list[float] = self._logits(model, batch)[:, 0].tolist()
            return made

        for places, numbers in self.map_batches(model, examples, read, options.get("batch_tokens")):
            for place, number in zip(places, numbers, strict=True):
                answers[asked[place]] = Prediction(inputs[asked[place]], number, None)
        return answers

    def row_line(self, row: Row) -> str:
        """``text → 3.5``, ``text + pair → 3.5``."""
        return f"{' + '.join(map(short, self._texts(row)))} → {row.values['label']:g}"


def _spread(rows: Sequence[Row]) -> dict[str, float]:
    """The mean of the labels, and the power of two nearest to their standard deviation."""
    numbers = np.array([row.values["label"] for row in rows], dtype=np.float64)
    deviation = float(numbers.std())
    if not deviation or not math.isfinite(deviation):
        raise HeedfulError(f"{rows[0].file}: every label is {numbers[0]:g}, in {many(len(rows), 'row')}; give others")
    return {"mean": float(numbers.mean()), "factor": 2.0 ** round(math.log2(deviation))}
