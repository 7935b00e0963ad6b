"""Output maps that train in another unit than the one they are saved in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.layers.linear import ScaledLinear
from heedful.models import Model


def scale_output(head: nn.Module, factor: float, mean: float | None) -> None:
    """Stores the output map of a head in units of ``factor``, a power of two, for as long as it trains.

    The module is replaced because what its parameters mean changes, as with quantised weights: a plan changes only how
    they are used. The head's function stays the same; with a ``mean`` the weights stay as they are instead, and the
    bias, where there is one, begins so that the output is about the mean.
    """
    plain = head.get_submodule("output")
    assert isinstance(plain, nn.Linear)
    scaled = ScaledLinear(plain.in_features, plain.out_features, bias=plain.bias is not None, device="meta")
    scaled.weight, scaled.bias, scaled.factor = plain.weight, plain.bias, factor
    scaled.train(plain.training)
    with torch.no_grad():
        if mean is None:
            for parameter in scaled.parameters():
                parameter.div_(factor)
        elif scaled.bias is not None:
            scaled.bias.fill_(mean / factor)
    head.output = scaled


def stored(model: Model) -> dict[str, Tensor]:
    """Returns the tensors of a model as a folder holds them: those of a ``ScaledLinear`` in the unit of its output."""
    state: dict[str, Tensor] = model.state_dict()
    for path, part in model.named_modules():
        if isinstance(part, ScaledLinear):
            for name, _ in part.named_parameters(recurse=False):
                state[f"{path}.{name}"] = state[f"{path}.{name}"] * part.factor
    return state
