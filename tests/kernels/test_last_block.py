"""Models whose last block answers for the tokens that the head reads: the same outputs, to 1e-12 in float64."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import heedful
from heedful.cache import Cache
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    Head,
    ImageHead,
    LearnedPosition,
    MaskedHead,
    PatchConfig,
    PooledHead,
    Position,
    RelativePosition,
    RotaryPosition,
    SequenceHead,
    StackConfig,
    TokenHead,
    VisionConfig,
)
from heedful.kernels.plan import apply_plan
from heedful.models import Model, build
from heedful.optimize_model import optimize
from tolerances import assert_close

STACK = StackConfig(dim=16, depth=2, heads=4, position=LearnedPosition(length=16))
WORDS = EmbeddingConfig(vocab_size=20, segments=2)
SCHEMES = [
    LearnedPosition(length=16),
    LearnedPosition(length=16, buckets=8),
    RotaryPosition(),
    AlibiPosition(),
    RelativePosition(buckets=8, max_distance=6),
]
REAL = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 1, 1], [0, 1, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]).bool()


def loud(model: Model, std: float = 0.3) -> Model:
    """In float64 with every parameter drawn anew: no bias is 0, no norm's weight is 1."""
    for parameter in model.double().parameters():
        nn.init.normal_(parameter, std=std)
    return model.eval()


def reading(model: Model) -> Model:
    return apply_plan(copy.deepcopy(model), "cpu-inference")


def exact(a: Tensor, b: Tensor) -> None:
    assert_close(a, b, "layer")


def encoder(head: Head, **stack: Any) -> Model:
    return loud(build(EncoderConfig(embedding=WORDS, encoder=replace(STACK, **stack), head=head)))


def decoder(head: Head, **stack: Any) -> Model:
    config = replace(STACK, causal=True, **stack)
    return loud(build(DecoderConfig(embedding=replace(WORDS, segments=0), decoder=config, head=head)))


def vision(head: ImageHead, prefix: Any = "class") -> Model:
    patches = PatchConfig(image_size=(8, 8), patch_size=4, channels=1, prefix=prefix)
    return loud(build(VisionConfig(patches=patches, encoder=STACK, head=head)))


def rows_of_last(model: Model, *given: Any) -> list[int]:
    """Number of tokens that the last block's feed-forward is given in a call."""
    stack = next(part for name, part in model.named_children() if name in ("encoder", "decoder"))
    feed, seen = stack.block[-1].feed_forward, []
    own = feed.forward
    feed.forward = lambda y: (seen.append(y[..., 0].numel()), own(y))[1]
    try:
        model(*given)
    finally:
        del feed.forward
    return seen


