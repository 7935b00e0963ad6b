"""The loss of an output map and its gradient, made in one pass over the logits; of a large map, some rows at a time.

For x (N, D), the output map's W (V, D) and b (V,), and labels y (N,), with ε the label smoothing,

.. math:: L = \\sum_i (1 - ε)(-\\log p_i(y_i)) + \\frac{ε}{V} \\sum_v -\\log p_i(v), \\quad p_i = softmax(W x_i + b)

and its gradient by the logits is p − (1 − ε) onehot(y) − ε/V. On a CPU both are made of a few rows at a time, which
stay in the cache from the softmax to the gradient. Of a large map those by x, W and b are made in the same pass, while
a chunk's logits are still at hand, so that the logits of a batch are never held (as in Hsu et al. 2024, Liger Kernel,
section 3.2).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from heedful.heads import LanguageModel, MaskedLanguageModel
from heedful.inference.linear import Direct, best_by_onednn, pointwise
from heedful.inference.unpadded import watched
from heedful.tasks.shared import IGNORED

CHUNK = 2**25  # logits at a time
BLOCK = 2**18  # of them that stay in the cache of a core
MANY = 4 * CHUNK  # from so many on: of fewer, a loss in chunks is slower, as each adds to the gradient of W


def learned(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """L, in float32 at least, and its gradient by the logits (N, V), in their type."""
    loss = logits.new_zeros((), dtype=torch.promote_types(logits.dtype, torch.float32))
    gradient, words = torch.empty_like(logits), logits.size(1)
    size = max(1, BLOCK // words) if logits.device.type == "cpu" else max(1, len(logits))
    for some, y, out in zip(logits.split(size), labels.split(size), gradient.split(size), strict=True):
        ignored, y = y == IGNORED, y.clamp(min=0)[:, None]
        logs = torch.log_softmax(some.to(loss.dtype), 1)  # its own change of type is four times slower on a CPU
        each = (smoothing - 1) * logs.gather(1, y)[:, 0]
        if smoothing:
            each -= smoothing / words * logs.sum(1)
        loss += each.masked_fill_(ignored, 0.0).sum()
        p = logs.exp_().scatter_add_(1, y, logs.new_full(y.shape, smoothing - 1))
        if smoothing:
            p -= smoothing / words
        if logits.device.type != "cpu" or ignored.any():  # elsewhere the device would have to be waited for
            p.masked_fill_(ignored[:, None], 0.0)
        out.copy_(p)
    return loss, gradient


class AtOnce(torch.autograd.Function):
    """L, a number, from logits (N, V), y (N,) and ε."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Also the gradient, kept for ``backward``."""
        loss, gradient = learned(logits, labels, smoothing)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """That of the logits, for a loss that is ``scale`` times L."""
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(scale.item()), None, None  # in place: a second time is an error


class InChunks(torch.autograd.Function):
    """L, a number, from x (N, D), W (V, D), b (V,) or None, y (N,) and ε."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, smoothing: float) -> Tensor:
        """Also the gradients, kept for ``backward``."""
        device, (into_x, into_weight, into_bias) = x.device.type, ctx.needs_input_grad[:3]
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        with torch.autocast(device, enabled=False):
            w, b = weight.to(dtype), None if bias is None else bias.to(dtype)
            direct = device == "cpu" and dtype is torch.float32 and best_by_onednn()
            product = pointwise if direct else F.linear
            loss = x.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
            dx = torch.empty_like(x) if into_x else None
            dw = torch.zeros_like(weight, dtype=loss.dtype) if into_weight else None
            db = torch.zeros_like(bias, dtype=loss.dtype) if into_bias and bias is not None else None
            size = max(1, CHUNK // len(weight))
            for rows, y, place in zip(x.split(size), labels.split(size), range(0, len(x), size), strict=True):
                rows = rows.to(dtype)
                one, p = learned(product(rows, w, b), y, smoothing)
                loss += one
                if dx is not None:
                    dx[place : place + size] = product(p, w.mT, None)
                if dw is not None and dtype == dw.dtype:
                    dw.addmm_(p.mT, rows)
                elif dw is not None:
                    dw += p.mT @ rows
                if db is not None:
                    db += p.sum(0)
        ctx.save_for_backward(
            dx, None if dw is None else dw.to(weight.dtype), None if db is None else db.to(weight.dtype)
        )
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """Those of x, W and b, for a loss that is ``scale`` times L."""
        return *(None if made is None else made * scale for made in ctx.saved_tensors), None, None


def wide(logits: Tensor) -> Tensor:
    """In float32 at least, as sums of many want it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def output_loss(head: Any, hidden: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """L of what ``head`` makes of ``hidden`` (N, D), over the rows whose ``labels`` (N,) are not ``IGNORED``.

    In chunks where a language model's head learns and has more than 134 million logits to make; whole where it is
    something else, where a part of it was exchanged, or is watched (``heedful.record``, an intervention, any hook).

    >>> import heedful
    >>> model = heedful.create("bert-tiny", seed=0)
    >>> hidden, labels = torch.randn(2, 128), torch.tensor([7, IGNORED])
    >>> bool(output_loss(model.head, hidden, labels) == F.cross_entropy(model.head(hidden), labels))
    True
    """
    # elsewhere the device would have to be waited for
    if hidden.device.type == "cpu" and not (real := labels != IGNORED).all():
        hidden, labels = hidden[real], labels[real]
    if not (torch.is_grad_enabled() and _plain(head) and labels.numel() * head.output.out_features >= MANY):
        logits = head(hidden)
        if logits.device.type == "cpu" and logits.requires_grad:
            whole: Tensor = AtOnce.apply(logits, labels, label_smoothing)
            return whole
        return F.cross_entropy(
            wide(logits), labels, reduction="sum", ignore_index=IGNORED, label_smoothing=label_smoothing
        )
    made: Tensor = InChunks.apply(head.transform(hidden), head.output.weight, head.output.bias, labels, label_smoothing)
    return made


def _plain(head: Any) -> bool:
    """Whether it is a head over a vocabulary as it was made."""
    if type(head) not in (LanguageModel, MaskedLanguageModel) or type(head.output) is not nn.Linear or watched(head):
        return False
    return isinstance(vars(head.output).get("forward"), Direct | None)
