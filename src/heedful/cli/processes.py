"""Processes and threads, before torch is imported: who speaks of those that ``torchrun`` started, what they may share,
and how threads wait on a busy machine. The work itself is shared out by ``heedful.util.ranks``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from heedful.errors import HeedfulError

SHARED = (["train"], ["evaluate"], ["predict"])  # what several processes do together
COMPUTING = ("train", "predict", "evaluate", "compare", "nearest", "verify", "inspect", "export", "demo", "serve")
# each of these says how threads work, and is left as it is
CHOSEN = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "OMP_DYNAMIC", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_NUM_THREADS")
BUSY = 0.75  # cores that others use, from which on a machine is busy
started: float | None = None  # clock (time.monotonic) at the start of this process; None where Python calls the command


def rank() -> int:
    """This process's number among them: 0 speaks. Alone it is 0."""
    return _told("RANK", 0) if several() else 0


def several() -> bool:
    """Returns whether there are others."""
    return _told("WORLD_SIZE", 1) > 1


def _told(name: str, default: int) -> int:
    """Returns a number in the environment; the default where that is none, of which ``check_shared`` has spoken."""
    text = os.environ.get(name, "")
    return int(text) if _is_number(text) else default


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def check_shared(tokens: Sequence[str]) -> None:
    """Several processes are told who they are, and may only run a command that shares its work among them."""
    for name in ("RANK", "WORLD_SIZE"):
        if (text := os.environ.get(name, "0")) and not _is_number(text):
            raise HeedfulError(f"{name} in the environment is {text!r}, no number; unset it, or start with torchrun")
    if several() and (not os.environ.get("RANK") or rank() >= _told("WORLD_SIZE", 1)):
        said = f"RANK={os.environ['RANK']}" if os.environ.get("RANK") else "no RANK"
        raise HeedfulError(
            f"the environment has WORLD_SIZE={os.environ['WORLD_SIZE']} and {said}; start with torchrun, or unset it"
        )
    if several() and tokens[:1] not in SHARED:
        raise HeedfulError(
            "torchrun's processes share the work of heedful train, evaluate, and predict --in; leave torchrun out"
        )


def wait_passively(tokens: Sequence[str], environ: MutableMapping[str, str] = os.environ) -> str | None:
    """Lets OpenMP's threads sleep while they wait, where a command computes and other programs use the cores.

    A waiting thread otherwise spins, and takes the core from the thread that it waits for: two cores with two other
    programs made training nine times as long. It changes no result. An environment that already says how threads work
    is left as it is, and so is a process that has torch.

    Returns:
        The line that says so; None where nothing was changed.
    """
    computes = tuple(tokens[:1]) and tokens[0] in COMPUTING and not {"--help", "-h"} & set(tokens)
    if not computes or several() or "torch" in sys.modules or any(name in environ for name in CHOSEN):
        return None
    used, cores = cores_in_use(), os.cpu_count() or 1
    if used is None or used < BUSY or used + usable_cores() <= cores:
        return None
    environ["OMP_WAIT_POLICY"] = "PASSIVE"
    return f"other programs use {used:.1f} of {cores} cores; threads sleep while they wait (OMP_WAIT_POLICY=PASSIVE)"


def usable_cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores_in_use(running: Path = Path("/proc/loadavg")) -> float | None:
    """Number of cores that other programs use: the load of the last minute, or of this moment where the system tells it
    (Linux) and it is higher; None where it tells neither (Windows).
    """
    try:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    except OSError:
        load = None
    try:  # "0.07 0.11 0.07 1/123 4567": threads that run now, this one among them
        now = int(running.read_text(encoding="ascii").split()[3].partition("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return load
    return float(now) if load is None else max(load, float(now))
