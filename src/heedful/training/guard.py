"""Detects NaN, infinity and gradient spikes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

OBJECTIVE = "the objective, from finite outputs of the model"
WINDOW = 100  # steps whose gradients' norms tell what is usual


@dataclass(frozen=True, kw_only=True)
class GradientLimits:
    """Limits of a step's gradient.

    Attributes:
        clip: its largest global norm (Pascanu et al. 2013); None: not clipped.
        skip_spikes: the step is left out where the norm is so many times the usual; None: never.
    """

    clip: float | None = 1.0
    skip_spikes: float | None = None


def origin(
    model: nn.Module, forwards: Iterable[Callable[[], Tensor]], agreed: Callable[[str], str] = lambda place: place
) -> str:
    """Where numbers that are not finite came from, in a few words; called before the optimiser uses the gradients.

    ``forwards`` compute the losses of the step again, one a micro-batch, with the same weights and random numbers. The
    place is the first module, in the order of computing, that makes NaN or an infinity of finite inputs, by its path
    as ``heedful.record`` names it; where all losses are finite, the first parameter, from the loss backwards, whose
    gradient is not. ``agreed`` is given what the forward passes tell, "" for nothing, and says what counts: of several
    ranks, which all make all of their passes, what one of them has found.
    """
    order: list[tuple[str, nn.Module]] = []
    place = ""
    for forward in forwards:
        order.clear()
        with _watched(model, order) as found, torch.no_grad():
            loss = forward()
        place = place or (_told(*found[0]) if found else "" if finite(loss) else OBJECTIVE)
    if place := agreed(place):
        return place
    # A tied weight's gradient is complete where the backward pass meets it last, which is where it was used first.
    used: dict[int, tuple[str, nn.Parameter]] = {}
    for path, module in order:
        for name, parameter in reversed(list(module.named_parameters(prefix=path, recurse=False))):
            used.setdefault(id(parameter), (name, parameter))
    for name, parameter in reversed(used.values()):
        if parameter.grad is not None and not finite(parameter.grad):
            return f"the gradient of {name}"
    return "the sum over all gradients, each of which is finite"


def _told(path: str, module: nn.Module) -> str:
    bad = [name for name, p in module.named_parameters(recurse=False) if not finite(p)]
    return f"{path}, whose {' and '.join(bad)} holds such a number already" if bad else path


@contextmanager
def _watched(model: nn.Module, order: list[tuple[str, nn.Module]]) -> Iterator[list[tuple[str, nn.Module]]]:
    """While it lasts, modules join ``order`` as they end, and the first that goes wrong is put into what is yielded."""
    running: list[tuple[str, nn.Module]] = [("the objective", model)]
    found: list[tuple[str, nn.Module]] = []

    def before(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, keywords: Any) -> None:
            # Inputs that are bad before any output was: made by what calls this module, between two of its parts. A
            # mask may hold −∞.
            if not found and not all(finite(one, mask=True) for one in _tensors((args, keywords))):
                found.append(running[-1])
            running.append((path, module))

        return hook

    def after(module: nn.Module, args: Any, keywords: Any, output: Any) -> None:
        ended = running.pop()
        order.append(ended)
        if not found and not all(map(finite, _tensors(output))):
            found.append(ended)

    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(before(path or "the model"), with_kwargs=True))
        handles.append(module.register_forward_hook(after, with_kwargs=True))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def finite(tensor: Tensor, *, mask: bool = False) -> bool:
    """Returns True if all numbers of ``tensor`` are finite, but for −∞ where it may be a ``mask``. Of one that is
    shared out
    among ranks, this rank's numbers.
    """
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if not local.is_floating_point():
        return True
    return bool(torch.isfinite(local.clamp(min=0) if mask else local).all())


def longest(model: nn.Module, norm: Callable[[list[Tensor]], Tensor]) -> str:
    """Which parameter has the longest gradient, and its share of the sum of all squares: ``83 % of its square in
    decoder.block.2.attention.out.weight``. ``norm`` is that of a list of gradients; called on all ranks.
    """
    squares = {name: norm([p.grad]).item() ** 2 for name, p in model.named_parameters() if p.grad is not None}
    if wrong := next((name for name, square in squares.items() if not math.isfinite(square)), None):
        return f"not finite in {wrong}"
    name = max(squares, key=squares.__getitem__)
    return f"{100 * squares[name] / sum(squares.values()):.0f} % of its square in {name}"


def excess(norms: list[float], norm: float) -> float:
    """Returns a step's gradient norm relative to the median of the last ``norms``; 0 until there are 100 of them.

    ``norm`` joins them, and the oldest goes: where gradients stay large, they become what is usual.
    """
    usual = statistics.median(norms) if len(norms) == WINDOW else 0.0
    norms.append(norm)
    del norms[:-WINDOW]
    return norm / usual if usual else 0.0
