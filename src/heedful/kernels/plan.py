"""Plans: the kernels that compute attention, linear maps, dropout and the layout of a batch.

Each part holds its kernel in one attribute: ``Attention.attend``, ``Linear.linear``, ``Dropout.dropout``,
``Residual.add``, ``Block.run`` and ``Stack.layout``. ``apply_plan`` writes these attributes and ``Model.kernels``, the
name of the plan, and nothing else: classes, ``forward`` and weights stay as they are. The plan ``plain`` is the
reference.

Custom parts are left alone: a subclass with its own ``forward``, an instance whose ``forward`` was replaced, and a part
whose attribute holds a callable that is in no plan.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from heedful.errors import HeedfulError, nearest
from heedful.kernels.allocator import keep_few_kernels, keep_memory
from heedful.kernels.blocked_attention import blocked_attention
from heedful.kernels.compiled_step import compiled_layout
from heedful.kernels.cpu_dropout import cpu_dropout
from heedful.kernels.fused_projections import FusedAttention
from heedful.kernels.onednn_linear import has_onednn, onednn_is_faster, onednn_linear, onednn_training_linear
from heedful.kernels.unpadded import unpadded_inference, unpadded_training
from heedful.kernels.varlen import gpu_attention, product_dtype, varlen_layout
from heedful.layers.attention import Attention
from heedful.layers.attention_kernels import Attend, explicit_attention, fused_attention
from heedful.layers.block import Add, Block, BlockCall, Residual, Sublayer, every_slot, run_sublayers
from heedful.layers.dropout import Drop, Dropout, DropPath
from heedful.layers.linear import AlignedLinear, Linear, Multiply, ScaledLinear
from heedful.layers.mask import Mask
from heedful.layers.norm import Identity
from heedful.stack import Layout, Stack, padded

M = TypeVar("M", bound=nn.Module)
AUTO = "auto"  # the value of Model.kernels before a plan is applied: as written, and generation chooses
LARGE = 2**17  # elements of a weight from which oneDNN saves more than the extra call in Python costs


def traceable_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float = 0.0
) -> Tensor:
    """Computes ``explicit_attention``: a tracer cannot follow the fused kernel, which compares two lengths."""
    return explicit_attention(q, k, v, mask, bias, scale, dropout)


def two_query_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Tensor | None, scale: float, dropout: float = 0.0
) -> Tensor:
    """Computes ``fused_attention``; a single query is computed twice, in inference on a CPU.

    The product of a matrix and a single query may round by the alignment of its memory, which differs from thread to
    thread; a product of two queries does not. Heads that share keys are several queries already.
    """
    if q.size(2) != 1 or q.size(1) != k.size(1):
        return fused_attention(q, k, v, mask, bias, scale, dropout)
    if isinstance(mask, str):
        mask = None  # a single query is the last token, which attends to all
    return fused_attention(q.repeat(1, 1, 2, 1), k, v, mask, bias, scale, dropout)[:, :, :1]


def filled_slots(
    residual: Residual, stream: Tensor, x: Tensor, real: Tensor | None, f: Sublayer, context: Mapping[str, Any]
) -> Tensor:
    """Computes ``every_slot`` without the calls that change nothing: empty slots, dropout in evaluation and of rate 0.

    Each call takes some microseconds, and a small decoder makes forty such calls per step.
    """
    slots: Any = residual._modules  # torch's attribute look-up takes as long as the call of an empty slot
    before, out, after = slots["before"], slots["out"], slots["after"]
    dropout, drop_path = slots["dropout"], slots["drop_path"]
    y = f(x if type(before) is Identity else before(x, real), **context)
    if type(out) is not Identity:
        y = out(y, real)
    if dropout.training and not (type(dropout) is Dropout and dropout.p == 0):
        y = dropout(y)
    if drop_path.training and not (type(drop_path) is DropPath and drop_path.rate == 0):
        y = drop_path(y)
    y = stream + y
    return y if type(after) is Identity else after(y, real)


def narrow_slots(
    residual: Residual, stream: Tensor, x: Tensor, real: Tensor | None, f: Sublayer, context: Mapping[str, Any]
) -> Tensor:
    """Computes ``filled_slots``; under autocast the sublayer gets its input in autocast's dtype.

    So it is cast once, not once for each linear map that reads it, as are its gradients.
    """
    dtype = product_dtype(x) if x.dtype is torch.float32 else x.dtype
    if dtype is x.dtype:
        return filled_slots(residual, stream, x, real, f, context)
    return filled_slots(residual, stream, x, real, lambda inner, **options: f(inner.to(dtype), **options), context)


def recomputed(sublayers: Callable[..., Tensor], *context: Any) -> Tensor:
    """Runs the sublayers of a block, and computes their activations again in the backward pass (Chen et al. 2016).

    Only the block's input is saved, and dropout is the same: memory holds the activations of one block instead of all
    blocks, for a third more computation. In training only.
    """
    if not (torch.is_grad_enabled() and sublayers.__self__.training):  # type: ignore[attr-defined]  # a method
        return sublayers(*context)
    output: Tensor = checkpoint(sublayers, *context, use_reentrant=False)
    return output


@cache
def _compiled(sublayers: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(sublayers)


def compiled(sublayers: Callable[..., Tensor], *context: Any) -> Tensor:
    """Runs the sublayers of a block, compiled by ``torch.compile``: one compilation serves all blocks of a stack.

    The first two lengths of a batch are compiled, for fixed shapes and for any; this takes a minute or two.
    """
    method: Any = sublayers
    return _compiled(method.__func__)(method.__self__, *context)


def recomputed_compiled(sublayers: Callable[..., Tensor], *context: Any) -> Tensor:
    """Runs the compiled sublayers of a block, and computes their activations again in the backward pass."""
    if not (torch.is_grad_enabled() and sublayers.__self__.training):  # type: ignore[attr-defined]  # a method
        return compiled(sublayers, *context)
    output: Tensor = checkpoint(compiled, sublayers, *context, use_reentrant=False)
    return output


def _plain_linear(part: Linear) -> Multiply:
    return F.linear


def _inference_linear(part: Linear) -> Multiply:
    """Returns the function that multiplies ``part`` in inference: oneDNN's for float32 on a CPU, else PyTorch's."""
    is_supported = part.weight.dtype is torch.float32 and part.weight.device.type == "cpu" and has_onednn(torch.float32)
    return onednn_linear if is_supported else F.linear


def _training_linear(part: Linear) -> Multiply:
    """Returns the function that multiplies ``part`` in training: oneDNN's for large float32 maps on most CPUs."""
    multiply = _inference_linear(part)
    is_large = multiply is onednn_linear and part.weight.numel() >= LARGE
    return onednn_training_linear if is_large and onednn_is_faster() else multiply


