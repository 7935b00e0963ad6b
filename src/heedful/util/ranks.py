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

LONG_TIMEOUT = timedelta(hours=2)  # while rank 0 reads data, or a thread writes
TIMEOUT = timedelta(minutes=30)  # of a collective in training: longer than a step or a batch takes
T = TypeVar("T")
GLOO_TIMEOUT = "Application timeout"  # gloo's error for a silent process, without the duration
# Words in errors about a lost process.
LOSS_WORDS = ("gloo", GLOO_TIMEOUT, "Connection closed", "Connection reset", "Broken pipe", "NCCL", "Socket")


class Ranks:
    """Rank of this process in a distributed run, with the collectives of all ranks; by default the only rank.

    Args:
        rank: this process's rank. Rank 0 reads the data first, and alone writes files and prints.
        size: number of ranks.
        group: process group of the collectives; None: the default group.
        patient: process group with a long timeout, for ``barrier``, ``run_on_first`` and ``wait_for_first``; None:
            ``group``.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        group: dist.ProcessGroup | None = None,
        patient: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.size, self.group, self.patient = rank, size, group, patient or group

    def with_new_group(self) -> Ranks:
        """Returns these ranks with a new process group, for collectives of threads. All ranks must call it."""
        if self.size == 1:
            return self
        return Ranks(self.rank, self.size, dist.new_group(backend="gloo", timeout=LONG_TIMEOUT))

    @property
    def is_first(self) -> bool:
        """True on rank 0, which writes and prints."""
        return self.rank == 0

    def sum(self, *numbers: float) -> list[float]:
        """Returns each number summed over all ranks, in float64: exact for whole numbers up to 2^53."""
        if self.size == 1:
            return list(numbers)
        total = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return total.tolist()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the sum of a tensor over all ranks, on the device of the tensor."""
        if self.size > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, by rank (all-gather)."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self.group)
        return values

    def broadcast(self, value: Any = None) -> Any:
        """Returns rank 0's value on all ranks (broadcast)."""
        return self._broadcast(value, self.group)

    def _broadcast(self, value: Any, group: dist.ProcessGroup | None) -> Any:
        values = [value]
        if self.size > 1:
            dist.broadcast_object_list(values, src=0, group=group)
        return values[0]

    def run_on_first(self, make: Callable[[], T]) -> T:
        """Calls ``make`` on rank 0 and returns its result on all ranks.

        If ``make`` fails, rank 0 raises the error, and the other ranks exit silently.
        """
        if not self.is_first:
            self.wait_for_first()
            return cast(T, self.broadcast())
        with self.while_others_wait():
            result = make()
        return cast(T, self.broadcast(result))

    def barrier(self) -> None:
        """Waits until all ranks have called it (barrier)."""
        if self.size > 1:
            dist.barrier(group=self.patient)

    def shared_error(self, error: HeedfulError) -> BaseException:
        """Returns what a rank must raise for an ``error`` that occurs on all ranks.

        Rank 0 raises the error itself; the others exit silently.
        """
        return error if self.is_first else SystemExit(2)

    @contextmanager
    def while_others_wait(self) -> Iterator[None]:
        """Context manager for a block on rank 0, during which the other ranks wait in :meth:`wait_for_first`.

        If the block raises an error, the other ranks exit silently.
        """
        try:
            yield
        except BaseException:
            self._broadcast("failed", self.patient)
            raise
        self._broadcast("ready", self.patient)

    def wait_for_first(self) -> None:
        """Waits until rank 0 has left its block :meth:`while_others_wait`; exits if that block raised an error."""
        if self._broadcast(None, self.patient) != "ready":
            raise SystemExit(2)


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Context manager that yields this process's :class:`Ranks`: one of those of ``torchrun``, or the only rank.

    Raises :class:`HeedfulError` if another process of the run ends.
    """
    if dist.is_available() and dist.is_initialized():  # by the calling program, which owns its group
        yield Ranks(dist.get_rank(), dist.get_world_size())
        return
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if size == 1:
        yield Ranks()
        return
    if not dist.is_available():
        raise HeedfulError("this build of PyTorch has no torch.distributed; run one process, without torchrun")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a device that the group lacks: tensors on the CPU use gloo
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=TIMEOUT)
        patient = dist.new_group(backend="gloo", timeout=LONG_TIMEOUT)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), patient=patient)
    except RuntimeError as error:
        if not is_loss(error):
            raise
        raise HeedfulError(loss_message(error)) from None
    dist.destroy_process_group()  # not after an error: the others may have ended, and it would wait for them


def current_rank() -> int:
    """Returns this process's rank, before or after :func:`join_ranks`; 0 if it is the only one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    several = int(os.environ.get("WORLD_SIZE") or 1) > 1
    return int(os.environ.get("RANK") or 0) if several else 0


def own_device(device: str | None = None) -> str | None:
    """Returns the name of this rank's own GPU, such as "cuda:1", and makes it the current GPU.

    This needs ``torchrun``, and the ``device`` None or "cuda". Any other ``device`` is returned unchanged.
    """
    if "LOCAL_RANK" not in os.environ or device not in (None, "cuda") or not torch.cuda.is_available():
        return device
    torch.cuda.set_device(number := int(os.environ["LOCAL_RANK"]))
    return f"cuda:{number}"


def is_loss(error: RuntimeError) -> bool:
    """Returns True if an error of a collective means that another process has ended."""
    return isinstance(error, dist.DistError) or any(word in str(error) for word in LOSS_WORDS)


def loss_message(error: BaseException, where: str = "") -> str:
    """Returns the message that another process of the run has ended, made from the ``error`` of a collective.

    ``where`` continues the message, such as ", at step 5".
    """
    detail, problem = " ".join(str(error).split())[:120], "has ended"
    # The forms of NCCL, gloo and the store.
    if waited := re.search(r"(?:Timeout\(ms\)=|waiting |timeout after )(\d+)", str(error)):
        problem = f"has not responded for {int(waited[1]) / 60_000:.3g} minutes"
    elif GLOO_TIMEOUT in str(error):
        problem = "has not responded for too long"
    return (
        f"another process of the run {problem}{where}; see its own error message; "
        f"then start all processes again, a training run with --resume ({detail})"
    )
