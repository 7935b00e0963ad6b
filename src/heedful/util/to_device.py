"""Batches on their way from the CPU to a device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def to_device(batch: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Returns a batch on ``device``; the host does not wait for the copies to an NVIDIA GPU.

    Their sources are pinned and contiguous, or the copy would wait. PyTorch keeps pinned memory for the next batch, and
    a source until its copy has ended.

    >>> to_device({"ids": torch.tensor([5])}, torch.device("cpu"))
    {'ids': tensor([5])}
    """
    if device.type != "cuda":
        return {name: tensor.to(device) for name, tensor in batch.items()}
    return {
        name: tensor if tensor.is_cuda else tensor.contiguous().pin_memory().to(device, non_blocking=True)
        for name, tensor in batch.items()
    }
