"""Optimises a model for inference: fused projections, prepacked or quantised weights, the plan of its device."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from heedful.adapters import merge
from heedful.config import LanguageHead, MaskedHead
from heedful.errors import HeedfulError, nearest
from heedful.kernels.allocator import keep_few_kernels, keep_memory
from heedful.kernels.fused_projections import FusedAttention, plain_linear
from heedful.kernels.onednn_linear import has_onednn
from heedful.kernels.plan import apply_plan
from heedful.kernels.prepacked_linear import (
    Activation,
    HalfLinear,
    Int4Linear,
    Int8Linear,
    PackedLinear,
    WholeLinear,
)
from heedful.layers.attention import Attention
from heedful.layers.feedforward import FeedForward
from heedful.layers.linear import Linear
from heedful.models.base import Model
from heedful.stack import Block

M = TypeVar("M", bound=Model)

# how linear maps are kept, and the type of all else beside them
KINDS: dict[str, tuple[type[PackedLinear] | None, torch.dtype]] = {
    "float64": (None, torch.float64),
    "float32": (WholeLinear, torch.float32),
    "bfloat16": (WholeLinear, torch.bfloat16),
    "float16": (HalfLinear, torch.float32),
    "int8": (Int8Linear, torch.float32),
    "int4": (Int4Linear, torch.float32),
}
LOW = ("int8", "int4")  # what only a CPU has


@torch.no_grad()
def optimize(model: M, dtype: str | torch.dtype | None = None) -> M:
    """Optimises a model for inference, in place and for good: the same outputs, sooner.

    On a CPU the weights of its linear maps are prepacked (``heedful.kernels.prepacked_linear``) and are parameters no
    more; anywhere the projections of self-attention become one product. The plan "cpu-inference" or "gpu" is applied
    (``heedful.kernels.plan``): on a CPU no work is done on padding, whose rows of the stream are zeros, nor in the last
    block on tokens that the head does not read. An adapter is merged first. Such a model generates,
    predicts and is recorded as before; while it is recorded, padding and all tokens are computed, and outputs are equal
    to rounding. It can no longer be trained, saved or taken apart: load it anew for that. The process keeps freed
    memory for what comes next (``heedful.kernels.allocator``).

    Args:
        model: any; it is returned, in evaluation mode.
        dtype: "float32", "bfloat16" or "float64"; "float16", on a CPU weights of float16 and arithmetic in float32;
            "int8" and "int4", on a CPU alone: weights of so many bits in the blocks and the vocabulary's map
            (``Int8Linear``, ``Int4Linear``), all else float32. None: as the model is.

    Raises:
        HeedfulError: for an unknown type, one that the weights, the device or this CPU cannot have, and a model that is
            optimised already.

    >>> import heedful
    >>> model = optimize(heedful.create("gpt-micro", seed=0), "int8")
    >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5).shape
    torch.Size([1, 8])
    """
    if model.optimised:
        raise HeedfulError(f"the model is optimised already, in {model.optimised}; load it anew for another type")
    name = str(model.dtype if dtype is None else dtype).removeprefix("torch.")
    if name not in KINDS:
        raise HeedfulError(f"dtype {name!r} is no type of an optimised model; {nearest(name, KINDS)}")
    kind, rest = KINDS[name]
    keep_few_kernels()
    if model.device.type != "cpu":
        if name in LOW:
            raise HeedfulError(f"{name} weights are for a CPU, the model is on {model.device}; take bfloat16")
        kind, rest = None, getattr(torch, name)
    if kind is WholeLinear and not has_onednn(rest):
        kind = None  # plain maps, then
    if kind is not None and kind is not WholeLinear:
        _check(model, name, kind)
    if model.adapter is not None:
        merge(model)
    model.to(rest).requires_grad_(False)
    count = model.count()

    whole: type[PackedLinear] | None = WholeLinear if kind is not None and has_onednn(rest) else None
    for block in [part for part in model.modules() if isinstance(part, Block)]:
        _fuse(block, kind)
    words = isinstance(model.config.head, LanguageHead | MaskedHead)
    for path, part in _linears(model):
        many = ".block." in path or (words and path == "head.output")
        parent, _, last = path.rpartition(".")
        setattr(model.get_submodule(parent), last, _packed(kind if many else whole, part.weight, part.bias))
    if model.device.type == "cpu":  # elsewhere a call for each length may cost more than padding does
        apply_plan(model, "cpu-inference")
        keep_memory()
    else:
        apply_plan(model, "gpu")
    model.optimised, model.prepacked = name, count - model.count()
    return model.eval()  # new parts too


def stored_as(dtype: str | torch.dtype | None, device: torch.device) -> str | torch.dtype | None:
    """The type in which to open a model that is to be prepared in ``dtype`` on ``device``.

    >>> stored_as("int8", torch.device("cpu")), stored_as("bfloat16", torch.device("cpu"))
    (torch.float32, torch.bfloat16)
    """
    name = str(dtype).removeprefix("torch.")
    if name in LOW or (name in KINDS and device.type == "cpu"):
        return KINDS[name][1]
    return dtype


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """The linear maps that are there now, by path."""
    yield from [(path, part) for path, part in model.named_modules() if type(part) is Linear]


def _packed(
    kind: type[PackedLinear] | None, weight: Tensor, bias: Tensor | None, activation: Activation | None = None
) -> nn.Module:
    return plain_linear(weight, bias) if kind is None else kind(weight, bias, activation)


def _fuse(block: nn.Module, kind: type[PackedLinear] | None) -> None:
    """One product for the three of self-attention; the activation goes into the map before it."""
    if type(block.attention) is Attention:
        block.attention = FusedAttention(block.attention, partial(_packed, kind))
    feed = block.feed_forward
    if kind is not None and isinstance(feed, FeedForward):
        name = "up" if feed.gate is None else "gate"
        part = getattr(feed, name)
        setattr(feed, name, kind(part.weight, part.bias, feed.activation))
        feed.activation = _done


def _done(x: Tensor) -> Tensor:
    """The activation of a map that was made with it."""
    return x


def _check(model: nn.Module, name: str, kind: type[PackedLinear]) -> None:
    """Raise before anything is changed."""
    for path, part in _linears(model):
        if ".block." in path:
            try:
                kind.check(part.weight)
            except HeedfulError as error:
                raise HeedfulError(f"{path}: {error}") from None
