"""Attention in blocks on a CPU: what is computed is the written-out formula, whatever is dropped and may be seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful import presets
from heedful.kernels import blocked_attention as module
from heedful.kernels.blocked_attention import attention_blocks, blocked_attention
from heedful.kernels.cpu_dropout import DropoutMasks
from heedful.kernels.plan import apply_plan
from heedful.layers.attention_kernels import attention_weights, explicit_attention, fused_attention
from tolerances import assert_close

RATE = 0.4
SOME = torch.rand(4, 1, 9, 12, generator=torch.Generator().manual_seed(3)) > 0.5
NONE = torch.ones(4, 1, 1, 12).bool().index_fill(0, torch.tensor([1, 3]), False)  # nothing may be seen in two rows
BIAS = torch.randn(2, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks in float64 too, where an error shows."""
    monkeypatch.setattr(module, "FUSED", ())


def made(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("rate", [0.0, RATE], ids=["kept", "dropped"])
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
    rate: float,
    blocks: tuple[int, int],
    queries: int,
    keys: int,
    heads: int,
    mask: Any,
    drawn: list[Tensor],
    always: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "QUERIES", blocks[0])
    monkeypatch.setattr(module, "BLOCK", blocks[1])
    q, k, v = made(4, 2, queries, 8, seed=0), made(4, heads, keys, 8, seed=1), made(4, heads, keys, 8, seed=2)
    has_bias = isinstance(mask, Tensor) and mask.is_floating_point()
    given = (None, mask) if has_bias else (mask, None)
    found = blocked_attention(q, k, v, *given, 0.3, rate)
    causal = isinstance(mask, str) and queries <= keys
    weights = attention_weights(q, k, *given, 0.3)
    if rate:
        keep = torch.zeros(4, 2, queries, keys, dtype=torch.int8)
        count = 0
        for part, each in zip(attention_blocks(q, k.expand(4, 2, keys, 8), causal), drawn, strict=True):
            keep[part.rows, :, part.queries, part.keys] = each
            count += each.numel()
        assert (count < keep.numel()) == (causal and blocks[0] < queries)  # what cannot be seen is not drawn
        weights = weights * keep * DropoutMasks(rate).scale
    expected = weights @ v.repeat_interleave(2 // heads, 1)
    assert_close(found, expected)
    dy = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, (q, k, v), dy), torch.autograd.grad(expected, (q, k, v), dy), strict=True
    ):
        assert_close(one, other)


