"""Ablation and importance against plain hooks on the output projections, finite differences and autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heedful
from heedful.config import DecoderConfig, DropoutRates, EmbeddingConfig, LearnedPosition, RotaryPosition, StackConfig
from heedful.errors import HeedfulError
from heedful.inspection.ablation import ablate
from heedful.inspection.importance import head_importance, least_important_heads
from heedful.inspection.pruning import prune
from heedful.models import Model, build
from tolerances import approx, assert_close

IDS = torch.tensor([[5, 7, 9, 11, 3], [6, 8, 10, 2, 4], [1, 1, 2, 3, 5]])
SIZE = 4  # of a head


def small(**changes: Any) -> Model:
    """Two blocks of random weights in float64, in training mode, with dropout that must not be seen."""
    settings = {"dim": 16, "depth": 2, "heads": 4, "ff_dim": 10, "position": LearnedPosition(length=9)}
    settings |= {"dropout": DropoutRates.everywhere(0.5, attention=0.5), "causal": True}
    model = build(DecoderConfig(embedding=EmbeddingConfig(vocab_size=13), decoder=StackConfig(**(settings | changes))))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model.double().train()


def losses(model: Model) -> Tensor:
    """Of each sequence."""
    logits = model(IDS)[:, :-1]
    return F.cross_entropy(logits.mT, IDS[:, 1:], reduction="none").sum(1)


@contextmanager
def hooked(part: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """The input of a linear map is changed."""
    hook = part.register_forward_pre_hook(lambda _, inputs: (change(inputs[0]),))
    try:
        yield
    finally:
        hook.remove()


def loss_with(model: Model, part: nn.Module, columns: list[int], values: Tensor) -> float:
    """The loss when the map reads these values in these columns."""

    def change(x: Tensor) -> Tensor:
        changed = x.clone()
        changed[..., columns] = values
        return changed

    with torch.no_grad(), hooked(part, change):
        return losses(model.eval()).sum().item()


def read_by(model: Model, part: nn.Module) -> Tensor:
    """The input of the map, in the whole model."""
    seen = []
    with torch.no_grad(), hooked(part, lambda x: seen.append(x) or x):
        losses(model.eval())
    return seen[0]


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_heads_and_units_against_hooks(by: str) -> None:
    model = small()
    heads = ablate(model, lambda: losses(model).sum(), "heads", by=by)
    units = ablate(model, lambda: losses(model).sum(), "units", by=by, groups=[[0], [3, 7, 9]])
    assert model.training  # left as it was
    base = losses(model.eval()).sum().item()
    assert heads.base == units.base == approx(base, "layer", dtype=torch.float64)
    for layer in range(2):
        block = model.decoder.block[layer]
        for part, found, members in (
            (block.attention.out, heads, [[h * SIZE + i for i in range(SIZE)] for h in range(4)]),
            (block.feed_forward.down, units, [[0], [3, 7, 9]]),
        ):
            means = read_by(model, part).mean((0, 1)) if by == "mean" else torch.zeros(16).double()
            expected = [loss_with(model, part, columns, means[columns]) - base for columns in members]
            kind = "attention" if part is block.attention.out else "feed_forward"
            change = found.change[f"decoder.block.{layer}.{kind}"]
            assert_close(change, torch.tensor(expected, dtype=torch.float64))
            assert change.abs().min() > 1e-4
    assert heads.parts["decoder.block.1.attention"] == [[0], [1], [2], [3]]


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_layers_against_a_stack_without_them(by: str) -> None:
    model = small()
    found = ablate(model, lambda: losses(model).sum(), "layers", by=by)
    base = losses(model.eval()).sum().item()
    for layer in range(2):
        stream: list[Tensor] = []
        hook = model.decoder.block[layer].register_forward_hook(lambda _, x, y, out=stream: out.extend((x[0], y)))
        losses(model)
        hook.remove()
        added = (stream[1] - stream[0]).mean((0, 1)) if by == "mean" else 0.0
        hook = model.decoder.block[layer].register_forward_hook(lambda _, x, y, more=added: x[0] + more)
        expected = losses(model).sum().item() - base
        hook.remove()
        assert found.change["decoder"][layer] == approx(expected, dtype=torch.float64)
    if by == "zero":
        pruned = prune(model, layers=[1])
        assert found.change["decoder"][1] == approx(losses(pruned).sum().item() - base, dtype=torch.float64)


def test_means_are_over_all_calls_of_the_loss() -> None:
    model = small()

    def loss() -> Tensor:
        with_some = [
            F.cross_entropy(model(IDS[rows])[:, :-1].mT, IDS[rows, 1:], reduction="sum") for rows in ([0], [1, 2])
        ]
        return torch.stack(with_some).sum()

    once = ablate(model, lambda: losses(model).sum(), by="mean")
    twice = ablate(model, loss, by="mean")
    for path, change in once.change.items():
        assert_close(twice.change[path], change)


def test_chosen_layers_and_even_groups() -> None:
    model = small()
    found = ablate(model, lambda: losses(model).sum(), "units", layers=[1], groups=3)
    assert found.parts == {"decoder.block.1.feed_forward": [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]}
    assert ablate(model, lambda: losses(model).sum(), "layers", layers=[1]).parts == {"decoder": [[1]]}
    assert len(ablate(model, lambda: 1.0, "units").change["decoder.block.0.feed_forward"]) == 8


def test_a_metric_will_do_and_the_model_is_left_as_it_was() -> None:
    model = small()
    model.decoder.block[0].eval()
    before = [part.training for part in model.modules()]
    found = ablate(model, lambda: float((model(IDS).argmax(-1) == IDS).sum()))
    assert all(change.eq(change.round()).all() for change in found.change.values())
    head_importance(model, lambda: losses(model).sum())
    assert [part.training for part in model.modules()] == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_every_attention_of_a_pair() -> None:
    model = heedful.create("transformer-tiny", seed=0).double()
    source, target = torch.tensor([[3, 5, 8, 2]]), torch.tensor([[1, 9, 4]])

    def loss() -> Tensor:
        return model(source, target).square().mean()

    found, importance = ablate(model, loss), head_importance(model, loss)
    assert list(found.change) == list(importance)
    assert {path.partition(".")[0] + path.rpartition(".")[2] for path in importance} == {
        "encoderattention",
        "decoderattention",
        "decodercross_attention",
    }
    model.eval()
    cross = model.decoder.block[2].cross_attention.out
    with torch.no_grad(), hooked(cross, lambda x: torch.cat((x[..., :32] * 0, x[..., 32:]), -1)):
        expected = float(loss())
    assert found.change["decoder.block.2.cross_attention"][0] == approx(
        expected - found.base, "layer", dtype=torch.float64
    )


# ----------------------------------------------------------------------------------------------------------- importance


def gated(model: Model, layer: int, head: int, gate: float) -> Tensor:
    """The losses when a head's output is multiplied by ``gate``."""

    def change(x: Tensor) -> Tensor:
        factors = torch.ones(16).double()
        factors[head * SIZE : (head + 1) * SIZE] = gate
        return x * factors

    with torch.no_grad(), hooked(model.decoder.block[layer].attention.out, change):
        return losses(model.eval())


