"""Base class of tasks: the seam between people's files and the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from heedful.data import LazyImage, Rows, Span, split
from heedful.data.batching import evaluation_batches
from heedful.data.split import content_digest
from heedful.errors import HeedfulError
from heedful.pretrained import load
from heedful.util import sharding
from heedful.util.escaping import pictured

if TYPE_CHECKING:
    from heedful.config import ModelConfig
    from heedful.data import Kind, Row
    from heedful.data.split import Same
    from heedful.generation.options import Options
    from heedful.metrics.example_scores import Scored
    from heedful.models import Model
    from heedful.settings import RunSettings
    from heedful.tasks.inputs_and_targets import Side

R = TypeVar("R")
Batch = Mapping[str, Tensor]
TEXTS = frozenset({"data.max_length", "tokenizer", "training.batch_tokens"})  # what every task of texts uses
EVALUATED = 4096  # tokens of a batch of evaluation, where nobody says
SQUARE = 512  # of longer examples a batch holds fewer than its tokens allow: they are counted by their squares


@dataclass(frozen=True)
class Prediction:
    """Prediction for one input, with its score."""

    input: Any
    output: Any
    score: float | None  # None where nothing was asked
    logprobs: list[float] | None = None  # where asked for: log p of each generated token, the end token included
    fills: list[str] | None = None  # of a text with holes: what was written for each

    def as_dict(self) -> dict[str, Any]:
        """``{"input", "output", "score"}``, ``"fills"`` of a text with holes, ``"logprobs"`` where asked for."""
        more = {"fills": self.fills, "logprobs": self.logprobs}
        plain = {"input": self.input, "output": self.output, "score": self.score}
        return plain | {name: value for name, value in more.items() if value is not None}


class Encoded(NamedTuple):
    """Rows as examples that ``collate`` takes."""

    examples: Sequence[Any]
    rows: Rows  # those that became examples; each its own, or all together where a task joins them
    note: str = ""  # what a person should know: what was left out or cut, and which option says so
    lost: int = 0  # examples of which something is not read
    unread: Sequence[Row] = ()  # where these stand, if they are known


@dataclass(frozen=True)
class Measured:
    """Evaluation of the model on some rows: plain numbers, texts, lists and mappings."""

    metrics: dict[str, Any]  # by the field's names; percentages from 0 to 100, "loss" the mean over predictions in nats
    details: dict[str, Any] = field(default_factory=dict)  # "by_format", "by_class", "confusion", "mistakes", ...
    example_scores: Scored | None = None  # the metrics of any choice of the rows, for intervals and comparisons
    outputs: Sequence[Any] = ()  # ``Prediction.output`` of each row; as many as there are ``example_scores``
    window_scores: Scored | None = None  # of tasks that join rows to a stream: the metrics of any choice of its windows


LoggedSample = dict[str, str]  # "input", "output" and, where there is one, "target", each cut to a line
ANSWERS = ("label", "tags", "answers", "number", "number?")  # of these kinds is what is expected, else the second
SAMPLES, LINE = 3, 200  # of a validation: rows whose answers the log keeps, and characters of each text


@dataclass(frozen=True)
class Baseline:
    """Evaluation of a simple method on the same rows."""

    name: str  # for people: "TF-IDF and logistic regression"
    metrics: dict[str, float]  # by the names that ``Measured.metrics`` has
    example_scores: Scored | None = None  # comparable with ``Measured.example_scores`` of the same rows

    def as_dict(self) -> dict[str, Any]:
        """``{"name", "metrics"}``."""
        return {"name": self.name, "metrics": self.metrics}


class Task(ABC):
    """One task, holding what it learned from the data (tokenizers, label names)."""

    name: ClassVar[str]
    columns: Mapping[str, Kind]  # what an example needs, and of what kind; the first is what a person asks with
    unit: str = "tokens"  # what ``count`` counts
    ranks_rows: ClassVar[bool] = False  # whether the score of a row depends on all others
    additive_loss: ClassVar[bool] = True  # whether the objective of a batch is the sum of its parts'
    main_metric: str  # the metric that says which weights are best
    used_settings: ClassVar[frozenset[str]] = TEXTS  # which of the settings that only some tasks use have an effect
    head: ClassVar[str | None] = None  # under which its model is opened, where a published folder does not say one
    options: ClassVar[frozenset[str]] = frozenset()  # what ``predict`` takes, of the decoding and answering settings
    display_options: ClassVar[frozenset[str]] = frozenset()  # those that change what is shown of an output, no score
    input_names: ClassVar[tuple[str, ...]] = ()  # the columns of an input; by default the first alone

    # ------------------------------------------------------------------------------------------------------- making it

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Training and validation rows of one set: by default rows with the same first column (``same``: a
        key that equal values share) stay together.
        """
        train, held = split(rows, valid, seed, by=next(iter(cls.columns)), same=same)
        return Rows(train, rows.skipped, rows.columns), Rows(held, 0, rows.columns)

    @classmethod
    def for_rows(cls, rows: Rows, settings: RunSettings) -> type[Task]:
        """The class that learns from such rows: by default this, else a variant. It may add to their ``notes``."""
        return cls

    @classmethod
    def for_folder(cls, folder: str | Path) -> type[Task]:
        """The class of a model folder, this one or a variant. By default this."""
        return cls

    @classmethod
    def convert_rows(cls, rows: Rows) -> Rows:
        """Rows that another variant's columns were read for, as this one wants them. By default as they are."""
        return rows

    @classmethod
    @abstractmethod
    def suggested_settings(cls, rows: Sequence[Row], asked: RunSettings) -> RunSettings:
        """Settings that the data suggests, for where neither ``asked`` nor its recipe says otherwise."""

    @classmethod
    @abstractmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Learn from the training rows what is needed besides weights (tokenizers, label names)."""

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """The task and the model to go on from, for ``--from``: by default as they lie in the folder."""
        task, model = cls.load(folder), load(folder, dtype="float32")
        task.check_model(model)
        return task, model

    @classmethod
    @abstractmethod
    def load(cls, folder: str | Path) -> Self:
        """The task of a model folder."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write what ``load`` reads."""

    def card_entries(self) -> dict[str, Any]:
        """Returns further entries of ``heedful.json``, for ``load`` (``read_card``). By default nothing."""
        return {}

    @abstractmethod
    def config(self, settings: RunSettings) -> ModelConfig:
        """The model to train: the preset, with the settings' changes and what this data asks for."""

    def before_training(self, model: Model, settings: RunSettings) -> None:  # noqa: B027 (many tasks have nothing to say)
        """Before training: give the model what its folder is to say (label names, how to generate), and take from the
        settings what only training needs. By default nothing.
        """

    @abstractmethod
    def check_model(self, model: Model) -> None:
        """Raise ``HeedfulError`` where the model cannot serve the task."""

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @abstractmethod
    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Rows as examples; those longer than ``max_length`` tokens are left out, cut or split, and the note says so.

        Raises ``HeedfulError``, naming file and line, for a row that cannot be an example.
        """

    @abstractmethod
    def lengths(self, examples: Sequence[Any]) -> np.ndarray:
        """The lengths (N, sides) of examples in tokens, for buckets and budgets."""

    @abstractmethod
    def collate(self, examples: Sequence[Any], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Examples as one batch.

        ``random`` is given in training, its state a function of (seed, epoch, batch): what is drawn anew each epoch
        (windows, flips, mixtures) is drawn from it. Without it nothing is random.
        """

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns the token sequences of one row of a batch, with the target at each token, for ``heedful audit``. By
        default none, as of images.
        """
        return []

    # --------------------------------------------------------------------------------------------------------- learning

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """Returns the number of predictions in a batch."""

    @abstractmethod
    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The loss *summed* over the batch's predictions."""

    # ------------------------------------------------------------------------------------ measuring, answering, telling

    @abstractmethod
    def measure(
        self, model: Model, examples: Sequence[Any], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Evaluates the model on ``examples``, made of ``rows``; ``"loss"`` is over all of them.

        Args:
            model: the model, in evaluation mode.
            examples: what ``encode`` made.
            rows: what it made them of.
            most: where answering is slow, answer at most so many.
            **options: as of ``predict``.
        """

    def logged_samples(self, model: Model, rows: Rows, measured: Measured) -> list[LoggedSample]:
        """Returns the model's outputs for the first of ``rows``, after ``measured``: by default those measured."""
        told = []
        for row, output in zip(rows[:SAMPLES], measured.outputs[:SAMPLES], strict=False):  # not all keep their outputs
            asked, expected = self.input_and_target(row)
            parts = {"input": asked, "output": output, "target": expected}
            told.append({name: short(worded(part), LINE) for name, part in parts.items()})
        return told

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """How a simple method does on ``rows``; ``learned`` reads the rows that the model was trained on, for a method
        that learns. Raises ``HeedfulError`` where the task has none.
        """
        raise HeedfulError(f"{self.name} has no simple method to stand beside it; leave --baseline out")

    def quick_baseline(self, examples: Sequence[Any], rows: Rows, learned: Rows) -> Baseline | None:
        """A simple method that takes a second or two, for the verdict at the end of a run. Its ``example_scores`` are
        comparable with the ``window_scores`` of ``Measured`` if it has them, else with its ``example_scores``. By
        default the ``baseline``.

        Args:
            examples: what ``encode`` made of ``rows``.
            rows: those that the model was measured on.
            learned: some of the rows that the model was trained on.
        """
        return self.baseline(rows, lambda: learned)

    def guess(self, examples: Sequence[Any], rows: Rows, learned: Rows) -> Baseline | None:
        """The scores of what can be said without looking at an input, as of ``quick_baseline``; None by default."""
        return None

    def align_scoring(self, other: Task) -> str:
        """Lets the metrics of two models of this task be compared; returns a note for people. By default nothing is
        done.
        """
        return ""

    @abstractmethod
    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Predicts the output of each input, in order; ``options`` are among those named in ``cls.options``."""

    def expected(self, row: Row) -> Any:
        """Returns the expected output where no column of the row holds it; None by default."""
        return None

    def input_and_target(self, row: Row) -> tuple[Any, Any]:
        """Returns the input and the expected output of a row: values, of several columns a list of them."""
        values = {name: row.values[name] for name in self.columns if name in row.values}
        wanted = [name for name in values if self.columns[name] in ANSWERS] or list(values)[1:2]
        plain = {name: value.name if isinstance(value, LazyImage) else value for name, value in values.items()}
        plain |= {name: " ".join(plain[name]) for name in plain if self.columns[name] == "words"}
        asked = [value for name, value in plain.items() if name not in wanted]
        own = self.expected(row)
        expected = [plain[name] for name in wanted] if own is None else [own]
        return asked[0] if len(asked) == 1 else asked, expected[0] if expected else None

    def trial_inputs(self, texts: Sequence[str]) -> list[Any]:
        """Inputs made of plain texts, by which a model is tried: the texts as they are, by default."""
        return list(texts)

    @abstractmethod
    def row_line(self, row: Row) -> str:
        """A row as one short line for a person: ``How are you? → Comment allez-vous ?``."""

    # ---------------------------------------------------------------------------------------------- shared by all tasks

    @property
    def input_columns(self) -> dict[str, Kind]:
        """The columns that a file of inputs has, and what they hold. Of one column ``predict`` takes the value itself,
        of several a mapping by their names.
        """
        names = self.input_names or tuple(self.columns)[:1]
        return {name: self.columns[name] for name in names if name in self.columns}

    def map_batches(
        self, model: Model, examples: Sequence[Any], compute: Callable[[Batch], R], tokens: int | None = None
    ) -> Iterator[tuple[np.ndarray, R]]:
        """Of each batch of ``examples``, alike lengths together, the places of these and what ``compute`` makes of its
        tensors on the model's device, without gradients; by several processes where there are (``tasks.shares``).
        """

        @torch.no_grad()
        def computed(places: np.ndarray) -> R:
            tensors = self.collate([examples[i] for i in places])
            return compute({name: tensor.to(model.device) for name, tensor in tensors.items()})

        budget = tokens or EVALUATED
        return sharding.each(evaluation_batches(self.lengths(examples), budget, pairs=budget * SQUARE), computed)

    def loss(self, model: Model, examples: Sequence[Any], tokens: int | None = None) -> tuple[float, int]:
        """The objective summed over ``examples``, ``tokens`` a batch, and the number of predictions."""
        total, count = 0.0, 0

        def summed(batch: Batch) -> tuple[float, int]:
            return float(self.objective(model, batch)), self.count(batch)

        for _, (loss, predicted) in self.map_batches(model, examples, summed, tokens):
            total, count = total + loss, count + predicted
        return total, count


@runtime_checkable
class Decodes(Protocol):
    """A task that generates tokens. Its ``predict`` takes resolved options as ``decoding``, besides single ones."""

    def decoding_options(self, model: Model, options: Mapping[str, Any]) -> Options:
        """Returns a call's decoding options, resolved over those of the model's folder."""


@runtime_checkable
class Streams(Protocol):
    """A task whose answers can be watched as they are made."""

    def stream(self, model: Model, text: str, **options: Any) -> Iterator[str]:
        """Pieces of the answer to ``text``; joined, they are what ``predict`` gives."""


@runtime_checkable
class Embeds(Protocol):
    """A task whose predictions are vectors of texts."""

    def vectors(
        self,
        model: Model,
        texts: Sequence[str],
        tokens: int | None = None,
        tick: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Returns the vectors (N, D) of texts, in batches of ``tokens``; ``tick`` gets the number of texts after
        each.
        """


def check_texts(task: str, inputs: Sequence[Any]) -> None:
    """Raise where an input is no text."""
    for one in inputs:
        if not isinstance(one, str):
            raise HeedfulError(f"{task} is asked with a text, or a list of texts, not with a {type(one).__name__}")


def short(text: str, most: int = 50) -> str:
    """``text`` on one line, cut where it is longer than ``most`` characters; control characters as their pictures."""
    text = " ".join(text.split())
    return pictured(text) if len(text) <= most else pictured(text[: most - 1]) + "…"


def worded(value: Any) -> str:
    """A value of a row, or an answer, as text: ``Paris``, ``LOC Paris, PER Ann Lee``, ``0.82``; nothing is empty.

    >>> worded([{"label": "LOC", "text": "Paris", "score": 0.9}, {"label": "PER", "text": "Ann Lee"}])
    'LOC Paris, PER Ann Lee'
    >>> worded(None), worded(["good", "short"]), worded(0.8213)
    ('', 'good, short', '0.8213')
    """
    if isinstance(value, Mapping):  # {"answer", ...}, {"label", "text", ...}
        return " ".join(worded(value[name]) for name in ("answer", "label", "text") if name in value)
    if isinstance(value, Span):
        return value.text
    if isinstance(value, list | tuple):
        return ", ".join(map(worded, value))
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def shown(pairs: Sequence[str]) -> str:
    """Parts of a sample joined by arrows."""
    return " → ".join(short(part) for part in pairs)