@pytest.mark.parametrize("rate", [0.0, RATE], ids=["kept", "dropped"])
def test_attention_is_in_bfloat16_under_autocast(rate: float, always: None) -> None:
    q, k, v = (made(2, 2, 40, 8, seed=seed).detach().float().requires_grad_() for seed in range(3))
    torch.manual_seed(0)
    exact = blocked_attention(q, k, v, "causal", None, 0.3, rate)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = blocked_attention(q, k, v, "causal", None, 0.3, rate)
    assert rounded.dtype is torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.03, rtol=0.03)
    for one, other in zip(
        torch.autograd.grad(rounded.float().sum(), (q, k, v)), torch.autograd.grad(exact.sum(), (q, k, v)), strict=True
    ):
        assert one.dtype is torch.float32
        torch.testing.assert_close(one, other, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_uninitialised_memory_is_not_read(mask: Any, dtype: torch.dtype, always: None) -> None:
    """Products go into tensors whose numbers nobody has set: here PyTorch makes them NaN."""
    q, k, v = (torch.randn(3, 2, 7, 8).to(dtype).requires_grad_() for _ in range(3))
    expected = explicit_attention(q, k, v, mask, None, 0.3)
    torch.use_deterministic_algorithms(True)
    try:
        found = blocked_attention(q, k, v, mask, None, 0.3)
        gradients = torch.autograd.grad(found.float().sum(), (q, k, v))
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
    for one, other in zip(gradients, torch.autograd.grad(expected.float().sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(one, other, atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize("keys", [20, 32, 49])
def test_a_softmax_of_bfloat16_is_no_worse_in_float32(keys: int) -> None:
    """Rows that its vectors do not fill go through float32."""
    scores = torch.randn(3, 2, 7, keys, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = scores.double().requires_grad_()
    weights = exact.softmax(-1)
    found = module.softmax(scores)
    assert found.dtype is torch.bfloat16
    assert (found - weights).abs().max() <= (torch.softmax(scores, -1) - weights).abs().max()
    d = torch.randn_like(scores)
    (before,) = torch.autograd.grad(weights, exact, d.double())
    back = module.softmax_backward(d, found)
    assert back.dtype is torch.bfloat16
    torch.testing.assert_close(back.double(), before, atol=2e-3, rtol=2e-2)


@pytest.mark.parametrize("rate", [0.0, RATE], ids=["kept", "dropped"])
def test_a_bias_that_learns_is_left_to_the_plain_path(rate: float, drawn: list[Tensor]) -> None:
    q, k, v = (made(2, 2, 5, 8, seed=seed) for seed in range(3))
    bias = made(1, 2, 5, 5, seed=4)
    (gradient,) = torch.autograd.grad(blocked_attention(q, k, v, None, bias, 0.3, rate).sum(), bias)
    assert gradient.abs().sum() > 0
    assert drawn == []


def blocks_of(y: Tensor) -> bool:
    return "BlockedAttention" in type(y.grad_fn).__name__


def test_it_is_taken_where_something_learns_and_the_weights_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (made(2, 2, 6, 8, seed=seed).detach().bfloat16().requires_grad_() for seed in range(3))
    assert blocks_of(blocked_attention(q, k, v, "causal", None, 0.3))
    assert blocks_of(blocked_attention(q.detach(), k, v, "causal", None, 0.3))
    with torch.no_grad():
        found = blocked_attention(q, k, v, "causal", None, 0.3)
    assert torch.equal(found, fused_attention(q, k, v, "causal", None, 0.3).detach())
    monkeypatch.setattr(module, "KEYS", 5)
    assert not blocks_of(blocked_attention(q, k, v, "causal", None, 0.3))
    assert blocks_of(
        blocked_attention(q, k, v, "causal", None, 0.3, RATE)
    )  # there the fused kernel would keep them too


@pytest.mark.parametrize("rate", [0.0, RATE], ids=["kept", "dropped"])
@pytest.mark.parametrize("slow", [False, True], ids=["fused", "slow"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_without_dropout_wide_types_take_the_fused_kernel_where_it_is_fast(
    dtype: torch.dtype, slow: bool, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "onednn_is_faster", lambda: slow)
    q, k, v = (made(2, 2, 6, 8, seed=seed).detach().to(dtype).requires_grad_() for seed in range(3))
    expected = {torch.float64: False, torch.float32: slow, torch.bfloat16: True}[dtype] or rate > 0
    assert blocks_of(blocked_attention(q, k, v, None, None, 0.3, rate)) == expected
    with torch.autocast("cpu", torch.bfloat16):
        assert blocks_of(blocked_attention(q, k, v, None, None, 0.3, rate))


@pytest.mark.parametrize(("mask", "keys"), [(None, 40), ("causal", 40)])
def test_in_float32_the_saved_weights_are_few(mask: Any, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "onednn_is_faster", lambda: True)
    for count in (keys, keys + 1):
        q, k, v = (made(1, 1, count, 8, seed=seed).detach().float().requires_grad_() for seed in range(3))
        found = blocked_attention(q, k, v, mask, None, 0.3)
        assert blocks_of(found) == (count == keys)
        assert_close(found, fused_attention(q, k, v, mask, None, 0.3))


@pytest.mark.parametrize("rate", [0.0, RATE], ids=["kept", "dropped"])
@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0)], ids=["rows", "queries", "keys"])
def test_of_nothing_comes_nothing(sizes: tuple[int, int, int], rate: float, always: None) -> None:
    rows, queries, keys = sizes
    q, k, v = made(rows, 2, queries, 8, seed=0), made(rows, 2, keys, 8, seed=1), made(rows, 2, keys, 8, seed=2)
    y = blocked_attention(q, k, v, None, None, 0.3, rate)
    assert y.shape == q.shape
    assert not y.any()
    assert not any(one.any() for one in torch.autograd.grad(y.sum(), (q, k, v)))


def test_rows_that_share_keys_are_left_to_the_fused_kernel() -> None:
    q, k, v = made(6, 2, 1, 8, seed=0), made(2, 2, 7, 8, seed=1), made(2, 2, 7, 8, seed=2)
    assert_close(blocked_attention(q, k, v, None, None, 0.3), fused_attention(q, k, v, None, None, 0.3))


def test_an_exchanged_attention_stays() -> None:
    model = heedful.create(presets.gpt2(32, 2, 2, 50, 64), seed=0)
    model.decoder.block[0].attention.attend = explicit_attention
    apply_plan(model, "cpu-training")
    assert model.decoder.block[0].attention.attend is explicit_attention
    assert model.decoder.block[1].attention.attend is blocked_attention
