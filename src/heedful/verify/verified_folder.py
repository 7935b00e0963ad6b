"""The folder under proof: its files, and its model in the types that the checks ask for, opened once each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import torch

from heedful.config import ModelConfig
from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.pretrained import load, save
from heedful.text import Tokenizer
from heedful.util.machine import total_memory
from heedful.verify.check_report import Skipped

TEXTS = ("Once upon a time", "How are you?", "The committee, after much debate, approved 3 of the 12 plans.")


class VerifiedFolder:
    """A model's folder; ``texts`` are a person's own, ``task`` what to ask of it where the folder does not say."""

    def __init__(self, folder: Path, texts: Sequence[str] = (), task: str | None = None) -> None:
        self.path, self.texts, self.task = folder, tuple(texts), task
        self._opened: dict[torch.dtype, Model] = {}
        self.references: dict[torch.dtype, Any] = {}  # what transformers opened of it
        self._temporary = TemporaryDirectory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._temporary.cleanup()

    @property
    def layout(self) -> str:
        """The family whose layout the folder has: "gpt2", "bert", ..., or "heedful" for our own."""
        return self.stored.layout

    @cached_property
    def stored(self) -> Model:
        """The model as the folder has it."""
        return load(self.path, device="cpu")

    @cached_property
    def saved(self) -> Path:
        """A folder in which the model was saved again; it is gone when the proof is over."""
        place = Path(self._temporary.name) / "saved"
        save(self.stored, place)
        return place

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.stored.config

    def model(self, dtype: torch.dtype) -> Model:
        """The model in another type. Raises ``Skipped`` where it and the reference would not fit into memory."""
        if dtype == self.stored.dtype:
            return self.stored
        if dtype not in self._opened:
            needed = 2 * self.stored.count() * dtype.itemsize
            memory = total_memory()
            if memory is not None and needed > memory / 2:
                raise Skipped(f"two models in {str(dtype).removeprefix('torch.')} need {needed / 1e9:.0f} GB")
            self._opened[dtype] = load(self.path, dtype=dtype, device="cpu")
        return self._opened[dtype]

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The folder's tokenizer, None where it has none that opens."""
        try:
            return Tokenizer.load(self.path)
        except HeedfulError:
            return None
