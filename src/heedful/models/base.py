"""What the four families share: a configuration, fresh weights, their count, and the doors to two other rooms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from heedful.config import ModelConfig, StackConfig
from heedful.errors import HeedfulError
from heedful.stack import initialise


def device_of(name: str | torch.device | None) -> torch.device:
    """The device of a name; None: the best there is (cuda, then mps, then cpu). Raises ``HeedfulError`` otherwise."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise HeedfulError(f"device {str(name)!r} cannot be used here ({reason}); leave it out, or take cpu") from None


class Model(nn.Module):
    """A model of any family: ``embed → stack → head``. A call returns one tensor, its head's output."""

    config: ModelConfig
    main: StackConfig  # the stack whose table fresh weights are drawn from
    labels: Sequence[str] = ()  # the names of the head's classes, where a folder told them
    multi_label: bool = False  # whether an input may have several of them, or none
    generation: Mapping[str, Any] = MappingProxyType({})  # how a folder says to generate, where the caller does not
    fresh: Sequence[str] = ()  # parameters of a loaded model that were drawn anew: an untrained head

    def begin(self) -> None:
        """Draw all weights anew (see ``heedful.stack.initialise``); on the meta device there is nothing to draw."""
        if self.device.type != "meta":
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

        return generate(self, ids, mask, defaults=self.generation, **options)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the model as a folder: see ``heedful.checkpoints.save``."""
        from heedful.checkpoints import save

        save(self, folder)
