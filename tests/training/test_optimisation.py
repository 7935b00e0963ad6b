from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from heedful.errors import HeedfulError
from heedful.training import Average, adamw


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
    torch.testing.assert_close(model.weight.detach(), theta)


def walked(steps, dtype=torch.float32, share=0.1):
    """A model whose one weight is a given walk, and its average."""
    model = nn.Linear(1, 1, bias=False).to(dtype)
    average = Average(model, share=share)
    for value in steps:
        nn.init.constant_(model.weight, value)
        average.update()
    return model, average


def test_the_average_weighs_late_weights_most():
    # In closed form: with γ = 2 the weights of 1..t are s(s+1): Γ(s + γ) / Γ(s).
    values = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, average = walked(values.tolist(), torch.float64, share=0.25)
    s = torch.arange(1, 51, dtype=torch.float64)
    torch.testing.assert_close(average.weights["weight"].squeeze(), (s * (s + 1) * values).sum() / (s * (s + 1)).sum())


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_the_mean_age_is_the_share_whatever_the_length(share):
    for steps in (200, 2000):
        _, average = walked(range(steps), torch.float64, share=share)
        assert 1 - average.weights["weight"].item() / steps == pytest.approx(share, abs=0.01)


def test_the_first_average_is_the_weights():
    _, average = walked([5.0])
    assert average.weights["weight"].item() == 5.0


def test_a_half_precision_model_is_averaged_in_single():
    model, average = walked([1.0, 1.0078125, 1.0], torch.bfloat16)
    assert average.weights["weight"].dtype == torch.float32
    assert 1.0 < average.weights["weight"].item() < 1.0078125  # neighbours in bfloat16: nothing lies between them
    with average.swapped():
        assert model.weight.dtype == torch.bfloat16


def test_tied_weights_are_averaged_once_and_frozen_ones_not():
    average = Average(Tied())
    assert set(average.weights) == {
        "embedding.weight", "head.bias", "norm.weight", "norm.bias", "inner.weight", "inner.bias"
    }  # fmt: skip


def test_the_own_weights_come_back_bit_for_bit_whatever_happens_meanwhile():
    model, average = walked([1.0, 2.0, 0.1])
    own = copy.deepcopy(model.state_dict())
    held = average.weights["weight"].clone()

    def fails():
        with average.swapped():
            assert torch.equal(model.weight, held)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert torch.equal(model.weight, own["weight"])
    assert torch.equal(average.weights["weight"], held)


def test_an_average_goes_on_from_its_state():
    values = torch.rand(20, generator=torch.Generator().manual_seed(0)).tolist()
    _, straight = walked(values)
    _, half = walked(values[:9])
    state = copy.deepcopy(half.state_dict())
    model, rest = walked([])
    rest.load_state_dict(state)
    for value in values[9:]:
        nn.init.constant_(model.weight, value)
        rest.update()
    assert torch.equal(rest.weights["weight"], straight.weights["weight"])


def test_an_average_of_another_model_is_refused():
    with pytest.raises(HeedfulError, match="another model"):
        Average(nn.Linear(2, 1)).load_state_dict(Average(nn.Linear(3, 1)).state_dict())


@pytest.mark.parametrize("share", [0.0, 0.5, -1.0])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(HeedfulError, match="share"):
        Average(nn.Linear(1, 1), share=share)
