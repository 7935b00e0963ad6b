"""Processor, memory and load of the machine. A function returns None if the system does not report the value.

All calls that differ between Linux, macOS and Windows are here. None needs torch.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
LIMITS = (  # memory of a container in bytes: control groups of version 2 and 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
ENTRY = re.compile(r"^(?:model name|Model)\s*:\s*(.+)$", re.MULTILINE)
AVAILABLE = re.compile(r"^MemAvailable:\s*(\d+) kB$", re.MULTILINE)


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "available", "pages", "free_pages", "space", "free", "more")),
    )


def processor() -> str | None:
    """Returns the processor's name, such as "AMD EPYC 9B14"."""
    if sys.platform == "darwin":
        try:
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip() or None
        except (OSError, subprocess.SubprocessError):
            return platform.processor() or None
    match = ENTRY.search(_text(CPUINFO))
    return match[1].strip() if match else platform.processor() or None


def cores() -> int:
    """Returns the number of logical cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def total_memory() -> int | None:
    """Returns the memory of the machine in bytes, or the limit of the container if that is lower."""
    limits = [int(text) for text in (_text(path).strip() for path in LIMITS) if text.isdecimal()]
    try:
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        limits += [status.total for status in _windows_memory()]
    return min((limit for limit in limits if limit > 0), default=None)


def available_memory() -> int | None:
    """Returns the memory in bytes that is available without swapping; None on macOS, which does not report it."""
    match = AVAILABLE.search(_text(MEMINFO))
    if match:
        return int(match[1]) * 1024
    return next((int(status.available) for status in _windows_memory()), None)


def mean_load() -> float | None:
    """Returns the mean number of runnable processes over the last minute; None on Windows, which does not report it."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _windows_memory() -> list[_MemoryStatus]:
    """Returns a list with the memory status on Windows; [] elsewhere."""
    library = getattr(ctypes, "windll", None)
    if library is None:
        return []
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    return [status] if library.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)) else []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