@pytest.mark.parametrize("kind", [{}, {"kv_heads": 2, "position": RotaryPosition()}])
def test_importance_is_the_first_order_change(kind: dict[str, Any]) -> None:
    """Central differences of each sequence's loss: exact to the square of the step."""
    model = small(**kind)
    absolute = head_importance(model, lambda: losses(model).sum())
    signed = head_importance(model, lambda: losses(model).sum(), signed=True)
    step, cancelled = 1e-5, []
    for layer in range(2):
        slopes = torch.stack(
            [(gated(model, layer, h, 1 + step) - gated(model, layer, h, 1 - step)) / (2 * step) for h in range(4)]
        )  # (H, sequences)
        path = f"decoder.block.{layer}.attention"
        torch.testing.assert_close(absolute[path], slopes.abs().mean(1), atol=1e-7, rtol=1e-6)  # of step²
        torch.testing.assert_close(signed[path], -slopes.sum(1), atol=1e-7, rtol=1e-6)
        cancelled.append(absolute[path] * 3 - signed[path].abs())
    assert torch.stack(cancelled).max() > 0.01  # gradients of sequences do


def test_importance_is_the_papers_product() -> None:
    """|Att_h(x)ᵀ ∂L(x)/∂Att_h(x)|, Michel et al. 2019, section 4.1, with autograd's gradient of what ``out`` reads."""
    model = small()
    found = head_importance(model, lambda: losses(model).sum(), normalise=True)
    seen: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        x.retain_grad()
        seen.append(x)
        return x

    with hooked(model.decoder.block[1].attention.out, keep):
        losses(model.eval()).sum().backward()
    product = (seen[0] * seen[0].grad).unflatten(-1, (4, SIZE)).sum((1, 3)).abs().mean(0)
    assert_close(found["decoder.block.1.attention"], product / product.norm())


