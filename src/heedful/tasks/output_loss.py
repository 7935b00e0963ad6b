"""Cross entropy of an output projection and its gradient in one pass over the logits, in chunks of rows if they are
many.

For x (N, D), the output map's W (V, D) and b (V,), and labels y (N,), with ε the label smoothing,

.. math:: L = \\sum_i (1 - ε)(-\\log p_i(y_i)) + \\frac{ε}{V} \\sum_v -\\log p_i(v), \\quad p_i = softmax(W x_i + b)

and its gradient with respect to the logits is p − (1 − ε) onehot(y) − ε/V; ``agreement_term`` is what R-Drop adds to
both. On a CPU a few rows are computed at a time, which stay in the cache from the softmax to the gradient, and the
gradient overwrites the logits. The gradients of x, W and b are computed in the same pass, so that no more than a chunk
of the logits is in memory (as in Hsu et al. 2024, Liger Kernel, section 3.2).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from heedful.heads import LanguageModel, MaskedLanguageModel, checked_output
from heedful.kernels.allocator import rounded_rows
from heedful.kernels.onednn_linear import kernels_depend_on_rows, onednn_is_faster, onednn_product
from heedful.kernels.plan import slot_of
from heedful.kernels.unpadded import is_observed
from heedful.kernels.varlen import product_dtype
from heedful.kernels.vocabulary_loss import loss_and_gradient_in_one_kernel, runs_in_one_kernel
from heedful.layers.linear import Linear, aligned_rows
from heedful.tasks.r_drop import divergence
from heedful.tasks.token_batches import IGNORED

CHUNK = 2**25  # logits in a chunk on a CPU
CHUNKED_FROM = 4 * CHUNK  # number of logits from which chunks are used, since each chunk adds to the gradient of W
LOGIT_BYTES = 16  # memory of a logit of an unchunked bfloat16 loss: two 2-byte and three 4-byte copies
MEMORY_SHARE = 16  # a sixteenth of a GPU's memory is for logits
BLOCK = 2**18  # logits that stay in the cache of a core


def memory_of(device: torch.device) -> int | None:
    """Returns the bytes of memory of a CUDA device; None for other devices."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def chunk_sizes(device: torch.device) -> tuple[int, int]:
    """Returns the number of logits in a chunk, and the number of logits from which chunks are used.

    On a CUDA device a chunk has the logits that fit a sixteenth of its memory, 335 million at 80 GiB, since large
    products are efficient. Total memory counts, not free memory, so that a resumed run has the same chunks and bits.
    Other devices use the CPU's constants.
    """
    memory = memory_of(device)
    if memory is None:
        return CHUNK, CHUNKED_FROM
    fitting = memory // MEMORY_SHARE // LOGIT_BYTES
    return fitting, fitting + 1


