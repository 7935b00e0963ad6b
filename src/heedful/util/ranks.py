"""Ranks of a distributed run: this process's rank, and the collectives between all.

``torchrun`` starts them and says in the environment who is who (RANK, WORLD_SIZE, LOCAL_RANK); without it there is one.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from heedful.errors import HeedfulError

PATIENCE = timedelta(hours=2)  # the others wait while the first reads data, or a thread writes
SILENT = timedelta(minutes=30)  # in which each says something as they learn: longer than a step or a batch takes
T = TypeVar("T")
UNANSWERED = "Application timeout"  # gloo's other words for a silent process, which do not say for how long
LOST = ("gloo", UNANSWERED, "Connection closed", "Connection reset", "Broken pipe", "NCCL", "Socket")  # in such errors


class Ranks:
    """One process of several; by default the only one, which need not tell anybody anything.

    Args:
        rank: this one's number; 0 reads the data first, and alone writes files and speaks.
        size: how many there are.
        group: on which they speak; the default one where there is none.
        patient: on which they wait for what takes some of them long; ``group`` where there is none.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        group: dist.ProcessGroup | None = None,
        patient: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.size, self.group, self.patient = rank, size, group, patient or group

    def aside(self) -> Ranks:
        """The same processes on a line of their own, for threads that speak while the others learn; called on all."""
        if self.size == 1:
            return self
        return Ranks(self.rank, self.size, dist.new_group(backend="gloo", timeout=PATIENCE))

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def sum(self, *numbers: float) -> list[float]:
        """Each number summed over all ranks, in float64: exact for whole numbers up to 2^53."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return total.tolist()

    def summed(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor summed over all ranks, wherever it lies."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def all(self, value: Any) -> list[Any]:
        """What each gives, by rank, for all."""
        told = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(told, value, group=self.group)
        return told

    def same(self, value: Any = None) -> Any:
        """What the first gives, for all."""
        return self._same(value, self.group)

    def _same(self, value: Any, group: dist.ProcessGroup | None) -> Any:
        told = [value]
        if self.size > 1:
            dist.broadcast_object_list(told, src=0, group=group)
        return told[0]

    def led(self, make: Callable[[], T]) -> T:
        """What the first makes while the others wait, for all; where that fails, it says why and they end quietly."""
        if not self.first:
            self.follow()
            return cast(T, self.same())
        with self.waiting():
            made = make()
        return cast(T, self.same(made))

    def wait(self) -> None:
        """Until all are here, however long some of them take."""
        if self.size > 1:
            dist.barrier(group=self.patient)

    def alike(self, error: HeedfulError) -> BaseException:
        """What to raise where all ranks have found the same ``error``: the first says it, the others end quietly."""
        return error if self.first else SystemExit(2)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While it lasts the others wait in :meth:`follow`; they end quietly where it fails."""
        try:
            yield
        except BaseException:
            self._same("failed", self.patient)
            raise
        self._same("ready", self.patient)

    def follow(self) -> None:
        """Wait for the end of :meth:`waiting` on the first; where it failed, that one says why and this one ends."""
        if self._same(None, self.patient) != "ready":
            raise SystemExit(2)


@contextmanager
def joined() -> Iterator[Ranks]:
    """This process among those that ``torchrun`` started, for as long as it lasts; else the only one. Where another one
    goes, :class:`HeedfulError`.
    """
    if dist.is_available() and dist.is_initialized():  # by a program that calls us: its group is taken, and left to it
        yield Ranks(dist.get_rank(), dist.get_world_size())
        return
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if size == 1:
        yield Ranks()
        return
    if not dist.is_available():
        raise HeedfulError("this build of PyTorch has no torch.distributed; run one process, without torchrun")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a device that the group does not know: tensors on the CPU go through gloo
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=SILENT)
        patient = dist.new_group(backend="gloo", timeout=PATIENCE)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), patient=patient)
    except RuntimeError as error:
        if not is_loss(error):
            raise
        raise HeedfulError(gone(error)) from None
    dist.destroy_process_group()  # not after an error: the others may be gone, and nobody would answer


def own_device(asked: str | None = None) -> str | None:
    """The GPU that is this process's own, of those of its machine, where none or just "cuda" was ``asked`` for, and the
    current one from now on; else what was asked for, and where there is one process or no GPU.
    """
    if "LOCAL_RANK" not in os.environ or asked not in (None, "cuda") or not torch.cuda.is_available():
        return asked
    torch.cuda.set_device(number := int(os.environ["LOCAL_RANK"]))
    return f"cuda:{number}"


def is_loss(error: RuntimeError) -> bool:
    """Whether an error tells that another process has gone."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in LOST)


def gone(error: BaseException, where: str = "") -> str:
    """What to say of another process that has gone, and what to do."""
    told, what = " ".join(str(error).split())[:120], "has gone"
    # NCCL's words, gloo's, and the store's
    if waited := re.search(r"(?:Timeout\(ms\)=|waiting |timeout after )(\d+)", str(error)):
        what = f"has said nothing for {int(waited[1]) / 60_000:.3g} minutes"
    elif UNANSWERED in str(error):
        what = "has said nothing for too long"
    return (
        f"another process of the run {what}{where}; its own line says why, if it could; "
        f"start them all again, a training with --resume ({told})"
    )
