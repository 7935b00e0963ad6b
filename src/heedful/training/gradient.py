"""Gradient of one step: this rank's micro-batches, their losses and norms."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from heedful.training.engine import Alone
from heedful.training.guard import origin
from heedful.training.memory import is_full, pieces

Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class Passes:
    """Micro-batches that this rank passes through the model in a step."""

    step: int  # steps before it
    numbered: list[tuple[int, Batch]]  # micro-batches, each with its number in the step
    total: int  # what the objective counts in the step, over all ranks
    idle: bool  # the last pass is there to keep the other ranks company, and counts nothing

    @property
    def counting(self) -> list[Batch]:
        """The micro-batches that are this rank's own."""
        batches = [batch for _, batch in self.numbered]
        return batches[:-1] if self.idle else batches


@dataclass(kw_only=True)
class Gradient:
    """∇ (Σ objective over the micro-batches of a step) / (Σ count over them), on all ranks alike.

    What is drawn at random in a pass is a function of (seed, step, the pass's number in the step): it is the same
    whichever rank takes it. A micro-batch that does not fit the memory of one process is passed in halves, quarters and
    so on from there on, to the same gradient; each of those has a number of its own.
    """

    model: nn.Module
    objective: Callable[[nn.Module, Batch], Tensor]
    count: Callable[[Batch], int]
    engine: Alone
    precision: Literal["fp32", "bf16"]
    seed: int
    device: torch.device
    clear: Callable[[], None]  # forgets the gradients there are
    on_cut: Callable[[int], None] | None  # told in how many parts micro-batches go from now on; None: they stay whole
    parts: int = 1

    def passes(self, step: int, batches: Sequence[Batch]) -> Passes:
        """This rank's share of ``batches``, every n-th of them, before the first backward.

        Every rank makes as many passes, for they gather weights and gradients together; where the last ones have no
        micro-batch of their own they pass the first again.
        """
        ranks = self.engine.ranks
        numbers = range(ranks.rank, -(-len(batches) // ranks.size) * ranks.size, ranks.size)
        mine = [(number, batches[number if number < len(batches) else 0]) for number in numbers]
        total = int(ranks.sum(sum(self.count(batch) for number, batch in mine if number < len(batches)))[0])
        return Passes(step, mine, total, idle=numbers[-1] >= len(batches))

    def compute(self, passes: Passes) -> Tensor:
        """Leave the step's gradient in the parameters; the summed loss of this rank's passes."""
        while (loss := self._backward(passes)) is None:
            self._cut_further()
        return loss

    def origin(self, passes: Passes) -> str:
        """Where numbers that are not finite came from (:func:`heedful.training.guard.origin`); asked on all ranks."""
        again = [partial(self._loss, passes.step, *each) for each in self._pieces(passes)]
        return origin(self.model, again, lambda place: next(filter(None, self.engine.ranks.all(place)), ""))

    def _backward(self, passes: Passes) -> Tensor | None:
        """As :meth:`compute`; None where it does not fit the memory."""
        self.clear()
        losses = []
        cut = self._pieces(passes)
        scale = self.engine.ranks.size / passes.total  # the engines average over ranks
        try:
            for place, (number, batch) in enumerate(cut, 1):
                last = place == len(cut)
                with self.engine.joint(last=last):
                    loss = self._loss(passes.step, number, batch)
                    if last and passes.idle:
                        loss = loss * 0
                    (loss * scale).backward()
                losses.append(loss.detach())
        except RuntimeError as error:
            alone = max(len(next(iter(piece.values()))) for _, piece in cut) == 1
            if self.on_cut is None or not is_full(error) or self.engine.ranks.size > 1 or alone:
                raise
            return None
        return torch.stack(losses).sum()

    def _pieces(self, passes: Passes) -> list[tuple[int, Batch]]:
        if self.parts == 1:
            return passes.numbered
        return list(enumerate(piece for _, batch in passes.numbered for piece in pieces(batch, self.parts)))

    def _cut_further(self) -> None:
        """From here on, a micro-batch in twice as many parts."""
        assert self.on_cut is not None
        self.parts *= 2
        self.clear()
        if self.device.type != "cpu":
            torch.accelerator.empty_cache()
        self.on_cut(self.parts)

    def _loss(self, step: int, number: int, batch: Batch) -> Tensor:
        moved = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
        draws_from(_seed(self.seed, step, number), self.device)
        with self._cast():
            return self.objective(self.model, moved)

    def _cast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.precision == "bf16" else nullcontext()


def draws_from(seed: int, device: torch.device) -> None:
    """Seeds the generators of the CPU and of ``device`` with ``seed`` alone; ``torch.manual_seed`` is slow."""
    torch.default_generator.manual_seed(seed)
    if device.type in ("cuda", "xpu"):
        backend = getattr(torch, device.type)
        backend.default_generators[backend.current_device() if device.index is None else device.index].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def _seed(seed: int, step: int, number: int) -> int:
    """A seed of its own for each micro-batch of a run."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {step} {number}".encode(), digest_size=8).digest()) >> 1