@dataclass(frozen=True)
class Plan:
    """Kernels of a model, by the kind of part.

    Attributes:
        name: shown by ``print(model)`` and ``Model.kernels``.
        attend: computes attention.
        linear: chooses the function that multiplies a linear map.
        dropout: computes the dropout of ``Dropout`` modules, not the dropout of adapters or attention weights.
        layout: runs a stack over a batch.
        run: runs the sublayers of a block.
        add: adds a sublayer's output to the residual stream.
    """

    name: str
    attend: Attend = fused_attention
    linear: Callable[[Linear], Multiply] = _plain_linear
    dropout: Drop = F.dropout
    layout: Layout = padded
    run: BlockCall = run_sublayers
    add: Add = every_slot

    def kernel(self, part: nn.Module, slot: str) -> Any:
        """Returns the kernel of a part whose attribute is ``slot``."""
        return self.linear(part) if isinstance(part, Linear) else getattr(self, slot)


PLANS = {
    plan.name: plan
    for plan in (
        Plan("plain"),
        Plan(
            "cpu-training",
            attend=blocked_attention,
            linear=_training_linear,
            dropout=cpu_dropout,  # and of attention weights, by the masks of the same file
            layout=unpadded_training,
            add=filled_slots,
        ),
        Plan(
            "cpu-inference",
            linear=_inference_linear,
            layout=unpadded_inference,
            add=filled_slots,
        ),
        Plan(
            "cpu-compiled",
            linear=_inference_linear,
            layout=compiled_layout,
            add=filled_slots,
        ),
        Plan("cpu-decoding", linear=_inference_linear, add=filled_slots),
        Plan("gpu", attend=gpu_attention, layout=varlen_layout, add=narrow_slots),
        Plan("export", attend=traceable_attention),
    )
}

