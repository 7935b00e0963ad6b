"""Cores that other programs use, and how OpenMP's threads wait beside them.

A thread of OpenMP that waits for another spins. Beside other programs it thereby takes the core of the thread that it
waits for: with two of them on two cores, training took nine times as long. Threads that sleep while they wait compute
the same numbers. The command line sets an environment variable before torch is imported (``heedful.cli.processes``);
a library must leave the environment alone, and torch may be loaded, so ``sleep_while_waiting`` needs neither.

No torch is imported before it is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

# environment variables that configure threads; heedful changes nothing if one is set
THREAD_VARIABLES = (
    "OMP_WAIT_POLICY",
    "OMP_NUM_THREADS",
    "OMP_DYNAMIC",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
)
BUSY = 0.5  # cores in use by others from which on a machine counts as busy: of one program that ours compete with
SHORTEST = 0.05  # seconds over which the cores in use are counted, at least: the system counts in ticks of 1 to 10 ms
PERIOD = 1.0  # seconds between two counts in ``sleep_while_waiting``
PARALLEL = 2**15  # elements that PyTorch gives to a thread, at least
STAT = Path("/proc/stat")
MAPS = Path("/proc/self/maps")  # the libraries of this process (Linux)


class ProcessorTimes(NamedTuple):
    """Time of a clock, and the processor times of all programs and of this process until then, in seconds."""

    clock: float
    busy: float
    own: float


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_busy(used: float | None) -> bool:
    """Returns True if other programs use so many cores that this process's threads compete with them."""
    return used is not None and used >= BUSY and used + usable_cores() > (os.cpu_count() or 1)


def cores_in_use(before: ProcessorTimes | None, stat: Path = STAT) -> float | None:
    """Returns the mean number of cores that other programs have used since ``before``, over ``SHORTEST`` at least.

    It is the processor time of all programs without that of this process, over the time that has passed (Linux). Where
    the system does not report these times, it is the mean load of the last minute, in which programs that have ended
    count too (macOS), or None (Windows).
    """
    if before is not None:
        time.sleep(max(0.0, before.clock + SHORTEST - time.monotonic()))
        now = processor_times(stat)
        if now is not None:
            used = now.busy - before.busy - (now.own - before.own)  # of ticks: a little below 0 on a quiet machine
            return min(max(0.0, used / max(now.clock - before.clock, SHORTEST)), float(os.cpu_count() or 1))
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def processor_times(stat: Path = STAT) -> ProcessorTimes | None:
    """Returns the processor times until now; None where the system does not report them.

    The first line of ``/proc/stat`` has the ticks of all cores in user, nice, system, idle, iowait, irq and softirq; in
    a container the cores are those of the container or of its host.
    """
    try:
        with stat.open("rb") as file:
            user, nice, system, _, _, irq, softirq = map(int, file.readline().split()[1:8])
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return None
    return ProcessorTimes(time.monotonic(), (user + nice + system + irq + softirq) / ticks, time.process_time())


@contextmanager
def sleep_while_waiting(say: Callable[[str], None] = lambda line: None) -> Iterator[None]:
    """Context manager in which OpenMP's threads sleep while they wait, as soon as other programs use the cores.

    GCC's OpenMP, that of PyTorch on Linux, shortens the spinning to a 3,000th while a process has more of its threads
    than cores (its manual under ``GOMP_SPINCOUNT``). Idle threads are therefore added until the end. They compute
    nothing, and those that compute stay as many, so that no result changes. The load is read at the start, and every
    ``PERIOD`` seconds until it is high. ``say`` is called with a line if it is high at the start.

    Nothing is done where an environment variable configures threads, where one thread computes, and with another
    OpenMP.
    """
    import torch

    threads = torch.get_num_threads()
    if threads == 1 or any(name in os.environ for name in THREAD_VARIABLES) or not _has_gcc_openmp():
        yield
        return
    used, ended = cores_in_use(processor_times()), Event()
    if is_busy(used):
        say(f"threads    sleep while they wait: other programs use {used:.1f} of {os.cpu_count()} cores")
    count = -(-usable_cores() // (threads - 1))  # each adds a thread less than ``threads``
    watcher = Thread(target=_watch, args=(count, is_busy(used), ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _has_gcc_openmp() -> bool:
    try:
        return "libgomp" in MAPS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def _watch(count: int, busy: bool, ended: Event) -> None:
    """Waits until the machine is busy, then keeps ``count`` groups of idle threads until ``ended``."""
    while not busy:
        before = processor_times()
        if ended.wait(PERIOD):
            return
        busy = is_busy(cores_in_use(before))
    groups = [Thread(target=_idle, args=(ended,), daemon=True) for _ in range(count)]
    for group in groups:
        group.start()
    for group in groups:
        group.join()


def _idle(ended: Event) -> None:
    """Keeps OpenMP's threads of this thread, which it starts for an operation in parallel, until ``ended``."""
    import torch

    torch.zeros(torch.get_num_threads() * PARALLEL, dtype=torch.uint8, device="cpu").add_(1)
    ended.wait()
