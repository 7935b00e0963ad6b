"""Conditions under which DDP searches for parameters without a gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heedful
from heedful.kernels.plan import apply_training_plan
from heedful.layers.norm import LayerNorm
from heedful.tasks.text_generation import TextGeneration
from heedful.training.engine import parameters_of, uses_same_parameters


class Custom(LayerNorm):
    """A part of a user's own."""


def custom(x: Tensor) -> Tensor:
    """A function of a user's own."""
    return F.gelu(x)


def created(name: str) -> Any:
    return apply_training_plan(heedful.create(name, seed=0))


@pytest.mark.parametrize("name", ["gpt-micro", "bert-tiny", "transformer-tiny", "vit-micro", "stories260k"])
def test_all_of_heedful_is_fixed(name: str) -> None:
    assert uses_same_parameters(created(name), TextGeneration, partial(F.gelu, approximate="tanh"))


def test_custom_objectives_are_searched() -> None:
    model = created("gpt-micro")
    assert not uses_same_parameters(model, Custom)
    assert not uses_same_parameters(model, partial(custom))
    model.decoder.block[0].feed_forward.activation = custom
    assert not uses_same_parameters(model)
    model = created("gpt-micro")
    model.decoder.block[1] = nn.Sequential(Custom(8))
    assert not uses_same_parameters(model)


def test_the_parameters_of_a_loss_are_those_that_get_a_gradient() -> None:
    model = heedful.create("bert-tiny", seed=0).train()
    loss = model.hidden(torch.tensor([[5, 6, 7]])).sum()
    used = parameters_of(loss)
    loss.backward()
    names = [name for name, p in model.named_parameters() if p in used]
    assert names == [name for name, p in model.named_parameters() if p.grad is not None]
    assert "head.pooler.linear.weight" not in names
    assert len(names) < len(list(model.parameters()))
