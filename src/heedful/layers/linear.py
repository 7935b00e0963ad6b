"""Linear maps, with a kernel that a plan can replace."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # x (..., in), W (out, in), b (out,) → x Wᵀ + b (..., out)


class Linear(nn.Linear):
    """Linear map: y = x Wᵀ + b.

    Attributes:
        linear: the implementation. ``torch.nn.functional.linear``, unless the model's plan sets another, from
            ``PLANS`` (``heedful.kernels.plan``), for example ``heedful.kernels.onednn_linear.onednn_linear``.

    >>> import torch
    >>> Linear(8, 3)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 3])
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: str | None = None) -> None:
        super().__init__(in_features, out_features, bias, device=device)
        self.linear: Multiply = F.linear

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x`` (..., in) to (..., out)."""
        return self.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Returns the sizes, and the kernel if it is not PyTorch's."""
        kernel = "" if self.linear is F.linear else f", linear={getattr(self.linear, '__name__', self.linear)}"
        return super().extra_repr() + kernel


class ScaledLinear(Linear):
    """Scaled linear map: y = factor · (x Wᵀ + b), with a power of two as factor, so that scaling is exact.

    >>> import torch
    >>> linear = ScaledLinear(2, 1, bias=False)
    >>> linear.factor = 4.0
    >>> bool(torch.equal(linear(torch.eye(2))[:, 0], 4 * linear.weight[0]))
    True
    """

    factor: float = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x`` (..., in) to (..., out)."""
        return self.linear(x, self.weight, self.bias) * self.factor
