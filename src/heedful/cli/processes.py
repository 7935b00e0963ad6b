"""Processes and threads, before torch is imported: ranks of ``torchrun``, and how threads wait on a busy machine.

``heedful.util.ranks`` distributes the work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

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


def cores_in_use(running: Path = Path("/proc/loadavg")) -> float | None:
    """Returns the number of cores that other programs use; None if unknown (Windows).

    The number is the mean load of the last minute or, on Linux, the current load if that is higher.
    """
    try:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    except OSError:
        load = None
    try:  # "0.07 0.11 0.07 1/123 4567": the fourth field counts running threads, this one included
        now = int(running.read_text(encoding="ascii").split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return load
    return float(now) if load is None else max(load, float(now))
