"""Norms against torch.nn.functional and their formulae."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heedful.layers import BatchNorm, LayerNorm, RMSNorm
from heedful.layers.norm import Identity, OffsetRMSNorm
from tolerances import assert_close


def test_layer_and_rms_by_formula() -> None:
    x, weight, bias = torch.randn(2, 3, 8, dtype=torch.float64), *torch.randn(2, 8, dtype=torch.float64)
    layer, rms = LayerNorm(8, eps=1e-3).double(), RMSNorm(8, eps=1e-3).double()
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
        rms.weight.copy_(weight)
    variance = x.var(-1, unbiased=False, keepdim=True)
    assert_close(layer(x), (x - x.mean(-1, keepdim=True)) / (variance + 1e-3).sqrt() * weight + bias)
    assert_close(rms(x), x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight)


@torch.no_grad()
def test_an_offset_norm_is_a_norm_whose_weight_is_larger_by_one() -> None:
    x, offset, rms = torch.randn(2, 3, 8, dtype=torch.float64), OffsetRMSNorm(8, 1e-3), RMSNorm(8, 1e-3)
    assert not offset.weight.any()
    offset.weight.normal_()
    rms.weight.copy_(1 + offset.weight)
    assert_close(offset(x.float()), rms(x.float()))
    rms.double().weight.copy_(1 + offset.double().weight)
    assert_close(offset(x), rms(x))


@torch.no_grad()
def test_an_offset_norm_keeps_the_bits_of_a_half_precision_weight() -> None:
    norm, x = OffsetRMSNorm(8, 1e-6).bfloat16(), torch.randn(2, 3, 8).bfloat16()
    norm.weight.fill_(2**-9)  # 1 + 2⁻⁹ is 1 in bfloat16
    expected = x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + 2**-9)
    assert torch.equal(norm(x), expected.bfloat16())


@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm, Identity])
def test_only_batch_norm_looks_at_real(kind: type[nn.Module]) -> None:
    norm, x = kind(8), torch.randn(2, 3, 8)
    assert torch.equal(norm(x, torch.zeros(2, 3, dtype=torch.bool)), norm(x))


def test_batch_norm_is_torchs_over_the_real_tokens() -> None:
    ours, theirs = BatchNorm(8).double(), nn.BatchNorm1d(8).double()
    real = torch.arange(5) < torch.tensor([[5], [2], [0]])
    for _ in range(3):
        x = torch.randn(3, 5, 8, dtype=torch.float64) * 3 + 1
        y = ours(x, real)
        assert_close(y[real], theirs(x[real]))
        assert y[~real].eq(0).all()
        assert_close(ours.running_mean, theirs.running_mean)
        assert_close(ours.running_var, theirs.running_var)
    ours.eval()
    theirs.eval()
    assert_close(ours(x, real)[real], theirs(x[real]))
    assert_close(ours(x), theirs(x.flatten(0, 1)).view_as(x))


def test_batch_norm_of_padding_alone() -> None:
    norm = BatchNorm(4)
    assert norm(torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.bool)).eq(0).all()
    assert norm.running_mean.eq(0).all()
    assert norm.running_var.eq(1).all()


def test_batch_norm_in_bfloat16() -> None:
    norm = BatchNorm(4)
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(torch.randn(2, 3, 4, dtype=torch.bfloat16)).isfinite().all()
    assert norm.bfloat16()(torch.randn(2, 3, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
