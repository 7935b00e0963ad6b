"""Attention against torch's own, against itself written out, and at its edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heedful.config import AlibiPosition, DisentangledPosition, RotaryPosition, StackConfig
from heedful.errors import HeedfulError
from heedful.kernels.fused_projections import FusedAttention, plain_linear
from heedful.layers import (
    Alibi,
    Attention,
    Relative,
    Rotary,
    SoftCappedAttention,
    attention_weights,
    explicit_attention,
    fused_attention,
)
from heedful.layers.attention import AttentionCache
from heedful.layers.block import Block
from heedful.stack import Stack
from tolerances import assert_close

BODIES = [fused_attention, explicit_attention]


def double(module: nn.Module) -> nn.Module:
    """In float64, every parameter drawn anew: no bias is 0 and no norm weight is 1."""
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=0.3)
    return module.eval()


def by_hand(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, bias: Tensor, scale: float) -> Tensor:
    """One query, one key at a time, in Python's own numbers."""
    out = torch.zeros(*q.shape[:3], v.size(-1), dtype=torch.float64)
    group = q.size(1) // k.size(1)
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        keys = [s for s in range(k.size(2)) if allowed[b, h, t, s]]
        scores = [
            scale * sum(a * c for a, c in zip(q[b, h, t].tolist(), k[b, h // group, s].tolist(), strict=True))
            + bias[b, h, t, s].item()
            for s in keys
        ]
        total = sum(math.exp(score) for score in scores)
        for s, score in zip(keys, scores, strict=True):
            out[b, h, t] += math.exp(score) / total * v[b, h // group, s]
    return out


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", ["boolean", "bias"])
def test_bodies_by_hand(body: fused_attention, kv_heads: int, kind: str) -> None:
    q = torch.randn(2, 4, 3, 8, dtype=torch.float64)
    k, v = torch.randn(2, 2, kv_heads, 5, 8, dtype=torch.float64)
    allowed = torch.rand(2, 4, 3, 5) < 0.6
    allowed[1, :, 2] = False  # nothing at all
    bias = torch.randn(2, 4, 3, 5, dtype=torch.float64) * (kind == "bias")
    given = (allowed, None if kind == "boolean" else bias)
    assert_close(body(q, k, v, *given, 0.4, 0.0), by_hand(q, k, v, allowed, bias, 0.4), "layer")


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (2, 5), (1, 5), (5, 2), (1, 1)])
def test_causal_is_aligned_bottom_right(body: fused_attention, queries: int, keys: int) -> None:
    q = torch.randn(2, 4, queries, 8, dtype=torch.float64)
    k, v = torch.randn(2, 2, 4, keys, 8, dtype=torch.float64)
    allowed = torch.tensor([[j <= keys - queries + i for j in range(keys)] for i in range(queries)])
    expected = by_hand(q, k, v, allowed.expand(2, 4, -1, -1), torch.zeros(2, 4, queries, keys), 1.0)
    assert_close(body(q, k, v, "causal", None, 1.0, 0.0), expected, "layer")


@pytest.mark.parametrize("kind", ["none", "padding", "keys", "heads", "bias", "bias of heads", "causal"])
@pytest.mark.parametrize("kv_heads", [2, 1])
def test_one_grouped_query(kv_heads: int, kind: str) -> None:
    """A step of decoding, in which a group's heads become queries of one head."""
    q, (k, v) = torch.randn(3, 4, 1, 8).double(), torch.randn(2, 3, kv_heads, 5, 8).double()
    padding = torch.rand(3, 1, 1, 5) < 0.6
    padding[1] = False
    mask = {
        "none": None,
        "causal": "causal",
        "padding": padding,
        "keys": padding[0, 0],
        "heads": torch.rand(3, 4, 1, 5) < 0.6,
        "bias": torch.randn(3, 1, 1, 5).double(),
        "bias of heads": torch.randn(4, 1, 5).double(),
    }[kind]
    is_tensor = isinstance(mask, Tensor)
    allowed = mask if is_tensor and mask.dtype == torch.bool else torch.tensor(True)
    bias = mask if is_tensor and mask.is_floating_point() else torch.tensor(0.0)
    shape = (3, 4, 1, 5)
    expected = by_hand(q, k, v, allowed.expand(shape), bias.expand(shape), 0.4)
    given = (None, mask) if kind.startswith("bias") else (mask, None)
    assert_close(fused_attention(q, k, v, *given, 0.4), expected, "layer")


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", ["boolean", "float", "bias", "causal"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_row_with_nothing_to_attend_to_is_zero(
    body: fused_attention, dtype: torch.dtype, kind: str, dropout: float, kv_heads: int
) -> None:
    """Zeros out, and no NaN in any gradient; row 0 of "causal" with more queries than keys is such a row too."""
    q = torch.randn(2, 4, 6, 8, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, 5, 8, dtype=dtype, requires_grad=True) for _ in range(2))
    bias = torch.randn(2, 4, 6, 5, dtype=dtype, requires_grad=True)
    allowed = torch.rand(2, 1, 6, 5) < 0.7
    allowed[:, :, 0] = False
    mask = {
        "boolean": allowed,
        "float": torch.zeros(2, 1, 6, 5, dtype=dtype).masked_fill(~allowed, -math.inf),
        "bias": torch.where(allowed, bias, -math.inf),
        "causal": "causal",
    }[kind]
    given = (None, mask) if kind in ("float", "bias") else (mask, None)
    y = body(q, k, v, *given, 0.3, dropout)
    assert y[:, :, 0].eq(0).all()
    assert y.isfinite().all()
    y.square().sum().backward()
    for leaf in (q, k, v, bias):
        assert leaf.grad is None or leaf.grad.isfinite().all()
    assert q.grad is not None
    assert q.grad[:, :, 0].eq(0).all()


