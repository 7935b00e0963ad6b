"""Interventions: replace or change chosen tensors; the rest of the model continues with the changed tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.inspection.record import from_start, watching_generations
from heedful.inspection.taps import eager, editing
from heedful.inspection.tensor_paths import HookPoint, select_hook_points

Change = float | Tensor | Callable[[Tensor], Tensor]


@contextmanager
def intervene(
    model: nn.Module,
    name: str | Sequence[str],
    change: Change,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    queries: Sequence[int] | None = None,
) -> Iterator[None]:
    """Context manager that changes chosen tensors of a model while it runs; the model continues with them.

    Several interventions on one tensor work in the order in which they were entered; ``heedful.record`` records the
    changed tensor. Gradients flow through a change; with activation checkpointing the backward pass must also run
    inside the context. If ``pattern`` or ``scores`` are changed, the output of that attention is computed from the
    changed weights, in float32 at least.

    Args:
        model: any model of heedful, or a part of one.
        name: the end of a path, or several, as in ``heedful.record``.
        change: a number or a tensor, which replaces the values, or a function of them (of a copy, so that it may work
            in place).
        layers: numbers of blocks; None is all.
        heads: numbers of heads; ``change`` then receives (B, heads, ...). None is all.
        queries: positions; negative ones count from the end; None is all.

    Raises:
        HeedfulError: for a name, layer, head or query that the model does not have; for a change that returns nothing
            or another shape; when the model generates with ``queries``, since positions differ at each step.

    Mask a head: ``intervene(model, "mixed", 0.0, layers=[3], heads=[2])``. Patch activations: record one input
    with ``queries=[4]``, then run another input inside ``intervene(model, path, recorded[path], queries=[4])``.

    >>> import heedful, torch
    >>> model, ids = heedful.create("gpt-micro", seed=0).eval(), torch.tensor([[1, 2, 3]])
    >>> with intervene(model, "attention.output", 0.0), intervene(model, "feed_forward.output", 0.0):
    ...     nothing = model(ids)
    >>> torch.equal(nothing, model.head(model.decoder.norm(model.decoder.position.embed(
    ...     model.embedding(ids), torch.arange(3)[None], 3))))
    True
    """
    points = select_hook_points(model, name, layers, heads, queries)
    with ExitStack() as stack:
        for point in points:
            stack.enter_context(editing(point, _edit(point, change, heads, queries)))
        if queries is not None:
            stack.enter_context(watching_generations(model, _NoGeneration()))
        stack.enter_context(eager())
        yield


def _edit(
    point: HookPoint, change: Change, heads: Sequence[int] | None, queries: Sequence[int] | None
) -> Callable[[Tensor], Tensor]:
    """Returns the function that changes the chosen heads and queries of a tensor."""
    axes = point.kind.axes

    def edit(tensor: Tensor) -> Tensor:
        index: list[Any] = [slice(None)] * tensor.dim()
        if heads is not None:
            index[1] = list(heads)
        if queries is not None:
            index[axes.index("T")] = from_start(queries, tensor.size(axes.index("T")))
        if heads is not None and queries is not None:  # two lists: every pair of them
            index[1] = torch.as_tensor(index[1])[:, None]
        old = tensor[tuple(index)]
        new = change(old.clone()) if callable(change) else change  # a copy: changes in place reach no cache or input
        if new is None:
            raise HeedfulError(f"the change of {point.path} returned nothing; return the new tensor")
        new = torch.as_tensor(new, dtype=tensor.dtype, device=tensor.device)
        if not callable(change) or new.shape != old.shape:
            new = _expanded(new, old, point.path)
        if heads is None and queries is None:
            return new
        changed = tensor.clone()
        changed[tuple(index)] = new
        return changed

    return edit


def _expanded(new: Tensor, old: Tensor, path: str) -> Tensor:
    try:
        return new.expand_as(old)
    except RuntimeError:
        shapes = f"{tuple(new.shape)}, but {path} has {tuple(old.shape)}"
        raise HeedfulError(f"the change has shape {shapes}; give a tensor that broadcasts to that shape") from None


class _NoGeneration:
    """Observer that refuses every generation."""

    def begin(self, counts: Tensor, width: int, reading: bool) -> None:
        """Raises ``HeedfulError`` when a generation begins, because queries cannot be chosen in it."""
        raise HeedfulError(
            "queries cannot be chosen during a generation, where positions differ at each step; leave queries out"
        )
