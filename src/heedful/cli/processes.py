"""Processes and threads, before torch is imported: ranks of ``torchrun``, and how threads wait on a busy machine.

``heedful.util.ranks`` distributes the work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence

from heedful.errors import HeedfulError
from heedful.util.busy_machine import THREAD_VARIABLES, ProcessorTimes, cores_in_use, is_busy, processor_times

SHARED = (["train"], ["evaluate"], ["predict"])  # commands that several processes run together
COMPUTING = ("train", "predict", "evaluate", "compare", "nearest", "verify", "inspect", "export", "demo", "serve")
LONG = ("train", "demo")  # of these, commands that a line about other programs explains: they take minutes

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

    Results do not change (``heedful.util.busy_machine``). Nothing is changed if an environment variable already
    configures threads, or if torch is loaded.

    Returns:
        A line for people that names the change, of a command in ``LONG``; None without one, and with ``--quiet``.
    """
    computes = bool(tokens) and tokens[0] in COMPUTING and not {"--help", "-h"} & set(tokens)
    if not computes or several() or "torch" in sys.modules or any(name in environ for name in THREAD_VARIABLES):
        return None
    used = cores_in_use(at_start or processor_times())
    if not is_busy(used):
        return None
    environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if tokens[0] not in LONG or "--quiet" in tokens:
        return None
    cores = os.cpu_count()
    return f"other programs use {used:.1f} of {cores} cores; threads sleep while they wait (OMP_WAIT_POLICY=PASSIVE)"
