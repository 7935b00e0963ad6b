"""Attention with each position scheme under each mask, pair by pair by the papers' equations, in float64.

Alone, in a stack, in parts with a cache, under the plans of kernels, and refused where something is missing.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heedful
from heedful.cache import Growing
from heedful.config import (
    AlibiPosition,
    DisentangledPosition,
    NoPosition,
    RelativePosition,
    RotaryPosition,
    ShawPosition,
    StackConfig,
    TransformerXLPosition,
)
from heedful.errors import HeedfulError
from heedful.kernels import using
from heedful.kernels.fused_projections import FusedAttention, plain_linear
from heedful.layers import Attention
from heedful.layers.block import Block
from heedful.layers.position import PositionBias
from heedful.stack import Stack
from tolerances import assert_close

B, T, D, H, E = 2, 6, 8, 2, 4
POSITIONS = [
    NoPosition(),
    RotaryPosition(),
    AlibiPosition(),
    RelativePosition(buckets=8, max_distance=6),
    ShawPosition(distance=2),
    TransformerXLPosition(),
    DisentangledPosition(length=3),
]
EVERY_POSITION = pytest.mark.parametrize("position", POSITIONS, ids=lambda position: position.kind)
IN_ATTENTION = pytest.mark.parametrize("position", POSITIONS[1:], ids=lambda position: position.kind)
REAL = torch.tensor([[True] * T, [False, True, True, True, False, False]])
WHOLE = torch.rand(B, T, T, generator=torch.Generator().manual_seed(0)) < 0.6
MASKS = {
    "none": None,
    "causal": "causal",
    "boolean": WHOLE[0],
    "padding": REAL[:, None, None],
    "whole": WHOLE[:, None],
    "heads": torch.rand(B, H, T, T, generator=torch.Generator().manual_seed(1)) < 0.6,
}
EVERY_MASK = pytest.mark.parametrize("name", MASKS)


def stack_of(position: Any, **changes: Any) -> Stack:
    torch.manual_seed(0)
    stack = Stack(StackConfig(dim=D, depth=1, heads=H, position=position, **changes)).double().eval()
    for parameter in stack.parameters():
        nn.init.normal_(parameter, std=0.5)
    return stack


def t5_bucket(distance: int, both_ways: bool) -> int:
    """Raffel et al. 2020: half of the buckets hold one distance, half grow logarithmically up to 6."""
    buckets, first = (4, 4 * (distance > 0)) if both_ways else (8, 0)
    length = abs(distance) if both_ways else max(0, -distance)
    exact = buckets // 2
    if length < exact:
        return first + length
    return first + min(buckets - 1, exact + int(math.log(length / exact) / math.log(6 / exact) * (buckets - exact)))


def rotated(x: Tensor, position: int) -> Tensor:
    """Su et al. 2021, equation 34, with the two halves of a head as pairs."""
    half = E // 2
    angles = [position * 10000 ** (-2 * i / E) for i in range(half)]
    cos, sin = (torch.tensor([f(angle) for angle in angles]).double() for f in (math.cos, math.sin))
    return torch.cat((x[:half] * cos - x[half:] * sin, x[half:] * cos + x[:half] * sin))


def score_of(stack: Stack, q: Tensor, k: Tensor, head: int, distance: int) -> Tensor:
    """The score of a query and a key of one head, ``distance`` = position of the query − position of the key."""
    scheme, attention, position = stack.position, stack.block[0].attention, stack.config.position
    own: Any = attention.relative
    of_head = slice(head * E, (head + 1) * E)
    match position:
        case RotaryPosition():  # of the distance alone
            return rotated(q, distance) @ k / E**0.5
        case AlibiPosition():
            return q @ k / E**0.5 - 2 ** (-8 * (head + 1) / H) * abs(distance)
        case RelativePosition():
            return q @ k / E**0.5 + scheme.table.weight[t5_bucket(-distance, not stack.config.causal), head]
        case ShawPosition():
            row = min(2, max(-2, distance)) + 2
            return q @ (k + own.key.weight[row, of_head]) / E**0.5
        case TransformerXLPosition():
            angles = [distance * 10000 ** (-2 * i / D) for i in range(D // 2)]
            sinusoid = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)]).double()
            r = own.position.weight[of_head] @ sinusoid
            return ((q + own.biases.content[head]) @ k + (q + own.biases.position[head]) @ r) / E**0.5
        case DisentangledPosition():
            row = scheme.table.weight[min(5, max(0, distance + 3))]
            row_k, row_q = (f.weight[of_head] @ row + f.bias[of_head] for f in (attention.key, attention.query))
            return (q @ k + q @ row_k + k @ row_q) / (3 * E) ** 0.5
        case _:
            return q @ k / E**0.5


def by_pairs(stack: Stack, x: Tensor, allowed: Tensor, positions: Tensor) -> Tensor:
    """Attention of ``x`` (B, T, D) to itself, one pair of tokens at a time."""
    attention: Any = stack.block[0].attention
    q, k, v = (part(x).unflatten(-1, (H, E)) for part in (attention.query, attention.key, attention.value))
    y, allowed = torch.zeros(*x.shape[:2], H, E).double(), allowed.expand(len(x), H, x.size(1), x.size(1))
    for b, h, t in torch.cartesian_prod(*(torch.arange(size) for size in (len(x), H, x.size(1)))).tolist():
        keys = [s for s in range(x.size(1)) if allowed[b, h, t, s]]
        distances = [int(positions[b, t] - positions[b, s]) for s in keys]
        scores = [score_of(stack, q[b, t, h], k[b, s, h], h, d) for s, d in zip(keys, distances, strict=True)]
        weights = torch.stack(scores).softmax(0) if scores else []
        for s, d, weight in zip(keys, distances, weights, strict=True):
            y[b, t, h] += weight * v[b, s, h]
            if isinstance(stack.config.position, ShawPosition):
                y[b, t, h] += weight * attention.relative.value.weight[min(2, max(-2, d)) + 2, h * E : (h + 1) * E]
    return attention.out(y.flatten(2))


def allowed_by(mask: Any) -> Tensor:
    full = torch.ones(T, T, dtype=torch.bool)
    return full if mask is None else full.tril() if isinstance(mask, str) else mask


def near(found: Tensor, expected: Tensor) -> None:
    assert_close(found, expected, dtype=torch.float32)  # tables of sines and angles are float32


ORDER = torch.arange(T)[None].expand(B, -1)


@EVERY_POSITION
@EVERY_MASK
@pytest.mark.parametrize("fused", [False, True])
@torch.no_grad()
def test_an_attention_alone(position: Any, name: str, fused: bool) -> None:
    stack, x = stack_of(position), torch.randn(B, T, D).double()
    attention: Any = stack.block[0].attention
    part = FusedAttention(attention, plain_linear) if fused else attention
    encoding = stack.encoding(ORDER[:1], ORDER[:1])
    near(part(x, mask=MASKS[name], position=encoding), by_pairs(stack, x, allowed_by(MASKS[name]), ORDER))


@EVERY_POSITION
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["none", "padding", "whole"])
@torch.no_grad()
def test_in_a_stack(position: Any, causal: bool, name: str) -> None:
    stack, x = stack_of(position, causal=causal), torch.randn(B, T, D).double()
    mask, allowed = {"none": (None, None), "padding": (REAL, REAL[:, None]), "whole": (WHOLE, WHOLE)}[name]
    real = WHOLE.any(1) if name == "whole" else REAL if name == "padding" else torch.ones_like(REAL)
    allowed = torch.ones(1, T, T, dtype=torch.bool) if allowed is None else allowed
    if causal and name != "whole":
        allowed = allowed & torch.ones(T, T, dtype=torch.bool).tril()
    positions = (real.cumsum(1) - 1).clamp(min=0)
    block, inputs = stack.block[0], []
    handle = block.attention.register_forward_hook(lambda part, given, y: inputs.extend((given[0], y)))
    y = stack(x, mask)
    handle.remove()
    near(inputs[1][real], by_pairs(stack, inputs[0], allowed[:, None], positions)[real])
    for plan in ("cpu-training", "cpu-inference", "gpu", "export"):
        with using(stack, plan):
            assert_close(stack(x, mask)[real], y[real])
            with torch.enable_grad():
                assert_close(stack.train()(x, mask)[real], y[real])
            stack.eval()


@EVERY_POSITION
@pytest.mark.parametrize("sizes", [(4, 2), (1, 4, 1)], ids=str)
@torch.no_grad()
def test_in_parts_with_a_cache(position: Any, sizes: tuple[int, ...]) -> None:
    stack, x, cache, parts = stack_of(position), torch.randn(B, T, D).double(), Growing(), []
    attention: Any = stack.block[0].attention
    for part in x.split(sizes, 1):
        end = sum(y.size(1) for y in parts) + part.size(1)
        encoding = stack.encoding(ORDER[:1, end - part.size(1) : end], ORDER[:1, :end])
        parts.append(attention(part, mask="causal", position=encoding, cache=cache))
    near(torch.cat(parts, 1), by_pairs(stack, x, allowed_by("causal"), ORDER))


@IN_ATTENTION
@EVERY_MASK
def test_a_part_without_its_positions_refuses(position: Any, name: str) -> None:
    stack, x = stack_of(position), torch.randn(B, T, D).double()
    fused = FusedAttention(stack.block[0].attention, plain_linear)
    for part in (stack.block[0].attention, fused, stack.block[0], Block(stack.config).double()):
        with pytest.raises(HeedfulError, match=r"configuration has positions.*give position, .*or call the stack"):
            part(x, mask=MASKS[name])


@EVERY_POSITION
def test_positions_of_another_scheme_are_refused(position: Any) -> None:
    other = NoPosition() if stack_of(position).block[0].attention.relative else ShawPosition(distance=2)
    stack, encoding = stack_of(position), stack_of(other).encoding(ORDER, ORDER)
    with pytest.raises(HeedfulError, match=r"but position is .*give position, as its stack's encoding"):
        stack.block[0].attention(torch.randn(B, T, D).double(), position=encoding)
    if isinstance(position, ShawPosition | TransformerXLPosition):
        with pytest.raises(HeedfulError, match=r"\w+Layer, but position is PositionBias"):
            stack.block[0].attention(
                torch.randn(B, T, D).double(), position=PositionBias(torch.zeros(1, 1, T, T).double())
            )


@EVERY_POSITION
@pytest.mark.parametrize("mask", [torch.zeros(T, T), torch.ones(B, 1, 1, T, dtype=torch.long)], ids=["float", "int"])
def test_a_mask_is_boolean(position: Any, mask: Tensor) -> None:
    stack = stack_of(position)
    encoding, x = stack.encoding(ORDER, ORDER), torch.randn(B, T, D).double()
    for part in (stack.block[0], stack.block[0].attention):
        with pytest.raises(HeedfulError, match=r"mask is torch\.\w+; give a boolean tensor.* position=PositionBias"):
            part(x, mask=mask, position=encoding)
    with pytest.raises(HeedfulError, match="give a boolean tensor"):
        heedful.layers.fused_attention(*torch.randn(3, 1, 2, T, 4), mask, None, 1.0)


@EVERY_POSITION
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["none", "padding", "packed", "whole"])
@torch.no_grad()
def test_a_block_alone_attends_as_its_stack_does(position: Any, causal: bool, name: str) -> None:
    stack, x = stack_of(position, causal=causal, placement="post"), torch.randn(B, T, D).double()
    packed = torch.tensor([[1, 1, 1, 2, 2, 2], [0, 1, 1, 2, 2, 2]])
    mask = {"none": None, "padding": REAL, "packed": packed, "whole": WHOLE}[name]
    tokens = heedful.cache.StackCache().extend(x, mask)
    encoding = stack.encoding(tokens.queries, tokens.keys)
    assert_close(stack.block[0](x, mask, position=encoding), stack(x, mask))


@pytest.mark.parametrize("position", [NoPosition(), AlibiPosition(), ShawPosition(distance=2)])
def test_an_attention_of_a_causal_configuration_is_causal(position: Any) -> None:
    stack, x = stack_of(position, causal=True), torch.randn(B, T, D).double()
    encoding = stack.encoding(ORDER, ORDER)
    attention: Any = stack.block[0].attention
    for part in (attention, FusedAttention(attention, plain_linear)):
        assert_close(part(x, position=encoding), by_pairs(stack, x, allowed_by("causal"), ORDER))
    free = Attention(D, H).double()  # without a configuration
    assert_close(free(x), free(x, mask=torch.ones(T, T, dtype=torch.bool)))


def test_a_window_or_a_cache_needs_the_stacks_mask() -> None:
    stack, x = stack_of(NoPosition(), causal=True, window=2), torch.randn(B, T, D).double()
    for part in (stack.block[0], stack.block[0].attention):
        with pytest.raises(HeedfulError, match=r"window .* give mask, or call the stack"):
            part(x)
        assert part(x, mask="causal").shape == x.shape
    with pytest.raises(HeedfulError, match="windows; give mask, or call the stack"):
        stack.block[0](x, REAL)
    block = stack_of(NoPosition(), causal=True).block[0]
    with pytest.raises(HeedfulError, match=r"cache .*give mask, or call the stack"):
        block(x, REAL, cache=(Growing(), Growing()))


def test_a_bias_of_keys_alone_stays_causal() -> None:
    """A bias that all queries share, under a causal mask."""
    q, k, v = torch.randn(3, 1, 2, T, E)
    bias = torch.randn(1, 2, 1, T)
    expected = heedful.layers.explicit_attention(q, k, v, allowed_by("causal"), bias.expand(1, 2, T, T), 1.0)
    assert_close(heedful.layers.fused_attention(q, k, v, "causal", bias, 1.0), expected)


class ParallelBlock(Block):
    def forward(self, x: Tensor, real: Tensor | None = None, **given: Any) -> Tensor:
        context = {name: given.get(name) for name in ("mask", "position")}
        return x + self.attention(x, **context) + self.feed_forward(x)


@pytest.mark.parametrize("position", [NoPosition(), RotaryPosition(), AlibiPosition(), ShawPosition(distance=2)])
@torch.no_grad()
def test_a_registered_block_alone_attends_as_its_configuration_says(position: Any) -> None:
    """Its attention is causal, and asks for positions; in a stack it gets mask and positions apart."""
    heedful.register("block", "own-parallel", ParallelBlock)
    stack, x = stack_of(position, causal=True, block="own-parallel"), torch.randn(B, T, D).double()
    block, encoding = stack.block[0], stack.encoding(ORDER, ORDER)
    expected = x + by_pairs(stack, x, allowed_by("causal"), ORDER) + block.feed_forward(x)
    near(block(x, position=encoding), expected)
    near(stack(x), stack.norm(expected))
    if not isinstance(position, NoPosition):
        with pytest.raises(HeedfulError, match=r"give position, .*or call the stack"):
            block(x)
