"""Muon against singular values, against torch's own, and in the loop's hands."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import heedful
from heedful.training.muon import CombinedOptimiser, Muon, muon, orthogonal
from tolerances import assert_close


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 48, 16), (2, 16, 48)])
def test_singular_values_come_near_one_and_vectors_stay(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(*shape, dtype=torch.float64)
    made = orthogonal(matrices)
    assert made.shape == matrices.shape
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    turned = u.mT @ made @ v.mT
    values = turned.diagonal(dim1=1, dim2=2)
    assert (turned - torch.diag_embed(values)).abs().max() < 1e-9
    large = s > 0.05 * s.amax(1, keepdim=True)  # what is next to nothing needs more steps
    assert values[large].min() > 0.6
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 48)])
def test_it_steps_as_torchs_own(shape: tuple[int, int]) -> None:
    """torch's rounds to bfloat16 on the way."""
    ours = nn.Parameter(torch.randn(shape))
    theirs = nn.Parameter(ours.detach().clone())
    one = Muon([ours], lr=0.1, weight_decay=0.2)
    other = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.2, adjust_lr_fn="match_rms_adamw")
    for _ in range(5):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        one.step()
        other.step()
    assert (ours - theirs).norm() < 0.02 * ours.norm()


def test_rounded_to_bfloat16_it_is_torchs_own() -> None:
    ours = nn.Parameter(torch.randn(24, 16))
    theirs = nn.Parameter(ours.detach().clone())
    one = Muon([ours], lr=0.1, weight_decay=0.2, dtype=torch.bfloat16)
    other = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.2, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        ours.grad = torch.randn(24, 16)
        theirs.grad = ours.grad.clone()
        one.step()
        other.step()
    assert ours.dtype == one.state[ours]["mean"].dtype == torch.float32
    assert (ours - theirs).norm() < 0.01 * ours.norm()


def test_matrices_of_one_shape_step_as_each_alone() -> None:
    together = [nn.Parameter(torch.randn(8, 8)) for _ in range(3)]
    alone = [nn.Parameter(matrix.detach().clone()) for matrix in together]
    joint, single = Muon(together, lr=0.1), [Muon([matrix], lr=0.1) for matrix in alone]
    for _ in range(3):
        for one, other in zip(together, alone, strict=True):
            one.grad = torch.randn(8, 8)
            other.grad = one.grad.clone()
        joint.step()
        for optimiser in single:
            optimiser.step()
    for one, other in zip(together, alone, strict=True):
        assert_close(one, other)


def test_every_parameter_has_one_optimiser() -> None:
    model = heedful.create("gpt-micro", seed=0)
    optimiser = muon(model, lr=0.1, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.3)
    matrices, *rest = (list(map(id, group["params"])) for group in optimiser.param_groups)
    names = {id(p): name for name, p in model.named_parameters()}
    assert sorted(matrices + [one for group in rest for one in group]) == sorted(names)
    assert len(matrices) == 4 * 6
    assert all("attention" in names[one] or "feed_forward" in names[one] for one in matrices)
    assert {group["weight_decay"] for group in optimiser.param_groups} == {0.3, 0.0}


def test_its_state_is_resumed() -> None:
    def made() -> tuple[nn.Module, CombinedOptimiser]:
        torch.manual_seed(0)
        model = heedful.create("gpt-micro", seed=0)
        optimiser = muon(model, lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
        assert isinstance(optimiser, CombinedOptimiser)
        return model, optimiser

    def step(model: nn.Module, optimiser: CombinedOptimiser, number: int) -> None:
        optimiser.zero_grad()
        model(torch.randint(65, (2, 8), generator=torch.Generator().manual_seed(number))).square().sum().backward()
        optimiser.step()

    whole, optimiser = made()
    for number in range(4):
        step(whole, optimiser, number)
    half, first = made()
    for number in range(2):
        step(half, first, number)
    rest, second = made()
    rest.load_state_dict(half.state_dict())
    second.load_state_dict(first.state_dict())
    for number in (2, 3):
        step(rest, second, number)
    for one, other in zip(whole.parameters(), rest.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match="holds 0 optimisers, not 2"):
        second.load_state_dict({"state": {}, "param_groups": []})
