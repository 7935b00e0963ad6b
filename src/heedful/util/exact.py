"""Arithmetic in float64, also for tensors of a device that has none (Apple's GPUs)."""

from __future__ import annotations

import torch
from torch import Tensor

WITHOUT_FLOAT64 = frozenset({"mps"})  # types of devices


def exact_dtype(device: torch.device) -> torch.dtype:
    """Returns float64, or float32 for a device without float64."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def as_float64(tensor: Tensor) -> Tensor:
    """Returns the tensor in float64, on its device, or on the CPU if the device has no float64."""
    return tensor.cpu().double() if tensor.device.type in WITHOUT_FLOAT64 else tensor.double()
