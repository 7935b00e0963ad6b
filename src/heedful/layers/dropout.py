"""Dropout whose mask can be drawn by another kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

Drop = Callable[[Tensor, float, bool], Tensor]  # x, rate, whether it is in training → a tensor of the shape of x


class Dropout(nn.Dropout):
    """y = x · b / (1 − p), b = 0 with probability p and else 1, computed by ``self.dropout``. Srivastava et al. 2014.

    Attributes:
        dropout: ``torch.nn.functional.dropout``, or the kernel that a plan chooses (``heedful.kernels.plan``).

    >>> import torch
    >>> Dropout(0.5).eval()(torch.ones(3))
    tensor([1., 1., 1.])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)
        self.dropout: Drop = F.dropout

    def forward(self, x: Tensor) -> Tensor:
        """``x``, with elements dropped in training."""
        return self.dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """As torch shows dropout, with the kernel where a plan chose one."""
        kernel = "" if self.dropout is F.dropout else f", dropout={getattr(self.dropout, '__name__', self.dropout)}"
        return super().extra_repr() + kernel
