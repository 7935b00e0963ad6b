"""Plans: which kernel computes attention, linear maps, dropout and the layout of a batch, and how a model gets them.

Each part holds its kernel in one attribute: ``Attention.attend``, ``Linear.linear``, ``Dropout.dropout``,
``Residual.add``, ``Block.run`` and ``Stack.layout``. ``apply_plan`` writes these attributes and ``Model.kernels``, the
name of the plan, and nothing else: classes, ``forward`` and weights stay as they are. The plan ``plain`` is the
reference.

A part of one's own keeps what it has: a subclass with its own ``forward``, an instance whose ``forward`` was replaced,
and a part whose attribute holds a callable that is in no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from heedful.errors import HeedfulError, nearest
from heedful.kernels.allocator import keep_few_kernels, keep_memory
from heedful.kernels.blocked_attention import blocked_attention
from heedful.kernels.cpu_dropout import cpu_dropout
from heedful.kernels.fused_projections import FusedAttention
from heedful.kernels.onednn_linear import has_onednn, onednn_is_faster, onednn_linear, onednn_training_linear
from heedful.kernels.unpadded import (
    blocked_row_attention,
    fused_row_attention,
    unpadded_inference,
    unpadded_training,
)
from heedful.layers.attention import Attend, Attention, explicit_attention, fused_attention
from heedful.layers.dropout import Drop, Dropout
from heedful.layers.linear import Linear, Multiply, ScaledLinear
from heedful.layers.mask import Mask
from heedful.layers.norm import Identity
from heedful.stack import (
    Add,
    Block,
    Layout,
    Residual,
    Run,
    Stack,
    Sublayer,
    called,
    every_slot,
    padded,
)

M = TypeVar("M", bound=nn.Module)
AUTO = "auto"  # a model to which no plan was applied: as written, and generation chooses
LARGE = 2**17  # numbers of a weight from which on oneDNN saves more than another operation in Python costs


def traceable_attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float = 0.0) -> Tensor:
    """``explicit_attention``: a tracer cannot follow the fused one, which asks whether two lengths are equal."""
    return explicit_attention(q, k, v, mask, scale, dropout)


def filled_slots(residual: Residual, x: Tensor, real: Tensor | None, f: Sublayer, context: Mapping[str, Any]) -> Tensor:
    """``every_slot`` without the calls that change nothing: dropout in evaluation, empty slots.

    They take some microseconds each, and a small decoder makes forty of them a step.
    """
    slots: Any = residual._modules  # torch's own look-up of a module takes as long as the call of an empty slot
    if residual.training or slots["dropout"].training:
        return every_slot(residual, x, real, f, context)
    before, out, after = slots["before"], slots["out"], slots["after"]
    y = f(x if type(before) is Identity else before(x, real), **context)
    if type(out) is not Identity:
        y = out(y, real)
    y = x + y
    return y if type(after) is Identity else after(y, real)


def recomputed(sublayers: Callable[..., Tensor], *context: Any) -> Tensor:
    """Runs the sublayers of a block, forgets their activations, and computes them again in the backward pass.

    The block's input is kept, and dropout is the same: activations of one block instead of all, for a third more work
    (Chen et al. 2016). In training alone.
    """
    if not (torch.is_grad_enabled() and sublayers.__self__.training):  # type: ignore[attr-defined]  # a method
        return sublayers(*context)
    output: Tensor = checkpoint(sublayers, *context, use_reentrant=False)
    return output


def _plain(part: Linear) -> Multiply:
    return F.linear


def _by_onednn(part: Linear) -> Multiply:
    """Float32 maps on a CPU: through oneDNN in inference mode."""
    fits = part.weight.dtype is torch.float32 and part.weight.device.type == "cpu" and has_onednn(torch.float32)
    return onednn_linear if fits else F.linear


def _learning(part: Linear) -> Multiply:
    """Large float32 maps on a CPU that is not Intel's: through oneDNN in training too."""
    multiply = _by_onednn(part)
    large = multiply is onednn_linear and part.weight.numel() >= LARGE
    return onednn_training_linear if large and onednn_is_faster() else multiply


@dataclass(frozen=True)
class Plan:
    """Kernels of a model, by the kind of part.

    Attributes:
        name: what ``print(model)`` and ``Model.kernels`` say.
        attend: attention.
        linear: chooses the product of a linear map.
        dropout: dropout.
        layout: how a stack runs over a batch.
        run: how a block runs its sublayers.
        add: how a residual adds a sublayer's output.
    """

    name: str
    attend: Attend = fused_attention
    linear: Callable[[Linear], Multiply] = _plain
    dropout: Drop = F.dropout
    layout: Layout = padded
    run: Run = called
    add: Add = every_slot

    def kernel(self, part: nn.Module, slot: str) -> Any:
        """The kernel of a part whose attribute is ``slot``."""
        return self.linear(part) if isinstance(part, Linear) else getattr(self, slot)


