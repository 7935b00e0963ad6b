"""Position schemes against their papers' formulae and the functions of published code."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from heedful.config import LearnedPosition, RotaryPosition, StackConfig
from heedful.errors import HeedfulError
from heedful.layers import Alibi, Learned, Relative, Rotary, Sinusoidal
from heedful.layers.position import position_of, sinusoid
from tolerances import approx, assert_close


@pytest.mark.parametrize("dim", [1, 2, 5, 8])
@pytest.mark.parametrize("order", ["interleaved", "halves"])
def test_sinusoid_element_by_element(dim: int, order: str) -> None:
    half = (dim + 1) // 2
    for position, row in enumerate(sinusoid(40, dim, order=order).tolist()):
        for element, value in enumerate(row):
            pair, cosine = divmod(element, 2) if order == "interleaved" else (element % half, element >= half)
            angle = position / 10000 ** (2 * pair / dim)
            assert value == approx(math.cos(angle) if cosine else math.sin(angle), "layer")


def test_sinusoid_of_any_length() -> None:
    layer = Sinusoidal(8, offset=2)
    far = layer.embed(torch.zeros(1, 3, 8), torch.tensor([[0, 700, 5000]]))
    assert_close(far[0], sinusoid(6000, 8)[[2, 702, 5002]])


def test_sinusoid_grown_while_predicting_still_trains() -> None:
    layer = Sinusoidal(8)
    with torch.inference_mode():
        layer.embed(torch.zeros(1, 1, 8), torch.tensor([[3000]]))
    x = torch.zeros(1, 1, 8, requires_grad=True)
    layer.embed(x * x, torch.tensor([[1]])).sum().backward()
    assert x.grad is not None


def test_learned_rows_and_offset() -> None:
    layer = Learned(4, length=6, offset=2)
    assert layer.table.weight.shape == (8, 4)
    assert torch.equal(layer.embed(torch.zeros(1, 2, 4), torch.tensor([[0, 5]]))[0], layer.table.weight[[2, 7]])
    with pytest.raises(HeedfulError, match=r"7 tokens.* 6 learned positions"):
        layer.embed(torch.zeros(1, 1, 4), torch.tensor([[6]]))


@pytest.mark.parametrize("order", ["dot product", "length"])
def test_rotary_turns_pairs(order: str) -> None:
    """⟨R_p q, R_s k⟩ depends on p − s alone, and is Re Σ q_i conj(k_i) e^{i (p−s) θ_i}; lengths stay."""
    q, k = torch.randn(2, 8)
    rotary = Rotary(8, RotaryPosition(base=100.0))

    def turned(x: torch.Tensor, p: int) -> torch.Tensor:
        at = torch.tensor([[p]])
        return rotary.prepare(at, at).rotate(x.view(1, 1, 1, 8)).flatten()

    if order == "length":
        assert_close(turned(q, 11).norm(), q.norm())
        return
    theta = 100.0 ** (-torch.arange(4.0) / 4)
    for p, s in [(0, 0), (3, 1), (13, 11), (1, 9)]:
        complex_q, complex_k = torch.complex(q[:4], q[4:]), torch.complex(k[:4], k[4:])
        expected = (complex_q * complex_k.conj() * torch.exp(1j * (p - s) * theta)).real.sum()
        assert_close(turned(q, p) @ turned(k, s), expected)


def test_rotary_of_an_odd_head() -> None:
    with pytest.raises(HeedfulError, match="7 is odd"):
        Rotary(7)


def test_rotary_keeps_its_precision_in_bfloat16() -> None:
    """Rounded frequencies would turn position 1,000 by the wrong angle; the tables alone may be rounded."""
    at = torch.tensor([[1000]])
    exact, cast = Rotary(64).prepare(at, at), Rotary(64).bfloat16().prepare(at, at)
    x = torch.randn(1, 1, 1, 64)
    torch.testing.assert_close(cast.rotate(x), exact.rotate(x), atol=0.05, rtol=0)


def test_alibi_slopes() -> None:
    """The slopes that Press et al. print: 8 heads, and 12 of which 4 are taken from 16's."""
    expected = [2**-i for i in range(1, 9)]
    assert Alibi(8).slopes == pytest.approx(expected)
    assert Alibi(12).slopes == pytest.approx(expected + [2 ** -(i / 2) for i in (1, 3, 5, 7)])
    assert Alibi(1).slopes == pytest.approx([2**-8])


