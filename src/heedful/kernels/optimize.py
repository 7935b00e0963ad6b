"""Optimises a model for inference: fused projections, prepacked or quantised weights, and the plan of its device."""

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
    FloatLinear,
    HalfLinear,
    Int4Linear,
    Int8Linear,
    PrepackedLinear,
)
from heedful.layers.attention import Attention
from heedful.layers.feedforward import FeedForward
from heedful.layers.linear import Linear
from heedful.models.base import Model
from heedful.stack import Block

M = TypeVar("M", bound=Model)

# the class of prepacked linear maps, and the type of all other weights
KINDS: dict[str, tuple[type[PrepackedLinear] | None, torch.dtype]] = {
    "float64": (None, torch.float64),
    "float32": (FloatLinear, torch.float32),
    "bfloat16": (FloatLinear, torch.bfloat16),
    "float16": (HalfLinear, torch.float32),
    "int8": (Int8Linear, torch.float32),
    "int4": (Int4Linear, torch.float32),
}
CPU_ONLY = ("int8", "int4")


@torch.no_grad()
def optimize(model: M, dtype: str | torch.dtype | None = None) -> M:
    """Optimises a model for inference, in place and permanently: the same outputs in less time.

    - The projections of self-attention become one product.
    - On a CPU the weights of linear maps are prepacked (``heedful.kernels.prepacked_linear``); they are no parameters
      any more.
    - The plan "cpu-inference" or "gpu" is applied (``heedful.kernels.plan``). On a CPU it skips padding, whose rows of
      the stream are zeros, and in the last block the tokens that the head does not read.
    - An adapter is merged first.
    - The process keeps freed memory for later tensors (``heedful.kernels.allocator``).

    The model generates, predicts and is recorded as before. While it is recorded, padding and all tokens are computed;
    outputs are equal up to rounding. It can no longer be trained, saved or pruned: load it anew for that.

    Args:
        model: any; it is returned, in evaluation mode.
        dtype: "float32", "bfloat16" or "float64"; "float16", on a CPU weights of float16 and arithmetic in float32;
            "int8" and "int4", on a CPU only: weights of 8 or 4 bits in the blocks and the output projection to a
            vocabulary (``Int8Linear``, ``Int4Linear``), all others float32. None: the model's type.

    Raises:
        HeedfulError: for an unknown type, one that the weights, the device or this CPU do not support, and a model that
            is optimised already.

    >>> import heedful
    >>> model = optimize(heedful.create("gpt-micro", seed=0), "int8")
    >>> model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5).shape
    torch.Size([1, 8])
    """
    if model.optimised:
        raise HeedfulError(f"the model is optimised already, in {model.optimised}; load it anew for another type")
    name = str(model.dtype if dtype is None else dtype).removeprefix("torch.")
    if name not in KINDS:
        raise HeedfulError(f"dtype {name!r} is not a type of optimised models; {nearest(name, KINDS)}")
    keep_few_kernels()
    kind, other_dtype = _linear_kind(model, name)
    if model.adapter is not None:
        merge(model)
    model.to(other_dtype).requires_grad_(False)
    count = model.count()
    _replace_linears(model, kind, FloatLinear if kind is not None and has_onednn(other_dtype) else None)
    if model.device.type == "cpu":  # on a GPU a call for each length may cost more than padding
        apply_plan(model, "cpu-inference")
        keep_memory()
    else:
        apply_plan(model, "gpu")
    model.optimised, model.prepacked = name, count - model.count()
    return model.eval()  # includes the new parts


def _linear_kind(model: Model, name: str) -> tuple[type[PrepackedLinear] | None, torch.dtype]:
    """Returns the class of prepacked linear maps (None for plain ones) and the type of all other weights.

    Raises ``HeedfulError`` for a type that the device or the weights do not support.
    """
    kind, other_dtype = KINDS[name]
    if model.device.type != "cpu":
        if name in CPU_ONLY:
            raise HeedfulError(f"{name} weights are for a CPU, the model is on {model.device}; take bfloat16")
        return None, getattr(torch, name)
    if kind is FloatLinear:
        return FloatLinear if has_onednn(other_dtype) else None, other_dtype
    if kind is not None:
        _check(model, kind)
    return kind, other_dtype


def _replace_linears(
    model: Model, kind: type[PrepackedLinear] | None, small_kind: type[PrepackedLinear] | None
) -> None:
    """Fuses blocks and replaces all linear maps: by ``kind`` in blocks and for a vocabulary, else ``small_kind``."""
    for block in [part for part in model.modules() if isinstance(part, Block)]:
        _fuse(block, kind)
    has_vocabulary = isinstance(model.config.head, LanguageHead | MaskedHead)
    for path, part in _linears(model):
        is_large = ".block." in path or (has_vocabulary and path == "head.output")
        parent, _, last = path.rpartition(".")
        setattr(model.get_submodule(parent), last, _packed(kind if is_large else small_kind, part.weight, part.bias))


def stored_as(dtype: str | torch.dtype | None, device: torch.device) -> str | torch.dtype | None:
    """Returns the type in which to load a model that is then optimised to ``dtype`` on ``device``.

    >>> stored_as("int8", torch.device("cpu")), stored_as("bfloat16", torch.device("cpu"))
    (torch.float32, torch.bfloat16)
    """
    name = str(dtype).removeprefix("torch.")
    if name in CPU_ONLY or (name in KINDS and device.type == "cpu"):
        return KINDS[name][1]
    return dtype


def _linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """Yields the present linear maps with their paths."""
    yield from [(path, part) for path, part in model.named_modules() if type(part) is Linear]


def _packed(
    kind: type[PrepackedLinear] | None, weight: Tensor, bias: Tensor | None, activation: Activation | None = None
) -> nn.Module:
    return plain_linear(weight, bias) if kind is None else kind(weight, bias, activation)


def _fuse(block: nn.Module, kind: type[PrepackedLinear] | None) -> None:
    """Fuses the projections of self-attention, and the activation with the linear map before it."""
    if type(block.attention) is Attention:
        block.attention = FusedAttention(block.attention, partial(_packed, kind))
    feed_forward = block.feed_forward
    if kind is not None and isinstance(feed_forward, FeedForward):
        name = "up" if feed_forward.gate is None else "gate"
        part = getattr(feed_forward, name)
        setattr(feed_forward, name, kind(part.weight, part.bias, feed_forward.activation))
        feed_forward.activation = _identity


def _identity(x: Tensor) -> Tensor:
    """Activation of a feed-forward whose linear map includes it."""
    return x


def _check(model: nn.Module, kind: type[PrepackedLinear]) -> None:
    """Raises ``HeedfulError`` for weights of blocks that ``kind`` does not support."""
    for path, part in _linears(model):
        if ".block." in path:
            try:
                kind.check(part.weight)
            except HeedfulError as error:
                raise HeedfulError(f"{path}: {error}") from None