@pytest.mark.parametrize("body", BODIES)
def test_bodies_have_the_same_gradients(body: fused_attention) -> None:
    """Checked against finite differences, with a bias that learns and a row that sees nothing."""
    q = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(1, 1, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bias = torch.randn(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    allowed = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])

    def run(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return body(q, k, v, allowed, bias, 0.5, 0.0)

    assert torch.autograd.gradcheck(run, (q, k, v, bias))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("mask", ["none", "causal", "padding"])
def test_torch_multihead_attention(bias: bool, cross: bool, mask: str) -> None:
    """torch's masks say the opposite: True there may *not* be attended to."""
    ours = double(Attention(24, heads=4, bias="all" if bias else "none"))
    theirs = nn.MultiheadAttention(24, 4, bias=bias, batch_first=True).double().eval()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat((ours.query.weight, ours.key.weight, ours.value.weight)))
        theirs.out_proj.weight.copy_(ours.out.weight)
        if bias:
            theirs.in_proj_bias.copy_(torch.cat((ours.query.bias, ours.key.bias, ours.value.bias)))
            theirs.out_proj.bias.copy_(ours.out.bias)
    x = torch.randn(3, 5, 24, dtype=torch.float64)
    source = torch.randn(3, 5, 24, dtype=torch.float64) if cross else x
    real = torch.arange(5) < torch.tensor([[5], [3], [1]])
    given = {"none": None, "causal": "causal", "padding": real[:, None, None, :]}[mask]
    expected, _ = theirs(
        x,
        source,
        source,
        need_weights=False,
        attn_mask=torch.ones(5, 5).triu(1).bool() if mask == "causal" else None,
        key_padding_mask=~real if mask == "padding" else None,
    )
    assert_close(ours(x, source if cross else None, mask=given), expected, "layer")


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_queries_are_repeated_heads(kv_heads: int) -> None:
    grouped, full = double(Attention(16, 4, kv_heads=kv_heads)), double(Attention(16, 4))
    state = grouped.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        heads = state[name].unflatten(0, (kv_heads, 4))
        state[name] = heads.repeat_interleave(4 // kv_heads, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    assert_close(grouped(x, mask="causal"), full(x, mask="causal"), "layer")


def test_head_size_of_its_own() -> None:
    attention = double(Attention(10, heads=3, head_dim=8))
    assert attention.scale == 8**-0.5
    assert attention(torch.randn(2, 4, 10, dtype=torch.float64)).shape == (2, 4, 10)


def test_unscaled() -> None:
    scaled, plain = double(Attention(16, 4)), double(Attention(16, 4, scale="none"))
    plain.load_state_dict(scaled.state_dict())
    with torch.no_grad():
        plain.query.weight.mul_(0.5)
        plain.query.bias.mul_(0.5)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    assert_close(plain(x), scaled(x), "layer")


def test_the_attending_callable_can_be_exchanged() -> None:
    attention = double(Attention(16, 4, kv_heads=2))
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    fused = attention(x, mask="causal")
    attention.attend = explicit_attention
    assert_close(attention(x, mask="causal"), fused, "layer")


def test_dropout_is_for_training_alone() -> None:
    attention = Attention(16, 4, dropout=0.5)
    x = torch.randn(2, 5, 16)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


def test_explicit_dropout_keeps_the_mean() -> None:
    q, k, v = torch.randn(3, 1, 1, 1, 4)
    drawn = torch.stack([explicit_attention(q, k, v, None, None, 1.0, 0.25) for _ in range(400)])
    kept = drawn[..., 0].ne(0)
    assert_close(drawn[kept], v.expand_as(drawn)[kept] / 0.75)
    assert 0.65 < kept.float().mean() < 0.85
    assert F.mse_loss(drawn.mean(0), v) < 0.02 * v.square().mean()


def test_weights_are_a_distribution_over_what_the_mask_allows() -> None:
    q, k = torch.randn(2, 2, 4, 3, 8)
    weights = attention_weights(q, k, "causal", None, 0.3)
    assert_close(weights.sum(-1), torch.ones(2, 4, 3))
    assert weights.triu(1).eq(0).all()


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 5), (3, 5, 1), (2, 4, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_and_types(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    batch, queries, keys = shape
    attention = Attention(12, heads=4, kv_heads=1, qk_norm="head").to(dtype)
    x, source = torch.randn(batch, queries, 12, dtype=dtype), torch.randn(batch, keys, 12, dtype=dtype)
    y = attention(x, source)
    assert (y.shape, y.dtype) == ((batch, queries, 12), dtype)


def test_a_norm_of_all_heads_is_that_of_the_projection() -> None:
    attention = double(Attention(24, heads=4, kv_heads=2, head_dim=5, qk_norm="all", norm_eps=1e-3))
    x = torch.randn(2, 3, 24, dtype=torch.float64)
    q, k = (
        y / (y.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight
        for y, norm in ((attention.query(x), attention.query_norm), (attention.key(x), attention.key_norm))
    )
    q, k, v = (y.unflatten(-1, (-1, 5)).transpose(1, 2) for y in (q, k, attention.value(x)))
    mixed = explicit_attention(q, k, v, None, None, 5**-0.5)
    assert_close(attention(x), attention.out(mixed.transpose(1, 2).flatten(2)))
    assert (attention.query_norm.weight.shape, attention.key_norm.weight.shape) == ((20,), (10,))


@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize("mask", [None, "causal", torch.tensor([[True, False, True]])])
def test_a_soft_cap_by_its_equation(heads: int, mask: Any) -> None:
    q, k, v = (
        torch.randn(2, 4, 3, 8).double(),
        torch.randn(2, heads, 3, 8).double(),
        torch.randn(2, heads, 3, 8).double(),
    )
    bias = torch.randn(1, 4, 3, 3).double()
    own_k, own_v = (x.repeat_interleave(4 // heads, 1) for x in (k, v))
    scores = 1.5 * (0.7 * q @ own_k.mT / 1.5).tanh() + bias
    allowed = torch.ones(3, 3).tril() if isinstance(mask, str) else torch.ones(3, 3) if mask is None else mask
    expected = scores.masked_fill(allowed == 0, float("-inf")).softmax(-1) @ own_v
    assert_close(SoftCappedAttention(1.5)(q, k, v, mask, bias, 0.7), expected)
    assert (SoftCappedAttention(1.5)(q, k, v, torch.zeros(3, 3).bool(), None, 0.7) == 0).all()


def test_a_stack_has_the_cap_and_the_scale_of_its_configuration() -> None:
    config = StackConfig(dim=16, depth=1, heads=4, cross=True, score_cap=2.0, scale=0.3)
    block = Block(config)
    assert block.attention.attend == block.cross_attention.attend == SoftCappedAttention(2.0)
    assert block.attention.scale == block.cross_attention.scale == 0.3
    assert "attend=SoftCappedAttention(cap=2.0)" in str(block)


def test_an_unknown_norm_of_queries_is_refused() -> None:
    with pytest.raises(HeedfulError, match="unknown qk_norm 'heads'; did you mean 'head'"):
        Attention(8, heads=2, qk_norm="heads")


@pytest.mark.parametrize("scheme", ["rotary", "alibi", "relative"])
def test_schemes_are_usable_with_attention_alone(scheme: str) -> None:
    """Moving every position by the same amount changes nothing; moving one does."""
    module = {"rotary": Rotary(4), "alibi": Alibi(4), "relative": Relative(4)}[scheme].double()
    attention = double(Attention(16, 4))
    x, p = torch.randn(1, 6, 16, dtype=torch.float64), torch.arange(6)[None]

    def run(positions: Tensor) -> Tensor:
        place = module.prepare(positions, positions)
        return attention(x, position=place)

    assert_close(run(p + 7), run(p), dtype=torch.float32)  # rotary tables are float32
    assert (run(p * 2) - run(p)).abs().max() > 1e-3


def test_a_cache_of_nothing_always_projects() -> None:
    calls = []
    pair = (torch.zeros(1), torch.ones(1))
    for _ in range(2):
        AttentionCache().update(lambda: calls.append(1) or pair)
    assert len(calls) == 2


@pytest.mark.parametrize("body", BODIES)
def test_a_bias_of_another_precision_is_not_misread(body: Callable[..., Tensor]) -> None:
    q, k, v = torch.randn(3, 2, 4, 5, 8, dtype=torch.float64)
    bias = torch.randn(1, 4, 5, 5)
    expected = ((q @ k.mT + bias).softmax(-1)) @ v
    assert_close(body(q, k, v, None, bias, 1.0), expected)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Attention(16, 4, bias="qvk"), "did you mean 'qkv'"),
        (lambda: Attention(16, 4, scale="sqr"), "did you mean 'sqrt'"),
        (lambda: Attention(10, 3), "10 is not a multiple of 3 heads"),
        (lambda: Attention(16, 4, kv_heads=3), "4 heads cannot share 3"),
    ],
)
def test_a_part_alone_refuses_what_it_cannot_be(make: Callable[[], Attention], said: str) -> None:
    with pytest.raises(HeedfulError, match=said):
        make()


def test_cross_attention_without_memory_refuses() -> None:
    stack = Stack(StackConfig(dim=16, depth=1, heads=4, cross=True))
    with pytest.raises(HeedfulError, match="needs memory"):
        stack(torch.randn(2, 5, 16))


@pytest.mark.parametrize("position", [None, RotaryPosition(), AlibiPosition()])
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_a_block_of_a_causal_stack_alone_is_causal(position: Any, kv_heads: int | None) -> None:
    torch.manual_seed(0)
    config = StackConfig(dim=16, depth=1, heads=4, kv_heads=kv_heads, causal=True)
    config = config if position is None else replace(config, position=position)
    stack, x, p = Stack(config).eval(), torch.randn(2, 5, 16), torch.arange(5)[None]
    block, own = stack.block[0], stack.encoding(p, p)
    prefixes = []
    for n in range(1, 6):  # a query attends to all tokens of the text up to itself
        prefix = stack.encoding(p[:, :n], p[:, :n])
        everything = torch.ones(n, n, dtype=torch.bool)
        prefixes.append(block(x[:, :n], mask=everything, position=prefix)[:, -1:])
    assert_close(block(x, position=own), torch.cat(prefixes, 1), "layer")
    changed = x.clone()
    changed[:, -1] += 1
    assert_close(block(changed, position=own)[:, :-1], block(x, position=own)[:, :-1], "layer")


def test_a_block_with_a_window_needs_a_mask() -> None:
    block = Block(StackConfig(dim=16, depth=1, heads=4, causal=True, window=2))
    with pytest.raises(HeedfulError, match=r"window .* give mask"):
        block(torch.randn(1, 3, 16))
    assert block(torch.randn(1, 3, 16), mask="causal").shape == (1, 3, 16)


def test_keys_without_a_bias() -> None:
    """Queries, values and the output have one: in plain PyTorch, and with the three projections in one product."""
    own = double(Attention(12, heads=3, bias="all-but-key"))
    assert [part.bias is None for part in (own.query, own.key, own.value, own.out)] == [False, True, False, False]
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    q, k, v = (part(x).unflatten(-1, (3, 4)).transpose(1, 2) for part in (own.query, own.key, own.value))
    assert torch.equal(own.key(x), x @ own.key.weight.T)
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    assert_close(own(x), y @ own.out.weight.T + own.out.bias, "layer")
    assert_close(FusedAttention(own, plain_linear)(x), own(x), "layer")
    stack = StackConfig(
        dim=12, depth=1, heads=3, attention_bias="all-but-key", position=DisentangledPosition(projections="own")
    )
    relative = Attention.of(stack).relative
    assert relative.key.bias is None
    assert relative.query.bias is not None
