"""Probes: read or edit the tensors that a layer computes.

A ``Tap`` is a tensor with functions that edit it and functions that read it. Most tensors are inputs or outputs of
modules and are tapped by hooks (``Hooked``). Tensors inside attention are tapped by an ``AttentionProbe``, which runs
in place of the attention kernel (``Attention.probe``) while it has edits or reads. A copied or unpickled model has no
probes.

Shapes: B sequences, H heads, K key-value heads, T queries, S keys, E head size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from heedful.layers.attention_kernels import Bias, repeat_shared_rows
from heedful.layers.mask import Mask
from heedful.layers.row_layout import AttendWithTerms

Edit = Callable[[Tensor], Tensor]
Read = Callable[[Tensor], None]


class Tap:
    """Tensor with ``edits``, which change it in order, and ``reads``, which then each receive a detached copy.

    The copy may be used in autograd, also if the model runs in inference mode.
    """

    def __init__(self) -> None:
        self.edits: list[Edit] = []
        self.reads: list[Read] = []

    def __bool__(self) -> bool:
        """True if anything reads or edits the tensor."""
        return bool(self.edits or self.reads)

    def __call__(self, tensor: Tensor) -> Tensor:
        """Returns the tensor after all edits."""
        for edit in self.edits:
            tensor = edit(tensor)
        for read in self.reads:
            with torch.inference_mode(False):
                read(tensor.detach().clone())
        return tensor

    def __reduce__(self) -> tuple[type[Tap], tuple[()]]:
        """Makes copies and pickles of the tap empty: without edits and reads."""
        return Tap, ()


class AttentionProbe:
    """Attention by ``attend`` with taps on queries, keys, values, and on the output of each head ("mixed")."""

    def __init__(self, attend: AttendWithTerms) -> None:
        self.attend = attend
        self.taps = {name: Tap() for name in ("query", "key", "value", "mixed")}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias, scale: float, dropout: float) -> Tensor:
        """Returns the output of ``attend`` (B, H, T, E) after all edits."""
        own_k, own_v, own_mask, own_bias = repeat_shared_rows(q, k, v, mask, bias)
        q, own_k, own_v = self.taps["query"](q), self.taps["key"](own_k), self.taps["value"](own_v)
        if self.taps["key"].edits + self.taps["value"].edits:  # otherwise rows share them still: equal to the bit
            k, v, mask, bias = own_k, own_v, own_mask, own_bias
        return self.taps["mixed"](self.attend(q, k, v, mask, bias, scale, dropout))

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Makes copies and pickles of the attention have no probe."""
        return type(None), ()


class Hooked:
    """Tap on the input or output of a module, by a hook."""

    def __init__(self, part: nn.Module, side: str) -> None:
        self.tap = Tap()
        if side == "output":
            self.handle = part.register_forward_hook(partial(_tap_output, self.tap))
        else:
            self.handle = part.register_forward_pre_hook(partial(_tap_input, self.tap))


def _tap_output(tap: Tap, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return tap(output)


def _tap_input(tap: Tap, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tap(inputs[0]), *inputs[1:]
