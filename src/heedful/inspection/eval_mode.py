"""Temporary evaluation mode, and a model without its wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from heedful.errors import HeedfulError
from heedful.models.base import Model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Context manager that puts ``model`` in evaluation mode, and restores the mode of every part at its end.

    >>> model = nn.Dropout(0.5)
    >>> with evaluating(model):
    ...     model.training
    False
    >>> model.training
    True
    """
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        yield
    finally:
        for module in training:
            module.training = True


def unwrap(model: nn.Module) -> Model:
    """Returns the model inside the wrappers of ``torch.compile`` and of data parallelism.

    >>> import heedful
    >>> unwrap(nn.DataParallel(heedful.create("gpt-micro", seed=0))).config.kind
    'decoder'
    """
    while not isinstance(model, Model):
        inner = getattr(model, "_orig_mod", getattr(model, "module", None))
        if not isinstance(inner, nn.Module):
            raise HeedfulError(f"a {type(model).__name__} is not a model of heedful; give one from heedful.create")
        model = inner
    return model
