"""Scaled output layers: they are trained in another unit than the unit they are saved in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError
from heedful.layers.linear import ScaledLinear
from heedful.models import Model


def scale_output(head: nn.Module, factor: float, mean: float | None) -> None:
    """Replaces the output map of a head by a ``ScaledLinear`` in units of ``factor``, a power of two, for training.

    The module is replaced because the meaning of its parameters changes, as with quantised weights. Without ``mean``
    the head's function stays the same. With ``mean`` the weights keep their values instead, and the bias, if there is
    one, is set so that the output starts near the mean.
    """
    plain = getattr(head, "output", None)
    if not isinstance(plain, nn.Linear):  # a registered head
        raise HeedfulError(
            f"the head {type(head).__name__} has no linear map called output, which regression rescales; give it one"
        )
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


def saved_tensors(model: Model) -> dict[str, Tensor]:
    """Returns the tensors of a model as they are saved; those of a scaled output layer are converted to saved units."""
    state: dict[str, Tensor] = model.state_dict()
    for path, part in model.named_modules():
        if isinstance(part, ScaledLinear):
            for name, _ in part.named_parameters(recurse=False):
                state[f"{path}.{name}"] = state[f"{path}.{name}"] * part.factor
    return state
