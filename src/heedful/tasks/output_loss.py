"""The loss of an output map and its gradient, made in one pass over the logits; of very many, some rows at a time.

For x (N, D), the output map's W (V, D) and b (V,), and labels y (N,), with ε the label smoothing,

.. math:: L = \\sum_i (1 - ε)(-\\log p_i(y_i)) + \\frac{ε}{V} \\sum_v -\\log p_i(v), \\quad p_i = softmax(W x_i + b)

and its gradient by the logits is p − (1 − ε) onehot(y) − ε/V; ``together`` is what R-Drop adds to both. On a CPU they
are made of a few rows at a time, which stay in the cache from the softmax to the gradient, and the gradient takes the
place of the logits. Those by x, W and b are made in the same pass, so that of very many logits no more than a chunk is
held (as in Hsu et al. 2024, Liger Kernel, section 3.2).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from heedful.heads import LanguageModel, MaskedLanguageModel
from heedful.kernels.allocator import rounded_rows
from heedful.kernels.onednn_linear import kernels_depend_on_rows, onednn_is_faster, onednn_product
from heedful.kernels.plan import slot_of
from heedful.kernels.unpadded import is_observed
from heedful.layers.linear import Linear
from heedful.tasks.r_drop import divergence
from heedful.tasks.token_batches import IGNORED

CHUNK = 2**25  # logits at a time
MANY = 4 * CHUNK  # from so many on: of fewer all at once, as each chunk adds to the gradient of W
BLOCK = 2**18  # of them that stay in the cache of a core


def learned(logits: Tensor, labels: Tensor, smoothing: float, agreement: float) -> Tensor:
    """L, in float32 at least; the logits (N, V) become its gradient by them."""
    loss, words = logits.new_zeros((), dtype=torch.promote_types(logits.dtype, torch.float32)), logits.size(1)
    size = even(BLOCK // words) if logits.device.type == "cpu" else max(1, len(logits))
    for some, y in zip(logits.split(size), labels.split(size), strict=True):
        ignored, y = y == IGNORED, y.clamp(min=0)[:, None]
        logs = torch.log_softmax(some.to(loss.dtype), 1)  # its own change of type is four times slower on a CPU
        each = (smoothing - 1) * logs.gather(1, y)[:, 0]
        if smoothing:
            each -= smoothing / words * logs.sum(1)
        loss += each.masked_fill_(ignored, 0.0).sum()
        p = logs.exp() if agreement else logs.exp_()
        pulled, apart = together(logs, p, agreement) if agreement else (None, 0.0)
        loss += apart
        p = p.scatter_add_(1, y, logs.new_full(y.shape, smoothing - 1))
        if smoothing:
            p -= smoothing / words
        if pulled is not None:
            p += pulled
        if logits.device.type != "cpu" or ignored.any():  # elsewhere the device would have to be waited for
            p.masked_fill_(ignored[:, None], 0.0)
        some.copy_(p)
    return loss


def together(logs: Tensor, p: Tensor, agreement: float) -> tuple[Tensor, Tensor]:
    """α/2 (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)) over pairs of rows (2N, V) that stand beside each other, log p and p, as a sum;
    and its gradient by the logits, for l₁ α/2 (p₁ (log p₁ − log p₂ − KL(p₁ ‖ p₂)) + p₁ − p₂).
    """
    pairs, rows = p.unflatten(0, (-1, 2)), logs.unflatten(0, (-1, 2))
    apart = rows - rows.flip(1)  # log p₁ − log p₂, and the other way round
    divergences = (pairs * apart).sum(2, keepdim=True)
    pulled = apart.sub_(divergences).add_(1.0).mul_(pairs).sub_(pairs.flip(1)).mul_(agreement / 2)
    return pulled.flatten(0, 1), agreement / 2 * divergences.sum()


def even(rows: int) -> int:
    """So many that none is parted from the one beside it; two at least."""
    return max(2, rows - rows % 2)


class InChunks(torch.autograd.Function):
    """L, a number, from x (N, D), W (V, D), b (V,) or None, y (N,), ε and α."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        agreement: float = 0.0,
    ) -> Tensor:
        """Also the gradients, kept for ``backward``."""
        device, (into_x, into_weight, into_bias) = x.device.type, ctx.needs_input_grad[:3]
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        with torch.autocast(device, enabled=False):
            w, b = weight.to(dtype), None if bias is None else bias.to(dtype)
            direct = device == "cpu" and dtype is torch.float32 and onednn_is_faster()
            product = onednn_product if direct else F.linear
            loss = x.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
            dx = torch.empty_like(x) if into_x else None
            dw: Tensor | None = None
            db: Tensor | None = None
            size = even(CHUNK // len(weight)) if len(x) * len(weight) >= MANY else max(1, len(x))
            for place in range(0, max(1, len(x)), size):  # of no rows, too, there are gradients
                rows, y = x[place : place + size].to(dtype), labels[place : place + size]
                p = product(rows, w, b)  # logits, and then the gradient by them
                loss += learned(p, y, smoothing, agreement)
                if dx is not None:
                    dx[place : place + size] = product(p, w.mT, None)
                if into_weight:
                    dw = added(dw, p.mT @ rows, loss.dtype)
                if into_bias:
                    db = added(db, p.sum(0), loss.dtype)
        ctx.save_for_backward(
            dx, None if dw is None else dw.to(weight.dtype), None if db is None else db.to(weight.dtype)
        )
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """Those of x, W and b, for a loss that is ``scale`` times L."""
        made = [None if each is None else each.mul_(scale) for each in ctx.saved_tensors]
        return *made, None, None, None  # in place: a second time is an error


def added(total: Tensor | None, part: Tensor, dtype: torch.dtype) -> Tensor:
    """A sum in ``dtype``, and its first part alone."""
    return part.to(dtype) if total is None else total.add_(part)


def wide(logits: Tensor) -> Tensor:
    """In float32 at least, as sums of many want it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def output_loss(
    head: Any, hidden: Tensor, labels: Tensor, label_smoothing: float = 0.0, agreement: float = 0.0
) -> Tensor:
    """L of what ``head`` makes of ``hidden`` (N, D), over the rows whose ``labels`` (N,) are not ``IGNORED``.

    With ``agreement`` α two rows that stand beside each other, of one label, are one token that passed twice, and L has
    α/2 (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)) for each such pair besides.

    By ``InChunks`` where a language model's head learns, on a GPU where it has more than 134 million logits to make;
    from whole logits where it is something else, where a part of it was exchanged, or is watched (``heedful.record``,
    an intervention, any hook).

    >>> import heedful
    >>> model = heedful.create("bert-tiny", seed=0)
    >>> hidden, labels = torch.randn(2, 128), torch.tensor([7, IGNORED])
    >>> bool(output_loss(model.head, hidden, labels) == F.cross_entropy(model.head(hidden), labels))
    True
    """
    cpu = hidden.device.type == "cpu"
    if cpu and not (real := labels != IGNORED).all():  # elsewhere the device would have to be waited for
        hidden, labels = hidden[real], labels[real]
    learning = torch.is_grad_enabled() and _plain(head)
    if not learning or (not cpu and labels.numel() * head.output.out_features < MANY):
        logits = wide(head(hidden))
        loss = F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED, label_smoothing=label_smoothing)
        if agreement:
            real = labels != IGNORED
            pairs = torch.cat((logits[real][::2], logits[real][1::2]))
            loss = loss + agreement * divergence(pairs, pairs.softmax(1)).sum()
        return loss
    if cpu and kernels_depend_on_rows():
        more = rounded_rows(len(labels)) - len(labels)
        hidden, labels = F.pad(hidden, (0, 0, 0, more)), F.pad(labels, (0, more), value=IGNORED)
    made: Tensor = InChunks.apply(
        head.transform(hidden), head.output.weight, head.output.bias, labels, label_smoothing, agreement
    )
    return made


def _plain(head: Any) -> bool:
    """Returns True if it is a head over a vocabulary as it was made."""
    if type(head) not in (LanguageModel, MaskedLanguageModel) or type(head.output) is not Linear or is_observed(head):
        return False
    return slot_of(head.output) is not None
