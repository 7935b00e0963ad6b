"""Probes: read or edit the tensors that a layer computes. Imports only torch.

A ``Tap`` is one tensor on its way: what is to change it, then who is to see it. Most tensors go in or out of a module
and are tapped by hooks; those inside attention by an ``AttentionProbe``, which stands before the callable that attends
(``Attention.probe``) while anyone is there. Without one, nothing here runs. Nobody looks at a copy of a model, nor at
one that was pickled.

Shapes: B sequences, H heads, K key-value heads, T queries, S keys, E head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Edit = Callable[[Tensor], Tensor]
Read = Callable[[Tensor], None]
Attend = Callable[..., Tensor]


class Tap:
    """One tensor: each of ``edits`` changes it, in order, then each of ``reads`` sees a detached copy of its own.

    The copy may be used in autograd, in whichever mode the model runs.
    """

    def __init__(self) -> None:
        self.edits: list[Edit] = []
        self.reads: list[Read] = []

    def __bool__(self) -> bool:
        """True if anything reads or edits the tensor."""
        return bool(self.edits or self.reads)

    def __call__(self, tensor: Tensor) -> Tensor:
        """The tensor after all edits."""
        for edit in self.edits:
            tensor = edit(tensor)
        for read in self.reads:
            with torch.inference_mode(False):
                read(tensor.detach().clone())
        return tensor

    def __reduce__(self) -> tuple[type[Tap], tuple[()]]:
        """Its copy is a tap with nobody there."""
        return Tap, ()


def apart(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> tuple[Tensor, Tensor, Any]:
    """Keys, values and mask with a row for each of q's, where several share one."""
    if len(q) == len(k):
        return k, v, mask
    own = torch.arange(len(q), device=q.device) // (len(q) // len(k))
    return k[own], v[own], mask.expand(len(k), *mask.shape[1:])[own] if isinstance(mask, Tensor) else mask


class AttentionProbe:
    """Attends as ``attend`` does, with taps on queries, keys, values, and on what each head makes of them ("mixed")."""

    def __init__(self, attend: Attend) -> None:
        self.attend = attend
        self.taps = {name: Tap() for name in ("query", "key", "value", "mixed")}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, scale: float, dropout: float) -> Tensor:
        """The output of ``attend`` (B, H, T, E), untouched where nothing is to be changed."""
        own_k, own_v, own_mask = apart(q, k, v, mask)
        q, own_k, own_v = self.taps["query"](q), self.taps["key"](own_k), self.taps["value"](own_v)
        if self.taps["key"].edits + self.taps["value"].edits:  # otherwise rows go on sharing them, to the same bits
            k, v, mask = own_k, own_v, own_mask
        return self.taps["mixed"](self.attend(q, k, v, mask, scale, dropout))

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Its copy is None: nobody observes a copy of the attention."""
        return type(None), ()


class Hooked:
    """A tap on what goes into a module or comes out of it, for as long as anyone is there."""

    def __init__(self, part: nn.Module, side: str) -> None:
        self.tap = Tap()
        if side == "output":
            self.handle = part.register_forward_hook(partial(_made, self.tap))
        else:
            self.handle = part.register_forward_pre_hook(partial(_given, self.tap))


def _made(tap: Tap, module: nn.Module, given: tuple[Any, ...], made: Tensor) -> Tensor:
    return tap(made)


def _given(tap: Tap, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return tap(given[0]), *given[1:]
