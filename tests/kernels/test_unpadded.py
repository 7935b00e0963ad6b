"""A stack without its padding against the same stack with it, in float64: the same at every real token."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heedful
from heedful.cache import Cache
from heedful.config import (
    AlibiPosition,
    EmbeddingConfig,
    EncoderConfig,
    LearnedPosition,
    NoPosition,
    Position,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    StackConfig,
)
from heedful.errors import HeedfulError
from heedful.inspection import intervene
from heedful.kernels.plan import apply_plan
from heedful.kernels.unpadded import is_observed, unpadded_inference
from heedful.models import build
from heedful.optimize_model import optimize
from heedful.stack import Stack
from relative_schemes import CONTENT
from tolerances import assert_close, is_close

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
POSITIONS = pytest.mark.parametrize("position", SCHEMES, ids=lambda p: p.kind)
# right, left, both sides, a hole, nothing but padding, no padding, and lengths that come twice
REAL = torch.tensor(
    [
        [1, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 1],
        [0, 1, 1, 1, 1, 0, 0],
        [0, 1, 1, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1],
        [1, 0, 0, 0, 0, 0, 0],
    ],
    dtype=torch.bool,
)


def loud(part: nn.Module, std: float = 0.4) -> Any:
    """In float64 with every parameter drawn anew: no bias is 0, no norm's weight is 1."""
    for parameter in part.double().parameters():
        nn.init.normal_(parameter, std=std)
    return part.eval()


def without_padding(stack: Stack) -> Stack:
    return apply_plan(copy.deepcopy(stack), "cpu-inference")


def check(stack: Stack, real: Tensor = REAL) -> None:
    x = torch.randn(*real.shape, stack.config.dim, dtype=torch.float64)
    y = without_padding(stack)(x, real)
    assert_close(y[real.bool()], stack(x, real)[real.bool()])
    assert not y[~real.bool()].any()


MASKS = [(False, None), (True, None), (True, 2), (True, (None, 2))]
NORMS = list(
    product(["pre", "post", "sandwich", "out"], ["layer", "rms", "rms-offset", "batch"])
)  # a causal stack has no batch norm
FIRST = [(*norm, *MASKS[number % 4 if norm[1] != "batch" else 0]) for number, norm in enumerate(NORMS)]
KINDS = dict.fromkeys([*FIRST, *((*norm, *mask) for norm, mask in product(NORMS, MASKS) if norm[1] != "batch")])


@torch.no_grad()
@POSITIONS
@pytest.mark.parametrize(("placement", "norm", "causal", "window"), KINDS)
@pytest.mark.full(keep=len(FIRST) * len(SCHEMES))
def test_the_same_at_real_tokens(position: Position, placement: Any, norm: Any, causal: bool, window: Any) -> None:
    config = StackConfig(dim=16, depth=2, heads=4, placement=placement, norm=norm, position=position)
    stack = loud(Stack(replace(config, causal=causal, window=window)))
    for name, buffer in stack.named_buffers():  # batch norm's running statistics, as if it had learned
        if "running" in name:
            buffer.uniform_(0.5, 2.0)
    check(stack)


@torch.no_grad()
@POSITIONS
@pytest.mark.parametrize("qk_norm", ["head", "all"])
def test_grouped_queries_gates_and_norms_inside(position: Position, qk_norm: Any) -> None:
    config = StackConfig(dim=16, depth=2, heads=4, kv_heads=2, head_dim=6, gated=True, activation="silu", norm="rms")
    config = replace(config, attention_bias="none", ff_bias=False, qk_norm=qk_norm, embedding_norm=True)
    check(loud(Stack(replace(config, position=position))))


@torch.no_grad()
@POSITIONS
@pytest.mark.parametrize("sublayers", ["parallel", "parallel-shared"])
def test_parallel_sublayers(position: Position, sublayers: Any) -> None:
    check(loud(Stack(StackConfig(dim=16, depth=2, heads=4, sublayers=sublayers, position=position, causal=True))))


@torch.no_grad()
@pytest.mark.parametrize("real", [REAL.long(), REAL.float(), REAL[3:4], REAL[4:5], REAL[4:5].repeat(3, 1)], ids=str)
def test_masks_of_other_types_and_of_one_row(real: Tensor) -> None:
    check(loud(Stack(StackConfig(dim=16, depth=2, heads=4, position=RotaryPosition()))), real)


@torch.no_grad()
@POSITIONS
def test_of_a_prepared_model(position: Position) -> None:
    stack = StackConfig(dim=16, depth=2, heads=4, position=position)
    model = loud(build(EncoderConfig(embedding=EmbeddingConfig(vocab_size=20), encoder=stack)))
    ids = torch.randint(20, REAL.shape)
    expected = model(ids, REAL)
    made = optimize(model, "float64")
    apply_plan(made.encoder, "cpu-inference")
    assert_close(made(ids, REAL)[REAL], expected[REAL])


@torch.no_grad()
def test_unpadding_comes_before_preparing_too() -> None:
    model = heedful.create("bert-tiny", seed=0).eval()
    ids = torch.randint(100, REAL.shape)
    expected = model(ids, REAL)
    apply_plan(model.encoder, "cpu-inference")
    assert_close(optimize(model)(ids, REAL)[REAL], expected[REAL], "training")


