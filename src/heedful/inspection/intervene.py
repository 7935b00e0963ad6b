"""Interventions: replace or change the tensors of chosen parts; the rest of the model computes on with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.inspection.record import counted, told
from heedful.inspection.taps import eager, editing
from heedful.inspection.tensor_paths import Place, chosen_places

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
    """Change what chosen parts of a model compute, while it lasts.

    Several interventions on one tensor work in the order in which they were entered; what is recorded is what the model
    went on with. Gradients flow through a change; where checkpointed parts run again for the backward pass, it belongs
    inside. Where ``pattern`` or ``scores`` are changed, the output of that attention is computed from the changed
    weights, in float32 at least.

    Args:
        model: any model of heedful, or a part of one.
        name: what to change: the end of a path, or several, as of ``heedful.record``.
        change: a number or a tensor, which stands in for the values, or a function of them (of a copy, so that it may
            work in place).
        layers: only the blocks of these numbers; None: all.
        heads: only these heads; ``change`` then sees (B, heads, ...). None: all.
        queries: only these positions, from the end where negative; None: all.

    Raises:
        HeedfulError: when nothing in the model is called so; when a change gives nothing, or another shape than it got;
            when the model generates while ``queries`` are chosen, whose numbers mean something else at each step.

    Mask a head: ``intervene(model, "mixed", 0.0, layers=[3], heads=[2])``. Put one input's activations into the run of
    another (patching): record ``seen`` on the one, then ``intervene(model, path, seen[path], queries=[4])`` with the
    rows of those queries.

    >>> import heedful, torch
    >>> model, ids = heedful.create("gpt-micro", seed=0).eval(), torch.tensor([[1, 2, 3]])
    >>> with intervene(model, "attention.output", 0.0), intervene(model, "feed_forward.output", 0.0):
    ...     nothing = model(ids)
    >>> torch.equal(nothing, model.head(model.decoder.norm(model.decoder.position.embed(
    ...     model.embedding(ids), torch.arange(3)[None], 3))))
    True
    """
    places = chosen_places(model, name, layers, heads, queries)
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(editing(place, _editor(place, change, heads, queries)))
        if queries is not None:
            stack.enter_context(told(model, _Refuses()))
        stack.enter_context(eager())
        yield


def _editor(
    place: Place, change: Change, heads: Sequence[int] | None, queries: Sequence[int] | None
) -> Callable[[Tensor], Tensor]:
    axes = place.point.axes

    def edit(tensor: Tensor) -> Tensor:
        where: list[Any] = [slice(None)] * tensor.dim()
        if heads is not None:
            where[1] = list(heads)
        if queries is not None:
            where[axes.index("T")] = counted(queries, tensor.size(axes.index("T")))
        if heads is not None and queries is not None:  # both lists: every pair of them
            where[1] = torch.as_tensor(where[1])[:, None]
        old = tensor[tuple(where)]
        new = change(old.clone()) if callable(change) else change  # which may work in place: on no cache, on no input
        if new is None:
            raise HeedfulError(f"the change of {place.path} returned nothing; return the new tensor")
        new = torch.as_tensor(new, dtype=tensor.dtype, device=tensor.device)
        if not callable(change) or new.shape != old.shape:
            new = _fitted(new, old, place.path)
        if heads is None and queries is None:
            return new
        made = tensor.clone()
        made[tuple(where)] = new
        return made

    return edit


def _fitted(new: Tensor, old: Tensor, path: str) -> Tensor:
    try:
        return new.expand_as(old)
    except RuntimeError:
        shapes = f"{tuple(new.shape)}, where {path} has {tuple(old.shape)}"
        raise HeedfulError(f"the change has shape {shapes}; give one that broadcasts to it") from None


class _Refuses:
    """Told that a generation begins, it ends it."""

    def begin(self, counts: Tensor, width: int, reading: bool) -> None:
        """Never more than this."""
        raise HeedfulError("queries are numbered anew at each step of a generation; intervene on all of them")
