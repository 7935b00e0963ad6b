"""Ablation: a loss, or any metric, of a model without each of its parts.

Shapes: B sequences of one call, T tokens, H heads, E head size, F feed-forward units, L blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError, lookup
from heedful.inspection.eval_mode import evaluating
from heedful.inspection.intervene import intervene
from heedful.inspection.taps import eager
from heedful.inspection.tensor_paths import Place, chosen_places
from heedful.layers.feedforward import FeedForward
from heedful.models import Model
from heedful.stack import Block

GROUPS = 8


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """Result of ``ablate``.

    Attributes:
        base: the loss of the whole model.
        change: path → the loss without each part, minus ``base``, float64: above 0 where the part helps. Of heads by
            the attention's path, (H,); of units by the feed-forward's, (groups,); of layers by the stack's, (L,).
        parts: path → the numbers of what was taken away together: a head, a group of units, a block.
    """

    base: float
    change: dict[str, Tensor]
    parts: dict[str, list[list[int]]]


def ablate(
    model: Model,
    loss: Callable[[], float | Tensor],
    what: Literal["heads", "units", "layers"] = "heads",
    *,
    by: Literal["zero", "mean"] = "zero",
    layers: Sequence[int] | None = None,
    groups: int | Sequence[Sequence[int]] | None = None,
) -> Ablation:
    """The change of a loss, or of any metric, when each part of a model is taken away, one at a time.

    A head's sum of values, or a unit's activation, becomes 0, or its mean over all that passes there while ``loss``
    runs (padding included, which it does not know of). Zero asks what the part does at all, the mean what it says of
    one input rather than another. Of layers the whole block goes: its stream is what it read, or that and the mean of
    what it adds. The model is evaluated, without dropout or gradients, and left as it was. ``loss`` runs once for each
    part and once before; with the mean once more.

    Args:
        model: of any family.
        loss: runs the model and returns one number: ``lambda: F.cross_entropy(model(ids)[0, :-1], ids[0, 1:])``, or a
            metric over a whole set.
        what: "heads" of every attention; "units", groups of feed-forward units; "layers", whole blocks.
        by: "zero" or "mean".
        layers: only the blocks of these numbers; None: all.
        groups: of units: how many groups of neighbours, default 8; or the groups, lists of units.

    Raises:
        HeedfulError: for a loss that is not one number, a block or unit that is not there, groups of anything but
            units.

    >>> import heedful
    >>> model, ids = heedful.create("gpt-micro", seed=0), torch.tensor([[1, 2, 3, 4]])
    >>> loss = lambda: nn.functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:])
    >>> found = ablate(model, loss, "heads", layers=[0])
    >>> {path: tuple(change.shape) for path, change in found.change.items()}
    {'decoder.block.0.attention': (4,)}
    """
    if groups is not None and what != "units":
        raise HeedfulError(f"groups are of units, but {what!r} are ablated; leave groups out")
    mean = lookup({"zero": False, "mean": True}, by, "kind of ablation")
    parts = list(lookup(PARTS, what, "part to ablate")(model, layers, GROUPS if groups is None else groups))
    places = {part.place.path: part.place for part in parts}
    with evaluating(model), torch.no_grad():
        base = _number(loss())
        means = _means(model, places.values(), loss) if mean else dict.fromkeys(places, torch.zeros(()))
        changes: dict[str, list[float]] = {}
        numbers: dict[str, list[list[int]]] = {}
        for part in parts:
            with _changed(model, part.place, partial(part.without, means[part.place.path])):
                changes.setdefault(part.path, []).append(_number(loss()) - base)
                numbers.setdefault(part.path, []).append(part.numbers)
    tensors = {path: torch.tensor(values, dtype=torch.float64) for path, values in changes.items()}
    return Ablation(base=base, change=tensors, parts=numbers)


# --------------------------------------------------------------------------------------------------- what can be taken


@dataclass(frozen=True)
class _Part:
    """Something that is taken away at once: of the tensor at ``place``, these numbers along ``axis``."""

    path: str
    place: Place
    numbers: list[int]
    axis: int | None = None  # None: all of it

    def without(self, mean: Tensor, old: Tensor) -> Tensor:
        """``old`` with ``mean`` in the place of this part."""
        mean = mean.to(old).expand_as(old)
        if self.axis is None:
            return mean
        index = torch.tensor(self.numbers, device=old.device)
        return old.index_copy(self.axis, index, mean.index_select(self.axis, index))


def _heads(model: Model, layers: Sequence[int] | None, groups: Any) -> Iterator[_Part]:
    for place in chosen_places(model, "mixed", layers):
        yield from (_Part(_owner(place.path), place, [head], 1) for head in range(place.heads))


def _units(model: Model, layers: Sequence[int] | None, groups: int | Sequence[Sequence[int]]) -> Iterator[_Part]:
    for place in chosen_places(model, "activation", layers):
        assert isinstance(place.part, FeedForward)
        size = place.part.up.out_features
        if isinstance(groups, int):
            if not 1 <= groups <= size:
                raise HeedfulError(f"{place.path} has {size} units; they cannot be {groups} groups")
            lists = [part.tolist() for part in torch.arange(size).tensor_split(groups)]
        else:
            lists = [list(map(int, group)) for group in groups]
        for group in lists:
            wrong = [unit for unit in group if not 0 <= unit < size]
            if wrong or not group:
                said = f"no unit {wrong[0]}; it has {size}, numbered from 0" if wrong else "an empty group of units"
                raise HeedfulError(f"{place.path} has {said}")
            yield _Part(_owner(place.path), place, group, 2)


def _blocks(model: Model, layers: Sequence[int] | None, groups: Any) -> Iterator[_Part]:
    for place in chosen_places(model, "stream", layers):
        if isinstance(place.part, Block):
            yield _Part(place.path.partition(".block.")[0], place, [int(place.layer or 0)])


PARTS = {"heads": _heads, "units": _units, "layers": _blocks}


@contextmanager
def _changed(model: Model, place: Place, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Changes the output of the part at ``place`` while entered; for a block, its update of the stream."""
    if not isinstance(place.part, Block):
        with intervene(model, place.path, change):
            yield
        return

    def passed(block: nn.Module, inputs: tuple[Tensor, ...], stream: Tensor) -> Tensor:
        return inputs[0] + change(stream - inputs[0])

    hook = place.part.register_forward_hook(passed)
    try:
        with eager():
            yield
    finally:
        hook.remove()


