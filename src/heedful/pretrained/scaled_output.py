"""Linear output layers that train in another unit than the one they are saved in."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heedful.models import Model


class ScaledLinear(nn.Linear):
    """A linear map whose output is multiplied by ``factor``, a power of two; ``stored`` is the plain map's tensor."""

    factor: float = 1.0

    def forward(self, x: Tensor) -> Tensor:
        """(..., outputs)."""
        return super().forward(x) * self.factor

    def stored(self, tensor: Tensor) -> Tensor:
        """Returns a weight or bias of this map as that of a plain one."""
        return tensor * self.factor


def scale_output(head: nn.Module, factor: float, mean: float | None) -> None:
    """Lets the output map of a head learn in units of ``factor``. Its function stays the same, but with a ``mean`` the
    weights stay as they are and the bias, where there is one, begins so that the output is about the mean.
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
    """Returns the tensors of a model as a folder holds them: those of a ``ScaledLinear`` as a plain map's."""
    state: dict[str, Tensor] = model.state_dict()
    for path, part in model.named_modules():
        if isinstance(part, ScaledLinear):
            own = [f"{path}.{name}" for name, _ in part.named_parameters(recurse=False)]
            state |= {name: part.stored(state[name]) for name in own}
    return state
