"""Dropout on a CPU: what is computed of the numbers that were drawn is exact, and they are drawn as they should be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heedful
from heedful import presets
from heedful.layers.attention import attention_weights, explicit_attention
from heedful.training import dropout as module
from heedful.training.dropout import Bits, Dropper, drop_quickly, dropped_attention, parts
from heedful.training.engine import forgetful

RATE = 0.4
SOME = torch.rand(4, 1, 9, 12, generator=torch.Generator().manual_seed(3)) > 0.5
NONE = torch.ones(4, 1, 1, 12).bool().index_fill(0, torch.tensor([1, 3]), False)  # nothing may be seen in two rows
BIAS = torch.randn(2, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What was drawn, in turn."""
    found: list[Tensor] = []
    keep = Bits.keep

    def kept(bits: Bits, shape: tuple[int, ...]) -> Tensor:
        found.append(keep(bits, shape))
        return found[-1]

    monkeypatch.setattr(Bits, "keep", kept)
    return found


def made(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


# ----------------------------------------------------------------------------------------------- what is made of them


@pytest.mark.parametrize("blocks", [(128, 2**19), (4, 60)], ids=["one", "many"])
@pytest.mark.parametrize(
    ("queries", "keys", "heads", "mask"),
    [
        (9, 12, 2, None),
        (12, 12, 2, "causal"),
        (9, 12, 2, "causal"),
        (12, 9, 2, "causal"),
        (9, 12, 2, SOME),
        (9, 12, 2, NONE),
        (9, 12, 2, SOME[0, 0]),
        (9, 12, 2, BIAS),
        (9, 12, 2, torch.where(SOME, BIAS, float("-inf"))),
        (12, 12, 1, "causal"),
    ],
    ids=["all", "causal", "later", "earlier", "some", "nothing", "alike", "bias", "both", "shared heads"],
)
def test_attention_is_the_written_out_one(
    blocks: tuple[int, int],
    queries: int,
    keys: int,
    heads: int,
    mask: Any,
    drawn: list[Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "QUERIES", blocks[0])
    monkeypatch.setattr(module, "BLOCK", blocks[1])
    q, k, v = made(4, 2, queries, 8, seed=0), made(4, heads, keys, 8, seed=1), made(4, heads, keys, 8, seed=2)
    found = dropped_attention(q, k, v, mask, 0.3, RATE)
    causal = isinstance(mask, str) and queries <= keys
    keep = torch.zeros(4, 2, queries, keys, dtype=torch.int8)
    count = 0
    for part, each in zip(parts(q, k.expand(4, 2, keys, 8), causal), drawn, strict=True):
        keep[part.rows, :, part.queries, part.keys] = each
        count += each.numel()
    assert (count < keep.numel()) == (causal and blocks[0] < queries)  # what cannot be seen is not drawn
    weights = attention_weights(q, k, mask, 0.3) * keep * Bits(RATE).scale
    expected = weights @ v.repeat_interleave(2 // heads, 1)
    torch.testing.assert_close(found, expected)
    dy = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, (q, k, v), dy), torch.autograd.grad(expected, (q, k, v), dy), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_a_row_is_dropped_and_scaled(drawn: list[Tensor]) -> None:
    dropout, x = nn.Dropout(RATE), made(200, 100, seed=0)
    drop_quickly(dropout)
    y = dropout(x)
    expected = x * drawn[0] * Bits(RATE).scale
    torch.testing.assert_close(y, expected)
    dy = torch.randn_like(y)
    torch.testing.assert_close(torch.autograd.grad(y, x, dy), torch.autograd.grad(expected, x, dy))


def test_attention_is_in_bfloat16_under_autocast() -> None:
    q, k, v = (made(2, 2, 40, 8, seed=seed).detach().float().requires_grad_() for seed in range(3))
    torch.manual_seed(0)
    exact = dropped_attention(q, k, v, "causal", 0.3, RATE)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = dropped_attention(q, k, v, "causal", 0.3, RATE)
    assert rounded.dtype is torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.03, rtol=0.03)
    for one, other in zip(
        torch.autograd.grad(rounded.float().sum(), (q, k, v)), torch.autograd.grad(exact.sum(), (q, k, v)), strict=True
    ):
        assert one.dtype is torch.float32
        torch.testing.assert_close(one, other, atol=0.1, rtol=0.1)


# ----------------------------------------------------------------------------------------------- how numbers are drawn


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.2, 0.5, 0.9])
def test_shares_and_means_are_right(rate: float) -> None:
    torch.manual_seed(0)
    keep = Bits(rate).keep((2000, 1000)).double()
    deviation = (rate * (1 - rate) / keep.numel()) ** 0.5
    assert abs(keep.mean() - (1 - rate)) < 5 * deviation + 2**-17
    for step in (1, 2, 3, 4, 5, 8):  # four numbers come of one draw
        both = keep.flatten()[step:] * keep.flatten()[:-step]
        assert abs(both.mean() - (1 - rate) ** 2) < 10 * deviation + 2**-16
    assert abs(keep.mean(0) - (1 - rate)).max() < 6 * (rate * (1 - rate) / 2000) ** 0.5 + 2**-10
    assert abs((keep.mean() * Bits(rate).scale) - 1) < 5 * deviation / (1 - rate)


