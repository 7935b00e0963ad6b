"""Ablation: change of a loss, or of any metric, when each part of a model is removed.

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
from heedful.inspection.tensor_paths import HookPoint, select_hook_points
from heedful.layers.block import Block
from heedful.layers.feedforward import FeedForward
from heedful.models import Model
from heedful.util.exact import as_float64

GROUPS = 8


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """Result of an ablation: the change of the loss when each part of a model is removed.

    Attributes:
        base: the loss of the whole model.
        change: path → the loss without each part, minus ``base``, in float64; positive if the part helps. For heads:
            path of the attention → (H,); for units: path of the feed-forward → (groups,); for layers: path of the
            stack → (L,).
        parts: path → for each number in ``change`` the indices of the head, units or block that were removed together.
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
    """Returns the change of a loss, or of any metric, when each part of a model is removed, one at a time.

    While ``loss`` runs, a head's weighted sum of values, or a unit's activation, is replaced by 0 or by its mean over
    all tokens, padding included. Zero ablation measures the whole contribution of a part; mean ablation measures only
    the contribution that differs between tokens. A removed block returns its input; with mean ablation, its input plus
    the mean of its update. The model runs in evaluation mode, without dropout or gradients; its mode is restored at the
    end. ``loss`` runs once for the whole model and once for each part; mean ablation runs it once more for the means.

    Args:
        model: a model of any family.
        loss: runs the model and returns one number: ``lambda: F.cross_entropy(model(ids)[0, :-1], ids[0, 1:])``, or a
            metric over a whole set.
        what: "heads" of every attention; "units", groups of feed-forward units; "layers", whole blocks.
        by: "zero" or "mean".
        layers: numbers of blocks; None is all.
        groups: for units: the number of groups of neighbouring units, 8 by default; or a list of groups, each a list of
            unit numbers.

    Raises:
        HeedfulError: for a loss that is not one number, a block or unit that does not exist, or ``groups`` for heads or
            layers.

    >>> import heedful
    >>> model, ids = heedful.create("gpt-micro", seed=0), torch.tensor([[1, 2, 3, 4]])
    >>> loss = lambda: nn.functional.cross_entropy(model(ids)[0, :-1], ids[0, 1:])
    >>> ablation = ablate(model, loss, "heads", layers=[0])
    >>> {path: tuple(change.shape) for path, change in ablation.change.items()}
    {'decoder.block.0.attention': (4,)}
    """
    if groups is not None and what != "units":
        raise HeedfulError(f"groups apply to units only, but {what!r} are ablated; leave groups out")
    use_mean = lookup({"zero": False, "mean": True}, by, "kind of ablation")
    parts = list(lookup(PARTS, what, "part to ablate")(model, layers, GROUPS if groups is None else groups))
    points = {part.point.path: part.point for part in parts}
    with evaluating(model), torch.no_grad():
        base = _number(loss())
        means = _means(model, points.values(), loss) if use_mean else dict.fromkeys(points, torch.zeros(()))
        changes: dict[str, list[float]] = {}
        numbers: dict[str, list[list[int]]] = {}
        for part in parts:
            with _changed(model, part.point, partial(part.removed, means[part.point.path])):
                changes.setdefault(part.path, []).append(_number(loss()) - base)
                numbers.setdefault(part.path, []).append(part.numbers)
    tensors = {path: torch.tensor(values, dtype=torch.float64) for path, values in changes.items()}
    return Ablation(base=base, change=tensors, parts=numbers)


# ------------------------------------------------------------------------------------------------------ removable parts


@dataclass(frozen=True)
class _RemovablePart:
    """Indices along one axis of a tensor that are removed together."""

    path: str
    point: HookPoint
    numbers: list[int]
    axis: int | None = None  # None: the whole tensor

    def removed(self, mean: Tensor, old: Tensor) -> Tensor:
        """Returns a copy of the tensor ``old`` in which the values of this part are those of ``mean``."""
        mean = mean.to(old.dtype).to(old.device).expand_as(old)
        if self.axis is None:
            return mean
        index = torch.tensor(self.numbers, device=old.device)
        return old.index_copy(self.axis, index, mean.index_select(self.axis, index))


