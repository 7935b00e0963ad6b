"""Dropout of elements, and of whole sublayers (stochastic depth)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Drop = Callable[[Tensor, float, bool], Tensor]  # x, rate, is in training → a tensor of the shape of x


class Dropout(nn.Dropout):
    """Dropout: y = x · b / (1 − p), b = 0 with probability p and else 1. Srivastava et al. 2014.

    Attributes:
        dropout: the implementation. ``torch.nn.functional.dropout``, unless the model's plan sets another, from
            ``PLANS`` (``heedful.kernels.plan``): in training on a CPU ``heedful.kernels.cpu_dropout.cpu_dropout``.

    >>> import torch
    >>> Dropout(0.5).eval()(torch.ones(3))
    tensor([1., 1., 1.])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)
        self.dropout: Drop = F.dropout

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``x``, with random elements set to 0 in training."""
        return self.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """Returns the rate, and the kernel if it is not PyTorch's."""
        kernel = "" if self.dropout is F.dropout else f", dropout={getattr(self.dropout, '__name__', self.dropout)}"
        return super().extra_repr() + kernel


class DropPath(nn.Module):
    """Stochastic depth: y · b / (1 − p), with b = 0 for each example with probability p and else 1; y in evaluation.

    Huang et al. 2016, section 3; unlike there, y is divided by 1 − p in training, not multiplied by it in evaluation.

    Attributes:
        rate: p; 0 drops no example. ``heedful.stack.set_drop_path`` sets the rates of a model.

    >>> import torch
    >>> DropPath(0.5).eval()(torch.ones(2, 3, 4)).mean().item()
    1.0
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, y: Tensor) -> Tensor:
        """Returns ``y`` (B, T, D), with random examples set to 0 in training."""
        if not self.training or not self.rate:
            return y
        keep = torch.rand(len(y), *[1] * (y.ndim - 1), device=y.device) >= self.rate  # (B, 1, 1)
        return y * (keep / (1 - self.rate)).to(y.dtype)

    def extra_repr(self) -> str:
        """Returns the rate."""
        return f"rate={self.rate:g}"
