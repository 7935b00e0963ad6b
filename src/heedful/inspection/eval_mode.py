"""Unwraps a model, and puts it in evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from heedful.errors import HeedfulError
from heedful.models.base import Model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts ``model`` in evaluation mode while entered; afterwards every part is in the mode that it was in.

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


def plain(model: nn.Module) -> Model:
    """The model itself, out of what ``torch.compile`` or data parallelism wrapped it in.

    >>> import heedful
    >>> plain(nn.DataParallel(heedful.create("gpt-micro", seed=0))).config.kind
    'decoder'
    """
    while not isinstance(model, Model):
        inner = getattr(model, "_orig_mod", getattr(model, "module", None))
        if not isinstance(inner, nn.Module):
            raise HeedfulError(f"a model of heedful is wanted, not a {type(model).__name__}")
        model = inner
    return model
