"""Precision of a run: autocast in forward passes, of training and of evaluations."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
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
