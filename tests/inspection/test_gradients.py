"""Gradient × input against central differences in float64: each token's embedding a little larger and smaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful.config import DecoderConfig, EmbeddingConfig, EncoderDecoderConfig, LearnedPosition, StackConfig
from heedful.errors import HeedfulError
from heedful.inspection.gradients import gradient_x_input
from heedful.models import Model, build
from tolerances import assert_close

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 5, 11]])
SOURCE = torch.tensor([[4, 3, 5, 6, 2], [5, 4, 2, 0, 0]])
RIGHT = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
EPS = 1e-5


def noisy(model: Model) -> Model:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.double()


def pair(apart: bool) -> Model:
    def stack(causal: bool) -> StackConfig:
        place = LearnedPosition(length=8)
        return StackConfig(dim=16, depth=2, heads=4, ff_dim=24, causal=causal, cross=causal, position=place)

    target = EmbeddingConfig(vocab_size=20) if apart else None
    source = EmbeddingConfig(vocab_size=20, scale="sqrt")
    config = EncoderDecoderConfig(source=source, target=target, encoder=stack(False), decoder=stack(True))
    return build(config)


def differences(model: Model, explain: Callable[[], Tensor], time: int, tokens: int) -> Tensor:
    """(f((1 + ε) e_t) − f((1 − ε) e_t)) / 2ε for each token t of the embedding made as the ``time``-th: (B, tokens)."""
    embeddings = {model.embedding, getattr(model, "target_embedding", model.embedding)}

    def value(token: int, factor: float) -> Tensor:
        times: list[int] = []

        def scaled(part: Any, given: Any, x: Tensor) -> Tensor:
            times.append(token)
            if len(times) - 1 != time:
                return x
            return torch.cat((x[:, :token], factor * x[:, token : token + 1], x[:, token + 1 :]), 1)

        hooks = [part.register_forward_hook(scaled) for part in embeddings]
        with torch.no_grad():
            made = explain()
        for hook in hooks:
            hook.remove()
        return made

    return torch.stack([(value(t, 1 + EPS) - value(t, 1 - EPS)) / (2 * EPS) for t in range(tokens)], 1)


CASES: dict[str, tuple[Callable[[], Model], tuple[Tensor, ...], dict[str, Any], dict[str, Any], Any]] = {
    # model, inputs, masks, what is asked, the same of the output by hand
    "language model": (
        lambda: heedful.create("gpt-micro", seed=0),
        (IDS,),
        {"mask": RIGHT},
        {},
        lambda y: torch.stack([y[0, 3].max(), y[1, 1].max()]),  # each row's last real token
    ),
    "label, position": (
        lambda: heedful.create("gpt-micro", seed=0),
        (IDS,),
        {"mask": RIGHT.flip(1)},
        {"label": 7, "query": -2},
        lambda y: y[:, 2, 7],
    ),
    "one a row": (
        lambda: heedful.create("bert-tiny", head="masked-language-model", seed=0),
        (IDS,),
        {"mask": RIGHT},
        {"label": torch.tensor([7, 3]), "query": torch.tensor([1, 0])},
        lambda y: torch.stack([y[0, 1, 7], y[1, 0, 3]]),
    ),
    "sequence": (
        lambda: heedful.create("bert-tiny", head="sequence", num_labels=3, seed=0),
        (IDS,),
        {"mask": RIGHT},
        {"label": 2},
        lambda y: y[:, 2],
    ),
    "span": (
        lambda: heedful.create("bert-tiny", head="span", seed=0),
        (IDS,),
        {"mask": RIGHT},
        {},
        lambda y: torch.stack([y[0].amax(0).sum(), y[1, :2].amax(0).sum()]),
    ),
    "span, left-padded": (
        lambda: heedful.create("bert-tiny", head="span", seed=0),
        (IDS,),
        {"mask": RIGHT.flip(1)},
        {},
        lambda y: torch.stack([y[0].amax(0).sum(), y[1, 2:].amax(0).sum()]),
    ),
    "a function": (
        lambda: heedful.create("bert-tiny", head="pooled", seed=0),
        (IDS,),
        {"mask": RIGHT},
        {"of": lambda y: y.square().sum(-1)},
        lambda y: y.square().sum(-1),
    ),
    "image": (
        lambda: heedful.create("vit-micro", seed=0),
        (torch.randn(2, 1, 28, 28, dtype=torch.float64),),
        {},
        {},
        lambda y: y.amax(-1),
    ),
    "pair, one table": (
        lambda: pair(False),
        (SOURCE, IDS),
        {"source_mask": SOURCE > 0, "target_mask": RIGHT},
        {"query": 1, "label": 4},
        lambda y: y[:, 1, 4],
    ),
    "pair, two tables": (
        lambda: pair(True),
        (SOURCE, IDS),
        {"source_mask": SOURCE > 0, "target_mask": RIGHT},
        {},
        lambda y: torch.stack([y[0, 3].max(), y[1, 1].max()]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_central_differences(name: str) -> None:
    made, inputs, masks, asked, by_hand = CASES[name]
    model = noisy(made())
    seen = gradient_x_input(model, *inputs, **asked, **masks)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    model.eval()

    def explain() -> Tensor:
        return by_hand(model(*inputs, **masks))

    assert_close(seen.output, explain().detach())
    expected = differences(model, explain, 0, seen.input.size(1))
    torch.testing.assert_close(seen.input, expected, atol=1e-8, rtol=1e-5)  # central differences
    assert seen.input.abs().amax(1).gt(1e-6).all()
    if seen.target is not None:
        expected = differences(model, explain, 1, seen.target.size(1))
        torch.testing.assert_close(seen.target, expected, atol=1e-8, rtol=1e-5)
        assert seen.target.abs().amax(1).gt(1e-6).all()
        assert seen.input[1, 3:].eq(0).all()  # the source's padding
    assert (seen.target is not None) == name.startswith("pair")


def test_padding_and_the_future_get_nothing() -> None:
    model = noisy(heedful.create("gpt-micro", seed=0))
    seen = gradient_x_input(model, IDS, mask=RIGHT.flip(1), query=2).input
    assert seen[:, 3].eq(0).all()
    assert seen[1, :2].eq(0).all()
    assert seen[0, :3].ne(0).all()
    assert seen[1, 2].ne(0)


def test_a_linear_model_is_explained_whole() -> None:
    """Without blocks' parts, norms and positions y = E[id] · w: the last token's own share is y, the others' 0."""
    config = StackConfig(dim=16, depth=1, heads=4, causal=True, placement="post")
    model = noisy(build(DecoderConfig(embedding=EmbeddingConfig(vocab_size=20), decoder=config)))
    block: Any = model.decoder.block[0]
    for residual in (block.attention_residual, block.feed_forward_residual):
        residual.after = heedful.layers.norm.Identity()
    for out in (block.attention.out, block.feed_forward.down):
        torch.nn.init.zeros_(out.weight)
        torch.nn.init.zeros_(out.bias)
    seen = gradient_x_input(model, IDS, label=3)
    assert_close(seen.input[:, -1], seen.output)
    assert seen.input[:, :-1].eq(0).all()