PLANS = {
    plan.name: plan
    for plan in (
        Plan("plain"),
        Plan(
            "cpu-training",
            attend=blocked_row_attention,
            linear=_learning,
            dropout=cpu_dropout,
            layout=unpadded_training,
        ),
        Plan(
            "cpu-inference",
            attend=fused_row_attention,
            linear=_by_onednn,
            layout=unpadded_inference,
            add=filled_slots,
        ),
        Plan("cpu-decoding", linear=_by_onednn, add=filled_slots),
        Plan("gpu", add=filled_slots),
        Plan("export", attend=traceable_attention),
    )
}

# what computes a part, by the method that calls it: the attribute that holds it
SLOTS: dict[Any, str] = {
    Attention.forward: "attend",
    FusedAttention.forward: "attend",
    Linear.forward: "linear",
    ScaledLinear.forward: "linear",
    Dropout.forward: "dropout",
    Stack.forward: "layout",
    Block.forward: "run",
    Residual.forward: "add",
}
KERNELS: dict[str, tuple[Any, ...]] = {
    "attend": (
        *(fused_attention, fused_row_attention, traceable_attention),
        *(blocked_attention, blocked_row_attention),
    ),
    "linear": (F.linear, onednn_linear, onednn_training_linear),
    "dropout": (F.dropout, cpu_dropout),
    "layout": (padded, unpadded_inference, unpadded_training),
    "run": (called, recomputed),
    "add": (every_slot, filled_slots),
}


def slot_of(part: nn.Module) -> str | None:
    """The attribute of a part that a plan may write; None: the part has none, or is one's own.

    >>> slot_of(Linear(2, 3)), slot_of(nn.Linear(2, 3))
    ('linear', None)
    """
    slot = SLOTS.get(type(part).forward)
    if slot is None or "forward" in vars(part):
        return None
    held = vars(part)[slot]
    return slot if any(held is kernel for kernel in KERNELS[slot]) else None


def apply_plan(model: M, plan: str | Plan) -> M:
    """Puts the kernels of a plan on a model, in place of those of the plan before: the same outputs to rounding.

    Applying a plan twice is applying it once, and what plans came before makes no difference. ``"plain"`` removes all.

    Args:
        model: any module; it is returned.
        plan: "plain", "cpu-training", "cpu-inference", "cpu-decoding", "gpu" or "export"; or one of your own.

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
    """Applies a plan for as long as the context lasts; afterwards each part has the kernel that it had before.

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
            if vars(part).get(slot) is written:  # or another was put there meanwhile
                setattr(part, slot, before)


def plan_of(plan: str | Plan) -> Plan:
    """Returns the plan of a name; raises ``HeedfulError`` for an unknown one. A plan is returned as it is."""
    if isinstance(plan, Plan):
        return plan
    if plan not in PLANS:
        raise HeedfulError(f"there is no plan of kernels {plan!r}; {nearest(plan, PLANS)}")
    return PLANS[plan]


def _write(model: nn.Module, plan: Plan) -> list[tuple[nn.Module, str, Any, Any]]:
    """Writes the attributes; returns those that changed: part, attribute, value before, value now."""
    changes = []
    for part in model.modules():
        if isinstance(getattr(type(part), "kernels", None), str):  # a model
            slot, kernel = "kernels", plan.name
        elif (found := slot_of(part)) is not None:
            slot, kernel = found, plan.kernel(part, found)
        else:
            continue
        if (before := getattr(part, slot)) is not kernel:
            setattr(part, slot, kernel)
            changes.append((part, slot, before, kernel))
    return changes


@contextmanager
def decoding(model: nn.Module) -> Iterator[None]:
    """Applies "cpu-decoding" while a model generates, unless a plan was applied to it, which then stays.

    Float32 weights on a CPU that lie turned, as GPT-2's files have them, are first laid row after row, for good: read
    turned, they take twice the time. Their numbers stay the same.
    """
    if getattr(model, "kernels", AUTO) != AUTO:
        yield
        return
    for part in model.modules():
        if not isinstance(part, Linear) or slot_of(part) is None or _by_onednn(part) is F.linear:
            continue
        if not part.weight.is_contiguous():
            with torch.inference_mode(False):  # or it could never learn again
                part.weight.data = part.weight.data.contiguous()
    with using(model, "cpu-decoding"):
        yield


def apply_training_plan(model: M, kernels: str = AUTO, *, whole: bool = True, recompute: bool = False) -> M:
    """Applies the plan under which a model learns fastest on its device: "cpu-training" on a CPU, else "gpu".

    On a CPU the process then keeps freed memory for the next step, too (``heedful.kernels.allocator``).

    Args:
        model: its parameters say where it lies.
        kernels: "auto", or the name of a plan that is applied instead: "plain".
        whole: whether every weight lies whole in this process; products of sharded ones stay PyTorch's.
        recompute: whether blocks forget their activations and compute them again (``recomputed``), whatever the plan.

    >>> import heedful
    >>> apply_training_plan(heedful.create("bert-tiny", seed=0).to("cpu")).kernels
    'cpu-training'
    """
    if kernels != AUTO:
        plan = plan_of(kernels)
    elif next(model.parameters()).device.type != "cpu":
        plan = PLANS["gpu"]
    else:
        keep_few_kernels()
        keep_memory(any_size=True)
        plan = PLANS["cpu-training"]
        if not whole:
            plan = replace(plan, linear=_by_onednn)
    return apply_plan(model, replace(plan, run=recomputed) if recompute else plan)
