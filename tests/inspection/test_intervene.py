"""Interventions against weights changed by hand, gradients against autograd, and what must not pass in silence."""

from __future__ import annotations

import pytest
import torch

import heedful
from heedful.errors import HeedfulError
from heedful.inspection import intervene, paths, record
from tolerances import assert_close, is_close

IDS = torch.tensor([[3, 5, 8, 13, 21], [2, 9, 4, 4, 7]])


def gpt(name: str = "gpt-micro") -> heedful.Decoder:
    model = heedful.create(name, seed=0).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


@torch.no_grad()
def test_a_masked_head_is_a_head_without_output_weights() -> None:
    model = gpt()
    with intervene(model, "mixed", 0.0, layers=[2], heads=[1, 3]):
        masked = model(IDS)
    size = model.decoder.block[2].attention.head_dim
    for head in (1, 3):
        model.decoder.block[2].attention.out.weight[:, head * size : (head + 1) * size] = 0.0
    assert_close(masked, model(IDS), "layer")


@torch.no_grad()
def test_the_record_has_the_changed_tensors() -> None:
    """Whichever was entered first; several changes in their order."""
    model = gpt()
    for first in (True, False):
        with record(model, "stream") if first else intervene(model, "block.1.stream", lambda x: x + 1) as seen:
            if first:
                with (
                    intervene(model, "block.1.stream", lambda x: x + 1),
                    intervene(model, "block.1.stream", lambda x: 2 * x),
                ):
                    model(IDS)
                changed = dict(seen)
            else:
                with intervene(model, "block.1.stream", lambda x: 2 * x), record(model, "stream") as seen:
                    model(IDS)
                assert all(torch.equal(seen[path], changed[path]) for path in changed)
    with record(model, "stream") as plain:
        model(IDS)
    assert torch.equal(changed["decoder.block.0.stream"], plain["decoder.block.0.stream"])
    assert_close(changed["decoder.block.1.stream"], 2 * (plain["decoder.block.1.stream"] + 1))
    assert not is_close(changed["decoder.block.2.stream"], plain["decoder.block.2.stream"])


@pytest.mark.parametrize("name", ["gpt-micro", "stories260k"])
@torch.no_grad()
def test_a_tensor_put_back_where_it_was_changes_nothing(name: str) -> None:
    """Every path: patching a run with its own values is the run itself."""
    model = gpt(name)
    with record(model, paths(model)) as seen:
        plain = model(IDS)
    assert seen.keys() == set(paths(model))
    for path, tensor in seen.items():
        with intervene(model, path, tensor):
            assert_close(model(IDS), plain, msg=path)
        if path.endswith(("hidden", "embedded", "logits")):
            continue
        weights = path.endswith(("scores", "pattern"))
        with intervene(model, path, (lambda x: x.roll(1, 1)) if weights else (lambda x: x.flip(0))):
            assert not is_close(model(IDS), plain), path


@torch.no_grad()
def test_patching_between_two_inputs() -> None:
    """All of a stream taken from another input makes its output; one position of it changes no earlier one."""
    model, other = gpt(), torch.tensor([[1, 1, 2, 3, 5], [8, 8, 6, 6, 4]])
    with record(model, "stream") as seen:
        theirs = model(other)
    plain = model(IDS)
    with intervene(model, "block.1.stream", seen["decoder.block.1.stream"]):
        assert_close(model(IDS), theirs, "layer")
    with intervene(model, "block.1.stream", seen["decoder.block.1.stream"][:, [3]], queries=[-2]):
        patched = model(IDS)
    assert torch.equal(patched[:, :3], plain[:, :3])
    assert not is_close(patched[:, 3], plain[:, 3])
    assert not is_close(patched[:, 4], plain[:, 4])


