"""Base class of tasks, which connect the rows of files with the inputs and outputs of a model."""

from __future__ import annotations

import os
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    NotRequired,
    Protocol,
    Self,
    TypedDict,
    runtime_checkable,
)

import numpy as np
import torch
from torch import Tensor

from heedful.config import NoHead, with_head
from heedful.data import LazyImage, Rows, Span, read, split
from heedful.data.batching import evaluation_batches
from heedful.data.split import content_digest
from heedful.errors import HeedfulError
from heedful.pretrained import load, save
from heedful.tasks.used_settings import TEXTS
from heedful.util import sharding
from heedful.util.escaping import pictured
from heedful.util.to_device import to_device

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # of type checkers, which know defaults; not imported

    from heedful.config import ModelConfig
    from heedful.data import Kind, Row
    from heedful.data.split import Same
    from heedful.generation.options import Options
    from heedful.metrics.example_scores import Scored
    from heedful.models import Model
    from heedful.settings import RunSettings
    from heedful.tasks.inputs_and_targets import Side
    from heedful.tasks.known_models import KnownModels
    from heedful.text import Tokenizer

if TYPE_CHECKING:
    Output = TypeVar("Output", default=Any)
else:
    from typing import TypeVar

    Output = TypeVar("Output")
R = TypeVar("R")
Batch = Mapping[str, Tensor]
EVALUATED = 4096  # default number of tokens in a batch of evaluation or prediction
EXAMPLE_LENGTH = 60  # characters of an example on the command line
SQUARE = 512  # a batch holds fewer examples that are longer, since attention grows with the square of the length


class PredictionDict(TypedDict, Generic[Output]):
    """Prediction for one input as a dictionary, which a pipeline returns."""

    input: Any
    output: Output
    score: float | None
    logprobs: NotRequired[list[float]]
    fills: NotRequired[list[str]]


@dataclass(frozen=True)
class Prediction:
    """Prediction for one input, with its score."""

    input: Any
    output: Any
    score: float | None  #: None for an empty input, and for tasks without a score
    logprobs: list[float] | None = None  #: if requested, log p of each generated token, the end token included
    fills: list[str] | None = None  #: the text for each masked span of the input

    def as_dict(self) -> PredictionDict[Any]:
        """Returns the prediction as ``{"input", "output", "score"}``, with ``"fills"`` and ``"logprobs"`` if it has
        them.
        """
        values: PredictionDict[Any] = {"input": self.input, "output": self.output, "score": self.score}
        if self.fills is not None:
            values["fills"] = self.fills
        if self.logprobs is not None:
            values["logprobs"] = self.logprobs
        return values


class Encoded(NamedTuple):
    """Rows encoded as examples, which ``Task.collate`` makes into batches."""

    examples: Sequence[Any]
    rows: Rows  #: the rows of the examples, one each, or all together if the task joins them to a stream
    note: str = ""  #: a line for people on what was left out or truncated, and the option that sets the limit
    lost: int = 0  #: number of examples that were left out or truncated
    unread: Sequence[Row] = ()  #: their rows, if known


@dataclass(frozen=True)
class Measured:
    """Metrics of a model on some rows, with details, as plain numbers, texts, lists and mappings."""

    metrics: dict[str, Any]  #: by their usual names; percentages from 0 to 100, "loss" the mean of predictions in nats
    details: dict[str, Any] = field(default_factory=dict)  #: "by_format", "by_class", "confusion", "mistakes", ...
    example_scores: Scored | None = None  #: the metrics of any choice of the rows, for intervals and comparisons
    outputs: Sequence[Any] = ()  #: ``Prediction.output`` of each row; as many as there are ``example_scores``
    window_scores: Scored | None = None  #: for rows joined to a stream, the metrics of any of its windows


LoggedSample = dict[str, str]  # "input", "output" and, if there is one, "target", each shortened to a line
# kinds of target columns; without one, the target is the second column
TARGET_KINDS = ("label", "tags", "answers", "references", "number", "number?")
SAMPLES, LINE = 3, 200  # of a validation: number of samples in the log, and characters of each text


