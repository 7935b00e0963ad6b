"""The feed-forward by its formulae, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from heedful.layers import FeedForward
from tolerances import assert_close

ACTS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "tanh": lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1),
}


@pytest.mark.parametrize("activation", ACTS)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_formula(activation: str, gated: bool, bias: bool) -> None:
    layer = FeedForward(6, 10, activation=activation, gated=gated, bias=bias).double()
    assert sum(p.numel() for p in layer.parameters()) == (2 + gated) * 60 + bias * (16 + 10 * gated)
    x = torch.randn(2, 3, 6, dtype=torch.float64)

    def linear(name: str, x: Tensor) -> Tensor:
        part = getattr(layer, name)
        return x @ part.weight.T + (part.bias if bias else 0)

    inner = ACTS[activation](linear("gate", x)) * linear("up", x) if gated else ACTS[activation](linear("up", x))
    assert_close(layer(x), linear("down", inner), "layer")


def test_four_times_as_wide_by_default() -> None:
    assert FeedForward(6).up.out_features == 24


def test_dropout_inside() -> None:
    layer = FeedForward(6, 10, dropout=0.5)
    x = torch.randn(2, 3, 6)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))