def test_gradients_flow_through_a_change() -> None:
    """d loss / d gate = Σ (d loss / d mixed) · mixed, by autograd on the weights that read the heads."""
    model = gpt()
    gate = torch.ones(4, dtype=torch.float64, requires_grad=True)
    with intervene(model, "mixed", lambda x: x * gate[:, None, None], layers=[1]):
        model(IDS).square().mean().backward()
    weight = model.decoder.block[1].attention.out.weight
    expected = (weight.grad * weight).unflatten(1, (4, -1)).sum((0, 2))  # scaling a head is scaling its columns
    assert_close(gate.grad, expected)


@torch.no_grad()
def test_a_changed_pattern_makes_the_output() -> None:
    """Uniform attention over what may be seen is the mean of the values."""
    model = gpt()
    allowed = torch.ones(5, 5, dtype=torch.float64).tril()
    with (
        intervene(model, "pattern", allowed / allowed.sum(1, keepdim=True), layers=[0]),
        record(model, ["pattern", "value", "mixed"], layers=[0]) as seen,
    ):
        model(IDS)
    value = seen["decoder.block.0.attention.value"]
    mean = value.cumsum(2) / torch.arange(1, 6)[:, None]
    assert_close(seen["decoder.block.0.attention.mixed"], mean)
    assert_close(seen["decoder.block.0.attention.pattern"][0, 2], allowed / allowed.sum(1, keepdim=True))
    with (
        intervene(model, "scores", lambda x: x * 0.0, layers=[0]),
        record(model, "pattern", layers=[0], heads=[1]) as seen,
    ):
        model(IDS)
    assert seen["decoder.block.0.attention.pattern"].isnan().any()  # 0 · −∞ is the caller's own


@torch.no_grad()
def test_nothing_is_left_behind() -> None:
    model = gpt()
    plain, before = model(IDS), [block.attention.attend for block in model.decoder.block]
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())

    def breaks() -> None:
        with intervene(model, ["mixed", "stream", "activation"], 0.0), record(model, paths(model)):
            model(IDS)
            raise KeyError

    with pytest.raises(KeyError):
        breaks()
    assert [block.attention.attend for block in model.decoder.block] == before
    assert sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()) == hooks
    assert torch.equal(model(IDS), plain)


@torch.no_grad()
def test_a_compiled_model_is_seen_and_changed() -> None:
    """Compiled code knows of no probe: it runs as written while it is watched, compiled again afterwards."""
    model = gpt()
    compiled = torch.compile(model, backend="eager")
    plain = compiled(IDS)
    with record(compiled, ["pattern", "stream"]) as seen:
        assert torch.equal(compiled(IDS), plain)
    assert "decoder.block.3.attention.pattern" in seen
    assert "decoder.block.3.stream" in seen
    with intervene(compiled, "mixed", 0.0):
        assert not is_close(compiled(IDS), plain)
    assert torch.equal(compiled(IDS), plain)
    model.decoder.block[0].compile(backend="eager")
    plain = model(IDS)
    with record(model, "block.0.attention.pattern") as seen:
        model(IDS)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "mixd", "change": 0.0}, "did you mean 'mixed'"),
        ({"name": "stream", "change": 0.0, "heads": [0]}, "has no heads"),
        ({"name": "mixed", "change": 0.0, "heads": [4]}, "no head 4"),
        ({"name": "mixed", "change": 0.0, "layers": [9]}, "no block 9"),
        ({"name": "key", "change": 0.0, "queries": [0]}, "has no queries"),
        ({"name": "stream", "change": 0.0, "queries": [5]}, "no query 5 in 5 tokens"),
        ({"name": "stream", "change": torch.zeros(3, 7)}, r"shape \(3, 7\)"),
        ({"name": "stream", "change": lambda x: x[:, :2]}, r"shape \(2, 2, 128\)"),
        (
            {"name": "decoder.block.1.atention.pattern", "change": 0.0},
            "did you mean 'decoder.block.1.attention.pattern'",
        ),
    ],
)
def test_wrong_interventions_are_refused(given: dict[str, object], said: str) -> None:
    model = gpt()
    with pytest.raises(HeedfulError, match=said), intervene(model, **given):
        model(IDS)
