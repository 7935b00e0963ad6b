"""Float32 products of training by oneDNN, which on a CPU not of Intel's is faster than what is behind ``F.linear``.

Of the three products of a linear map's step, y = x Wᵀ + b forward, dx = dy W and dW = dyᵀ x backward, the first two go
to oneDNN with the weights where they lie; the third stays where it was, for oneDNN is no faster there. Arithmetic is
float32 throughout, only sums are in another order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from heedful.kernels.prepacked_linear import FEW, Direct, best_by_onednn, pointwise

LARGE = 2**17  # numbers of a weight from which on oneDNN saves more than another operation in Python costs


class Product(torch.autograd.Function):
    """x Wᵀ + b, for x (..., into), W (out, into) and b (out,) or None: (..., out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """y."""
        ctx.save_for_backward(x, weight)
        return pointwise(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """dx, dW and db of those that learn."""
        x, weight = ctx.saved_tensors
        into_x, into_weight, into_bias = ctx.needs_input_grad
        rows = dy.reshape(-1, dy.size(-1))
        return (
            pointwise(dy.contiguous(), weight.mT, None) if into_x else None,
            rows.mT @ x.reshape(-1, x.size(-1)) if into_weight else None,
            rows.sum(0) if into_bias else None,
        )


class Learning(Direct):
    """A linear map's forward where it learns: through ``Product``; in inference mode as ``direct`` has it."""

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` (..., into) → (..., out)."""
        linear = self.linear
        if torch.is_autocast_enabled(x.device.type):
            return F.linear(x, linear.weight, linear.bias)
        if not torch.is_grad_enabled() or x.numel() < FEW * linear.in_features:
            return super().__call__(x)
        made: Tensor = Product.apply(x, linear.weight, linear.bias)
        return made


def learn_directly(model: nn.Module) -> None:
    """Let the large float32 linear maps of ``model`` on a CPU learn through oneDNN, where PyTorch has it and MKL is not
    at its best (``intel``). A map with a forward of its own keeps it; weights, their names and what is saved stay.

    >>> linear, x = nn.Linear(512, 512), torch.randn(5, 512)
    >>> plain = torch.autograd.grad(linear(x).square().sum(), linear.weight)[0]
    >>> learn_directly(linear)
    >>> torch.allclose(torch.autograd.grad(linear(x).square().sum(), linear.weight)[0], plain, atol=1e-4)
    True
    """
    if not best_by_onednn():
        return
    for part in model.modules():
        if type(part) is not nn.Linear or "forward" in vars(part) or part.weight.numel() < LARGE:
            continue
        if part.weight.dtype is torch.float32 and part.weight.device.type == "cpu":
            vars(part)["forward"] = Learning(part)
