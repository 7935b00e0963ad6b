"""Precision of a run: autocast in forward passes, of training and of evaluations, and TF32 in float32 products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Returns the context manager of a forward pass: autocast to bfloat16 for "bf16", nothing for "fp32"."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def evaluation_autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Returns the context manager of a run's evaluation: on a GPU that of training, on a CPU nothing.

    On a CPU evaluations decode with kernels of float32 weights, which are faster for a few rows than bfloat16.
    """
    return nullcontext() if device.type == "cpu" else autocast(precision, device)


@contextmanager
def tf32(enabled: bool, device: torch.device) -> Iterator[None]:
    """Context manager in which an NVIDIA GPU rounds the factors of float32 products to TensorFloat-32, if ``enabled``.

    TF32 has float32's exponents and 10 bits of mantissa; sums stay float32. Otherwise float32 products are exact, also
    in convolutions, which PyTorch computes in TF32 by default. On other devices nothing changes: the switch is CUDA's,
    since ``torch.set_float32_matmul_precision`` also rounds on some CPUs.
    """
    if device.type != "cuda":
        yield
        return
    backends: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = enabled
    try:
        yield
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed
