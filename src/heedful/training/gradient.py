"""Gradient of one step: this rank's micro-batches, their losses and norms."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from heedful.training.engine import Alone
from heedful.training.guard import locate_nonfinite
from heedful.training.memory import split_batch
from heedful.training.precision import autocast
from heedful.util.out_of_memory import is_out_of_memory
from heedful.util.random_state import seed_generators
from heedful.util.to_device import to_device

Batch = Mapping[str, Tensor]


def as_it_is(batch: Batch) -> Batch:
    """Returns a batch to which nothing is added."""
    return batch


@dataclass(frozen=True)
class MicroBatches:
    """Micro-batches of one step that this rank computes, possibly with a filler."""

    step: int  # number of steps before this one
    numbered: list[tuple[int, Batch]]  # each with its number in the step
    total: int  # predictions: ``Gradient.micro_batches`` counts this rank's; ``compute`` needs those of all ranks
    has_filler: bool  # the last one is computed only because other ranks have one more; its loss counts 0

    @property
    def own(self) -> list[Batch]:
        """Micro-batches of this rank, without a filler, which another rank computes too."""
        batches = [batch for _, batch in self.numbered]
        return batches[:-1] if self.has_filler else batches


@dataclass(kw_only=True)
class Gradient:
    """Gradient of a step, the same on all ranks: ∇ (Σ loss over its micro-batches) / (Σ count over them).

    Random numbers in a micro-batch (dropout) are a function of (seed, step, the micro-batch's number in the step),
    whichever rank computes it. If a micro-batch does not fit the memory of one process, this and all later
    micro-batches are split into halves, quarters and so on, with the same gradient; each part has a number of its own.
    Several ranks never split: the rank without memory leaves its backward pass while others wait for its gradients, and
    a word with them before each sum would make every step wait. Its error names settings that fit.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Batch], Tensor]  # summed over the batch
    count: Callable[[Batch], int]  # predictions of a batch: the task's target tokens, or its examples
    engine: Alone
    precision: Literal["fp32", "bf16"]
    seed: int
    device: torch.device
    zero_grad: Callable[[], None]
    on_split: Callable[[int], None] | None  # called with the number of parts when it changes; None: never split
    complete: Callable[[Batch], Batch] = as_it_is  # adds to a batch, or a part of it, before it is moved to the device
    parts: int = 1  # into which micro-batches are split

    def micro_batches(self, step: int, batches: Sequence[Batch]) -> MicroBatches:
        """Returns this rank's share of ``batches``, every n-th micro-batch, with the predictions in it.

        All ranks compute the same number of micro-batches, since they gather weights and gradients together. A rank
        that has one micro-batch less computes the step's first micro-batch as a filler.
        """
        ranks = self.engine.ranks
        numbers = range(ranks.rank, -(-len(batches) // ranks.size) * ranks.size, ranks.size)
        numbered = [(number, batches[number if number < len(batches) else 0]) for number in numbers]
        total = sum(self.count(batch) for number, batch in numbered if number < len(batches))
        return MicroBatches(step, numbered, total, has_filler=numbers[-1] >= len(batches))

    def compute(self, micro_batches: MicroBatches) -> Tensor:
        """Writes the step's gradient to the parameters; returns the summed loss of this rank's micro-batches.

        ``micro_batches.total`` counts the predictions of all ranks.
        """
        while (loss := self._backward(micro_batches)) is None:
            self._split_further()
        return loss

    def locate_nonfinite(self, micro_batches: MicroBatches) -> str:
        """Returns in words where NaN or infinity first appears in the step of ``micro_batches``."""
        forwards = [partial(self._loss, micro_batches.step, *numbered) for numbered in self._parts(micro_batches)]
        return locate_nonfinite(
            self.model, forwards, lambda origin: next(filter(None, self.engine.ranks.gather(origin)), "")
        )

    def _backward(self, micro_batches: MicroBatches) -> Tensor | None:
        """Like :meth:`compute`; returns None where a micro-batch does not fit the memory."""
        self.zero_grad()
        losses = []
        parts = self._parts(micro_batches)
        scale = self.engine.ranks.size / micro_batches.total  # the engines average over ranks
        try:
            for index, (number, batch) in enumerate(parts, 1):
                last = index == len(parts)
                with self.engine.sync(last=last):
                    loss = self._loss(micro_batches.step, number, batch)
                    if last and micro_batches.has_filler:
                        loss = loss * 0
                    (loss * scale).backward()
                losses.append(loss.detach())
        except RuntimeError as error:
            single_rows = max(len(next(iter(batch.values()))) for _, batch in parts) == 1
            if self.on_split is None or not is_out_of_memory(error) or self.engine.ranks.size > 1 or single_rows:
                raise
            return None
        return torch.stack(losses).sum()

    def _parts(self, micro_batches: MicroBatches) -> list[tuple[int, Batch]]:
        if self.parts == 1:
            return micro_batches.numbered
        return list(enumerate(part for _, batch in micro_batches.numbered for part in split_batch(batch, self.parts)))

    def _split_further(self) -> None:
        assert self.on_split is not None
        self.parts *= 2
        self.zero_grad()
        if self.device.type != "cpu":
            torch.accelerator.empty_cache()
        self.on_split(self.parts)

    def _loss(self, step: int, number: int, batch: Batch) -> Tensor:
        moved = to_device(self.complete(batch), self.device)
        seed_generators(_micro_batch_seed(self.seed, step, number), self.device)
        with autocast(self.precision, self.device):
            return self.loss(self.model, moved)


def _micro_batch_seed(seed: int, step: int, number: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed} {step} {number}".encode(), digest_size=8).digest()) >> 1
