"""Text regression: a number for a text or a pair of texts, by a classifier's head with one output."""

from __future__ import annotations

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
from heedful.data import Kind, Row, Rows
from heedful.data.cell_values import parse_number
from heedful.errors import HeedfulError, plural
from heedful.metrics.example_scores import overall
from heedful.metrics.regression import Regression
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.pretrained.configuration import config_of, read_configs
from heedful.pretrained.folder import is_regression
from heedful.pretrained.scaled_output import scale_output
from heedful.settings import RunSettings
from heedful.tasks import no_effect
from heedful.tasks.baselines import ridge_text
from heedful.tasks.model_setup import load_with_head, tokenizer_of
from heedful.tasks.task import Baseline, Batch, Measured, Prediction
from heedful.tasks.text_pairs import OUTPUT, EncodedPair, TextPairTask, check_one_output, columns_of
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer


class TextRegression(TextPairTask):
    """Variant of text classification whose labels are numbers, learned by the mean squared error.

    The model's single output is the number itself (``problem_type="regression"``). In training, the output layer learns
    standardised labels: its output is multiplied by ``factor``, the power of two nearest to the labels' standard
    deviation, and a new bias begins at the labels' mean. So learning rates suit labels of any unit. Saving multiplies
    the weights by ``factor``; this is exact, since ``factor`` is a power of two.

    Args:
        tokenizer: tokenizer of the texts.
        columns: columns of an example and their kinds; before training, ``text_pair`` is optional.
        mean: mean of the training labels.
        factor: divisor of the errors in the loss.
    """

    name: ClassVar[str] = "text-classification"
    columns: Mapping[str, Kind] = MappingProxyType({"text": "text", "text_pair": "text?", "label": "number"})
    main_metric: str = "r2"
    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["TextRegression"]
    options: ClassVar[frozenset[str]] = frozenset({"batch_tokens"})

    def __init__(
        self, tokenizer: Tokenizer, *, columns: Mapping[str, Kind] | None = None, mean: float = 0.0, factor: float = 1.0
    ) -> None:
        self.tokenizer, self.labels = tokenizer, [OUTPUT]
        self.columns = dict(columns or type(self).columns)
        self.mean, self.factor = mean, factor

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def convert_rows(cls, rows: Rows) -> Rows:
        """Returns the rows with their labels as floats; raises ``HeedfulError`` for a label that is not a number."""
        values = []
        for row in rows:
            number = parse_number(row.values["label"])
            if number is None:
                raise HeedfulError(
                    f"{row.file}:{row.line}: the label {row.values['label']!r} is not a number; correct it, or learn "
                    "classes: --data.label-kind class"
                )
            values.append(replace(row, values={**row.values, "label": number}))
        converted = Rows(values, rows.skipped, rows.columns)
        converted.blank = rows.blank
        converted.inherit_from(rows)
        return converted

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default training settings that suit the number of rows.

        For a pretrained model, they are those of published fine-tuning.

        There is no label smoothing, which has no meaning for numbers.
        """
        if given.training.label_smoothing:
            raise no_effect(cls, ["training.label_smoothing"])
        suggested = super().suggested_settings(rows, given)
        return replace(
            suggested,
            data=replace(suggested.data, label_kind="number"),
            training=replace(suggested.training, label_smoothing=0.0),
        )

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model: trains its tokenizer, computes mean and factor of the training labels."""
        columns = columns_of(rows, "number")
        texts = (row.values[column] for row in rows for column, kind in columns.items() if kind == "text")
        return cls(cls.train_tokenizer(texts, settings), columns=columns, **_mean_and_factor(rows))

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task and model of a folder for fine-tuning.

        The model gets a new output layer if its own does not return a single number.
        """
        folder = cls.model_folder(folder)
        head = config_of(folder).head
        own = isinstance(head, SequenceHead) and head.labels == 1 and is_regression(read_configs(folder)[0])
        model = load_with_head(folder, SequenceHead.kind, settings.seed or 0, None if own else 1)
        task = cls(tokenizer_of(folder), columns=columns_of(rows, "number"), **_mean_and_factor(rows))
        task.set_pooling(model, settings, is_new=not own)
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer; from a folder that Heedful trained also mean and factor of the training labels."""
        folder = cls.model_folder(folder)
        card = read_card(folder)
        numbers = card.get("numbers", {})
        mean, factor = (parse_number(numbers.get(name)) for name in ("mean", "factor"))
        return cls(tokenizer_of(folder), columns=card.get("columns"), mean=mean or 0.0, factor=factor or 1.0)

    def card_entries(self) -> dict[str, Any]:
        """Returns the entry ``numbers`` for ``heedful.json``: the mean of the training labels, and the factor."""
        return {"numbers": {"mean": self.mean, "factor": self.factor}}

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Rescales the output layer so that it learns standardised labels."""
        super().before_training(model, settings)
        model.regression = True
        is_new = not settings.start_from or any(name.startswith("head.") for name in model.fresh)
        fresh = is_new and not settings.resume
        scale_output(model.get_submodule("head"), self.factor, self.mean if fresh else None)

    def check_head(self, model: Model) -> None:
        """Raises ``HeedfulError`` unless the model has a classifier's head with one output."""
        check_one_output(model)
        super().check_head(model)

    # -------------------------------------------------------------------------------------------- examples and training

    def targets_of(self, row: Row) -> tuple[float, ...]:
        """Returns the number of a row, as a tuple."""
        return (float(row.values["label"]),)

    def target_tensor(self, examples: Sequence[EncodedPair]) -> Tensor:
        """Returns the target numbers (B, 1); 0 for an example without a number."""
        return torch.tensor([[*example.labels, 0.0][:1] for example in examples], dtype=torch.float32)

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss of a batch, Σ over examples of ((ŷ − y) / factor)².

        ŷ is the model's output and y the label.
        """
        predicted = self.logits(model, batch)
        return F.mse_loss(predicted / self.factor, batch["labels"] / self.factor, reduction="sum")

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    @torch.no_grad()
    def measure(
        self, model: Model, examples: Sequence[EncodedPair], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Returns R², Pearson's and Spearman's correlation and the mean absolute error.

        All examples are scored; ``most`` has no effect.
        """
        predicted = np.zeros(len(examples))

        def compute(batch: Batch) -> Tensor:
            return self.logits(model, batch)[:, 0].cpu()

        for indices, numbers in self.map_batches(model, examples, compute, options.get("batch_tokens")):
            predicted[indices] = numbers.double().numpy()
        scores = Regression(predicted, [example.labels[0] for example in examples], self.factor)
        return Measured(overall(scores), example_scores=scores, outputs=predicted.tolist())

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores a baseline: ridge regression on words and character n-grams (``baselines.ridge_text``)."""
        train_rows = learned()
        train_texts, texts = ([" ".join(self.texts_of(row)) for row in part] for part in (train_rows, rows))
        predicted = ridge_text(train_texts, [row.values["label"] for row in train_rows], texts)
        scores = Regression(predicted, [row.values["label"] for row in rows], self.factor)
        # without its loss, since it was not trained by the model's loss
        metrics = {name: value for name, value in overall(scores).items() if name != "loss"}
        return Baseline("ridge regression on words and character n-grams", metrics, scores)

    def guess(self, examples: Sequence[EncodedPair], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that predicts the mean of the training labels for every text."""
        mean = float(np.mean([row.values["label"] for row in learned]))
        scores = Regression([mean] * len(rows), [row.values["label"] for row in rows], self.factor)
        return Baseline("the mean of the training labels", overall(scores), scores)

    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Returns the number of each input, a float, without a score; None for an input without text.

        An input is a text or a pair: ``(text, pair)``, ``{"text": ..., "text_pair": ...}``, or one string with a tab
        between them.
        """
        return self.numbers(model, inputs, options.get("batch_tokens"))

    @property
    def ranks_texts(self) -> bool:
        """True for a model of pairs, such as a cross-encoder."""
        return "text_pair" in self.columns

    def row_line(self, row: Row) -> str:
        """Returns a row as one line for people: ``text → 3.5`` or ``text + pair → 3.5``."""
        return self.line_of(row, f"{row.values['label']:g}")


def _mean_and_factor(rows: Sequence[Row]) -> dict[str, float]:
    """Returns the mean of the labels, and the power of two nearest to their standard deviation."""
    numbers = np.array([row.values["label"] for row in rows], dtype=np.float64)
    deviation = float(numbers.std())
    if not deviation or not math.isfinite(deviation):
        raise HeedfulError(
            f"{rows[0].file}: every label is {numbers[0]:g}, in {plural(len(rows), 'row')}; add rows with other labels"
        )
    return {"mean": float(numbers.mean()), "factor": 2.0 ** round(math.log2(deviation))}
