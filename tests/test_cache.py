"""Decoding with a cache gives what decoding without one gives: whichever cache, padded or not, reordered or not."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.cache import Cache, Cross, Growing, Preallocated, Sliding
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    EmbeddingConfig,
    EncoderDecoderConfig,
    LearnedPosition,
    NoPosition,
    Position,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    StackConfig,
)
from heedful.errors import HeedfulError
from heedful.models import build
from relative_schemes import CONTENT
from tolerances import assert_close

SCHEMES = [
    NoPosition(),
    SinusoidalPosition(),
    LearnedPosition(length=16, offset=2),
    RotaryPosition(),
    AlibiPosition(),
    LearnedPosition(length=16, offset=2, buckets=8, max_distance=6),
    RelativePosition(buckets=8, max_distance=6),
    *CONTENT,
]
CAPACITIES = pytest.mark.parametrize("capacity", [None, 12], ids=["growing", "preallocated"])
POSITIONS = pytest.mark.parametrize("position", SCHEMES, ids=lambda p: p.kind)


def loud(model: nn.Module) -> nn.Module:
    for parameter in model.double().parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.eval()


def decoder(position: Position, window: Any = None, depth: int = 2) -> nn.Module:
    stack = StackConfig(dim=16, depth=depth, heads=4, kv_heads=2, causal=True, position=position, window=window)
    return loud(build(DecoderConfig(embedding=EmbeddingConfig(vocab_size=20), decoder=stack)))


def pair(position: Position) -> nn.Module:
    encoder = StackConfig(dim=16, depth=2, heads=4, position=position)
    return loud(
        build(
            EncoderDecoderConfig(
                source=EmbeddingConfig(vocab_size=20),
                encoder=encoder,
                decoder=replace(encoder, causal=True, cross=True),
            )
        )
    )


def in_steps(model: nn.Module, ids: Tensor, mask: Tensor | None, cache: Cache, steps: list[int]) -> Tensor:
    parts, at = [], 0
    for size in steps:
        real = None if mask is None else mask[:, at : at + size]
        parts.append(model(ids[:, at : at + size], real, cache=cache))
        at += size
    assert at == ids.size(1)
    return torch.cat(parts, 1)


PADDING = {
    "none": None,
    "left": [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]],
    "right": [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]],
    "mixed": [[0, 1, 1, 1, 0], [1, 1, 0, 0, 0]],
}


@pytest.mark.full(keep="pairs")
@torch.no_grad()
@POSITIONS
@CAPACITIES
@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("steps", [[5, 1, 1, 1, 1, 1, 1, 1], [5, 3, 4], [1] * 12], ids=str)
def test_cached_is_uncached(position: Position, capacity: int | None, padding: str, steps: list[int]) -> None:
    model, ids = decoder(position), torch.randint(20, (2, 12))
    mask = None
    if PADDING[padding] is not None:
        mask = torch.cat((torch.tensor(PADDING[padding]).bool(), torch.ones(2, 7, dtype=torch.bool)), 1)
    cached = in_steps(model, ids, mask, Cache(2, capacity=capacity), steps)
    real = torch.ones(2, 12, dtype=torch.bool) if mask is None else mask
    assert_close(cached[real], model(ids, mask)[real])


@torch.no_grad()
@POSITIONS
@CAPACITIES
def test_tokens_after_a_padded_start_need_no_mask(position: Position, capacity: int | None) -> None:
    model, ids = decoder(position), torch.randint(20, (2, 7))
    start = torch.tensor(PADDING["mixed"]).bool()
    cache = Cache(2, capacity=capacity)
    model(ids[:, :5], start, cache=cache)
    whole = torch.cat((start, torch.ones(2, 2, dtype=torch.bool)), 1)
    assert_close(model(ids[:, 5:], cache=cache), model(ids, whole)[:, 5:])


@pytest.mark.full(keep="pairs")
@torch.no_grad()
@POSITIONS
@pytest.mark.parametrize("window", [1, 3, 40], ids=["one", "three", "larger than the text"])
@pytest.mark.parametrize("kind", ["growing", "sliding", "preallocated"])
@pytest.mark.parametrize("padding", PADDING)
def test_a_sliding_window(position: Position, window: int, kind: str, padding: str) -> None:
    """Padding takes no place in the window, on whichever side it stands; a cache that cannot do so refuses it."""
    model, ids = decoder(position, window), torch.randint(20, (2, 12))
    cache = {
        "growing": lambda: Cache(2),
        "sliding": lambda: Cache(2, window=window),
        "preallocated": lambda: Cache(2, capacity=12),
    }[kind]()
    mask = None
    if PADDING[padding] is not None:
        mask = torch.cat((torch.tensor(PADDING[padding]).bool(), torch.ones(2, 7, dtype=torch.bool)), 1)
    try:
        cached = in_steps(model, ids, mask, cache, [5, 1, 1, 2, 1, 1, 1])
    except HeedfulError:
        assert (kind, padding) in [("sliding", "right"), ("sliding", "mixed")]
        return
    real = torch.ones(2, 12, dtype=torch.bool) if mask is None else mask
    assert_close(cached[real], model(ids, mask)[real])


@pytest.mark.full(keep="pairs")
@torch.no_grad()
@POSITIONS
@pytest.mark.parametrize("windows", [(None, 3), (3, None), (1, 3), (2, 40)], ids=str)
@pytest.mark.parametrize("kind", ["growing", "sliding", "preallocated"])
@pytest.mark.parametrize("padding", PADDING)
def test_windows_of_blocks(position: Position, windows: Any, kind: str, padding: str) -> None:
    """As one window, with caches of which each stores as much as its block attends to."""
    model, ids = decoder(position, windows), torch.randint(20, (2, 12))
    capacity = 12 if kind == "preallocated" and None in windows else None
    cache = Cache(2) if kind == "growing" else Cache(2, capacity=capacity, window=windows)
    mask = None
    if PADDING[padding] is not None:
        mask = torch.cat((torch.tensor(PADDING[padding]).bool(), torch.ones(2, 7, dtype=torch.bool)), 1)
    try:
        cached = in_steps(model, ids, mask, cache, [5, 1, 1, 2, 1, 1, 1])
    except HeedfulError:
        assert kind != "growing"
        assert padding in ("right", "mixed")
        return
    real = torch.ones(2, 12, dtype=torch.bool) if mask is None else mask
    assert_close(cached[real], model(ids, mask)[real])
    stored = [12 if kind == "growing" or window is None else min(window, 12) for window in windows]
    assert [own.pair[0].size(2) for own, _ in cache.pairs] == stored


def test_a_cache_has_a_window_for_each_block() -> None:
    with pytest.raises(HeedfulError, match="a cache for 2 blocks was given 3 windows; give one for each block"):
        Cache(2, window=(None, 3, 4))
    with pytest.raises(HeedfulError, match="not both"):
        Cache(2, capacity=5, window=(3, 4))
    with pytest.raises(HeedfulError, match="cannot be cropped"):
        Cache(2, window=(None, 3)).crop(0)


@torch.no_grad()
def test_a_window_is_what_it_says() -> None:
    """One block with window 3: position 6 answers to tokens 4, 5, 6 alone."""
    model = decoder(NoPosition(), window=3, depth=1)
    ids = torch.randint(10, (1, 7))
    for t in range(7):
        other = ids.clone()
        other[0, t] += 10
        assert ((model(other) - model(ids))[0, 6].abs().max() > 1e-6) == (t >= 4)


@torch.no_grad()
def test_a_sliding_cache_keeps_no_more_than_its_window() -> None:
    model, cache = decoder(RotaryPosition(), window=3), Cache(2, window=3)
    in_steps(model, torch.randint(20, (1, 12)), None, cache, [5] + [1] * 7)
    assert all(own.pair[0].size(2) == 3 for own, _ in cache.pairs)


@torch.no_grad()
@POSITIONS
@CAPACITIES
@pytest.mark.parametrize("padded", [False, True])
def test_cross_attention_is_projected_once(position: Position, capacity: int | None, padded: bool) -> None:
    """The cross cache does not grow, whatever the lengths of source (7) and target (1, 5)."""
    model = pair(position)
    source, target = torch.randint(20, (2, 7)), torch.randint(20, (2, 5))
    mask = torch.arange(7) < torch.tensor([[7], [4]]) if padded else None
    memory, cache, parts = model.encode(source, mask), Cache(2, capacity=capacity), []
    calls = []
    for block in model.decoder.block:
        block.cross_attention.key.register_forward_hook(lambda *_: calls.append(1))
    for t in range(5):
        parts.append(model.decode(target[:, t : t + 1], memory, memory_mask=mask, cache=cache))
        assert all(cross.pair[0].size(2) == 7 for _, cross in cache.pairs)
    assert len(calls) == 2
    assert_close(model.head(torch.cat(parts, 1)), model(source, target, mask))


@torch.no_grad()
@CAPACITIES
@pytest.mark.parametrize("rows", [[1, 0], [0, 0, 1, 1], [1], [1, 1, 0]], ids=str)
def test_rows_are_reordered_repeated_and_dropped(capacity: int | None, rows: list[int]) -> None:
    model, order = pair(LearnedPosition(length=16)), torch.tensor(rows)
    source, target = torch.randint(20, (2, 7)), torch.randint(20, (2, 5))
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    real = torch.tensor([[True] * 3, [False, True, True]])
    cache = Cache(2, capacity=capacity)
    memory = model.encode(source, mask)
    model.decode(target[:, :3], memory, real, mask, cache=cache)
    cache.select(order)
    rest = model.decode(target[order, 3:], memory[order], memory_mask=mask[order], cache=cache)
    full = torch.cat((real, torch.ones(2, 2, dtype=torch.bool)), 1)
    whole = model.decode(target[order], memory[order], full[order], mask[order])
    assert_close(rest, whole[:, 3:])


def test_select_before_anything_is_remembered() -> None:
    for part in (Growing(), Sliding(3), Preallocated(4), Cross(), Cache(2)):
        part.select(torch.tensor([0]))


@pytest.mark.full(keep="pairs")
@torch.no_grad()
@POSITIONS
@CAPACITIES
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", [0, 3, 5, 8])
def test_cropped_tokens_leave_no_trace(position: Position, capacity: int | None, padded: bool, length: int) -> None:
    """Other tokens read, taken back, and read as they should be: twice, so that what is written over is seen to be."""
    model, (ids, other) = decoder(position), torch.randint(20, (2, 2, 12))
    mask = torch.ones(2, 12, dtype=torch.bool)
    if padded:
        mask[0, :2] = False
    cache = Cache(2, capacity=capacity)
    if length:
        model(ids[:, :length], mask[:, :length], cache=cache)
    for tail in (other, ids):
        cache.crop(length)
        assert cache.length == length
        text = torch.cat((ids[:, :length], tail[:, length:]), 1)
        cached = [model(text[:, at : at + 2], mask[:, at : at + 2], cache=cache) for at in range(length, 12, 2)]
        real = mask[:, length:]
        assert_close(torch.cat(cached, 1)[real], model(text, mask)[:, length:][real])


@torch.no_grad()
@CAPACITIES
def test_cropping_leaves_the_source(capacity: int | None) -> None:
    model = pair(LearnedPosition(length=16))
    source, target = torch.randint(20, (2, 7)), torch.randint(20, (2, 5))
    memory, cache = model.encode(source), Cache(2, capacity=capacity)
    model.decode(target.flip(1), memory, cache=cache)
    cache.crop(0)
    assert_close(model.decode(target, memory, cache=cache), model.decode(target, memory))


@torch.no_grad()
def test_caches_that_cannot_be_cropped_are_refused() -> None:
    model, ids = decoder(RotaryPosition(), window=3), torch.randint(20, (1, 5))
    for cache, length, said in ((Cache(2, window=3), 2, "sliding"), (Cache(2), 6, "5"), (Cache(2), -1, "-1")):
        model(ids, cache=cache)
        with pytest.raises(HeedfulError, match=said):
            cache.crop(length)
    Cache(2).crop(0)


@torch.no_grad()
@pytest.mark.parametrize("steps", [[4, 1], [3, 2], [5]], ids=str)
def test_a_full_cache_says_so(steps: list[int]) -> None:
    """A token written past the end must not vanish: one row broadcasts into none without a sound."""
    model, ids = decoder(RotaryPosition()), torch.randint(20, (1, 5))
    with pytest.raises(HeedfulError, match="4"):
        in_steps(model, ids, None, Cache(2, capacity=4), steps)


@torch.no_grad()
@pytest.mark.parametrize("depth", [1, 3])
def test_a_cache_of_another_depth_is_refused(depth: int) -> None:
    """A shallow one must not make the model shallow."""
    model = decoder(RotaryPosition())
    with pytest.raises((HeedfulError, ValueError)):
        model(torch.tensor([[1, 2]]), cache=Cache(depth))


def test_a_window_and_a_capacity_are_not_both_taken() -> None:
    """Either both do something, or the pair is refused."""
    try:
        cache = Cache(1, capacity=8, window=4)
    except HeedfulError:
        return
    assert getattr(cache.pairs[0][0], "capacity", None) is not None


@torch.no_grad()
def test_the_model_keeps_nothing() -> None:
    """Two caches beside each other do not mix, and the same weights answer both."""
    model, (a, b) = decoder(RotaryPosition()), torch.randint(20, (2, 1, 6))
    first, second, parts = Cache(2), Cache(2), ([], [])
    for t in range(6):
        parts[0].append(model(a[:, t : t + 1], cache=first))
        parts[1].append(model(b[:, t : t + 1], cache=second))
    assert_close(torch.cat(parts[0], 1), model(a))
    assert_close(torch.cat(parts[1], 1), model(b))


@torch.no_grad()
@CAPACITIES
def test_a_cache_can_be_copied_and_pickled(capacity: int | None) -> None:
    model, ids = decoder(AlibiPosition()), torch.randint(20, (1, 6))
    cache = Cache(2, capacity=capacity)
    model(ids[:, :3], cache=cache)
    expected = model(ids)[:, 3:]
    for again in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache)), cache):
        assert_close(model(ids[:, 3:], cache=again), expected)


@torch.no_grad()
@CAPACITIES
def test_in_bfloat16(capacity: int | None) -> None:
    model, ids = decoder(RotaryPosition()).bfloat16(), torch.randint(20, (2, 6))
    cached = in_steps(model, ids, None, Cache(2, capacity=capacity), [3, 1, 1, 1])
    assert cached.dtype == torch.bfloat16
    whole = model(ids)
    assert (cached - whole).abs().max() < 0.1 * whole.abs().max()


def test_growing_can_be_trained_through() -> None:
    model, cache = decoder(LearnedPosition(length=16)), Cache(2)
    ids = torch.randint(20, (1, 4))
    whole = torch.autograd.grad(model(ids).square().sum(), model.embedding.token.weight)[0]
    stepped = in_steps(model, ids, None, cache, [2, 2]).square().sum()
    assert_close(torch.autograd.grad(stepped, model.embedding.token.weight)[0], whole)