def loss_and_gradient(logits: Tensor, labels: Tensor, smoothing: float, agreement: float) -> Tensor:
    """Returns the loss L, in float32 or wider, and overwrites the logits (N, V) with its gradient."""
    loss, vocabulary_size = logits.new_zeros((), dtype=torch.promote_types(logits.dtype, torch.float32)), logits.size(1)
    size = even_rows(BLOCK // vocabulary_size) if logits.device.type == "cpu" else max(1, len(logits))
    for block, y in zip(logits.split(size), labels.split(size), strict=True):
        ignored = y == IGNORED
        has_ignored = logits.device.type != "cpu" or bool(ignored.any())  # on other devices `any` would wait
        y = (y.clamp(min=0) if has_ignored else y)[:, None]
        log_p = torch.log_softmax(block.to(loss.dtype), 1)  # its own change of type is four times slower on a CPU
        losses = (smoothing - 1) * log_p.gather(1, y)[:, 0]
        if smoothing:
            losses -= smoothing / vocabulary_size * log_p.sum(1)
        loss += (losses.masked_fill_(ignored, 0.0) if has_ignored else losses).sum()
        p = log_p.exp() if agreement else log_p.exp_()
        agreement_gradient = None
        if agreement:
            agreement_gradient, divergences = agreement_term(log_p, p, agreement)
            loss += agreement / 2 * divergences.masked_fill_(ignored, 0.0).sum()
        p = p.scatter_add_(1, y, log_p.new_full(y.shape, smoothing - 1))
        if smoothing:
            p -= smoothing / vocabulary_size
        if agreement_gradient is not None:
            p += agreement_gradient
        if has_ignored:
            p.masked_fill_(ignored[:, None], 0.0)
        block.copy_(p)
    return loss


def agreement_term(log_p: Tensor, p: Tensor, agreement: float) -> tuple[Tensor, Tensor]:
    """Returns the gradient of R-Drop's term with respect to the logits, and the divergence of each row.

    The term is Σ α/2 (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)), with α = ``agreement``. p₁ and p₂ are neighbouring rows of ``p`` (2N,
    V), and l₁, l₂ their logits. The gradient for l₁ is α/2 (p₁ (log p₁ − log p₂ − KL(p₁ ‖ p₂)) + p₁ − p₂).
    """
    pairs, log_pairs = p.unflatten(0, (-1, 2)), log_p.unflatten(0, (-1, 2))
    log_ratios = log_pairs - log_pairs.flip(1)  # log p₁ − log p₂, and log p₂ − log p₁
    divergences = (pairs * log_ratios).sum(2, keepdim=True)
    gradient = log_ratios.sub_(divergences).add_(1.0).mul_(pairs).sub_(pairs.flip(1)).mul_(agreement / 2)
    return gradient.flatten(0, 1), divergences.flatten()


def even_rows(rows: int) -> int:
    """Returns the largest even number up to ``rows``, at least 2, so that chunks do not split pairs of rows."""
    return max(2, rows - rows % 2)


def pads_vocabulary(device: torch.device) -> bool:
    """Returns True for devices where W gets a multiple of 64 rows, for which matrix kernels are made: all but a CPU."""
    return device.type != "cpu"


def aligned(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns W (V, D) or b (V,) in ``dtype``; where ``pads_vocabulary`` with rows of zeros, up to a multiple of 64.

    The logits of these rows, which are zeros, are left out of the loss, and their gradients are zeros.

    >>> aligned(torch.ones(50, 3, device="meta"), torch.bfloat16).shape
    torch.Size([64, 3])
    """
    return aligned_rows(rows.to(dtype)) if pads_vocabulary(rows.device) else rows.to(dtype)


def aligned_logits(head: Any, hidden: Tensor) -> Tensor:
    """Returns the logits (N, V) of a head for ``hidden`` (N, D), from a product with aligned weights."""
    x, output = head.transform(hidden), head.output
    dtype = product_dtype(x)
    bias = None if output.bias is None else aligned(output.bias, dtype)
    return F.linear(x, aligned(output.weight, dtype), bias)[:, : output.out_features]


class ChunkedLoss(torch.autograd.Function):
    """Cross entropy of an output projection, as an autograd function that computes its gradients in the forward pass.

    Args: x (N, D), W (V, D), b (V,) or None, labels (N,), label smoothing ε, and α of R-Drop.
    """

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
        """Returns the loss, summed over rows, and saves the gradients for ``backward``."""
        device, (needs_dx, needs_dw, needs_db) = x.device.type, ctx.needs_input_grad[:3]
        dtype, vocabulary_size = product_dtype(x), len(weight)
        with torch.autocast(device, enabled=False):
            w, b = aligned(weight, dtype), None if bias is None else aligned(bias, dtype)
            direct = device == "cpu" and dtype is torch.float32 and onednn_is_faster()
            product = onednn_product if direct else F.linear
            loss = x.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
            dx: Tensor | None = None
            dw: Tensor | None = None
            db: Tensor | None = None
            chunk, many = chunk_sizes(x.device)
            size = even_rows(chunk // vocabulary_size) if len(x) * vocabulary_size >= many else max(1, len(x))
            for start in range(0, max(1, len(x)), size):  # without rows the gradients are zeros
                rows, y = x[start : start + size].to(dtype), labels[start : start + size]
                gradient = product(rows, w, b)  # the logits, overwritten by their gradient below; 0 in padded columns
                if not agreement and runs_in_one_kernel(gradient):
                    loss += loss_and_gradient_in_one_kernel(gradient, y, vocabulary_size, smoothing, IGNORED)
                else:
                    loss += loss_and_gradient(gradient[:, :vocabulary_size], y, smoothing, agreement)
                if needs_dx:
                    part = product(gradient, w.mT, None)
                    if len(part) == len(x):  # the only chunk, which needs no copy
                        dx = part.to(x.dtype)
                    else:
                        dx = torch.empty_like(x) if dx is None else dx
                        dx[start : start + size] = part
                if needs_dw:
                    dw = added(dw, gradient.mT @ rows, loss.dtype)
                if needs_db:
                    db = added(db, gradient.sum(0), loss.dtype)
        ctx.save_for_backward(
            dx,
            None if dw is None else dw[:vocabulary_size].to(weight.dtype),
            None if db is None else db[:vocabulary_size].to(weight.dtype),
        )
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of x, W and b, times ``scale``, the gradient of the loss."""
        gradients = [None if gradient is None else gradient.mul_(scale) for gradient in ctx.saved_tensors]
        return *gradients, None, None, None  # scaled in place, so a second backward is an error


def added(total: Tensor | None, part: Tensor, dtype: torch.dtype) -> Tensor:
    """Adds ``part`` to the sum ``total`` in place, in ``dtype``, and returns it; None stands for an empty sum."""
    return part.to(dtype) if total is None else total.add_(part)


def wide(logits: Tensor) -> Tensor:
    """Returns the logits in float32, or in their own dtype if that is wider, for exact sums."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def token_losses(head: Any, hidden: Tensor, labels: Tensor) -> Tensor:
    """Returns −log p (N,) of each of the ``labels`` (N,), by the logits that ``head`` computes for ``hidden`` (N, D).

    >>> import heedful
    >>> model = heedful.create("bert-tiny", seed=0)
    >>> hidden, labels = torch.randn(2, 128), torch.tensor([7, 5])
    >>> bool((token_losses(model.head, hidden, labels).sum() - output_loss(model.head, hidden, labels)).abs() < 1e-5)
    True
    """
    losses: Tensor = F.cross_entropy(_all_logits(head, hidden), labels, reduction="none")
    return losses


def _all_logits(head: Any, hidden: Tensor) -> Tensor:
    """Returns the logits (N, V) of a head in float32 or wider, from a product with aligned weights where it has one."""
    is_aligned = _plain(head) and pads_vocabulary(hidden.device)
    return wide(aligned_logits(head, hidden) if is_aligned else checked_output(head, hidden, head(hidden)))


def output_loss(
    head: Any, hidden: Tensor, labels: Tensor, label_smoothing: float = 0.0, agreement: float = 0.0
) -> Tensor:
    """Returns the summed loss of the logits that ``head`` computes for ``hidden`` (N, D).

    Only rows whose ``labels`` (N,) are not ``IGNORED`` count. With ``agreement`` α, neighbouring rows are the two
    passes of one token (``interleave_passes``), and each pair adds α/2 (KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)).

    In training of a language model's head, ``ChunkedLoss`` computes the loss; on devices other than CPUs and NVIDIA
    GPUs, and in functions that ``torch.compile`` compiles for a GPU, only where there are several chunks
    (``chunk_sizes``). Otherwise, and if a part of the head was replaced or is observed (``heedful.record``, an
    intervention, any hook), all logits are computed at once.

    >>> import heedful
    >>> model = heedful.create("bert-tiny", seed=0)
    >>> hidden, labels = torch.randn(2, 128), torch.tensor([7, IGNORED])
    >>> bool(output_loss(model.head, hidden, labels) == F.cross_entropy(model.head(hidden), labels))
    True
    """
    cpu = hidden.device.type == "cpu"
    if cpu and not (real := labels != IGNORED).all():  # on other devices `all` would wait for the device
        hidden, labels = hidden[real], labels[real]
    is_plain = _plain(head)
    chunked = torch.is_grad_enabled() and is_plain
    at_once = not cpu and (torch.compiler.is_compiling() or not hidden.is_cuda)
    if not chunked or (at_once and labels.numel() * head.output.out_features < chunk_sizes(hidden.device)[1]):
        logits = _all_logits(head, hidden)
        loss: Tensor = F.cross_entropy(
            logits, labels, reduction="sum", ignore_index=IGNORED, label_smoothing=label_smoothing
        )
        if agreement:
            pairs = torch.cat((logits[::2], logits[1::2]))
            terms = divergence(pairs, pairs.softmax(1))
            if not cpu:
                terms = terms.masked_fill((labels[::2] == IGNORED)[:, None], 0.0)
            loss = loss + agreement * terms.sum()
        return loss
    if cpu and kernels_depend_on_rows():
        more = rounded_rows(len(labels)) - len(labels)
        hidden, labels = F.pad(hidden, (0, 0, 0, more)), F.pad(labels, (0, more), value=IGNORED)
    chunked_loss: Tensor = ChunkedLoss.apply(
        head.transform(hidden), head.output.weight, head.output.bias, labels, label_smoothing, agreement
    )
    return chunked_loss


def _plain(head: Any) -> bool:
    """Returns True for a head over a vocabulary without a cap of its logits, replaced or observed parts."""
    if type(head) not in (LanguageModel, MaskedLanguageModel) or type(head.output) is not Linear or is_observed(head):
        return False
    if getattr(head, "cap", None) is not None:
        return False
    return slot_of(head.output) is not None
