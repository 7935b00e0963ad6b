"""Memory that is freed and taken again at every step: kept, not handed back to the system in between."""

from __future__ import annotations

import ctypes
import sys

# glibc's mallopt: its names for the three, and the largest threshold that it takes
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, LARGEST = -1, -3, -4, 32 * 2**20


def keep_memory(most: int = 2**30, *, any_size: bool = False) -> bool:
    """Have the C library keep up to ``most`` bytes of freed memory for the tensors to come; whether it will.

    A tensor of many megabytes (a batch's scores over a vocabulary, a feed-forward's activations) is made and freed at
    each step. Memory that went back to the system comes again page by page, zeroed, which can take longer than the
    arithmetic. This holds for the whole process, for tensors up to 32 MiB or of ``any_size``: then what is freed
    between two tensors that are still there stays with the process, too. Where glibc is not, nothing changes.

    >>> type(keep_memory()).__name__
    'bool'
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    kept = bool(mallopt(MMAP_THRESHOLD, LARGEST)) and bool(mallopt(TRIM_THRESHOLD, most))
    return kept and (not any_size or bool(mallopt(MMAP_MAX, 0)))
