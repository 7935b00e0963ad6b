"""Graphs, graph breaks and recompilations of ``torch.compile``, of models and of the losses of all tasks, and a table.

    python tests/gpu/compiled.py

prints the table of ``docs/gpu.md``; it needs no GPU, since Dynamo alone reads the Python code. Three batches of other
lengths are computed (of images: of other numbers): the first compiles graphs of fixed shapes, the second should compile
one of any length, and the third none. Losses are those of a GPU, which differ from a CPU's: they are computed on the
meta device, without numbers.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1]))

import torch
from counted import FAMILIES, GENERATORS, IDS, LEFT, inputs_of, made, task_command
from torch import Tensor
from torch._dynamo.utils import counters

from heedful import cli
from heedful.generation.decoder_state import create_state
from heedful.generation.static import StaticStep
from heedful.kernels import apply_plan
from heedful.training.gradient import Gradient
from tolerances import assert_close

LESS = (0, 1, 2)  # columns, or images, that are taken from a batch
PLANS = ("gpu", "plain")
Batch = dict[str, Tensor]


class Compiled(NamedTuple):
    """Numbers over three lengths: graphs of the first, graph breaks, and graphs of the other two."""

    graphs: int
    breaks: int
    recompiled: int


class Objective(NamedTuple):
    """A loss, its model and a batch, as a run of training calls them."""

    loss: Callable[[Any, Batch], Tensor]
    model: Any
    complete: Callable[[Batch], Any]
    batch: Batch


class _Captured(Exception):
    pass


def compile_and_count(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> Compiled:
    """Compiles ``function`` and calls it with each of the arguments; numbers must be those without compilation."""
    torch._dynamo.reset()
    counters.clear()
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, example: list[Any]) -> Any:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    compiled, first = torch.compile(function, backend=backend), None
    for arguments in calls:
        torch.manual_seed(0)
        output = compiled(*arguments)
        if output.device.type != "meta":
            torch.manual_seed(0)
            assert_close(output, function(*arguments))
        first = len(graphs) if first is None else first
    return Compiled(first or 0, sum(counters["graph_break"].values()), len(graphs) - (first or 0))


def objective_of(name: str, folder: Path, *options: str) -> Objective:
    """Starts a run of a task and returns what its first step would compute."""
    captured: list[Objective] = []

    def capture(self: Gradient, step: int, number: int, batch: Batch) -> Tensor:
        captured.append(Objective(self.loss, self.model, self.complete, dict(batch)))
        raise KeyboardInterrupt

    command = [*task_command(name, folder), "--max-steps=2", "--device=cpu", "--training.batch-size=6", *options]
    with mock.patch.object(Gradient, "_loss", capture):
        cli.main(command)
    return captured[0]


def shorter(batch: Batch, less: int) -> Batch:
    """Returns a batch without its last ``less`` columns, or images."""
    if "pixels" in batch:
        return {name: tensor[: len(tensor) - less] for name, tensor in batch.items()}
    widths = {tensor.size(1) for name, tensor in batch.items() if name.endswith(("ids", "source", "target"))}
    return {
        name: tensor[:, : tensor.size(1) - less] if tensor.ndim == 2 and tensor.size(1) in widths else tensor
        for name, tensor in batch.items()
    }


def of_forward(family: str, plan: str) -> Compiled:
    """Counts for the forward pass of a model."""
    model, batch = apply_plan(made(family), plan), inputs_of(family, "plain" if family == "vit-micro" else "left")
    if family == "vit-micro":
        images = batch["images"].repeat(2, 1, 1, 1)
        calls = [(images[: 4 - less],) for less in LESS]
    else:
        calls = [tuple(tensor[:, less:] for tensor in batch.values()) for less in LESS]
    with torch.no_grad():
        return compile_and_count(model, calls)


def of_objective(objective: Objective, plan: str) -> Compiled:
    """Counts for the whole loss of a task on a GPU."""
    # the contrastive loss turns autocast off, which the meta device does not have
    is_contrastive = "text_pair.ids" in objective.batch and "scores" not in objective.batch
    device = "cpu" if is_contrastive else "meta"
    model = apply_plan(objective.model.train(), plan).to(device)
    batches = [objective.complete(shorter(objective.batch, less)) for less in LESS]
    moved = [({name: tensor.to(device) for name, tensor in batch.items()},) for batch in batches]
    return compile_and_count(lambda batch: objective.loss(model, batch), moved)


def of_static_step(family: str) -> Compiled:
    """Counts for the static step of decoding, over three tokens."""
    with torch.inference_mode():
        step = StaticStep(create_state(made(family), IDS, LEFT), torch.full((3,), 9))
        step.make_cache(None)
        tokens = step.step(step.prefill().argmax(1)).argmax(1)
        positions = step.cache.positions.clone()

        def decode(ids: Tensor) -> Tensor:
            step.cache.positions.copy_(positions)
            return step(ids)

        return compile_and_count(decode, [(tokens,) for _ in LESS])


OBJECTIVES: dict[str, tuple[str, tuple[str, ...]]] = {
    "language model": ("text-generation", ()),
    "seq2seq": ("translation", ()),
    "seq2seq, r-drop": ("translation", ("--model.r-drop=1",)),
    "classification": ("text-classification", ()),
    "classification, r-drop": ("text-classification", ("--model.r-drop=1",)),
    "token classification": ("token-classification", ()),
    "span QA": ("question-answering", ()),
    "masked language model": ("fill-mask", ()),
    "contrastive": ("feature-extraction", ()),
    "scores of pairs": ("pairs with scores", ()),
    "regression": ("regression", ()),
    "image classification": ("image-classification", ()),
}


def losses() -> Iterator[tuple[str, float]]:
    """Yields the names of the losses and the dropout with which each is compiled: R-Drop needs some."""
    for name in OBJECTIVES:
        yield from ((name, dropout) for dropout in (0.1, 0.0) if dropout or "r-drop" not in name)


def main() -> None:
    """Prints the table, with rows of equal numbers in one."""
    rows: dict[Compiled, list[str]] = {}
    for family in FAMILIES:
        for plan in PLANS:
            rows.setdefault(of_forward(family, plan), []).append(f"forward pass of {family} ({plan})")
    for name, dropout in losses():
        task, options = OBJECTIVES[name]
        with tempfile.TemporaryDirectory() as folder:
            objective = objective_of(task, Path(folder), *options, f"--model.dropout={dropout}")
        for plan in PLANS:
            rows.setdefault(of_objective(objective, plan), []).append(f"loss: {name}, dropout {dropout:g} ({plan})")
    for family in GENERATORS:
        rows.setdefault(of_static_step(family), []).append(f"static step of {family}")
    print("| compiled (plan) | graphs | breaks | recompilations |\n|---|---|---|---|")
    for counted, names in rows.items():
        print(f"| {'; '.join(names)} | {counted.graphs} | {counted.breaks} | {counted.recompiled} |")


if __name__ == "__main__":
    main()
