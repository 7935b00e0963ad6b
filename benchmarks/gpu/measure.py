"""Timing, peak memory and the ceilings of a device."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

REPEATS = 3  # timed runs of a row; the median counts


@dataclass(frozen=True)
class Settings:
    """Settings of all rows.

    Attributes:
        device: "cuda" or "cpu".
        short: True for tiny models.
        text: path of the characters' text; None: a generated text.
    """

    device: str
    short: bool
    text: str | None = None

    @property
    def compiler(self) -> str:
        """Backend of ``torch.compile``: a short run only traces."""
        return "aot_eager" if self.short else "inductor"


def wait(device: str) -> None:
    """Waits until the device has nothing to do."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(call: Callable[[], Any], device: str) -> float:
    """Returns the seconds of one call, on a GPU by CUDA events."""
    if device != "cuda":
        started = time.perf_counter()
        call()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    wait(device)
    begin.record()
    call()
    end.record()
    wait(device)
    return begin.elapsed_time(end) / 1000


def median_seconds(call: Callable[[], Any], device: str) -> tuple[float, float]:
    """Returns the median seconds of ``REPEATS`` calls, and the seconds of the first call before them, which warms
    up.
    """
    started = time.perf_counter()
    call()
    wait(device)
    first = time.perf_counter() - started
    return statistics.median(seconds(call, device) for _ in range(REPEATS)), first


def begin_row(device: str) -> None:
    """Frees what the last row left, and resets the compiler and the peak of allocated memory."""
    gc.collect()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.set_float32_matmul_precision("highest")
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak(device: str) -> dict[str, float]:
    """Returns the peak of allocated memory since ``begin_row`` in GB; nothing on a CPU."""
    return {"peak_gb": torch.cuda.max_memory_allocated() / 1e9} if device == "cuda" else {}


def allocated(device: str) -> float:
    """Returns the memory that tensors still hold in GB; 0 on a CPU."""
    return torch.cuda.memory_allocated() / 1e9 if device == "cuda" else 0.0


def machine(device: str) -> dict[str, Any]:
    """Returns name, memory and versions of the device."""
    if device != "cuda":
        return {"device": "cpu", "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "device_gb": properties.total_memory / 1e9,
        "multiprocessors": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def product(settings: Settings, dtype: str, side: int) -> dict[str, float]:
    """Measures a square matrix product of random numbers: TFLOP/s."""
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    a, b = (torch.randn(side, side, device=settings.device) for _ in range(2))
    if dtype == "bfloat16":
        a, b = a.bfloat16(), b.bfloat16()
    count = 2 if settings.short else 10
    taken, _ = median_seconds(lambda: [torch.mm(a, b) for _ in range(count)][-1], settings.device)
    return {"tflops": 2 * side**3 * count / taken / 1e12}


def copy(settings: Settings, megabytes: int) -> dict[str, float]:
    """Measures a copy within the device's memory: GB/s, bytes read and bytes written together."""
    source = torch.randn(megabytes * 2**18, device=settings.device)
    target, count = torch.empty_like(source), 2 if settings.short else 10
    taken, _ = median_seconds(lambda: [target.copy_(source) for _ in range(count)], settings.device)
    return {"gb_per_second": 2 * source.nbytes * count / taken / 1e9}
