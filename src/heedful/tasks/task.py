"""What a task is: the seam between people's files and the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from heedful.config import ModelConfig
from heedful.data import Row
from heedful.models import Model
from heedful.settings import RunSettings

Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class Answer:
    """What the model makes of an input, and how sure it is."""

    input: str
    output: Any
    score: float

    def as_dict(self) -> dict[str, Any]:
        """``{"input", "output", "score"}``."""
        return {"input": self.input, "output": self.output, "score": self.score}


class Task(ABC):
    """One task, holding what it learned from the data (tokenizers, label names)."""

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]  # what an example needs; the first is what a person asks with
    decides: ClassVar[str]  # the metric that says which weights are best

    # ------------------------------------------------------------------------------------------------------- making it

    @classmethod
    @abstractmethod
    def suggest(cls, rows: Sequence[Row], asked: RunSettings) -> RunSettings:
        """Settings that the data suggests, for where neither ``asked`` nor its preset says otherwise."""

    @classmethod
    @abstractmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Learn from the training rows what is needed besides weights (tokenizers, label names)."""

    @classmethod
    @abstractmethod
    def load(cls, folder: str | Path) -> Self:
        """The task of a model folder."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write what ``load`` reads."""

    @abstractmethod
    def config(self, settings: RunSettings) -> ModelConfig:
        """The model to train: the preset, with the settings' changes and this data's vocabulary."""

    @abstractmethod
    def check(self, model: Model) -> None:
        """Raise ``HeedfulError`` where the model cannot serve the task."""

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @abstractmethod
    def encode(self, rows: Sequence[Row]) -> list[Any]:
        """Rows as examples that ``collate`` takes."""

    @abstractmethod
    def lengths(self, examples: Sequence[Any]) -> np.ndarray:
        """The lengths (N, sides) of examples in tokens, for buckets and budgets."""

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> dict[str, Tensor]:
        """Examples as one batch."""

    # --------------------------------------------------------------------------------------------------------- learning

    @abstractmethod
    def count(self, batch: Batch) -> int:
        """How many predictions a batch holds."""

    @abstractmethod
    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """The loss *summed* over the batch's predictions."""

    # -------------------------------------------------------------------------------------------------------- answering

    @abstractmethod
    def answer(self, model: Model, inputs: Sequence[str], **options: Any) -> list[Answer]:
        """What the model makes of each input, in order."""

    @abstractmethod
    def score(self, outputs: Sequence[Any], rows: Sequence[Row]) -> dict[str, Any]:
        """The metrics of the outputs for ``rows``, as the field computes them."""
