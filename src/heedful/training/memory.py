"""Handles out-of-memory: splits the batch, or suggests an equivalent smaller one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from heedful.errors import HeedfulError
from heedful.settings import TrainingSettings
from heedful.util.out_of_memory import is_out_of_memory


@contextmanager
def within_memory(training: TrainingSettings) -> Iterator[None]:
    """Context manager that turns out-of-memory errors into a ``HeedfulError``, which suggests a smaller batch.

    The smaller batch is half as large, with twice as many micro-batches in a step. The loss of a step is a mean over
    all of its tokens, so the step stays the same.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        cause = " ".join(str(error).split()).partition(". GPU")[0]
        remedy = (
            f"{smaller_batch(training)}; or try --training.gradient-checkpointing, which needs less for the same batch"
        )
        raise HeedfulError(f"a batch does not fit the device's memory ({cause}); {remedy}") from None


def split_batch(batch: Mapping[str, Tensor], parts: int) -> list[dict[str, Tensor]]:
    """Splits the rows of a batch into ``parts`` parts of equal size; the last may be smaller.

    A batch of fewer rows than ``parts`` gives fewer parts.

    >>> import torch
    >>> [part["ids"].tolist() for part in split_batch({"ids": torch.arange(5)}, 2)]
    [[0, 1, 2], [3, 4]]
    """
    split = [tensor.split(max(1, -(-len(tensor) // parts))) for tensor in batch.values()]
    return [dict(zip(batch, part, strict=True)) for part in zip(*split, strict=True)]


def smaller_batch(training: TrainingSettings) -> str:
    """Returns a line that suggests half the batch, and twice as many micro-batches a step.

    >>> smaller_batch(TrainingSettings(batch_tokens=4096, accumulate=2))
    'take --training.batch-tokens=2048 --training.accumulate=4 --overwrite: as many tokens a step in half the memory'
    """
    sizes = {"tokens": training.batch_tokens, "size": training.batch_size}
    halved = [f"--training.batch-{name}={size // 2}" for name, size in sizes.items() if size and size > 1]
    if training.batch_size == 1 or not halved:
        return (
            "a batch has one example already: shorten examples (--data.max-length), or take a smaller model (--preset)"
        )
    unit = "tokens" if training.batch_tokens else "examples"
    doubled = f"--training.accumulate={2 * (training.accumulate or 1)}"
    return f"take {' '.join(halved)} {doubled} --overwrite: as many {unit} a step in half the memory"