@pytest.mark.full(keep="pairs")
@torch.no_grad()
@pytest.mark.parametrize("position", SCHEMES, ids=lambda p: p.kind)
@pytest.mark.parametrize("placement", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("norm", ["layer", "batch"])
@pytest.mark.parametrize("pooling", ["first", "last"])
def test_an_encoder_that_classifies(position: Position, placement: Any, norm: Any, pooling: Any) -> None:
    model = encoder(
        SequenceHead(labels=3, pooler=True, pooling=pooling), position=position, placement=placement, norm=norm
    )
    made, ids, segments = reading(model), torch.randint(20, REAL.shape), torch.randint(2, REAL.shape)
    exact(made(ids, REAL, segments), model(ids, REAL, segments))
    exact(made(ids), model(ids))
    exact(made(ids[:1], REAL[:1]), model(ids[:1], REAL[:1]))
    assert rows_of_last(made, ids, REAL) == [len(ids)]
    exact(made.hidden(ids, REAL)[REAL], model.hidden(ids, REAL)[REAL])


@torch.no_grad()
@pytest.mark.parametrize("position", SCHEMES, ids=lambda p: p.kind)
@pytest.mark.parametrize("window", [None, 2, (2, None), (None, 2)])
def test_a_decoder_that_classifies_by_its_last_token(position: Position, window: Any) -> None:
    model = decoder(SequenceHead(labels=3, pooling="last"), position=position, window=window, kv_heads=2)
    made, ids = reading(model), torch.randint(20, REAL.shape)
    exact(made(ids, REAL), model(ids, REAL))
    exact(made(ids), model(ids))
    assert rows_of_last(made, ids, REAL) == [len(ids)]
    exact(made(ids, cache=Cache(2, window=window)), model(ids))


@torch.no_grad()
@pytest.mark.parametrize(
    ("tokens", "prefix"), [("class", "class"), ("class", "class+distillation"), ("all", "class+distillation")]
)
@pytest.mark.parametrize("hidden", [0, 8])
def test_vision(tokens: Any, prefix: Any, hidden: int) -> None:
    model = vision(ImageHead(labels=3, tokens=tokens, hidden=hidden), prefix)
    made, pixels = reading(model), torch.randn(3, 1, 8, 8, dtype=torch.float64)
    exact(made(pixels), model(pixels))
    assert rows_of_last(made, pixels) == [3 * len(model.head.output)]


@torch.no_grad()
def test_the_mean_of_all_patches_is_read_of_all_of_them() -> None:
    model = vision(ImageHead(labels=3), "none")
    made, pixels = reading(model), torch.randn(3, 1, 8, 8, dtype=torch.float64)
    exact(made(pixels), model(pixels))
    prepared = optimize(copy.deepcopy(model), "float32")
    torch.testing.assert_close(prepared(pixels.float()).double(), model(pixels), atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_a_pooled_vector() -> None:
    model, ids = encoder(PooledHead(pooling="first", normalise=True)), torch.randint(20, REAL.shape)
    exact(reading(model)(ids, REAL), model(ids, REAL))


@torch.no_grad()
@pytest.mark.parametrize("head", [SequenceHead(labels=3), PooledHead(pooling="first")], ids=lambda head: head.kind)
def test_of_a_prepared_model(head: Head) -> None:
    model, ids = encoder(head), torch.randint(20, REAL.shape)
    expected = model(ids, REAL)
    made = optimize(copy.deepcopy(model), "float64")
    exact(made(ids, REAL), expected)
    packed = optimize(copy.deepcopy(model), "float32")
    torch.testing.assert_close(packed(ids, REAL).double(), expected, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_heads_that_want_every_token_get_them() -> None:
    ids = torch.randint(20, REAL.shape)
    for head in (
        TokenHead(labels=3),
        MaskedHead(),
        SequenceHead(labels=3, pooling="mean"),
        PooledHead(pooling="max"),
    ):
        model = encoder(head)
        made = reading(model)
        exact(made(ids), model(ids))
    first = decoder(SequenceHead(labels=3, pooling="first"))
    exact(reading(first)(ids, REAL), first(ids, REAL))


@torch.no_grad()
def test_a_sequence_without_a_token_leaves_the_others_alone() -> None:
    model, ids, real = encoder(SequenceHead(labels=3)), torch.randint(20, REAL.shape), REAL.clone()
    made = reading(model)
    real[1] = False
    kept = real.any(1)
    exact(made(ids, real)[kept], model(ids, real)[kept])
    assert made(ids, real).isfinite().all()
    assert made(ids, torch.zeros_like(real)).isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("name", ["pattern", "mixed", "activation", "stream", "hidden"])
def test_records_are_whole(name: str) -> None:
    model, ids = encoder(SequenceHead(labels=3)), torch.randint(20, REAL.shape)
    made = reading(model)
    with heedful.record(model, name) as expected:
        output = model(ids, REAL)
    with heedful.record(made, name) as seen:
        assert torch.equal(made(ids, REAL), output)
    assert seen.keys() == expected.keys() != set()
    for path, tensor in expected.items():
        assert torch.equal(seen[path], tensor), path
    assert rows_of_last(made, ids, REAL) == [len(ids)]


@torch.no_grad()
def test_the_logits_recorded_are_the_output() -> None:
    model, ids = encoder(SequenceHead(labels=3)), torch.randint(20, REAL.shape)
    made = reading(model)
    with heedful.record(made, "logits") as seen:
        output = made(ids, REAL)
    assert torch.equal(seen["head.logits"], output)
    exact(output, model(ids, REAL))


def test_training_computes_all() -> None:
    model, ids = encoder(SequenceHead(labels=3, dropout=0.0), norm="batch"), torch.randint(20, REAL.shape)
    made = reading(model).train()
    exact(made(ids, REAL), model.train()(ids, REAL))


@torch.no_grad()
def test_copied_and_pickled() -> None:
    made, ids = reading(encoder(SequenceHead(labels=3))), torch.randint(20, REAL.shape)
    for copied in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert torch.equal(copied(ids, REAL), made(ids, REAL))
        assert rows_of_last(copied, ids) == [len(ids)]
