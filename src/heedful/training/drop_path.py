"""Stochastic depth: in training, what a sublayer adds to the stream is left out for some examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.stack import Residual, Stack


class DropPath(nn.Module):
    """y · b / (1 − p), with b = 0 for each example with probability p and else 1; y where the model is not training.

    Huang et al. (2016), section 3, divided in training instead of multiplied afterwards, as dropout is.

    >>> DropPath(0.5).eval()(torch.ones(2, 3, 4)).mean().item()
    1.0
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, y: Tensor) -> Tensor:
        """``y`` (B, T, D), whole rows of it made 0."""
        if not self.training:
            return y
        kept = torch.rand(len(y), *[1] * (y.ndim - 1), device=y.device) >= self.rate
        return y * (kept / (1 - self.rate)).to(y.dtype)

    def extra_repr(self) -> str:
        """The rate."""
        return f"rate={self.rate:g}"


def drop_paths(model: nn.Module, rate: float) -> None:
    """Let the residuals of every stack of ``model`` drop paths: none in the first block, and from there in a line up to
    ``rate`` in the last, as DeiT does (Touvron et al. 2021, table 9). Each sublayer draws for itself.

    Weights, their names and the configuration stay as they are: a model that is saved knows nothing of it.
    """
    for stack in [module for module in model.modules() if isinstance(module, Stack)]:
        rates = torch.linspace(0, rate, len(stack.block)).tolist() if len(stack.block) > 1 else [rate]
        for block, own in zip(stack.block, rates, strict=True):
            for residual in block.children():
                if isinstance(residual, Residual) and own:
                    residual.dropout = nn.Sequential(residual.dropout, DropPath(own)).train(residual.training)
