"""Evaluation of a run's model on its validation examples, or on a part of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from heedful.data.rows import Row, Rows
from heedful.data.texts_on_disk import row_size
from heedful.errors import HeedfulError
from heedful.metrics.intervals import standard_error
from heedful.metrics.verdict import MOST
from heedful.models import Model
from heedful.pretrained.fill_model import align_weights
from heedful.settings import ResolvedSettings
from heedful.tasks.task import Encoded, LoggedSample, Measured, Task
from heedful.training.precision import evaluation_autocast

if TYPE_CHECKING:
    from heedful.training.record_attention import AttentionRecorder

MIN_EXAMPLES = 8  # validation examples of an evaluation, however little time is left
MAX_PREDICTED = 500  # validation examples predicted in an evaluation; the loss is over all of them
# A model that has hardly learned writes every text to its limit, which takes longer than its steps: so many examples
# are predicted at least, and for each step of a new model two more.
LEAST_PREDICTED, PREDICTED_PER_STEP = 50, 2
# validation examples of the verdict, and of them those predicted by a task whose prediction is slow
MAX_JUDGED, MAX_JUDGED_PREDICTED = MOST, 2_000


class Validation:
    """Evaluation of a model in training on the run's validation examples, on a GPU in the run's precision.

    Args:
        task: measures the model.
        model: the model in training.
        examples: all encoded validation examples; ``--training.evaluate-examples`` says how many are used.
        settings: settings of the run.
        recorder: records attention maps at each evaluation.
        custom_metrics: functions of outputs and expected outputs, by the names of their metrics.

    Attributes:
        last: the last evaluation, ``last_examples`` its examples and ``samples`` some of its outputs.
        best: the evaluation of the weights that were saved as the best, and ``best_examples`` its examples.
        judged_examples: the examples of the verdict. They are all, up to a fixed number where an evaluation has fewer;
            with ``--max-minutes``, and where rows are ranked among each other, they are those of an evaluation.
    """

    def __init__(
        self,
        task: Task,
        model: Model,
        examples: Encoded,
        settings: ResolvedSettings,
        recorder: AttentionRecorder | None = None,
        custom_metrics: Mapping[str, Callable[[Sequence[Any], Sequence[Any]], float]] = MappingProxyType({}),
    ) -> None:
        self.task, self.model, self.recorder, self.custom_metrics = task, model, recorder, custom_metrics
        self.max_length, self.precision = settings.data.max_length, settings.training.precision
        self.is_sharded, self.is_new = settings.training.shard, settings.start_from is None
        share = (settings.training.evaluate_examples or math.inf) / units(task, examples)
        self.examples = part(task, examples, share, self.max_length)
        self.last_examples = self.best_examples = self.examples
        self.has_time = settings.max_minutes is None
        self.judged_examples = self.examples
        if self.has_time and not task.ranks_rows and self.examples is not examples:
            self.judged_examples = part(task, examples, MAX_JUDGED / units(task, examples), self.max_length)
        self.last: Measured | None = None
        self.samples: list[LoggedSample] = []
        self.best: Measured | None = None

    def measure(self, step: int, share: float = 1.0) -> dict[str, float]:
        """Evaluates the model after ``step`` steps, on a ``share`` (0 to 1) of the examples; returns the metrics."""
        share = max(share, MIN_EXAMPLES / units(self.task, self.examples))
        self.last_examples = part(self.task, self.examples, share, self.max_length)
        with evaluation_autocast(self.precision, self.model.device):
            self.last = self._measured(self.model, self.last_examples, self._most_predicted(step))
            self.samples = self.task.logged_samples(self.model, self.last_examples.rows, self.last)
        metrics = {name: value for name, value in self.last.metrics.items() if isinstance(value, float)}
        metrics |= self._custom_metrics(self.last, self.last_examples.rows)
        if self.recorder is not None:
            self.recorder.record(step, metrics)
        return metrics

    def _custom_metrics(self, measured: Measured, rows: Rows) -> dict[str, float]:
        if not self.custom_metrics:
            return {}
        if not measured.outputs:
            raise HeedfulError(
                f"{self.task.name} keeps no outputs of its evaluations, which metrics need; leave metrics out"
            )
        expected = [self.task.input_and_target(row)[1] for row in rows[: len(measured.outputs)]]
        values = {}
        for name, metric in self.custom_metrics.items():
            if name in measured.metrics:
                raise HeedfulError(f"{self.task.name} has a metric {name!r} already; give yours another name")
            value = metric(measured.outputs, expected)
            if not isinstance(value, int | float | np.number):
                raise HeedfulError(f"the metric {name!r} returned {type(value).__name__}; return a number")
            values[name] = float(value)
        return values

    def mark_best(self) -> None:
        """Records that the weights evaluated last were saved as the best."""
        self.best, self.best_examples = self.last, self.last_examples

    def margin(self) -> float:
        """Returns the standard error of the main metric in the last evaluation; 0 without scores per example."""
        scores = self.last.example_scores if self.last is not None else None
        return 0.0 if scores is None else standard_error(scores, self.task.main_metric)

    def scored(self) -> int:
        """Returns the number of examples that the main metric is of in the last evaluation; 0: not known."""
        scores = self.last.example_scores if self.last is not None else None
        return 0 if scores is None else len(scores)

    @property
    def is_judged(self) -> bool:
        """True if the evaluation of the best weights covers the examples of the verdict."""
        if self.best is None or units(self.task, self.best_examples) < units(self.task, self.judged_examples):
            return False
        return not self.has_time or not len(self.best.outputs) == MAX_PREDICTED < len(self.judged_examples.rows)

    @torch.no_grad()
    def measure_folder(self, folder: Path, step: int) -> None:
        """Evaluates the best weights for the verdict, those of ``step`` in ``folder``; of a sharded model on the CPU.

        No other rank takes part, and a GPU may not hold all weights.
        """
        device = torch.device("cpu") if self.is_sharded else self.model.device
        model = self.task.read_model(folder).to(device)
        align_weights(model)
        self.best_examples = self.judged_examples
        most = self._most_predicted(step)
        if self.has_time and most == MAX_PREDICTED:
            most = MAX_JUDGED_PREDICTED
        with evaluation_autocast(self.precision, device):
            self.best = self._measured(model.eval(), self.judged_examples, most)

    def _measured(self, model: Model, examples: Encoded, most: int) -> Measured:
        return self.task.validate(model, examples.examples, examples.rows, most=most)

    def _most_predicted(self, step: int) -> int:
        return most_predicted(step) if self.is_new else MAX_PREDICTED


def most_predicted(step: int) -> int:
    """Returns the number of validation examples that are predicted after ``step`` steps of a new model, at most.

    >>> [most_predicted(step) for step in (1, 20, 100, 250, 5000)]
    [50, 50, 200, 500, 500]
    """
    return min(MAX_PREDICTED, max(LEAST_PREDICTED, PREDICTED_PER_STEP * step))


def part(task: Task, examples: Encoded, share: float, max_length: int | None) -> Encoded:
    """Returns the ``share`` (0 to 1) of the validation examples, the same examples each time.

    The examples are rows at equal distances or, if the rows are documents, the first part of the text.
    """
    if share >= 1:
        return examples
    rows = examples.rows
    if not _documents(task, examples):
        count = max(1, round(share * len(rows)))
        chosen = [rows[len(rows) * i // count] for i in range(count)]
        return task.encode(Rows(chosen, 0, rows.columns), max_length)
    bytes_left, chosen = share * sum(map(row_size, rows)), []
    for row in rows:
        chosen.append(row if row_size(row) <= bytes_left else _first(row, bytes_left / max(1, row_size(row))))
        bytes_left -= row_size(row)
        if bytes_left <= 0:
            break
    return task.encode(Rows(chosen, 0, rows.columns), max_length)


def units(task: Task, examples: Encoded) -> int:
    """Returns the number of validation examples: rows, or windows of documents."""
    return len(examples.examples) if _documents(task, examples) else len(examples.rows)


def _documents(task: Task, examples: Encoded) -> bool:
    return task.columns.get("text") == "document" and "text" in examples.rows[0].values


def _first(row: Row, share: float) -> Row:
    """Returns the first part of a document, cut after a word."""
    text: str = row.values["text"]
    head = text[: max(1, math.ceil(share * len(text)))]
    return Row({"text": head.rpartition(" ")[0] or head}, row.file, row.line)