# the attribute that holds a part's kernel, by the method that calls it
SLOTS: dict[Any, str] = {
    Attention.forward: "attend",
    FusedAttention.forward: "attend",
    Linear.forward: "linear",
    ScaledLinear.forward: "linear",
    AlignedLinear.forward: "linear",
    Dropout.forward: "dropout",
    Stack.forward: "layout",
    Block.forward: "run",
    Residual.forward: "add",
}
KERNELS: dict[str, tuple[Any, ...]] = {
    "attend": (fused_attention, two_query_attention, traceable_attention, blocked_attention, gpu_attention),
    "linear": (F.linear, onednn_linear, onednn_training_linear),
    "dropout": (F.dropout, cpu_dropout),
    "layout": (padded, unpadded_inference, unpadded_training, varlen_layout, compiled_layout),
    "run": (run_sublayers, recomputed, compiled, recomputed_compiled),
    "add": (every_slot, filled_slots, narrow_slots),
}


def slot_of(part: nn.Module) -> str | None:
    """Returns the attribute of a part that a plan may write; None for a part without a kernel and for a custom part.

    >>> slot_of(Linear(2, 3)), slot_of(nn.Linear(2, 3))
    ('linear', None)
    """
    slot = SLOTS.get(type(part).forward)
    if slot is None or "forward" in vars(part):
        return None
    current = vars(part)[slot]
    return slot if any(current is kernel for kernel in KERNELS[slot]) else None


def apply_plan(model: M, plan: str | Plan) -> M:
    """Replaces a model's kernels with those of a plan. Outputs stay equal up to rounding.

    The result does not depend on plans that were applied before. ``"plain"`` removes all kernels.

    Args:
        model: any module; it is returned.
        plan: "plain", "cpu-training", "cpu-inference", "cpu-compiled", "cpu-decoding", "gpu" or "export"; or a ``Plan``
            of your own. "cpu-compiled" needs a model that ``heedful.optimize`` made.

    Raises:
        HeedfulError: for an unknown name.

    >>> import heedful
    >>> model = apply_plan(heedful.create("bert-tiny", seed=0), "cpu-training")
    >>> model.kernels, model.encoder.layout.__name__
    ('cpu-training', 'unpadded_training')
    >>> apply_plan(model, "plain").encoder.layout.__name__
    'padded'
    """
    _write(model, plan_of(plan))
    return model


@contextmanager
def using(model: nn.Module, plan: str | Plan) -> Iterator[None]:
    """Applies a plan while entered; afterwards each part has its former kernel again.

    >>> import heedful
    >>> model = heedful.create("bert-tiny", seed=0)
    >>> with using(model, "cpu-training"):
    ...     print(model.kernels)
    cpu-training
    >>> model.kernels
    'auto'
    """
    changes = _write(model, plan_of(plan))
    try:
        yield
    finally:
        for part, slot, before, written in changes:
            if vars(part).get(slot) is written:  # it was not replaced meanwhile
                setattr(part, slot, before)


@contextmanager
def attending(model: nn.Module, attend: Attend | None) -> Iterator[None]:
    """Replaces PyTorch's fused attention by ``attend`` while entered; None changes nothing.

    Custom attention, and the kernels of other plans, stay.
    """
    parts = [] if attend is None else [part for part in model.modules() if slot_of(part) == "attend"]
    before = [(vars(part), part.attend) for part in parts if part.attend is fused_attention]
    for attributes, _ in before:
        attributes["attend"] = attend
    try:
        yield
    finally:
        for attributes, former in before:
            attributes["attend"] = former


def plan_of(plan: str | Plan) -> Plan:
    """Returns the plan called ``plan``, or ``plan`` if it is a ``Plan``; raises ``HeedfulError`` if there is none."""
    if isinstance(plan, Plan):
        return plan
    if plan not in PLANS:
        raise HeedfulError(f"unknown plan of kernels {plan!r}; {nearest(plan, PLANS)}")
    return PLANS[plan]