@torch.no_grad()
def test_an_encoder_of_a_pair() -> None:
    model = loud(heedful.create("transformer-tiny", seed=0), std=0.1)
    source, target = torch.randint(100, REAL.shape), torch.randint(100, (len(REAL), 3))
    some = REAL.any(1)
    expected = model(source, target, REAL)
    apply_plan(model.encoder, "cpu-inference")
    assert_close(model(source, target, REAL)[some], expected[some])
    assert torch.isfinite(model(source, target, REAL)).all()


def rows_seen(stack: Stack, x: Tensor, mask: Tensor | None, **given: Any) -> list[tuple[int, int]]:
    """(B, T) of what the first block's feed-forward is given."""
    seen = []
    feed = stack.block[0].feed_forward
    own = feed.forward
    feed.forward = lambda y: (seen.append((y.size(0), y.size(1))), own(y))[1]
    try:
        stack(x, mask, **given)
    finally:
        del feed.forward
    return seen


@torch.no_grad()
def test_padding_is_not_worked_on() -> None:
    stack = without_padding(Stack(StackConfig(dim=16, depth=1, heads=4)).eval())
    x = torch.randn(*REAL.shape, 16)
    assert rows_seen(stack, x, REAL) == [(1, int(REAL.sum()))]
    assert rows_seen(stack, x, None) == [(7, 7)]
    assert rows_seen(stack, x, torch.ones_like(REAL)) == [(7, 7)]


@torch.no_grad()
def test_a_cache_is_filled_as_ever() -> None:
    stack = loud(Stack(StackConfig(dim=16, depth=2, heads=4, causal=True, position=RotaryPosition())))
    x, real = torch.randn(2, 5, 16, dtype=torch.float64), torch.tensor([[0, 0, 1, 1, 1], [1] * 5]).bool()
    cache, new = Cache(2), torch.randn(2, 1, 16, dtype=torch.float64)
    made = without_padding(stack)
    made(x, real, cache=cache)
    stepped = made(new, cache=cache)
    whole = stack(torch.cat((x, new), 1), torch.cat((real, torch.ones(2, 1, dtype=torch.bool)), 1))
    assert_close(stepped, whole[:, -1:])


@torch.no_grad()
@pytest.mark.parametrize("name", ["pattern", "query", "activation", "hidden", "sum", "stream"])
def test_records_have_rows_and_columns(name: str) -> None:
    model = loud(heedful.create("bert-tiny", seed=0), std=0.1)
    ids = torch.randint(100, REAL.shape)
    with heedful.record(model, name) as expected:
        output = model(ids, REAL)
    apply_plan(model.encoder, "cpu-inference")
    with heedful.record(model, name) as seen:
        recorded = model(ids, REAL)
    assert torch.equal(recorded, output)
    assert seen.keys() == expected.keys() != set()
    for path, tensor in expected.items():
        assert torch.equal(seen[path], tensor), path
    assert not model(ids, REAL)[~REAL].any()  # nobody looks any more


@torch.no_grad()
def test_interventions_have_an_effect() -> None:
    model = loud(heedful.create("bert-tiny", seed=0), std=0.1)
    ids = torch.randint(100, REAL.shape)
    made = copy.deepcopy(model)
    apply_plan(made.encoder, "cpu-inference")
    outputs = []
    for each in (model, made):
        with intervene(each, "attention.mixed", 0.0, layers=[0]):
            outputs.append(each(ids, REAL))
    assert torch.equal(*outputs)
    assert not is_close(outputs[0][REAL], model(ids, REAL)[REAL])


@torch.no_grad()
def test_anyones_hook_sees_rows_and_columns() -> None:
    stack = without_padding(Stack(StackConfig(dim=16, depth=1, heads=4)).eval())
    x, shapes = torch.randn(*REAL.shape, 16), []
    assert not is_observed(stack)
    handle = stack.block[0].feed_forward.down.register_forward_hook(lambda *given: shapes.append(given[2].shape))
    assert is_observed(stack)
    stack(x, REAL)
    handle.remove()
    assert shapes == [(7, 7, 16)]
    assert not is_observed(stack)


@torch.no_grad()
def test_copied_and_pickled() -> None:
    stack = without_padding(loud(Stack(StackConfig(dim=16, depth=1, heads=4))))
    x = torch.randn(*REAL.shape, 16, dtype=torch.float64)
    for copied in (copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))):
        assert copied.layout is unpadded_inference
        assert torch.equal(copied(x, REAL), stack(x, REAL))


def test_too_many_tokens_are_named_and_padding_does_not_count() -> None:
    config = StackConfig(dim=16, depth=1, heads=4, position=LearnedPosition(length=4))
    stack = without_padding(Stack(config).eval())
    x, real = torch.randn(2, 7, 16), torch.tensor([[1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1]])
    assert stack(x, real).shape == (2, 7, 16)
    real[0, 4] = 1
    with pytest.raises(HeedfulError, match="5 tokens, but the model has 4 learned positions"):
        stack(x, real)


def test_gradients_are_the_same() -> None:
    stack = loud(Stack(StackConfig(dim=16, depth=2, heads=4, position=RelativePosition(buckets=8, max_distance=6))))
    x, goal = torch.randn(*REAL.shape, 16, dtype=torch.float64), torch.randn(*REAL.shape, 16, dtype=torch.float64)
    grads = []
    for each in (stack, without_padding(stack)):
        (each(x, REAL) * goal)[REAL].sum().backward()
        grads.append([parameter.grad for parameter in each.parameters()])
    for ours, theirs in zip(*grads, strict=True):
        assert_close(ours, theirs)