def test_sequences_in_several_calls_count_alike() -> None:
    model = small()
    whole = head_importance(model, lambda: losses(model).sum())

    def loss() -> Tensor:
        parts = [
            F.cross_entropy(model(IDS[i : i + 1])[:, :-1].mT, IDS[i : i + 1, 1:], reduction="sum") for i in range(3)
        ]
        return torch.stack(parts).sum()

    for path, value in head_importance(model, loss).items():
        assert_close(value, whole[path])


def test_parts_that_never_ran_have_no_importance() -> None:
    model = heedful.create("transformer-tiny", seed=0)
    found = head_importance(model, lambda: model.encode(torch.tensor([[3, 5]])).square().sum())
    assert found["decoder.block.0.cross_attention"].eq(0).all()
    assert found["encoder.block.2.attention"].ne(0).all()
    with pytest.raises(HeedfulError, match="was not computed"):
        ablate(model, lambda: model.encode(torch.tensor([[3, 5]])).sum(), by="mean")


def test_the_weakest_heads_are_pruned() -> None:
    model = small()
    importance = head_importance(model, lambda: losses(model).sum())
    going = least_important_heads(importance, 2)
    for path, heads in going.items():
        rest = [h for h in range(4) if h not in heads]
        assert importance[path][heads].max() < importance[path][rest].min()
    assert prune(model, heads=going).config.decoder.heads == 2
    going = least_important_heads(importance, 2, together=2)
    for path, heads in going.items():
        left, right = importance[path][:2].sum(), importance[path][2:].sum()
        assert heads == ([0, 1] if left < right else [2, 3])


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"what": "head"}, "did you mean 'heads'"),
        ({"by": "zeros"}, "did you mean 'zero'"),
        ({"groups": 4}, "groups apply to units only"),
        ({"what": "units", "groups": 11}, "has 10 units, which cannot form 11 groups"),
        ({"what": "units", "groups": [[0], [10]]}, "no unit 10; its 10 units are numbered from 0"),
        ({"what": "units", "groups": [[]]}, r"a group of units of .* is empty"),
        ({"layers": [2]}, "no block 2"),
        ({"what": "layers", "layers": [2]}, "no block 2"),
    ],
)
def test_wrong_ablations_are_refused(options: dict[str, Any], said: str) -> None:
    model = small()
    with pytest.raises(HeedfulError, match=said) as error:
        ablate(model, lambda: losses(model).sum(), **options)
    assert "\n" not in str(error.value)


def test_a_loss_is_one_number() -> None:
    model = small()
    with pytest.raises(HeedfulError, match=r"tensor of shape \(3,\)"):
        ablate(model, lambda: losses(model))
    with pytest.raises(HeedfulError, match="the loss is None"):
        ablate(model, lambda: None)  # type: ignore[arg-type,return-value]
    for loss in (lambda: 1.0, lambda: losses(model), lambda: losses(model).sum().detach()):
        with pytest.raises(HeedfulError, match="no single number with a gradient"):
            head_importance(model, loss)
    for count, together in ((4, 1), (-1, 1), (1, 2), (3, 3)):
        with pytest.raises(HeedfulError, match="cannot be removed"):
            least_important_heads({"a": torch.rand(4)}, count, together=together)
