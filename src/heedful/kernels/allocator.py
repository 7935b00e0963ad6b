"""Memory allocation of the C library and of oneDNN: keeps memory that every step frees and allocates again."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

MAX_BYTES = 2**30
MAX_KERNELS = 128  # several times what the shapes of one step need
CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
# parameters of glibc's mallopt, and its largest threshold
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX, LARGEST = -1, -3, -4, 32 * 2**20


def keep_memory(max_bytes: int = MAX_BYTES, *, any_size: bool = False) -> bool:
    """Lets the C library keep up to ``max_bytes`` of freed memory for later tensors. Returns True on success.

    Every step allocates and frees tensors of many megabytes, such as a batch's scores over a vocabulary. If freed
    memory goes back to the system, the next step gets it page by page, zeroed, which can take longer than the
    arithmetic. The setting holds for the whole process, for tensors up to 32 MiB, or for all with ``any_size``: then
    memory between two live tensors is kept too, until ``FreeMemory`` returns it to the system. Without glibc nothing
    changes; with a glibc before 2.33 the limit of 32 MiB stays.

    >>> type(keep_memory()).__name__
    'bool'
    """
    if (libc := _glibc()) is None:
        return False
    mallopt = libc.mallopt
    is_set = bool(mallopt(MMAP_THRESHOLD, LARGEST)) and bool(mallopt(TRIM_THRESHOLD, max_bytes))
    return is_set and (not any_size or (hasattr(libc, "mallinfo2") and bool(mallopt(MMAP_MAX, 0))))


def keep_few_kernels(count: int = MAX_KERNELS) -> None:
    """Limits the caches of kernels compiled for shapes, of oneDNN and of PyTorch, to ``count`` instead of 1,024.

    Each new batch length compiles a new kernel, of about a megabyte. Both caches read their limit from an environment
    variable once, before their first kernel; a variable that is already set keeps its value.
    """
    for name in CAPACITIES:
        os.environ.setdefault(name, str(count))


def rounded_rows(rows: int) -> int:
    """Rounds a number of rows up by at most 3 %, so that a kernel compiled for that number is used again.

    Compiling a oneDNN kernel takes as long as a matrix product, in bfloat16 a millisecond or more. There are 32 rounded
    numbers between two powers of two.

    >>> [rounded_rows(rows) for rows in (5, 60, 1999, 2048)]
    [5, 60, 2016, 2048]
    """
    unit = 1 << max(0, rows.bit_length() - 6)
    return -(-rows // unit) * unit


class FreeMemory:
    """Freed memory of the process, returned to the system when it has grown by more than ``max_growth`` bytes.

    The next step uses the memory that a step frees. Tensors of many different lengths leave gaps that later tensors do
    not fit, so the free memory between steps grows. A check takes microseconds; returning memory, and getting its pages
    again, takes half a second per gigabyte.

    >>> FreeMemory().release_if_grown()
    False
    """

    def __init__(self, max_growth: int = MAX_BYTES) -> None:
        self.max_growth, self.least = max_growth, sys.maxsize  # bytes

    def release_if_grown(self) -> bool:
        """Returns free memory to the system if it has grown too much; the result is True in that case."""
        libc = _glibc()
        if libc is None or not hasattr(libc, "mallinfo2"):
            return False
        free = libc.mallinfo2().fordblks
        self.least = min(self.least, free)
        if free - self.least <= self.max_growth:
            return False
        self.least = sys.maxsize  # until after the next step
        return bool(libc.malloc_trim(0))


class MallInfo(ctypes.Structure):
    """Fields of glibc's ``mallinfo2``; ``fordblks`` is the number of free bytes."""

    NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in NAMES)


@cache
def _glibc() -> ctypes.CDLL | None:
    """Returns the loaded glibc, or None if the C library is not glibc."""
    if sys.platform != "linux":
        return None
    try:
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallinfo2"):
            libc.mallinfo2.restype = MallInfo
        return libc if libc.mallopt and libc.malloc_trim else None
    except (OSError, AttributeError):  # not glibc
        return None