def test_alibi_keeps_its_precision_in_bfloat16() -> None:
    queries, keys = torch.tensor([[1001]]), torch.arange(1002)[None]
    exact, cast = Alibi(8).prepare(queries, keys).bias, Alibi(8).bfloat16().prepare(queries, keys).bias
    near = slice(900, 1002)
    torch.testing.assert_close(cast.float()[..., near], exact[..., near], atol=0.51, rtol=2**-8)


def test_relative_buckets_are_t5s() -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-300, 301)
    for both_ways in (True, False):
        for buckets, far in [(32, 128), (16, 64), (8, 20)]:
            ours = Relative(2, buckets=buckets, max_distance=far, both_ways=both_ways).bucket(distance)
            theirs = T5Attention._relative_position_bucket(distance, both_ways, buckets, far)
            assert torch.equal(ours, theirs)


def test_relative_distance_is_key_minus_query() -> None:
    layer = Relative(2)
    bias = layer.prepare(torch.tensor([[4]]), torch.tensor([[2, 4, 7]])).bias
    assert bias.shape == (1, 2, 1, 3)
    assert_close(bias[0, :, 0].T, layer.table.weight[[2, 0, 16 + 3]])


@pytest.mark.parametrize("causal", [False, True])
def test_learned_positions_beside_a_bias(causal: bool) -> None:
    """Rows are added as without a bias, and the bias is T5's, both with the names of their parts."""
    config = StackConfig(
        dim=8, depth=1, heads=2, causal=causal, position=LearnedPosition(length=200, offset=2, buckets=32)
    )
    scheme = position_of(config)
    plain = Relative(2, both_ways=not causal)
    plain.load_state_dict({"table.weight": scheme.state_dict()["relative.table.weight"]})
    positions, x = torch.arange(180)[None], torch.randn(1, 180, 8)
    assert torch.equal(scheme.embed(x, positions), x + scheme.table.weight[2:182])
    assert torch.equal(scheme.prepare(positions, positions).bias, plain.prepare(positions, positions).bias)


def test_learned_positions_beside_a_bias_are_mpnets() -> None:
    from transformers import MPNetConfig
    from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

    theirs = MPNetEncoder(MPNetConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=0))
    scheme = position_of(StackConfig(dim=8, depth=1, heads=2, position=LearnedPosition(length=200, buckets=32)))
    scheme.relative.load_state_dict({"table.weight": theirs.relative_attention_bias.weight})
    positions = torch.arange(180)[None]
    expected = theirs.compute_position_bias(torch.zeros(1, 180, 8))
    assert torch.equal(scheme.prepare(positions, positions).bias, expected)


def test_few_buckets_are_refused() -> None:
    with pytest.raises(HeedfulError, match=r"learned.buckets is 3; give at least 4, or 0 for no bias"):
        LearnedPosition(length=4, buckets=3)


@pytest.mark.parametrize("scaling", ["default", "yarn"])
def test_rotary_of_a_share_of_a_head(scaling: str) -> None:
    """The first R/2 pairs turn as in a head of size R; the numbers of the other pairs stay, unscaled."""
    config = RotaryPosition(base=100.0, share=0.5, scaling=scaling, factor=4.0, original_length=8)  # type: ignore[arg-type]
    at, x = torch.tensor([[3, 11]]), torch.randn(1, 2, 2, 16)
    turned = Rotary(16, config).prepare(at, at).rotate(x)
    pairs, result = x.unflatten(-1, (2, 8)), turned.unflatten(-1, (2, 8))
    whole = Rotary(8, replace(config, share=1.0)).prepare(at, at).rotate(pairs[..., :4].flatten(-2))
    assert torch.equal(result[..., :4].flatten(-2), whole)
    assert torch.equal(result[..., 4:], pairs[..., 4:])
    if scaling == "default":
        angle = at[0, :, None] * 100.0 ** (-torch.arange(4) / 4)
        expected = torch.complex(*pairs[..., :4].unbind(-2)) * torch.polar(torch.ones(2, 4), angle)
        assert_close(result[..., :4], torch.stack((expected.real, expected.imag), -2))


@pytest.mark.parametrize(("size", "share"), [(8, 0.4), (8, 0.1)])
def test_a_share_that_is_no_pairs(size: int, share: float) -> None:
    with pytest.raises(HeedfulError, match=rf"rotary.share is {share}, {int(size * share)} of the 8 features"):
        Rotary(size, RotaryPosition(share=share))
    with pytest.raises(HeedfulError, match=r"rotary.share is 1.5; give a number above 0, at most 1"):
        RotaryPosition(share=1.5)
