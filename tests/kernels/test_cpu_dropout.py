"""Dropout on a CPU: what is computed of the numbers that were drawn is exact, and they are drawn as they should be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import heedful
from heedful import presets
from heedful.kernels.cpu_dropout import DropoutMasks, cpu_dropout
from heedful.kernels.plan import apply_plan, apply_training_plan
from heedful.layers.dropout import Dropout
from tolerances import assert_close

RATE = 0.4


def made(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


# ----------------------------------------------------------------------------------------------- what is made of them


def test_a_row_is_dropped_and_scaled(drawn: list[Tensor]) -> None:
    dropout, x = Dropout(RATE), made(200, 100, seed=0)
    apply_plan(dropout, "cpu-training")
    y = dropout(x)
    expected = x * drawn[0] * DropoutMasks(RATE).scale
    assert_close(y, expected)
    dy = torch.randn_like(y)
    assert_close(torch.autograd.grad(y, x, dy), torch.autograd.grad(expected, x, dy))


# ----------------------------------------------------------------------------------------------- how numbers are drawn


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.2, 0.5, 0.9])
def test_shares_and_means_are_right(rate: float) -> None:
    torch.manual_seed(0)
    keep = DropoutMasks(rate).draw((2000, 1000)).double()
    deviation = (rate * (1 - rate) / keep.numel()) ** 0.5
    assert abs(keep.mean() - (1 - rate)) < 5 * deviation + 2**-17
    for step in (1, 2, 3, 4, 5, 8):  # four numbers come of one draw
        both = keep.flatten()[step:] * keep.flatten()[:-step]
        assert abs(both.mean() - (1 - rate) ** 2) < 10 * deviation + 2**-16
    assert abs(keep.mean(0) - (1 - rate)).max() < 6 * (rate * (1 - rate) / 2000) ** 0.5 + 2**-10
    assert abs((keep.mean() * DropoutMasks(rate).scale) - 1) < 5 * deviation / (1 - rate)


def test_numbers_are_a_function_of_the_seed() -> None:
    dropout, x = Dropout(0.5), torch.ones(300, 100)
    apply_plan(dropout, "cpu-training")
    torch.manual_seed(7)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(7)
    assert torch.equal(dropout(x), first)
    assert torch.equal(dropout(x), second)
    assert not torch.equal(first, second)


def test_recomputed_blocks_drop_the_same() -> None:
    model = heedful.create(presets.gpt2(32, 2, 2, 50, 64, 0.3), seed=0).double().train()
    apply_plan(model, "cpu-training")
    ids = torch.randint(50, (16, 64), generator=torch.Generator().manual_seed(0))

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    plain = gradients()
    apply_training_plan(model, recompute=True)
    for name, gradient in gradients().items():
        assert_close(gradient, plain[name], msg=name)


# ------------------------------------------------------------------------------------------------ where it is not done


def test_answers_are_as_before() -> None:
    model = heedful.create(presets.gpt2(32, 2, 2, 50, 64, 0.3), seed=0).eval()
    ids = torch.randint(50, (16, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(ids)
        apply_plan(model, "cpu-training")
        assert torch.equal(model(ids), before)


def test_little_is_dropped_as_pytorch_does(drawn: list[Tensor]) -> None:
    dropout, plain, x = Dropout(0.5), Dropout(0.5), torch.ones(100)
    apply_plan(dropout, "cpu-training")
    torch.manual_seed(0)
    found = dropout(x)
    torch.manual_seed(0)
    assert torch.equal(found, plain(x))
    for rate, expected in ((0.0, 1.0), (1.0, 0.0)):
        dropout.p = rate
        assert (dropout(torch.ones(300, 100)) == expected).all()
    assert drawn == []


def test_an_exchanged_dropout_stays() -> None:
    class Louder(Dropout):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    model = heedful.create(presets.gpt2(32, 2, 2, 50, 64, 0.3), seed=0)
    model.decoder.dropout = Louder(0.1)
    apply_plan(model, "cpu-training")
    assert model.decoder.dropout.dropout is F.dropout
    inner = [part for part in model.decoder.block.modules() if type(part) is Dropout]
    assert inner
    assert all(part.dropout is cpu_dropout for part in inner)
