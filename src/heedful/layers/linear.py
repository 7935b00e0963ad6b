"""Linear maps, with a kernel that a plan can replace."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

ALIGNED = 64  # rows of a weight for which matrix kernels of GPUs are made
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


def aligned_rows(rows: Tensor) -> Tensor:
    """Returns W (V, D) or b (V,) with rows of zeros added, up to a multiple of 64.

    >>> import torch
    >>> aligned_rows(torch.ones(50, 3)).shape
    torch.Size([64, 3])
    """
    more = -len(rows) % ALIGNED
    return F.pad(rows, (*(0, 0) * (rows.ndim - 1), 0, more)) if more else rows


class AlignedLinear(Linear):
    """Linear map for inference whose weight has rows of zeros added (``aligned_rows``); its output is without them.

    GPT-2's vocabulary of 50,257 has 50,304 rows then.

    >>> import torch
    >>> AlignedLinear(torch.ones(50, 3), None)(torch.ones(2, 3)).shape
    torch.Size([2, 50])
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight.size(1), weight.size(0), bias is not None, device="meta")
        self.weight = nn.Parameter(aligned_rows(weight.detach()), requires_grad=False)
        if bias is not None:
            self.bias = nn.Parameter(aligned_rows(bias.detach()), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x`` (..., in) to (..., out)."""
        return self.linear(x, self.weight, self.bias)[..., : self.out_features]
