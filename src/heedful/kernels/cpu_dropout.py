"""Dropout that costs little on a CPU: random bits by the sixteen.

PyTorch draws the numbers of a mask one after the other on a CPU, about 10 ns each: a fifth of a small model's step.
Here a number takes 16 bits of a generator (SFC64) that is seeded from PyTorch's, so that a run stays a function of its
seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LEVELS = 2**16  # a rate is rounded to a multiple of 1 / LEVELS
MANY = 2**14  # numbers from which on a generator of one's own is made faster than they are drawn one by one
QUERIES = 128  # of a block
BLOCK = 2**19  # weights at a time, about


class Bits:
    """Which numbers are kept, each with probability 1 − ``rate``; drawn in turn from a seed that PyTorch draws.

    >>> bits = Bits(0.25)
    >>> abs(bits.keep((1000, 100)).double().mean().item() - 0.75) < 0.01
    True
    """

    def __init__(self, rate: float) -> None:
        self.level = min(round(rate * LEVELS), LEVELS - 1)
        self.scale = LEVELS / (LEVELS - self.level)  # 1 / (1 − rate), of the rate as it was rounded
        self.random = np.random.Generator(np.random.SFC64(int(torch.randint(2**62, ()))))

    def keep(self, shape: tuple[int, ...]) -> Tensor:
        """1 where a number is kept and 0 where not, int8, of this shape: PyTorch is slow with booleans on a CPU."""
        count = int(np.prod(shape))
        drawn = self.random.integers(0, 2**64, -(-count // 4), dtype=np.uint64).view(np.int16)[:count]
        return torch.from_numpy((drawn >= self.level - LEVELS // 2).view(np.int8)).view(shape)


class Dropping(torch.autograd.Function):
    """x · b / (1 − rate), b = 0 with probability ``rate`` and else 1, for each number (Srivastava et al. 2014)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        """y, of the shape of ``x``."""
        bits = Bits(rate)
        keep, ctx.scale = bits.keep(x.shape), bits.scale
        ctx.save_for_backward(keep)
        return keep.to(x.dtype).mul_(x).mul_(bits.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        """dx."""
        (keep,) = ctx.saved_tensors
        return keep.to(dy.dtype).mul_(dy).mul_(ctx.scale), None


def cpu_dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout that costs little on a CPU, for many numbers at a time; elsewhere and for few PyTorch's own.

    The rate is rounded to 16 bits, and the kept numbers are divided by 1 − the rounded rate: means stay the same.

    >>> cpu_dropout(torch.ones(200, 200), 0.5, True).unique().tolist()
    [0.0, 2.0]
    """
    if not training or not 0 < rate < 1 or x.numel() < MANY or x.device.type != "cpu":
        return F.dropout(x, rate, training)
    dropped: Tensor = Dropping.apply(x, rate)
    return dropped
