"""Ranks of a distributed run: this process's rank, and the collectives between all.

``torchrun`` starts the processes and sets RANK, WORLD_SIZE and LOCAL_RANK; without it there is one rank.
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

PATIENCE = timedelta(hours=2)  # the others wait while rank 0 reads data, or a thread writes
SILENT = timedelta(minutes=30)  # timeout of a collective in training: longer than a step or a batch takes
T = TypeVar("T")
UNANSWERED = "Application timeout"  # gloo's other words for a silent process, which do not say for how long
LOST = ("gloo", UNANSWERED, "Connection closed", "Connection reset", "Broken pipe", "NCCL", "Socket")  # in such errors


class Ranks:
    """A rank of a distributed run and its collectives; by default the only rank, for which they are trivial.

    Args:
        rank: this process's rank. Rank 0 reads the data first, and alone writes files and prints.
        size: number of ranks.
        group: process group of the collectives; None: the default group.
        patient: process group with a long timeout for ``wait``, ``led`` and ``follow``; None: ``group``.
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
        """Returns the same ranks on a new group, for collectives of threads during training. All ranks must call it."""
        if self.size == 1:
            return self
        return Ranks(self.rank, self.size, dist.new_group(backend="gloo", timeout=PATIENCE))

    @property
    def first(self) -> bool:
        """True on rank 0, which writes and prints."""
        return self.rank == 0

    def sum(self, *numbers: float) -> list[float]:
        """Returns each number summed over all ranks, in float64: exact for whole numbers up to 2^53."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return total.tolist()

    def summed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor summed over all ranks, on its device."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def all(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, by rank (all-gather)."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self.group)
        return values

    def same(self, value: Any = None) -> Any:
        """Returns rank 0's value on all ranks (broadcast)."""
        return self._same(value, self.group)

    def _same(self, value: Any, group: dist.ProcessGroup | None) -> Any:
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, src=0, group=group)
        return values[0]

    def led(self, make: Callable[[], T]) -> T:
        """Returns rank 0's ``make()`` on all ranks. If it fails, rank 0 raises and the others exit quietly."""
        if not self.first:
            self.follow()
            return cast(T, self.same())
        with self.waiting():
            result = make()
        return cast(T, self.same(result))

    def wait(self) -> None:
        """Waits until all ranks are here (barrier)."""
        if self.size > 1:
            dist.barrier(group=self.patient)

    def alike(self, error: HeedfulError) -> BaseException:
        """Returns the exception to raise for an ``error`` on all ranks: rank 0 reports it, the others exit quietly."""
        return error if self.first else SystemExit(2)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the block runs the others wait in :meth:`follow`; if it raises they exit quietly."""
        try:
            yield
        except BaseException:
            self._same("failed", self.patient)
            raise
        self._same("ready", self.patient)

    def follow(self) -> None:
        """Waits for the end of :meth:`waiting` on rank 0; exits if that raised."""
        if self._same(None, self.patient) != "ready":
            raise SystemExit(2)


@contextmanager
def joined() -> Iterator[Ranks]:
    """Yields this process's rank among those that ``torchrun`` started, else the only rank.

    Raises :class:`HeedfulError` if another process ends.
    """
    if dist.is_available() and dist.is_initialized():  # by a calling program, which keeps its group
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
    dist.destroy_process_group()  # not after an error: the others may have ended, and nobody would answer


def own_device(asked: str | None = None) -> str | None:
    """Returns the rank's own GPU, and makes it the current one, if ``asked`` is None or "cuda" under ``torchrun``; else
    returns ``asked``.
    """
    if "LOCAL_RANK" not in os.environ or asked not in (None, "cuda") or not torch.cuda.is_available():
        return asked
    torch.cuda.set_device(number := int(os.environ["LOCAL_RANK"]))
    return f"cuda:{number}"


def is_loss(error: RuntimeError) -> bool:
    """Returns True if an error means that another process has ended."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in LOST)


def gone(error: BaseException, where: str = "") -> str:
    """Returns the message for another process that has ended, with the remedy."""
    detail, what = " ".join(str(error).split())[:120], "has gone"
    # NCCL's words, gloo's, and the store's
    if waited := re.search(r"(?:Timeout\(ms\)=|waiting |timeout after )(\d+)", str(error)):
        what = f"has said nothing for {int(waited[1]) / 60_000:.3g} minutes"
    elif UNANSWERED in str(error):
        what = "has said nothing for too long"
    return (
        f"another process of the run {what}{where}; its own line says why, if it could; "
        f"start them all again, a training with --resume ({detail})"
    )
