"""Several texts in one row, told apart by the mask's numbers: each is read as if alone, forwards and backwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heedful.cache import Cache
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageHead,
    LearnedPosition,
    NoHead,
    NoPosition,
    Position,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    StackConfig,
)
from heedful.errors import HeedfulError
from heedful.kernels.plan import apply_plan
from heedful.models import build
from relative_schemes import CONTENT
from tolerances import assert_close

SCHEMES = [
    NoPosition(),
    SinusoidalPosition(),
    LearnedPosition(length=12),
    RotaryPosition(),
    AlibiPosition(),
    LearnedPosition(length=12, buckets=8, max_distance=6),
    RelativePosition(buckets=8, max_distance=6),
    *CONTENT,
]
EMBEDDING = EmbeddingConfig(vocab_size=30)
LENGTHS = ((3, 1, 5), (4, 4))  # of the texts of two rows; the second is padded


def stack(**given: Any) -> StackConfig:
    return StackConfig(dim=16, depth=2, heads=4, **given)


def made(config: Any) -> nn.Module:
    model = build(config).double().eval()
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def texts(seed: int = 0) -> list[list[Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [[torch.randint(1, 30, (1, length), generator=draw) for length in row] for row in LENGTHS]


def packed(rows: list[list[Tensor]], left: bool = False) -> tuple[Tensor, Tensor]:
    """Ids and numbers (2, 9), the shorter row padded on one side."""
    width = max(sum(LENGTHS[row]) for row in range(2))
    ids, numbers = torch.zeros(2, width, dtype=torch.long), torch.zeros(2, width, dtype=torch.long)
    for place, row in enumerate(rows):
        joined = torch.cat([text[0] for text in row])
        number = torch.cat([torch.full((text.size(1),), i) for i, text in enumerate(row, 1)])
        at = slice(width - len(joined), None) if left else slice(0, len(joined))
        ids[place, at], numbers[place, at] = joined, number
    return ids, numbers


def same(model: nn.Module, together: Tensor, numbers: Tensor, alone: list[list[Tensor]]) -> None:
    """The outputs at real tokens, and the gradients of their weighted sum."""
    real = together[numbers > 0]
    apart = torch.cat([out[0] for row in alone for out in row])
    assert_close(real, apart)
    weight = torch.linspace(-1, 1, real.numel(), dtype=real.dtype).view_as(real)
    parameters = list(model.parameters())
    one, other = (
        torch.autograd.grad((out * weight).sum(), parameters, allow_unused=True, retain_graph=True)
        for out in (real, apart)
    )
    for a, b in zip(one, other, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert_close(a, b)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("window", [None, 2, (2, None)], ids=["all", "window", "windows"])
@pytest.mark.parametrize("position", SCHEMES, ids=lambda p: p.kind)
def test_decoder(position: Position, window: Any, left: bool) -> None:
    own = stack(causal=True, position=position, window=window)
    model = made(DecoderConfig(embedding=EMBEDDING, decoder=own, head=LanguageHead(tied=False)))
    ids, numbers = packed(texts(), left)
    same(model, model(ids, numbers), numbers, [[model(text) for text in row] for row in texts()])
    joined = model(ids, numbers > 0)
    assert (joined - model(ids, numbers))[numbers > 1].abs().max() > 1e-3, "read as one text the second is another"


@pytest.mark.parametrize("position", SCHEMES, ids=lambda p: p.kind)
def test_encoder(position: Position) -> None:
    model = made(EncoderConfig(embedding=EMBEDDING, encoder=stack(position=position), head=NoHead()))
    ids, numbers = packed(texts())
    alone = [[model(text) for text in row] for row in texts()]
    same(model, model(ids, numbers), numbers, alone)
    apply_plan(model, "cpu-inference")
    same(model, model(ids, numbers), numbers, alone)


@pytest.mark.parametrize("position", SCHEMES, ids=lambda p: p.kind)
def test_pairs(position: Position) -> None:
    config = EncoderDecoderConfig(
        source=EMBEDDING,
        encoder=stack(position=position),
        decoder=stack(causal=True, cross=True, position=position),
        head=LanguageHead(tied=False),
    )
    model = made(config)
    sources, targets = texts(1), texts(2)
    (source, of_source), (target, of_target) = packed(sources), packed(targets)
    alone = [[model(s, t) for s, t in zip(*rows, strict=True)] for rows in zip(sources, targets, strict=True)]
    same(model, model(source, target, of_source, of_target), of_target, alone)


def test_one_text_is_what_a_mask_of_truths_says() -> None:
    model = made(DecoderConfig(embedding=EMBEDDING, decoder=stack(causal=True), head=LanguageHead(tied=False)))
    ids, numbers = packed(texts())
    real = numbers > 0
    assert torch.equal(model(ids, real.long())[real], model(ids, real)[real])
    holes = torch.tensor([[1, 0, 1, 1, 0, 1, 0, 0, 0], [0, 1, 1, 1, 1, 0, 1, 1, 1]])
    assert torch.equal(model(ids, holes)[holes > 0], model(ids, holes.bool())[holes > 0])


def test_a_cache_takes_one_text_a_row() -> None:
    model = made(DecoderConfig(embedding=EMBEDDING, decoder=stack(causal=True), head=LanguageHead(tied=False)))
    ids, numbers = packed(texts())
    with pytest.raises(HeedfulError, match="several texts, but a cache takes one; give each"):
        model(ids, numbers, cache=Cache(2))
    with torch.no_grad():
        model(ids, (numbers > 0).long(), cache=Cache(2))