def test_compiled() -> None:
    model = heedful.create("gpt-micro", seed=0)
    assert torch.equal(
        gradient_x_input(torch.compile(model, backend="eager"), IDS).input, gradient_x_input(model, IDS).input
    )


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_where_gradients_are_off(around: Callable[[], Any]) -> None:
    model = noisy(heedful.create("gpt-micro", seed=0))
    expected = gradient_x_input(model, IDS).input
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with around():
        assert torch.equal(gradient_x_input(model, IDS).input, expected)
    for parameter in model.parameters():
        parameter.requires_grad_()
    with around():
        made = IDS.clone(), torch.ones_like(IDS).bool()
        assert torch.equal(gradient_x_input(model, made[0], mask=made[1]).input, expected)
        assert torch.equal(gradient_x_input(model, made[0], None).input, expected)


@pytest.mark.parametrize(
    ("head", "options", "said"),
    [
        ("masked-language-model", {}, "give query="),
        ("sequence", {"query": 0}, "leave query out"),
        ("sequence", {"label": 2}, "label is 2, but there are 2"),
        ("sequence", {"label": -1}, "label is -1"),
        ("sequence", {"label": torch.tensor([0, 1, 0])}, r"shape \(3,\)"),
        ("token", {"query": 4}, "query is 4"),
        ("token", {"query": -5}, "query is -5"),
        ("pooled", {}, "give of="),
        ("none", {"label": 0}, "give of="),
        ("pooled", {"of": lambda y: y}, r"shape \(2, 128\)"),
        ("pooled", {"of": lambda y: y.sum(-1), "label": 1}, "leave label and query out"),
        ("sequence", {"pixels": 0}, "does not take these inputs"),
    ],
)
def test_refuses(head: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(HeedfulError, match=said):
        gradient_x_input(heedful.create("bert-tiny", head=head, seed=0), IDS, **options)