def _heads(model: Model, layers: Sequence[int] | None, groups: Any) -> Iterator[_RemovablePart]:
    for point in select_hook_points(model, "mixed", layers):
        yield from (_RemovablePart(_module_path(point.path), point, [head], 1) for head in range(point.heads))


def _units(
    model: Model, layers: Sequence[int] | None, groups: int | Sequence[Sequence[int]]
) -> Iterator[_RemovablePart]:
    for point in select_hook_points(model, "activation", layers):
        assert isinstance(point.module, FeedForward)
        size = point.module.up.out_features
        if isinstance(groups, int):
            if not 1 <= groups <= size:
                raise HeedfulError(f"{point.path} has {size} units, which cannot form {groups} groups; give fewer")
            lists = [part.tolist() for part in torch.arange(size).tensor_split(groups)]
        else:
            lists = [list(map(int, group)) for group in groups]
        for group in lists:
            wrong = [unit for unit in group if not 0 <= unit < size]
            if wrong:
                raise HeedfulError(f"{point.path} has no unit {wrong[0]}; its {size} units are numbered from 0")
            if not group:
                raise HeedfulError(f"a group of units of {point.path} is empty; give at least one unit")
            yield _RemovablePart(_module_path(point.path), point, group, 2)


def _blocks(model: Model, layers: Sequence[int] | None, groups: Any) -> Iterator[_RemovablePart]:
    for point in select_hook_points(model, "stream", layers):
        if isinstance(point.module, Block):
            yield _RemovablePart(point.path.partition(".block.")[0], point, [int(point.layer or 0)])


PARTS = {"heads": _heads, "units": _units, "layers": _blocks}


@contextmanager
def _changed(model: Model, point: HookPoint, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Context manager that changes a tensor; for a block, its update of the stream."""
    if not isinstance(point.module, Block):
        with intervene(model, point.path, change):
            yield
        return

    def changed_output(block: nn.Module, inputs: tuple[Tensor, ...], stream: Tensor) -> Tensor:
        return inputs[0] + change(stream - inputs[0])

    hook = point.module.register_forward_hook(changed_output)
    try:
        with eager():
            yield
    finally:
        hook.remove()


def _means(model: Model, points: Iterable[HookPoint], loss: Callable[[], Any]) -> dict[str, Tensor]:
    """Returns the mean of each tensor over sequences and tokens: (H, 1, E), (F,), (D,)."""
    sums: dict[str, Tensor] = {}
    counts: dict[str, int] = {}
    points = list(points)

    def add(point: HookPoint, tensor: Tensor) -> Tensor:
        axes = [i for i, axis in enumerate("BHTE" if point.heads else "BTF") if axis in "BT"]
        total = as_float64(tensor).sum(axes, keepdim=True)[0]
        sums[point.path] = sums.get(point.path, 0) + total
        counts[point.path] = counts.get(point.path, 0) + tensor.numel() // total.numel()
        return tensor

    with ExitStack() as stack:
        for point in points:
            stack.enter_context(_changed(model, point, partial(add, point)))
        loss()
    unused = [point.path for point in points if point.path not in sums]
    if unused:
        raise HeedfulError(f"{unused[0]} was not computed while the loss ran, so it has no mean; ablate with by='zero'")
    return {path: total / counts[path] for path, total in sums.items()}


def _module_path(path: str) -> str:
    return path.rpartition(".")[0]


def _number(value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise HeedfulError(f"the loss is a tensor of shape {tuple(value.shape)}; return one number")
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError):
        raise HeedfulError(f"the loss is {value!r}; return one number") from None
