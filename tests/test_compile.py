"""``torch.compile(model, fullgraph=True)``: every family and position scheme, in two graphs for any number of lengths.

The first length gives a graph of fixed shapes, the second a graph of any length. A backend counts them.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import heedful
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LearnedPosition,
    Position,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    StackConfig,
)
from heedful.kernels import apply_plan, plan
from heedful.models.base import Model
from tolerances import approx, assert_close

VOCAB = EmbeddingConfig(vocab_size=40)
LENGTHS = (7, 9, 16, 24, 33)
POSITIONS: dict[str, Position] = {
    "rotary": RotaryPosition(),
    "alibi": AlibiPosition(),
    "relative": RelativePosition(),
    "learned": LearnedPosition(length=64),
    "learned, buckets": LearnedPosition(length=64, buckets=8),
    "sinusoidal": SinusoidalPosition(),
}
FAMILIES = ("encoder", "decoder", "window", "windows", "encoder-decoder", "vision")


def model_of(family: str, position: str = "rotary", depth: int = 1) -> Model:
    """A tiny model of a family, in training mode, without dropout."""
    torch.manual_seed(0)
    stack: dict[str, Any] = {"dim": 16, "depth": depth, "heads": 4, "position": POSITIONS[position]}
    if family == "encoder":
        return heedful.create(EncoderConfig(embedding=VOCAB, encoder=StackConfig(**stack)))
    if family == "encoder-decoder":
        decoder = StackConfig(**stack, causal=True, cross=True)
        return heedful.create(EncoderDecoderConfig(source=VOCAB, encoder=StackConfig(**stack), decoder=decoder))
    if family == "vision":
        return heedful.create("vit-micro")
    windows: dict[str, Any] = {"window": {"window": 4}, "windows": {"window": (None, 4), "depth": 2}}
    config = StackConfig(**(stack | windows.get(family, {})), causal=True, kv_heads=2)
    return heedful.create(DecoderConfig(embedding=VOCAB, decoder=config))


def inputs_of(family: str, length: int, mask: str) -> tuple[Any, ...]:
    """A batch whose first row is half padding, or two texts."""
    if family == "vision":
        return (torch.randn(length, 1, 28, 28),)
    ids = torch.randint(40, (2, length))
    first = torch.arange(length) < length // 2
    masks: dict[str, Tensor | None] = {
        "no mask": None,
        "padding": torch.stack((first, torch.ones_like(first))),
        "pairs": (first | ~first[:, None]).expand(2, -1, -1),
        "packed": torch.stack((2 - first.long(), torch.ones_like(first).long())),
    }
    if family == "encoder-decoder":
        return ids, torch.randint(40, (2, length + 3)), masks[mask]
    return ids, masks[mask]


def compiled(model: Model, backend: str = "eager") -> tuple[Callable[..., Tensor], list[int]]:
    """The compiled model, and a list to which every graph adds its number of nodes."""
    torch._dynamo.reset()
    compiler, graphs = torch._dynamo.lookup_backend(backend), []

    def counting(graph: torch.fx.GraphModule, example: list[Any]) -> Any:
        graphs.append(len(graph.graph.nodes))
        return compiler(graph, example)

    return torch.compile(model, fullgraph=True, backend=counting), graphs


CASES = [  # the first ten have every family, position scheme and kind of mask
    *(("decoder", position, "padding") for position in POSITIONS),
    *(("windows", "rotary", "padding"), ("encoder-decoder", "relative", "no mask"), ("vision", "learned", "no mask")),
    *(("encoder", "alibi", "packed"), ("decoder", "rotary", "pairs")),
    *((family, position, "padding") for family in ("encoder", "encoder-decoder") for position in POSITIONS),
    *((family, "rotary", mask) for family in FAMILIES[:4] for mask in ("no mask", "packed", "pairs")),
]


@pytest.mark.full(keep=10)
@pytest.mark.parametrize(("family", "position", "mask"), CASES)
def test_two_graphs_for_all_lengths(family: str, position: str, mask: str) -> None:
    model = model_of(family, position).eval()
    fast, graphs = compiled(model)
    for length in LENGTHS:
        inputs = inputs_of(family, length, mask)
        assert_close(fast(*inputs), model(*inputs))
    assert len(graphs) <= 2


@pytest.mark.full(keep=2)
@pytest.mark.parametrize("family", FAMILIES)
def test_training_steps(family: str) -> None:
    """The backward pass is compiled too; the weights after five steps are those of the uncompiled model."""
    model = model_of(family)
    reference = copy.deepcopy(model)
    fast, graphs = compiled(model, "aot_eager")
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model, reference)]
    for length in LENGTHS:
        inputs = inputs_of(family, length, "padding")
        for call, optimizer in zip((fast, reference), optimizers, strict=True):
            optimizer.zero_grad()
            call(*inputs).square().mean().backward()
            optimizer.step()
    assert_close(model.state_dict(), reference.state_dict(), "training")
    assert len(graphs) <= 2


def test_a_plan_of_kernels_is_taken_back_first() -> None:
    """The kernels of a CPU plan read the batch's padding, which no graph can; ``plain`` removes them."""
    model = apply_plan(model_of("encoder").eval(), "cpu-inference")
    inputs = inputs_of("encoder", 9, "padding")
    expected = model(*inputs)[inputs[1]]
    fast, _ = compiled(apply_plan(model, "plain"))
    assert_close(fast(*inputs)[inputs[1]], expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo reads it of inputs
@pytest.mark.full(keep=4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recompute", [False, True])
def test_blocks_of_a_run_are_compiled_once_for_all(
    family: str, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--training.compile``: a graph of fixed shapes and one of any length for the blocks of each stack."""
    torch._dynamo.reset()
    graphs: list[int] = []

    def counting(graph: torch.fx.GraphModule, example: list[Any]) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph

    monkeypatch.setattr(plan, "_compiled", lambda function: torch.compile(function, fullgraph=True, backend=counting))
    model = model_of(family, depth=2)
    reference = copy.deepcopy(model)
    plan.apply_training_plan(model, recompute=recompute, compile_blocks=True)
    run = plan.recomputed_compiled if recompute else plan.compiled
    assert all(block.run is run for block in model.modules() if isinstance(block, heedful.Block))
    assert f"run={run.__name__}" in repr(model)
    for length in LENGTHS:
        inputs = inputs_of(family, length, "padding")
        for call in (model, reference):
            call.zero_grad()
            call(*inputs).square().mean().backward()
        for ours, expected in zip(model.parameters(), reference.parameters(), strict=True):
            assert_close(ours.grad, expected.grad, "training")
    assert len(graphs) <= (4 if family == "encoder-decoder" else 2)


def test_without_a_compiler_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        heedful.HeedfulError, match=r"--training.compile needs a C\+\+ compiler on a CPU; install g\+\+"
    ):
        plan.apply_training_plan(model_of("encoder"), compile_blocks=True)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # Inductor imports it
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_a_compiled_run_has_the_same_losses(tmp_path: Path) -> None:
    torch._dynamo.reset()
    rows = [{"text": f"{word} number {n} " + "and so on " * (n % 5)} for word in ("apple", "saw") for n in range(12)]
    found = []
    for compiled_blocks in (True, False):
        run = heedful.train(
            *("text-generation", rows),
            out=tmp_path / str(compiled_blocks),
            max_steps=6,
            quiet=True,
            model_settings={"dim": 32, "depth": 2, "heads": 2, "dropout": 0.0},
            training={"log_every": 1, "compile": compiled_blocks},
        )
        found.append([line["loss"] for line in run.history])
    assert len(found[0]) == 6
    assert found[0] == approx(found[1], "gradient")


@pytest.mark.full
@pytest.mark.skipif(shutil.which("c++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize("family", FAMILIES)
def test_inductor(family: str) -> None:
    model = model_of(family).eval()
    fast, graphs = compiled(model, "inductor")
    for length in LENGTHS:
        inputs = inputs_of(family, length, "padding")
        with torch.no_grad():
            assert_close(fast(*inputs), model(*inputs))
    assert len(graphs) <= 2
