"""A step of training, the same for all programs: forward, backward, gradients clipped, AdamW.

A call of a row that trains takes ``work.steps`` of them on its one batch and returns the losses of the first that were
ever taken: (at most ``FIRST``,), means over what is predicted, from the weights in the folder on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.speed.works import IGNORED, Work

FIRST = 3
RATE, BETAS, EPS, DECAY, CLIP = 1e-4, (0.9, 0.95), 1e-8, 0.1, 1.0


def tensors(work: Work, device: str) -> dict[str, Tensor]:
    """The batch."""
    return {name: torch.from_numpy(part).to(device) for name, part in work.examples().items()}


def mean_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Of one of our models, said as plainly as can be."""
    given = {name: part for name, part in batch.items() if name != "labels"}
    return F.cross_entropy(model(**given).flatten(0, -2).float(), batch["labels"].flatten(), ignore_index=IGNORED)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """As a plain script has it, in PyTorch's one pass."""
    return torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)


def computed(precision: str, device: str) -> AbstractContextManager[Any]:
    """The context of a forward pass: weights stay float32, bfloat16 is for products."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.partition(":")[0], getattr(torch, precision))


class Losses:
    """Keeps the first that it is given."""

    def __init__(self) -> None:
        self.first: list[float] = []

    def keep(self, loss: float) -> None:
        """One step's."""
        if len(self.first) < FIRST:
            self.first.append(loss)

    def told(self) -> Tensor:
        """(at most ``FIRST``,)."""
        return torch.tensor(self.first, dtype=torch.float64)


def bare(
    model: nn.Module, optimiser: Any, loss: Callable[[], Tensor], precision: str, device: str, steps: int
) -> Callable[[], Tensor]:
    """The shortest loop that trains ``model``; ``loss()`` is the mean over what the batch predicts."""
    losses = Losses()

    def call() -> Tensor:
        for _ in range(steps):
            optimiser.zero_grad()
            with computed(precision, device):
                now = loss()
            now.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimiser.step()
            losses.keep(now.item())
        return losses.told()

    return call
