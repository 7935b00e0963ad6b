"""Residuals that answer: dropout and empty slots cost a call each, some forty a step of a small decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from heedful.layers.norm import Identity
from heedful.stack import Residual


class PreResidual(Residual):
    """x + f(before(x))."""

    def __init__(self, own: Residual) -> None:
        nn.Module.__init__(self)
        self.before = own.before

    def forward(self, x: Tensor, real: Tensor | None, f: Callable[..., Tensor], **context: Any) -> Tensor:
        """``x`` (B, T, D) with what ``f`` adds to it."""
        return x + f(self.before(x, real), **context)


class PostResidual(Residual):
    """after(x + f(x))."""

    def __init__(self, own: Residual) -> None:
        nn.Module.__init__(self)
        self.before, self.after = own.before, own.after  # the first is empty: the last block asks for it

    def forward(self, x: Tensor, real: Tensor | None, f: Callable[..., Tensor], **context: Any) -> Tensor:
        """``x`` (B, T, D) with what ``f`` adds to it."""
        return self.after(x + f(x, **context), real)


def lean(block: nn.Module) -> None:
    """Give a block residuals without dropout and empty slots; those of sandwich norm have none to spare.

    >>> import torch
    >>> from heedful.config import StackConfig
    >>> from heedful.stack import Block
    >>> block, x = Block(StackConfig(dim=16, depth=1, heads=4)).eval(), torch.randn(2, 5, 16)
    >>> before = block(x)
    >>> lean(block)
    >>> torch.equal(block(x), before)
    True
    """
    for name, part in list(block.named_children()):
        if type(part) is Residual and isinstance(part.out, Identity):
            setattr(block, name, PreResidual(part) if isinstance(part.after, Identity) else PostResidual(part))
