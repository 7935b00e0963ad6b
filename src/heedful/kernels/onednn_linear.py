"""Float32 products of training by oneDNN, which on a CPU not of Intel's is faster than what is behind ``F.linear``.

Of the three products of a linear map's step, y = x Wᵀ + b forward, dx = dy W and dW = dyᵀ x backward, the first two go
to oneDNN with the weights where they lie; the third stays where it was, for oneDNN is no faster there. Arithmetic is
float32 throughout, only sums are in another order.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from heedful.kernels.prepacked_linear import FEW, onednn_linear, pointwise


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


def onednn_training_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b of float32 through ``Product`` where gradients are wanted; without them as ``onednn_linear``.

    >>> linear, x = torch.nn.Linear(512, 512), torch.randn(5, 512)
    >>> plain = torch.autograd.grad(linear(x).square().sum(), linear.weight)[0]
    >>> y = onednn_training_linear(x, linear.weight, linear.bias)
    >>> torch.allclose(torch.autograd.grad(y.square().sum(), linear.weight)[0], plain, atol=1e-4)
    True
    """
    if not x.is_cpu or x.dtype is not torch.float32 or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled() or x.numel() < FEW * weight.size(1):
        return onednn_linear(x, weight, bias)
    product: Tensor = Product.apply(x, weight, bias)
    return product