@dataclass(frozen=True)
class Baseline:
    """Metrics of a baseline, a simple method, on the rows on which a model is evaluated."""

    name: str  #: for people, such as "a linear SVM on words and character n-grams"
    metrics: dict[str, float]  #: by the names of ``Measured.metrics``
    #: comparable with ``Measured.example_scores`` of the same rows: of the same class, ``Sums`` with the same columns
    example_scores: Scored | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the baseline as ``{"name", "metrics"}``."""
        return {"name": self.name, "metrics": self.metrics}


class Task(ABC):
    """Base class of tasks. An instance has what was learned besides weights: tokenizers and label names."""

    name: ClassVar[str]
    columns: Mapping[str, Kind]  #: the columns of an example and their kinds; the first is the input
    unit: str = "tokens"  #: the unit of ``count``
    ranks_rows: ClassVar[bool] = False  #: True if the score of a row depends on all other rows
    additive_loss: ClassVar[bool] = True  #: True if the objective of a batch is the sum over its parts
    model_notes: Sequence[str] = ()  #: lines on the model for the head of a run
    #: what the audit advises on many unknown tokens; None: other parts of the model read them
    unknown_remedy: ClassVar[str | None] = "train with --tokenizer.kind bpe, which encodes any text"
    main_metric: str  #: the metric that chooses the best weights
    used_settings: ClassVar[frozenset[str]] = TEXTS  #: the task-specific settings that have an effect
    head: ClassVar[str | None] = None  #: the head that a model is loaded with if its folder names none
    options: ClassVar[frozenset[str]] = frozenset()  #: the decoding settings and other options that ``predict`` takes
    display_options: ClassVar[frozenset[str]] = frozenset()  #: options that change the output shown, but no score
    #: the columns of a file of inputs; by default the first of ``columns``. Those not in ``columns`` are texts
    input_names: ClassVar[tuple[str, ...]] = ()
    known_models: ClassVar[KnownModels | None] = None  #: small models of the Hub to start from: ``--from auto``

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def read_rows(cls, source: Sequence[str], columns: Mapping[str, Kind], **options: Any) -> Rows:
        """Returns the rows of the files of a run or an evaluation, by default those of ``heedful.data.read``.

        A task that reads files of its own, or makes its columns from others, overrides this method. Each row has the
        values of ``columns``. Prediction does not call it, since inputs have no targets: such a task also sets
        ``input_names`` and overrides ``predict``, which makes its input from them.

        Args:
            source: paths of the files, or names of built-in sets.
            columns: columns of an example and their kinds.
            **options: further arguments of ``heedful.data.read``: ``names``, ``split``, ``limit``, ``separator`` and
                ``remembered``.
        """
        return read(source, columns, **options)

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Returns training and validation rows.

        Args:
            rows: all rows.
            valid: fraction of the rows to hold out; None for the default.
            seed: determines which rows are held out.
            same: maps equal values to the same key. By default, rows whose first columns have equal keys stay together.

        Of few rows with one class each, both sides have the classes in the same proportions.
        """
        label = next((column for column, kind in cls.columns.items() if kind == "label"), None)
        train, held = split(rows, valid, seed, by=next(iter(cls.columns)), same=same, label=label)
        return Rows(train, rows.skipped, rows.columns), Rows(held, 0, rows.columns)

    @classmethod
    def for_rows(cls, rows: Rows, settings: RunSettings) -> type[Task]:
        """Returns the task class for ``rows``: by default this class; some tasks have a variant for other kinds of
        data.

        May add to ``rows.notes``, which are shown to people.
        """
        return cls

    @classmethod
    def for_folder(cls, folder: str | Path) -> type[Task]:
        """Returns the task class for a model folder: by default this class, for some models a variant of the task."""
        return cls

    @classmethod
    def convert_rows(cls, rows: Rows) -> Rows:
        """Converts rows that were read for the columns of another variant of the task. By default returns them
        unchanged.
        """
        return rows

    @classmethod
    @abstractmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default settings inferred from the data; values that ``given`` or its recipe sets take precedence."""

    @classmethod
    @abstractmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model: trains tokenizers, collects label names from the training rows."""

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task and model of a folder for fine-tuning (``--from``), by default unchanged."""
        task, model = cls.load(folder), load(folder, dtype="float32")
        task.check_model(model)
        return task, model

    @classmethod
    @abstractmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the task of a model folder."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Writes the files that ``load`` reads."""

    @classmethod
    def read_model(cls, folder: Path) -> Model:
        """Returns the model of a run's folder, in float32, with all parts that ``write_model`` wrote."""
        return load(folder, dtype="float32")

    def write_model(self, model: Model, folder: Path, card: Mapping[str, Any]) -> None:
        """Writes the model of a run, with ``card`` in its ``heedful.json``; by default as ``save_pretrained``."""
        save(model, folder, extra=card)

    def card_entries(self) -> dict[str, Any]:
        """Returns the task's own entries of ``heedful.json``, which ``load`` reads. By default there are none."""
        return {}

    @abstractmethod
    def config(self, settings: RunSettings) -> ModelConfig:
        """Returns the configuration of a new model: the preset with the changes in the settings, for this data."""

    def model_config(self, settings: RunSettings) -> ModelConfig:
        """Returns ``config`` with the registered head that ``--model.head`` names, if it is set."""
        config = self.config(settings)
        if settings.model.head is None:
            return config
        if isinstance(config.head, NoHead):
            raise HeedfulError(f"the model of {self.name} has no head to replace; leave --model.head out")
        head: Any = settings.model.head  # a registered name
        return with_head(config, replace(config.head, head=head))

    def initialise(self, model: Model, settings: RunSettings) -> None:  # noqa: B027 (most tasks keep the random weights)
        """Changes the random weights of a new model before its first step. By default does nothing."""

    def before_training(self, model: Model, settings: RunSettings) -> None:  # noqa: B027 (many tasks need nothing here)
        """Prepares training. By default does nothing.

        Sets what will be saved in the model's folder (label names, generation defaults), and stores the settings that
        only training needs.
        """

    @classmethod
    def teacher_settings(cls, rows: Rows, given: RunSettings) -> RunSettings | None:
        """Returns the settings of the run that trains a teacher of this run's model first; None: there is none."""
        return None

    @abstractmethod
    def check_model(self, model: Model) -> None:
        """Raises ``HeedfulError`` if the model does not fit the task."""

    def recorded(self, model: Model) -> tuple[Task, Model]:
        """Returns the task and the model whose attention maps a run records; by default these."""
        return self, model

    def starting_tensors(self, model: Model, parts: Sequence[Sequence[Any]]) -> dict[str, Tensor]:
        """Returns tensors that the starting weights compute from the examples of a run; by default none.

        ``parts`` are the training and the validation examples. A run calls this once, before its first step, and stores
        the result in its folder; a resumed run reads it there. Examples are collated after ``use_starting_tensors``.
        """
        return {}

    def use_starting_tensors(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027 (most tasks have none)
        """Takes what ``starting_tensors`` returned, at the start of a run and when it is resumed."""

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @abstractmethod
    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Encodes rows as examples.

        Rows longer than ``max_length`` tokens are left out, truncated or split, which the note of the result says.
        Raises ``HeedfulError``, with file and line, for a row that cannot be an example.
        """

    @abstractmethod
    def lengths(self, examples: Sequence[Any]) -> np.ndarray:
        """Returns the lengths of examples in tokens, an array (N, sides), by which batches are formed.

        Examples with a source and a target have two sides.
        """

    @abstractmethod
    def collate(self, examples: Sequence[Any], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns examples as one batch of tensors.

        In training, ``random`` is a generator whose state is a function of (seed, epoch, batch); random windows, flips
        and mixtures are drawn from it. Without ``random``, nothing is random.
        """

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns the token sequences of a batch's ``row``, with the target at each token.

        ``heedful audit`` shows them. An encoder has one sequence, an encoder-decoder two. By default there are none,
        since images, for example, have no tokens.
        """
        return []

    # --------------------------------------------------------------------------------------------------------- training

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """Returns the number of predictions in a batch, by which the loop divides the summed loss."""

    def complete(self, batch: Batch) -> Batch:
        """Returns a batch of ``collate``, or some rows of it, with tensors that are not one row for each example.

        They are computed on the CPU before the batch is moved to the device. By default there are none.
        """
        return batch

    @abstractmethod
    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss *summed* over the batch's predictions.

        ``label_smoothing`` is the setting, for a new encoder 0.1 by default; a task that cannot use it suggests 0
        (``suggested_settings``).
        """

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    @abstractmethod
    def measure(
        self, model: Model, examples: Sequence[Any], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Evaluates the model on ``examples`` and returns its metrics.

        The loss is computed on all ``examples``, even if ``most`` limits prediction.

        Args:
            model: the model, in evaluation mode.
            examples: examples that ``encode`` returned.
            rows: their rows.
            most: maximum number of rows to predict, for tasks whose prediction is slow.
            **options: options of ``predict``.
        """

    def logged_samples(self, model: Model, rows: Rows, measured: Measured) -> list[LoggedSample]:
        """Returns input, output and target of the first ``rows``, for the run's log; by default from ``measured``."""
        samples = []
        for row, output in zip(rows[:SAMPLES], measured.outputs[:SAMPLES], strict=False):  # not all keep their outputs
            given, expected = self.input_and_target(row)
            parts = {"input": given, "output": output, "target": expected}
            samples.append({name: short(text_of_value(part), LINE) for name, part in parts.items()})
        return samples

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores a baseline, a simple method, on ``rows``; raises ``HeedfulError`` if the task has none.

        ``learned`` is a function that reads the training rows, for a baseline that learns.
        """
        raise HeedfulError(f"{self.name} has no baseline; leave --baseline out")

    def quick_baseline(self, examples: Sequence[Any], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that takes a second or two, with which the model is compared at the end of a run.

        The ``example_scores`` of the result are comparable with the ``window_scores`` of the model's ``Measured`` if it
        has any, else with its ``example_scores``. By default this is ``baseline``.

        Args:
            examples: the examples of ``rows``, as ``encode`` returned them.
            rows: the rows on which the model was evaluated.
            learned: some of the training rows.
        """
        return self.baseline(rows, lambda: learned)

    def guess(self, examples: Sequence[Any], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that ignores the input, such as the most frequent label. By default returns None.

        Args:
            examples: the examples of ``rows``, as ``encode`` returned them.
            rows: the rows on which the model was evaluated.
            learned: some of the training rows.
        """
        return None

    def align_scoring(self, other: Task) -> str:
        """Makes metrics of two models of this task comparable; returns a note for people. By default does nothing."""
        return ""

    def for_options(self, options: Mapping[str, Any]) -> Task:
        """Returns the task as the options of a call change it: its columns and labels. By default this task."""
        return self

    @abstractmethod
    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Returns the prediction for each input, in order. The task's ``options`` are the names of accepted options.

        Without inputs it returns []; a pipeline calls it so to check the options. An input on the command line is a
        text, also for a task whose inputs have several columns: it raises ``HeedfulError`` for one that it cannot read.
        """

    def relevance(self, model: Model, query: str, texts: Sequence[str]) -> list[float]:
        """Returns a number for each text, the higher the better it fits the query.

        Raises ``HeedfulError`` unless ``ranks_texts``.
        """
        raise HeedfulError(
            f"this model for {self.name} does not rank texts; use one for pairs with numbers, or vectors"
        )

    @property
    def ranks_texts(self) -> bool:
        """True if ``relevance`` is defined. By default False."""
        return False

    @classmethod
    def input_text(cls, value: Any) -> Any:
        """Returns the text that the model reads for an input of ``predict``, before any prefix.

        ``heedful inspect`` shows it. By default returns the input itself, which is a text, a pair of texts or an image.
        """
        return value

    def expected(self, row: Row) -> Any:
        """Returns the expected output of a row if it must be computed from several columns.

        By default returns None: the expected output is the value of a column.
        """
        return None

    def input_and_target(self, row: Row) -> tuple[Any, Any]:
        """Returns (input, expected output) of a row; each is the value of a column, or a list of several columns'
        values.
        """
        values = {name: row.values[name] for name in self.columns if name in row.values}
        targets = [name for name in values if self.columns[name] in TARGET_KINDS] or list(values)[1:2]
        plain = {name: value.name if isinstance(value, LazyImage) else value for name, value in values.items()}
        plain |= {name: " ".join(plain[name]) for name in plain if self.columns[name] == "words"}
        inputs = [value for name, value in plain.items() if name not in targets]
        own = self.expected(row)
        expected = [plain[name] for name in targets] if own is None else [own]
        return inputs[0] if len(inputs) == 1 else inputs, expected[0] if expected else None

    def trial_inputs(self, texts: Sequence[str]) -> list[Any]:
        """Returns inputs for trying a model, from plain texts; by default the texts themselves.

        ``heedful verify`` predicts them alone and in a batch, so a task whose inputs are no texts overrides this.
        """
        return list(texts)

    def shown_input(self, row: Row) -> Any:
        """Returns the value of a row from which ``example_input`` is made; None if an input has several columns."""
        return row.values.get(next(iter(self.input_columns))) if len(self.input_columns) == 1 else None

    def is_conversation(self, row: Row) -> bool:
        """Returns True if the model was trained on messages, so that ``heedful chat`` is the way to try it."""
        return False

    def example_input(self, row: Row) -> str | None:
        """Returns an input for ``heedful predict`` on the command line: the first words of a row's text, or its image.

        Returns None if an input has several columns, or would be read as an option.
        """
        value = self.shown_input(row)
        if isinstance(value, LazyImage):
            return value.name if os.path.isfile(value.name) else None
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
            return None
        text = pictured(" ".join(" ".join(parts).split()))
        text = textwrap.shorten(text, EXAMPLE_LENGTH, placeholder="") or text[:EXAMPLE_LENGTH]
        inputs = self.trial_inputs([text]) if text and not text.startswith("-") else []
        return inputs[0] if inputs and isinstance(inputs[0], str) else None

    @abstractmethod
    def row_line(self, row: Row) -> str:
        """Returns a row as one short line for people: ``How are you? → Comment allez-vous ?``."""

    # ---------------------------------------------------------------------------------------------- shared by all tasks

    @property
    def input_columns(self) -> dict[str, Kind]:
        """Columns of a file of inputs, with their kinds.

        An input of ``predict`` is the value of the column or, if there are several, a mapping by name. A name that is
        no column of the class is a text, from which ``predict`` makes the input.
        """
        names = self.input_names or tuple(self.columns)[:1]
        optional = type(self).columns.keys() - self.columns.keys()  # columns that the training data did not have
        return {name: self.columns.get(name, "text") for name in names if name not in optional}

    @property
    def reads(self) -> int | None:
        """Maximum number of tokens of an input that the model reads; None if it has no such limit.

        That is so if inputs are images, or if longer ones are split into windows.
        """
        return None

    @property
    def request_columns(self) -> dict[str, Kind]:
        """Columns of an input in a request of the server: ``input_columns``, and others that ``predict`` takes."""
        return self.input_columns

    def as_read(self, value: Any) -> Any:
        """Returns an input of ``predict`` as the model's views take it: a text, two texts, a mapping of those."""
        return value

    @property
    def model_columns(self) -> list[str]:
        """Names of the columns of a row that the model reads, of which a file of inputs may have others."""
        return [name for name in self.input_columns if name in self.columns] or list(self.columns)[:1]

    def map_batches(
        self, model: Model, examples: Sequence[Any], compute: Callable[[Batch], R], tokens: int | None = None
    ) -> Iterator[tuple[np.ndarray, R]]:
        """Yields (indices of the examples, result of ``compute``) for each batch of examples of similar lengths.

        ``compute`` is called with the batch's tensors on the model's device, without gradients. In distributed runs,
        the batches are divided among the ranks (``heedful.util.sharding``).
        """

        @torch.no_grad()
        def computed(indices: np.ndarray) -> R:
            return compute(to_device(self.complete(self.collate([examples[i] for i in indices])), model.device))

        budget = tokens or EVALUATED
        return sharding.each(evaluation_batches(self.lengths(examples), budget, pairs=budget * SQUARE), computed)

    def validate(
        self, model: Model, examples: Sequence[Any], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Measures a model in training on its validation examples; the arguments are those of ``measure``.

        A task that sets a rule of decision on validation data, such as a threshold, does so here. The rule is among
        its ``card_entries``, which are saved with the weights. By default this is ``measure``.
        """
        return self.measure(model, examples, rows, most=most, **options)

    def loss(self, model: Model, examples: Sequence[Any], tokens: int | None = None) -> tuple[float, int]:
        """Returns the loss summed over ``examples``, and the number of predictions.

        ``tokens`` is the maximum number of tokens in a batch.
        """
        total, count = 0.0, 0

        def summed(batch: Batch) -> tuple[float, int]:
            return float(self.objective(model, batch)), self.count(batch)

        for _, (loss, predicted) in self.map_batches(model, examples, summed, tokens):
            total, count = total + loss, count + predicted
        return total, count


@runtime_checkable
class Decodes(Protocol):
    """Protocol of tasks that generate tokens; their ``predict`` also accepts resolved options as ``decoding``."""

    def decoding_options(self, model: Model, options: Mapping[str, Any]) -> Options:
        """Returns the decoding options of a call; unset options have the values stored in the model's folder."""


@runtime_checkable
class Streams(Protocol):
    """Protocol of tasks that can stream their outputs."""

    def stream(self, model: Model, text: str, **options: Any) -> Iterator[str]:
        """Yields pieces of the output for ``text``; joined, they equal the output of ``predict``."""


@runtime_checkable
class Continues(Protocol):
    """Protocol of tasks whose output is a decoder's continuation of a prompt, which can share steps with others."""

    tokenizer: Tokenizer

    def prompt_ids(self, inputs: Sequence[Any]) -> list[list[int]]:
        """Returns the token ids of prompts, texts or lists of messages."""

    def limit(self, model: Model, batch_tokens: int | None = None) -> int:
        """Returns the maximum number of tokens that the model reads at once."""

    def decoding_options(self, model: Model, options: Mapping[str, Any]) -> Options:
        """Returns the decoding options of a call; unset options have the values stored in the model's folder."""


@runtime_checkable
class Embeds(Protocol):
    """Protocol of tasks whose predictions are vectors of texts."""

    @property
    def longest(self) -> int:
        """Maximum number of tokens of a text, special tokens included."""

    def normalises(self, model: Model) -> bool:
        """Returns True if the model's vectors have length 1."""

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Returns the number of tokens of each text before it is truncated, special tokens included."""

    def vectors(
        self,
        model: Model,
        texts: Sequence[str],
        tokens: int | None = None,
        tick: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Returns the vectors (N, D) of texts.

        Texts are computed in batches of ``tokens`` tokens. ``tick`` is called after each batch with the number of texts
        done so far.
        """


def check_texts(task: str, inputs: Sequence[Any]) -> None:
    """Raises ``HeedfulError`` if an input is not a text."""
    for value in inputs:
        if not isinstance(value, str):
            raise HeedfulError(f"{task} takes a text or a list of texts; got {type(value).__name__}")


def check_input_columns(task: Task) -> None:
    """Raises ``HeedfulError`` if a file of inputs would be read otherwise than the training data: ``read_rows`` is
    overridden, but not ``input_names`` or ``input_columns``, or ``predict`` for columns that ``read_rows`` joins.
    """
    columns = overrides(type(task), ("input_names", "input_columns"), beside="read_rows")
    predicts = overrides(type(task), ("predict",), beside="read_rows")
    if not columns or (derived_columns(task) and not predicts):
        raise _no_own_inputs(task)


def check_mappings(task: Task, inputs: Sequence[Any]) -> None:
    """Raises ``HeedfulError`` for inputs with columns that ``read_rows`` knows, but not ``predict``."""
    if overrides(type(task), ("predict",), beside="read_rows"):
        return
    if any(isinstance(value, Mapping) and not value.keys() <= task.columns.keys() for value in inputs):
        raise _no_own_inputs(task)


def _no_own_inputs(task: Task) -> HeedfulError:
    return HeedfulError(
        f"{task.name} makes its columns in read_rows, which reads training data but no inputs; set input_names, the "
        "columns of an input, and override predict, which makes the model's input from them"
    )


def derived_columns(task: Task) -> list[str]:
    """Returns the columns of a file of inputs that are none of the task: ``predict`` makes its input from them."""
    return [name for name in task.input_columns if name not in task.columns]


def overrides(task: type, names: Sequence[str], *, beside: str) -> bool:
    """Returns True unless a class overrides the method ``beside``, and neither it nor a subclass one of ``names``."""
    for cls in task.__mro__:
        if any(name in vars(cls) for name in names):
            return True
        if beside in vars(cls):
            return False
    return True


def short(text: str, most: int = 50) -> str:
    """Returns ``text`` on one line of at most ``most`` characters; control characters become visible symbols."""
    text = " ".join(text.split())
    return pictured(text) if len(text) <= most else pictured(text[: most - 1]) + "…"


def text_of_value(value: Any) -> str:
    """Returns a value of a row, or an output, as text: ``Paris``, ``LOC Paris, PER Ann Lee``, ``0.82``; "" for None.

    >>> text_of_value([{"label": "LOC", "text": "Paris", "score": 0.9}, {"label": "PER", "text": "Ann Lee"}])
    'LOC Paris, PER Ann Lee'
    >>> text_of_value(None), text_of_value(["good", "short"]), text_of_value(0.8213)
    ('', 'good, short', '0.8213')
    """
    if isinstance(value, Mapping):  # {"answer", ...}, {"label", "text", ...}
        return " ".join(text_of_value(value[name]) for name in ("answer", "label", "text") if name in value)
    if isinstance(value, Span):
        return value.text
    if isinstance(value, list | tuple):
        return ", ".join(map(text_of_value, value))
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def arrow_joined(parts: Sequence[str]) -> str:
    """Returns the parts of an example, each shortened, joined by arrows."""
    return " → ".join(map(short, parts))
