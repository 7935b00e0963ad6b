"""What the four families share: a configuration, fresh weights, their count, and the doors to two other rooms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.config import ModelConfig, StackConfig
from heedful.stack import initialise


class Model(nn.Module):
    """A model of any family: ``embed → stack → head``. A call returns one tensor, its head's output."""

    config: ModelConfig
    main: StackConfig  # the stack whose table fresh weights are drawn from

    def begin(self) -> None:
        """Draw all weights anew (see ``heedful.stack.initialise``)."""
        initialise(self, self.main)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return next(self.parameters()).dtype

    def count(self) -> int:
        """The number of parameters: ties once, no buffers."""
        return sum(p.numel() for p in self.parameters())

    def generate(self, ids: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
        """Token ids that follow ``ids`` (B, T): see ``heedful.generation.generate``."""
        from heedful.generation import generate

        return generate(self, ids, mask, **options)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model as a folder: see ``heedful.checkpoints.save``."""
        from heedful.checkpoints import save

        save(self, folder)
