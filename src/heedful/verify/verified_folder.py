"""The folder under verification: its files, and its model in each dtype, loaded once."""

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
    """A model folder under verification.

    Args:
        folder: the model folder.
        texts: texts of the user, in place of ``TEXTS``.
        task: task to run, if the folder names none.
    """

    def __init__(self, folder: Path, texts: Sequence[str] = (), task: str | None = None) -> None:
        self.path, self.texts, self.task = folder, tuple(texts), task
        self._loaded: dict[torch.dtype, Model] = {}
        self.references: dict[torch.dtype, Any] = {}  # models of transformers
        self._temporary = TemporaryDirectory()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._temporary.cleanup()

    @property
    def layout(self) -> str:
        """The model type of the folder: "gpt2", "bert", ..., or "heedful" for our own layout."""
        return self.stored.folder.layout

    @cached_property
    def stored(self) -> Model:
        """The model in the dtype in which the folder stores it."""
        return load(self.path, device="cpu")

    @cached_property
    def saved(self) -> Path:
        """A temporary folder in which the model was saved again."""
        folder = Path(self._temporary.name) / "saved"
        save(self.stored, folder)
        return folder

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.stored.config

    def model(self, dtype: torch.dtype) -> Model:
        """Returns the model in a dtype.

        Raises ``Skipped`` if the memory is too small for this model and that of ``transformers``.
        """
        if dtype == self.stored.dtype:
            return self.stored
        if dtype not in self._loaded:
            needed = 2 * self.stored.num_parameters() * dtype.itemsize
            memory = total_memory()
            if memory is not None and needed > memory / 2:
                name = str(dtype).removeprefix("torch.")
                raise Skipped(f"two models in {name} need {needed / 1e9:.0f} GB, more than half of the memory")
            self._loaded[dtype] = load(self.path, dtype=dtype, device="cpu")
        return self._loaded[dtype]

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The folder's tokenizer; None if it has none that can be loaded."""
        try:
            return Tokenizer.load(self.path)
        except HeedfulError:
            return None
