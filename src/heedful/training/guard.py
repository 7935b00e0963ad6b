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

LOSS = "the loss function, whose inputs from the model are finite"
WINDOW = 100  # steps whose median gradient norm is the usual one


@dataclass(frozen=True, kw_only=True)
class GradientLimits:
    """Limits of a step's gradient: larger norms are clipped, and spikes are skipped.

    Attributes:
        clip: maximum global norm (Pascanu et al. 2013); None: not clipped.
        skip_spikes: a step is skipped if its norm is more than this many times the usual norm; None: never.
    """

    clip: float | None = 1.0
    skip_spikes: float | None = None


def locate_nonfinite(
    model: nn.Module, forwards: Iterable[Callable[[], Tensor]], agree: Callable[[str], str] = lambda origin: origin
) -> str:
    """Returns where NaN or infinity first appears, in a few words; call this before the optimiser's step.

    It is the path of the first module in forward order that turns finite inputs into NaN or infinity. If all losses
    are finite, it is the first parameter in backward order whose gradient is not finite.

    Args:
        model: the model.
        forwards: functions that compute the loss of each micro-batch again, with the same weights and random numbers.
        agree: given what this rank found ("" for nothing), returns what all ranks report.
    """
    order: list[tuple[str, nn.Module]] = []
    origin = ""
    for forward in forwards:
        order.clear()
        with _check_modules(model, order) as faulty, torch.no_grad():
            loss = forward()
        origin = origin or (_describe(*faulty[0]) if faulty else "" if is_finite(loss) else LOSS)
    if origin := agree(origin):
        return origin
    # The gradient of a tied weight is complete after the last use in backward order, the first in forward order.
    used: dict[int, tuple[str, nn.Parameter]] = {}
    for path, module in order:
        for name, parameter in reversed(list(module.named_parameters(prefix=path, recurse=False))):
            used.setdefault(id(parameter), (name, parameter))
    for name, parameter in reversed(used.values()):
        if parameter.grad is not None and not is_finite(parameter.grad):
            return f"the gradient of {name}"
    return "the sum over all gradients, each of which is finite"


def _describe(path: str, module: nn.Module) -> str:
    parameters = [name for name, p in module.named_parameters(recurse=False) if not is_finite(p)]
    return f"{path}, whose {' and '.join(parameters)} is not finite" if parameters else path


@contextmanager
def _check_modules(model: nn.Module, order: list[tuple[str, nn.Module]]) -> Iterator[list[tuple[str, nn.Module]]]:
    """While the block runs, appends each module to ``order`` when its forward pass ends; yields a list that will hold
    the first faulty module.
    """
    running: list[tuple[str, nn.Module]] = [("the loss function", model)]
    faulty: list[tuple[str, nn.Module]] = []

    def before(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, keywords: Any) -> None:
            # Inputs that are not finite although all outputs were: the caller computed them. A mask may hold −∞.
            if not faulty and not all(is_finite(tensor, mask=True) for tensor in _tensors((args, keywords))):
                faulty.append(running[-1])
            running.append((path, module))

        return hook

    def after(module: nn.Module, args: Any, keywords: Any, output: Any) -> None:
        path_and_module = running.pop()
        order.append(path_and_module)
        if not faulty and not all(map(is_finite, _tensors(output))):
            faulty.append(path_and_module)

    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(before(path or "the model"), with_kwargs=True))
        handles.append(module.register_forward_hook(after, with_kwargs=True))
    try:
        yield faulty
    finally:
        for handle in handles:
            handle.remove()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def is_finite(tensor: Tensor, *, mask: bool = False) -> bool:
    """Returns True if all numbers of a tensor, or of this rank's shard, are finite; a ``mask`` may also hold −∞."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if not local.is_floating_point():
        return True
    return bool(torch.isfinite(local.clamp(min=0) if mask else local).all())


def largest_gradient(model: nn.Module, norm: Callable[[list[Tensor]], Tensor]) -> str:
    """Returns the parameter with the largest gradient, and its share of the squared norm; all ranks must call this.

    For example ``decoder.block.2.attention.out.weight has 83 % of the squared norm``. ``norm`` returns the norm of a
    list of gradients.
    """
    squares = {name: norm([p.grad]).item() ** 2 for name, p in model.named_parameters() if p.grad is not None}
    if not_finite := next((name for name, square in squares.items() if not math.isfinite(square)), None):
        return f"the gradient of {not_finite} is not finite"
    name = max(squares, key=squares.__getitem__)
    return f"{name} has {100 * squares[name] / sum(squares.values()):.0f} % of the squared norm"


def spike_ratio(norms: list[float], norm: float) -> float:
    """Returns a step's gradient norm divided by the median of the last ``norms``; 0 until there are 100 of them.

    Adds ``norm`` to the list and drops the oldest: gradients that stay large become the usual ones.
    """
    usual = statistics.median(norms) if len(norms) == WINDOW else 0.0
    norms.append(norm)
    del norms[:-WINDOW]
    return norm / usual if usual else 0.0
