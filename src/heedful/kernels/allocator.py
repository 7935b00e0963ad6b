"""Memory that is freed and taken again at every step: kept, not handed back to the system in between."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

MOST = 2**30  # bytes
KERNELS = 128  # several times what the shapes of one step need
CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
# glibc's mallopt: its names for the three, and the largest threshold that it takes
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, LARGEST = -1, -3, -4, 32 * 2**20


def keep_memory(most: int = MOST, *, any_size: bool = False) -> bool:
    """Have the C library keep up to ``most`` bytes of freed memory for the tensors to come; whether it will.

    A tensor of many megabytes (a batch's scores over a vocabulary, a feed-forward's activations) is made and freed at
    each step. Memory that went back to the system comes again page by page, zeroed, which can take longer than the
    arithmetic. This holds for the whole process, for tensors up to 32 MiB or of ``any_size``: then what is freed
    between two tensors that are still there stays with the process too, until ``Spare`` hands it back. Where glibc is
    not, nothing changes; where it is too old to say what it keeps (before 2.33), the limit of 32 MiB stays.

    >>> type(keep_memory()).__name__
    'bool'
    """
    if (libc := _glibc()) is None:
        return False
    mallopt = libc.mallopt
    kept = bool(mallopt(MMAP_THRESHOLD, LARGEST)) and bool(mallopt(TRIM_THRESHOLD, most))
    return kept and (not any_size or (hasattr(libc, "mallinfo2") and bool(mallopt(MMAP_MAX, 0))))


def keep_few_kernels(most: int = KERNELS) -> None:
    """Have oneDNN, and what PyTorch has around it, keep ``most`` of the kernels made for shapes, not 1,024 each.

    Where each batch has another number of tokens each makes new ones, of about a megabyte, which are never used again.
    Both are told by the environment, which they read once, before their first kernel; what is set there stays.
    """
    for name in CAPACITIES:
        os.environ.setdefault(name, str(most))


def rounded_rows(rows: int) -> int:
    """``rows`` or up to 3 % more: so many that a product's kernel, which is made for their number, comes again.

    Making one takes oneDNN as long as a step's product, a millisecond and more in bfloat16. Between two powers of two
    there are 32 such numbers.

    >>> [rounded_rows(rows) for rows in (5, 60, 1999, 2048)]
    [5, 60, 2016, 2048]
    """
    unit = 1 << max(0, rows.bit_length() - 6)
    return -(-rows // unit) * unit


class Spare:
    """Freed memory that gathers while a model learns, and is handed back where it is much.

    What a step takes and frees is there for the next one. Tensors of many different lengths leave gaps beside it in
    which the next ones do not fit, so what is free between two steps grows: by more than ``most`` bytes since it was
    least, and all of it goes back to the system. To look takes microseconds; to hand back, and to have the pages again,
    half a second a gigabyte.

    >>> Spare().look()
    False
    """

    def __init__(self, most: int = MOST) -> None:
        self.most, self.least = most, sys.maxsize  # bytes

    def look(self) -> bool:
        """Hand back if it is time to; whether it was."""
        libc = _glibc()
        if libc is None or not hasattr(libc, "mallinfo2"):
            return False
        free = libc.mallinfo2().fordblks
        self.least = min(self.least, free)
        if free - self.least <= self.most:
            return False
        self.least = sys.maxsize  # of what the next step takes and frees
        return bool(libc.malloc_trim(0))


class Kept(ctypes.Structure):
    """The fields of glibc's mallinfo2; ``fordblks`` are the free bytes."""

    NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in NAMES)


@cache
def _glibc() -> ctypes.CDLL | None:
    """The C library, where it is one that can be told what to keep."""
    if sys.platform != "linux":
        return None
    try:
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallinfo2"):
            libc.mallinfo2.restype = Kept
        return libc if libc.mallopt and libc.malloc_trim else None
    except (OSError, AttributeError):  # another one
        return None
