"""Position-wise feed-forward network, plain and gated, and its activations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.config import Activation
from heedful.errors import lookup
from heedful.layers.dropout import Dropout
from heedful.layers.linear import Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,  # x Φ(x), exact
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}


FEED_FORWARDS: dict[str, Callable[..., nn.Module]] = {}  # registered networks, made from a ``StackConfig``


class FeedForward(nn.Module):
    """Position-wise feed-forward network: down(act(up(x))), or gated: down(act(gate(x)) ⊙ up(x)).

    Plain: Vaswani et al. 2017, equation 2. Gated: Shazeer 2020 (SwiGLU is ``activation="silu", gated=True``).

    Args:
        dim: width of inputs and outputs.
        ff_dim: inner width; default 4 dim.
        activation: "relu", "gelu" (exact), "gelu_tanh", "silu".
        gated: adds the gate.
        bias: True if the linear maps have biases.
        dropout: dropout probability of the inner activations.

    >>> import torch
    >>> feed_forward = FeedForward(8, 32, activation="silu", gated=True)
    >>> feed_forward(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        dim: int,
        ff_dim: int | None = None,
        *,
        activation: Activation = "gelu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        inner = ff_dim or 4 * dim
        self.up = Linear(dim, inner, bias)
        self.gate = Linear(dim, inner, bias) if gated else None
        self.down = Linear(inner, dim, bias)
        self.activation = lookup(ACTIVATIONS, activation, "activation")
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x`` (..., dim) to (..., dim), each position separately."""
        if self.gate is None:
            inner = self.activation(self.up(x))  # (..., ff_dim)
        else:
            inner = self.activation(self.gate(x)) * self.up(x)
        return self.down(self.dropout(inner))
