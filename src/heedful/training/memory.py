"""Handles out-of-memory: splits the batch, or suggests an equivalent smaller one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.settings import TrainingSettings


@contextmanager
def within_memory(training: TrainingSettings) -> Iterator[None]:
    """While it lasts, a device that runs out of memory is a :class:`HeedfulError` with other settings to take.

    They halve a batch and add up twice as many for a step. The loss of a step is a mean over all of its tokens, however
    they are cut, so a step learns the same from as many tokens.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_full(error):
            raise
        cause = " ".join(str(error).split()).partition(". GPU")[0]
        remedy = f"{smaller(training)}; or try --training.gradient-checkpointing, which needs less for the same batch"
        raise HeedfulError(f"a batch does not fit the device's memory ({cause}); {remedy}") from None


def is_full(error: RuntimeError) -> bool:
    """Returns True if it says that memory is full: a device's, or what this process may have of the machine's."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def pieces(batch: Mapping[str, Tensor], parts: int) -> list[dict[str, Tensor]]:
    """The rows of a batch in so many parts, as even as can be; in fewer where it has fewer rows.

    >>> [piece["ids"].tolist() for piece in pieces({"ids": torch.arange(5)}, 2)]
    [[0, 1, 2], [3, 4]]
    """
    split = [tensor.split(max(1, -(-len(tensor) // parts))) for tensor in batch.values()]
    return [dict(zip(batch, piece, strict=True)) for piece in zip(*split, strict=True)]


def smaller(training: TrainingSettings) -> str:
    """The settings of half a batch, and twice as many for a step.

    >>> smaller(TrainingSettings(batch_tokens=4096, accumulate=2))
    'take --training.batch-tokens=2048 --training.accumulate=4 --overwrite: steps of as many tokens in half the memory'
    """
    sizes = {"tokens": training.batch_tokens, "size": training.batch_size}
    halved = [f"--training.batch-{name}={size // 2}" for name, size in sizes.items() if size and size > 1]
    if training.batch_size == 1 or not halved:
        return "a batch is one example already: cut them (--data.max-length), or take a smaller model (--preset)"
    what = "tokens" if training.batch_tokens else "examples"
    twice = f"--training.accumulate={2 * (training.accumulate or 1)}"
    return f"take {' '.join(halved)} {twice} --overwrite: steps of as many {what} in half the memory"
