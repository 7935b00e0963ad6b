"""Random generators: seeded for a block, or for a device, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the generator of the default device, the CPU's unless it was set, for a block, and restores it after it.

    The generators of all other devices stay as they are; ``torch.manual_seed`` would seed them too. (Of Apple's GPU, as
    a default device, the generator is seeded and not restored.)

    >>> before = torch.get_rng_state()
    >>> with seeded(0):
    ...     torch.rand(1).item() == torch.rand(1, generator=torch.Generator().manual_seed(0)).item()
    True
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    device = torch.get_default_device()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        seed_generators(seed, device)
        yield


def seed_generators(seed: int, device: torch.device) -> None:
    """Seeds only the generators of the CPU and of ``device``; ``torch.manual_seed`` seeds all devices, which is
    slow.
    """
    torch.default_generator.manual_seed(seed)
    if device.type in ("cuda", "xpu"):
        backend = getattr(torch, device.type)
        backend.default_generators[backend.current_device() if device.index is None else device.index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