def test_numbers_are_a_function_of_the_seed() -> None:
    dropout, x = nn.Dropout(0.5), torch.ones(300, 100)
    drop_quickly(dropout)
    torch.manual_seed(7)
    first, second = dropout(x), dropout(x)
    torch.manual_seed(7)
    assert torch.equal(dropout(x), first)
    assert torch.equal(dropout(x), second)
    assert not torch.equal(first, second)


def test_what_is_forgotten_is_dropped_alike_again() -> None:
    model = heedful.create(presets.gpt2(32, 2, 2, 50, 64, 0.3), seed=0).double().train()
    drop_quickly(model)
    ids = torch.randint(50, (16, 64), generator=torch.Generator().manual_seed(0))

    def gradients() -> dict[str, Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    plain = gradients()
    forgetful(model)
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, plain[name], msg=name)


# ------------------------------------------------------------------------------------------------ where it is not done


def test_answers_are_as_before() -> None:
    model = heedful.create(presets.gpt2(32, 2, 2, 50, 64, 0.3), seed=0).eval()
    ids = torch.randint(50, (16, 64), generator=torch.Generator().manual_seed(0))
    before = model(ids)
    drop_quickly(model)
    assert torch.equal(model(ids), before)


def test_little_is_dropped_as_pytorch_does(drawn: list[Tensor]) -> None:
    dropout, plain, x = nn.Dropout(0.5), nn.Dropout(0.5), torch.ones(100)
    drop_quickly(dropout)
    torch.manual_seed(0)
    found = dropout(x)
    torch.manual_seed(0)
    assert torch.equal(found, plain(x))
    for rate, expected in ((0.0, 1.0), (1.0, 0.0)):
        dropout.p = rate
        assert (dropout(torch.ones(300, 100)) == expected).all()
    assert drawn == []


def test_a_bias_that_learns_is_left_to_the_plain_path(drawn: list[Tensor]) -> None:
    q, k, v = (made(2, 2, 5, 8, seed=seed) for seed in range(3))
    bias = made(1, 2, 5, 5, seed=4)
    (gradient,) = torch.autograd.grad(dropped_attention(q, k, v, bias, 0.3, RATE).sum(), bias)
    assert gradient.abs().sum() > 0
    assert drawn == []


def test_what_was_exchanged_stays() -> None:
    class Louder(nn.Dropout):
        pass

    model = heedful.create(presets.gpt2(32, 2, 2, 50, 64, 0.3), seed=0)
    model.decoder.block[0].attention.attend = explicit_attention
    model.decoder.dropout = Louder(0.1)
    drop_quickly(model)
    assert model.decoder.block[0].attention.attend is explicit_attention
    assert model.decoder.block[1].attention.attend is dropped_attention
    assert "forward" not in vars(model.decoder.dropout)
    inner = [part for part in model.decoder.block.modules() if type(part) is nn.Dropout]
    assert inner
    assert all(isinstance(vars(part)["forward"], Dropper) for part in inner)