def _means(model: Model, places: Iterable[Place], loss: Callable[[], Any]) -> dict[str, Tensor]:
    """The mean over sequences and tokens of all that passes at each place: (H, 1, E), (F,), (D,)."""
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    places = list(places)

    def add(place: Place, tensor: Tensor) -> Tensor:
        axes = [i for i, axis in enumerate("BHTE" if place.heads else "BTF") if axis in "BT"]
        own = tensor.double().sum(axes, keepdim=True)[0]
        sums[place.path] = sums.get(place.path, 0) + own
        counts[place.path] = counts.get(place.path, 0) + tensor.numel() // own.numel()
        return tensor

    with ExitStack() as stack:
        for place in places:
            stack.enter_context(_changed(model, place, partial(add, place)))
        loss()
    idle = [place.path for place in places if place.path not in sums]
    if idle:
        raise HeedfulError(f"{idle[0]} was not computed while the loss ran, so it has no mean; ablate by zero")
    return {path: total / counts[path] for path, total in sums.items()}


def _owner(path: str) -> str:
    return path.rpartition(".")[0]


def _number(value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise HeedfulError(f"the loss is a tensor of shape {tuple(value.shape)}; return one number")
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError):
        raise HeedfulError(f"the loss is {value!r}; return one number") from None
