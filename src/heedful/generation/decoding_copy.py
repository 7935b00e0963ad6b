"""Optimised copy of a model that is not optimised, with which ``Model.generate`` decodes from its second call on.

The copy shares the weights of the model, and has those of the decoder in a second order, that of the compiled kernels.
It is used as long as the model is as it was when the copy was made, to the last bit of its weights.
"""

from __future__ import annotations

from threading import Lock, Thread
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module

from heedful.errors import HeedfulError
from heedful.kernels import few_rows
from heedful.kernels.compiled_step import has_compiled_steps
from heedful.kernels.few_rows import compiled_linear_factory
from heedful.kernels.onednn_linear import has_onednn, onednn_linear
from heedful.kernels.plan import AUTO, apply_plan, make_weights_contiguous
from heedful.kernels.prepacked_linear import PrepackedLinear
from heedful.optimize_model import generates, replace_decoding_linears
from heedful.util.machine import available_memory

FEWEST = 8  # new tokens of a call from which the check of the weights, which takes as long as a token, pays
OWN = ("training", "kernels", "observers", "compiling", "decoding_copy")  # attributes that say nothing about the result
SIMPLE = (int, float, bool, str, type(None))


class SharedLinear(PrepackedLinear):
    """Weights in the order of the model, with which they are shared."""

    def pack(self, *numbers: Tensor) -> None:
        """Keeps the weight."""
        (self.shared,) = numbers

    @property
    def weight(self) -> Tensor:
        """W (out, into)."""
        return self.shared

    def product(self, rows: Tensor) -> Tensor:
        """Returns act(rows Wᵀ + b)."""
        multiply = onednn_linear if rows.dtype is torch.float32 and has_onednn(torch.float32) else F.linear
        return self.activated(multiply(rows, self.shared, self.bias))


class DecodingCopy:
    """The copy of one model, and the state of the model for which it was made."""

    def __init__(self) -> None:
        self.seen: Any = None  # the model's state in the last call
        self.checksum = 0
        self.model: Any = None
        self.is_refused = False
        self.one_call = Lock()

    def of(self, model: Any, new_tokens: Any) -> Any:
        """Returns the copy if it may decode ``new_tokens``, an option of the call, and otherwise ``model``."""
        is_short = isinstance(new_tokens, int) and new_tokens < FEWEST
        if is_short or not _is_plain(model, parts := [*model.modules()]):
            return model
        make_weights_contiguous(model)
        with self.one_call:
            state = _state(parts)
            if state != self.seen:  # the first call, or the model was trained or changed since the last one
                self.seen, self.model, self.is_refused = state, None, False
                return model
            if self.is_refused or not _library_is_ready():
                return model
            checksum = _checksum(parts)
            if self.model is None or checksum != self.checksum:
                self.model, self.checksum = _compiled(model), checksum
                self.is_refused = self.model is None
            return model if self.model is None else self.model


def _is_plain(model: Any, parts: list[nn.Module]) -> bool:
    """Returns True for a model on a CPU, with floating-point weights, that nobody observes or has changed."""
    if model.kernels != AUTO or model.optimised or model.adapter is not None or model.observers:
        return False
    if model.device.type != "cpu" or not generates(model):
        return False
    if model.dtype not in (torch.float32, torch.bfloat16) or not has_onednn(model.dtype):
        return False
    if module._global_forward_hooks or module._global_forward_pre_hooks:
        return False
    if any(type(tensor.data) is not Tensor or not _is_dense(tensor) for tensor in _tensors(parts)):
        return False  # sharded, or a view
    return not any(
        part._forward_hooks
        or part._forward_pre_hooks
        or "forward" in vars(part)
        or vars(part).get("probe") is not None
        or not type(part).__module__.startswith(("heedful.", "torch."))
        or any(isinstance(value, Tensor) for value in vars(part).values())
        for part in parts
    )


class _Same:
    """Equal to the same object alone, which it keeps."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


def _state(parts: list[nn.Module]) -> Any:
    """Returns the model's parts, their attributes and the versions of its tensors, to be compared with a later state.

    A tensor that is written by its ``data`` keeps its version: the checksum finds it.
    """
    attributes = [(type(part), _attributes(part)) for part in parts]
    tensors = [(tensor.data_ptr(), _version(tensor), tensor.shape) for tensor in _tensors(parts)]
    return attributes, tensors


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # those of inference have none


def _attributes(part: nn.Module) -> dict[str, Any]:
    return {
        name: value if isinstance(value, SIMPLE) else _Same(value)
        for name, value in vars(part).items()
        if name not in OWN
    }


def _tensors(parts: list[nn.Module]) -> list[Tensor]:
    """Returns the parameters and buffers of parts, each once."""
    tensors = (tensor for part in parts for tensor in (*part._parameters.values(), *part._buffers.values()))
    return [*{id(tensor): tensor for tensor in tensors if tensor is not None}.values()]


def _checksum(parts: list[nn.Module]) -> int:
    """Returns a number of all weights' bits."""
    total = 0
    for tensor in _tensors(parts):
        total = (total * 3 + few_rows.checksum(tensor)) % 2**64
    return total


_compiling: list[Thread] = []


def _library_is_ready() -> bool:
    """Returns True if the compiled kernels are there; otherwise they are compiled in the background."""
    try:
        if few_rows.is_ready():
            return True
    except HeedfulError:
        return False
    if not _compiling:
        _compiling.append(Thread(target=_compile, name="heedful-compiling", daemon=True))
        _compiling[0].start()
    return False


def _compile() -> None:
    try:
        few_rows.library()
    except HeedfulError:
        return  # nobody asked for it


def _compiled(model: Any) -> Any:
    """Returns the copy; None if the compiled kernels lack a part of the model, or the memory has no room for it."""
    needed = sum(part.numel() * part.element_size() for part in model.decoder.parameters())
    free = available_memory()
    if free is not None and 2 * needed > free:
        return None
    with torch.inference_mode(False), torch.no_grad():
        copied = _shallow(model, {})
        copied.decoding_copy = None
        copied.eval()
        try:
            replace_decoding_linears(copied, compiled_linear_factory(SharedLinear, waits=False))
        except HeedfulError:  # a part, such as an activation, that has no kernel
            return None
    apply_plan(copied, "cpu-compiled")
    return copied if has_compiled_steps(copied.decoder) else None


def _shallow(part: Any, copies: dict[int, Any]) -> Any:
    """Returns a copy of a part and of those below it, which shares all tensors and attributes."""
    if id(part) not in copies:
        copies[id(part)] = copied = object.__new__(type(part))
        vars(copied).update(vars(part))
        parameters = {name: _detached(tensor) for name, tensor in part._parameters.items()}
        buffers = {name: tensor if tensor is None else tensor.detach() for name, tensor in part._buffers.items()}
        vars(copied).update(_parameters=parameters, _buffers=buffers)
        children = {name: None if child is None else _shallow(child, copies) for name, child in part._modules.items()}
        vars(copied).update(_modules=children)
    return copies[id(part)]


def _detached(tensor: nn.Parameter | None) -> nn.Parameter | None:
    return None if tensor is None else nn.Parameter(tensor.detach(), requires_grad=False)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or (tensor.dim() == 2 and tensor.mT.is_contiguous())