def _write(model: nn.Module, plan: Plan) -> list[tuple[nn.Module, str, Any, Any]]:
    """Writes the plan's kernels to the model's parts; returns the changes: part, attribute, old value, new value."""
    changes = []
    for part in model.modules():
        if isinstance(getattr(type(part), "kernels", None), str):  # a model
            slot, kernel = "kernels", plan.name
        elif (part_slot := slot_of(part)) is not None:
            slot, kernel = part_slot, plan.kernel(part, part_slot)
        else:
            continue
        if (before := getattr(part, slot)) is not kernel:
            setattr(part, slot, kernel)
            changes.append((part, slot, before, kernel))
    return changes


@contextmanager
def decoding_kernels(model: nn.Module) -> Iterator[None]:
    """Applies "cpu-decoding" while entered, unless the model already has a plan: then that plan stays."""
    if getattr(model, "kernels", AUTO) != AUTO:
        yield
        return
    make_weights_contiguous(model)
    with using(model, "cpu-decoding"):
        yield


def make_weights_contiguous(model: nn.Module) -> None:
    """Makes transposed float32 weights on a CPU, as GPT-2's files have them, contiguous, permanently.

    Transposed weights take twice the time. Their values stay the same.
    """
    for part in model.modules():
        if not isinstance(part, Linear) or slot_of(part) is None or _inference_linear(part) is F.linear:
            continue
        if not part.weight.is_contiguous():
            with torch.inference_mode(False):  # an inference tensor could not be trained
                part.weight.data = part.weight.data.contiguous()


def apply_training_plan(
    model: M,
    kernels: str = AUTO,
    *,
    device: torch.device | None = None,
    is_sharded: bool = False,
    recompute: bool = False,
    compile_blocks: bool = False,
) -> M:
    """Applies the fastest training plan of a device: "cpu-training" on a CPU, else "gpu".

    On a CPU the process also keeps freed memory for the next step (``heedful.kernels.allocator``).

    Args:
        model: on one device.
        kernels: "auto", or the name of a plan that is applied instead, such as "plain".
        device: the device on which the model will train; None: where it is.
        is_sharded: True if weights are sharded over ranks; training then uses PyTorch's products.
        recompute: True if activations are computed again in the backward pass (``recomputed``), with any plan.
        compile_blocks: True if ``torch.compile`` compiles the blocks (``compiled``). On a CPU "auto" is then "plain",
            whose kernels the compiler can read.

    Raises:
        HeedfulError: for an unknown plan, if blocks are to be compiled for a CPU without a C++ compiler, and if a
            block has a ``forward`` of its own, which is neither compiled nor computed again.

    >>> import heedful
    >>> apply_training_plan(heedful.create("bert-tiny", seed=0).to("cpu")).kernels
    'cpu-training'
    """
    on_cpu = (device or next(model.parameters()).device).type == "cpu"
    if compile_blocks and on_cpu and not shutil.which(os.environ.get("CXX", "g++")):
        raise HeedfulError("--training.compile needs a C++ compiler on a CPU; install g++, or leave it out")
    if kernels != AUTO:
        plan = plan_of(kernels)
    elif compile_blocks and on_cpu:
        keep_memory(any_size=True)
        plan = PLANS["plain"]
    elif not on_cpu:
        plan = PLANS["gpu"]
    else:
        keep_few_kernels()
        keep_memory(any_size=True)
        plan = PLANS["cpu-training"]
        if is_sharded:
            plan = replace(plan, linear=_inference_linear)
    runs = {(True, False): recomputed, (False, True): compiled, (True, True): recomputed_compiled}
    run = runs.get((recompute, compile_blocks), plan.run)
    apply_plan(model, replace(plan, run=run))
    left = next(
        (
            block
            for stack in model.modules()
            if isinstance(stack, Stack)
            for block in stack.block
            if getattr(block, "run", None) is not run
        ),
        None,
    )
    if left is not None and run is not plan.run:
        option = "--training.compile" if compile_blocks else "--training.gradient-checkpointing"
        raise HeedfulError(
            f"{option} has no effect on the block {type(left).__name__}, which has a forward of its own; leave it out, "
            "or override sublayers in the block instead of forward"
        )
    return model
