"""Processes and threads, before torch is imported: ranks of ``torchrun``, and how threads wait on a busy machine.

``heedful.util.ranks`` distributes the work.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import NamedTuple

from heedful.errors import HeedfulError

SHARED = (["train"], ["evaluate"], ["predict"])  # commands that several processes run together
COMPUTING = ("train", "predict", "evaluate", "compare", "nearest", "verify", "inspect", "export", "demo", "serve")
# environment variables that configure threads; heedful changes nothing if one is set
THREAD_VARIABLES = (
    "OMP_WAIT_POLICY",
    "OMP_NUM_THREADS",
    "OMP_DYNAMIC",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
)
BUSY = 0.75  # cores in use by others from which on a machine counts as busy
SHORTEST = 0.05  # seconds over which the cores in use are counted, at least: the system counts in ticks of 1 to 10 ms
STAT = Path("/proc/stat")


class ProcessorTimes(NamedTuple):
    """Time of a clock, and the processor times of all programs and of this process until then, in seconds."""

    clock: float
    busy: float
    own: float


at_start: ProcessorTimes | None = None  # of this process; None if Python code calls ``main``
started: float | None = None  # time.monotonic at the start of this process; None if Python code calls ``main``


def rank() -> int:
    """Returns this process's rank, 0 if it is the only one. Rank 0 prints."""
    return _number("RANK", 0) if several() else 0


def several() -> bool:
    """Returns True if ``torchrun`` started several processes."""
    return _number("WORLD_SIZE", 1) > 1


def _number(name: str, default: int) -> int:
    """Returns the environment variable ``name`` as an integer, or ``default`` if it is unset or not a number.

    ``check_shared`` reports values that are not numbers.
    """
    text = os.environ.get(name, "")
    return int(text) if _is_number(text) else default


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def check_shared(tokens: Sequence[str]) -> None:
    """Raises for invalid ranks in the environment, and for a command that several processes cannot share."""
    for name in ("RANK", "WORLD_SIZE"):
        if (text := os.environ.get(name, "0")) and not _is_number(text):
            raise HeedfulError(
                f"environment variable {name} is {text!r}, not a number; unset it, or start with torchrun"
            )
    if several() and (not os.environ.get("RANK") or rank() >= _number("WORLD_SIZE", 1)):
        rank_text = f"RANK={os.environ['RANK']}" if os.environ.get("RANK") else "no RANK"
        raise HeedfulError(
            f"the environment has WORLD_SIZE={os.environ['WORLD_SIZE']} and {rank_text}; start with torchrun, or "
            "unset WORLD_SIZE"
        )
    if several() and tokens[:1] not in SHARED:
        raise HeedfulError(
            "torchrun works only with heedful train, evaluate, and predict --in; run this command without torchrun"
        )


def wait_passively(tokens: Sequence[str], environ: MutableMapping[str, str] = os.environ) -> str | None:
    """Makes OpenMP's threads sleep while they wait, if the command computes and other programs use the cores.

    A waiting thread otherwise spins, and blocks the core of the thread that it waits for: with two other programs on
    two cores, training took nine times as long. Results do not change. Nothing is changed if an environment variable
    already configures threads, or if torch is loaded.

    Returns:
        A line for people that names the change; None without a change.
    """
    computes = bool(tokens) and tokens[0] in COMPUTING and not {"--help", "-h"} & set(tokens)
    if not computes or several() or "torch" in sys.modules or any(name in environ for name in THREAD_VARIABLES):
        return None
    used, cores = cores_in_use(), os.cpu_count() or 1
    if used is None or used < BUSY or used + usable_cores() <= cores:
        return None
    environ["OMP_WAIT_POLICY"] = "PASSIVE"
    return f"other programs use {used:.1f} of {cores} cores; threads sleep while they wait (OMP_WAIT_POLICY=PASSIVE)"


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores_in_use(stat: Path = STAT) -> float | None:
    """Returns the mean number of cores that other programs have used since the start of this process.

    It is the processor time of all programs without that of this process, over the time that has passed (Linux). Where
    the system does not report these times, it is the mean load of the last minute, in which programs that have ended
    count too (macOS), or None (Windows).
    """
    before = at_start or processor_times(stat)
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
