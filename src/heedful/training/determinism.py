"""Deterministic algorithms: the same bits each time, or an error that names the operation without a deterministic
algorithm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from heedful.errors import HeedfulError

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS is deterministic only with a fixed workspace
FIXED = ":4096:8"


def fixed_workspace() -> None:
    """Sets the workspace of cuBLAS; call it before the first matrix product on the GPU, because cuBLAS reads the
    setting once.
    """
    os.environ.setdefault(WORKSPACE, FIXED)


@contextmanager
def threads_restored() -> Iterator[None]:
    """Context manager that restores the number of CPU threads at its end."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def use_threads(count: int, say: Callable[[str], None]) -> None:
    """Sets the number of CPU threads, which decides the order of sums; ``say`` is called with a line if the number
    changes.
    """
    before = torch.get_num_threads()
    if count == before:
        return
    torch.set_num_threads(count)
    if (used := torch.get_num_threads()) == count:
        say(f"threads    {count} (--training.threads) in place of {before}, the default here")
    else:
        say(f"! --training.threads {count}: PyTorch uses {used} threads here; a resumed run will not be bit-identical")


@contextmanager
def deterministic(enabled: bool) -> Iterator[None]:
    """Context manager in which PyTorch uses only deterministic algorithms, if ``enabled``.

    On a CPU most algorithms are deterministic anyway. The setting holds for the whole process, and
    is restored at the end. An operation without a
    deterministic algorithm raises a :class:`HeedfulError` that names it.
    """
    if not enabled:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark, workspace = torch.backends.cudnn.benchmark, os.environ.get(WORKSPACE)
    fixed_workspace()
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    except RuntimeError as error:
        if WORKSPACE in str(error):
            raise HeedfulError(
                f"--deterministic needs the environment variable {WORKSPACE}={FIXED} before the first matrix product "
                "on the GPU, which has run already; set it before you start Python"
            ) from None
        operation, separator, _ = str(error).partition(" does not have a deterministic implementation")
        if not separator:
            raise
        raise HeedfulError(
            f"{operation} has no deterministic algorithm in PyTorch {torch.__version__}; run without --deterministic"
        ) from None
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark
        os.environ.pop(WORKSPACE)
        if workspace is not None:
            os.environ[WORKSPACE] = workspace
