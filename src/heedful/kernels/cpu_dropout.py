"""Fast dropout on a CPU: 16 random bits for each element.

PyTorch draws the numbers of a dropout mask one by one on a CPU, about 10 ns each: a fifth of a small model's step. Here
an element takes 16 bits of a generator (SFC64) that is seeded from PyTorch's, so that equal seeds give equal runs.

The plan "cpu-training" (``heedful.kernels.plan``) uses ``cpu_dropout`` for every ``Dropout``, and its attention drops
weights by ``DropoutMasks`` of this file, except beside a learned bias that all sequences share, as T5's without
padding, and with Shaw's value rows: there PyTorch's attention runs.
``--training.kernels plain`` uses PyTorch's dropout for both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LEVELS = 2**16  # a rate is rounded to a multiple of 1 / LEVELS
MIN_SIZE = 2**14  # numbers from which a new generator pays off


class DropoutMasks:
    """Generator of random dropout masks, seeded by PyTorch; an element is 1 with probability 1 − ``rate``, else 0.

    >>> masks = DropoutMasks(0.25)
    >>> abs(masks.draw((1000, 100)).double().mean().item() - 0.75) < 0.01
    True
    """

    def __init__(self, rate: float) -> None:
        self.level = min(round(rate * LEVELS), LEVELS - 1)
        self.scale = LEVELS / (LEVELS - self.level)  # 1 / (1 − rate), of the rounded rate
        self.random = np.random.Generator(np.random.SFC64(int(torch.randint(2**62, ()))))

    def draw(self, shape: tuple[int, ...]) -> Tensor:
        """Returns a mask of this shape, int8: PyTorch is slow with booleans on a CPU."""
        count = int(np.prod(shape))
        numbers = self.random.integers(0, 2**64, -(-count // 4), dtype=np.uint64).view(np.int16)[:count]
        return torch.from_numpy((numbers >= self.level - LEVELS // 2).view(np.int8)).view(shape)


class CpuDropout(torch.autograd.Function):
    """x · b / (1 − rate), b = 0 with probability ``rate`` and else 1, for each element (Srivastava et al. 2014)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        """Returns y, of the shape of ``x``."""
        masks = DropoutMasks(rate)
        mask, ctx.scale = masks.draw(x.shape), masks.scale
        ctx.save_for_backward(mask)
        return mask.to(x.dtype).mul_(x).mul_(masks.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        """Returns the gradient of x."""
        (mask,) = ctx.saved_tensors
        return mask.to(dy.dtype).mul_(dy).mul_(ctx.scale), None


def cpu_dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Applies dropout: with ``CpuDropout`` to large tensors on a CPU, otherwise with PyTorch's dropout.

    The rate is rounded to 16 bits; kept elements are divided by 1 − the rounded rate, so that means stay the same.

    >>> cpu_dropout(torch.ones(200, 200), 0.5, True).unique().tolist()
    [0.0, 2.0]
    """
    if not training or not 0 < rate < 1 or x.numel() < MIN_SIZE or x.device.type != "cpu":
        return F.dropout(x, rate, training)
    dropped: Tensor = CpuDropout.apply(x, rate)
    return dropped
