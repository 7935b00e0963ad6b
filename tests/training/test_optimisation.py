from __future__ import annotations

import dataclasses

import torch
from torch import nn

import heedful
from heedful.config import LearnedPosition
from heedful.training import adamw
from tolerances import assert_close


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(4)
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)


def test_matrices_decay_and_nothing_else_does():
    model = Tied()
    optimiser = adamw(model, lr=1.0, weight_decay=0.1)
    decays = {id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    found = {name: decays.get(id(p)) for name, p in model.named_parameters(remove_duplicate=False)}
    assert found == {
        "embedding.weight": 0.0,
        "head.weight": 0.0,
        "head.bias": 0.0,
        "norm.weight": 0.0,
        "norm.bias": 0.0,
        "inner.weight": 0.1,
        "inner.bias": 0.0,
        "frozen.weight": None,
        "frozen.bias": None,
    }
    assert len([p for group in optimiser.param_groups for p in group["params"]]) == 6


def test_of_an_image_model_the_class_tokens_and_positions_do_not_decay():
    config = heedful.presets.get("vit-micro")
    patches = dataclasses.replace(config.patches, prefix="class+distillation")
    position = LearnedPosition(length=patches.tokens)
    model = heedful.create(
        dataclasses.replace(config, patches=patches, encoder=dataclasses.replace(config.encoder, position=position))
    )
    optimiser = adamw(model, lr=1.0, weight_decay=0.1)
    decays = {id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        kept = parameter.ndim == 1 or name in ("embedding.prefix", "encoder.position.table.weight")
        assert decays[id(parameter)] == (0.0 if kept else 0.1), name


def test_it_is_adamw():
    # Loshchilov and Hutter (2019), algorithm 2, written out for one matrix.
    torch.manual_seed(0)
    model = nn.Linear(3, 2, bias=False).double()
    theta = model.weight.detach().clone()
    first, second = torch.zeros_like(theta), torch.zeros_like(theta)
    optimiser = adamw(model, lr=0.1, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.2)
    assert optimiser.param_groups[0]["fused"]
    for t in range(1, 6):
        g = torch.randn_like(theta)
        model.weight.grad = g.clone()
        optimiser.step()
        first, second = 0.9 * first + 0.1 * g, 0.98 * second + 0.02 * g**2
        step = (first / (1 - 0.9**t)) / ((second / (1 - 0.98**t)).sqrt() + 1e-9)
        theta = theta - 0.1 * (step + 0.2 * theta)
    assert_close(model.weight.detach(), theta)
