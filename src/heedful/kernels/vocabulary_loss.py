"""Cross entropy over a vocabulary and its gradient in one kernel, for NVIDIA GPUs: written in Triton.

Operation by operation the loss reads and writes 36 bytes for a bfloat16 logit. The kernel reads each logit twice and
writes its gradient once, over it: 6 bytes (as in Hsu et al. 2024, Liger Kernel, section 3.2).

Triton comes with PyTorch for CUDA on Linux. It compiles the kernel at its first call, in about a second.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

BLOCK, WARPS = 8192, 16  # logits that a program reads at a time, and warps that do


@cache
def has_triton() -> bool:
    """Returns True if Triton is installed, and the C compiler and Python's headers with which it builds a kernel's
    launcher.
    """
    compilers = filter(None, (os.environ.get("CC", "").split(" ")[0], "gcc", "clang"))
    has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    return importlib.util.find_spec("triton") is not None and has_headers and any(map(shutil.which, compilers))


@cache
def runs_triton(device: torch.device) -> bool:
    """Returns True for an NVIDIA GPU of compute capability 8 or newer, if Triton is there."""
    if device.type != "cuda" or torch.version.hip is not None or not has_triton():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def runs_in_one_kernel(logits: Tensor) -> bool:
    """Returns True for logits in float32 or narrower on a device where ``runs_triton``."""
    return logits.dtype is not torch.float64 and runs_triton(logits.device)


def loss_and_gradient_in_one_kernel(
    logits: Tensor, labels: Tensor, vocabulary_size: int, smoothing: float, ignored: int
) -> Tensor:
    """Returns the summed loss in float32, and overwrites the logits with its gradient.

    The loss is that of ``heedful.tasks.output_loss``, without R-Drop.

    Args:
        logits: (N, V'), contiguous; columns from V on are padding, and get zeros.
        labels: (N,).
        vocabulary_size: V.
        smoothing: ε.
        ignored: label of the rows that count 0, and get zeros.
    """
    losses = torch.empty(len(logits), device=logits.device, dtype=torch.float32)
    if len(logits):
        sizes = (logits.size(1), vocabulary_size, float(smoothing), ignored)
        with torch.cuda.device_of(logits):  # Triton launches on the current device
            _kernel()[(len(logits),)](logits, labels, losses, *sizes, BLOCK=BLOCK, num_warps=WARPS)
    return losses.sum()


@cache
def _kernel():  # type: ignore[no-untyped-def]  # triton has no types
    """Returns the kernel: a program computes a row."""
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(logits, labels, losses, width, size, smoothing, ignored, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        start = logits + row * width
        label = tl.load(labels + row)
        counts = label != ignored
        label = tl.where(counts, label, 0)
        at_label = tl.load(start + label).to(tl.float32)  # before the loop, whose barriers come before any store
        largest = float("-inf")
        total = 0.0  # Σ exp(x − largest)
        plain = 0.0  # Σ x
        for first in range(0, size, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            x = tl.load(start + columns, mask=columns < width, other=float("-inf")).to(tl.float32)
            x = tl.where(columns < size, x, float("-inf"))  # not the mask, which a multiple of 16 lets read 16 bytes
            larger = tl.maximum(largest, tl.max(x, 0))
            total = total * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger), 0)
            plain += tl.sum(tl.where(columns < size, x, 0.0), 0)
            largest = larger
        log_sum = largest + tl.log(total)
        loss = log_sum - (1.0 - smoothing) * at_label - smoothing * plain / size
        tl.store(losses + row, tl.where(counts, loss, 0.0))
        for first in range(0, width, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            x = tl.load(start + columns, mask=columns < width, other=float("-inf")).to(tl.float32)
            gradient = tl.exp(x - log_sum) - smoothing / size
            gradient = tl.where(columns == label, gradient - (1.0 - smoothing), gradient)
            gradient = tl.where((columns < size) & counts, gradient, 0.0)
            tl.store(start + columns, gradient.to(logits.dtype.element_ty), mask=columns < width)

    return kernel
