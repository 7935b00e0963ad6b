"""A description of the machine. Nothing here imports torch."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = (
    "heedful",
    "torch",
    "transformers",
    "ctranslate2",
    "onnxruntime",
    "openvino",
    "nncf",
    "xllamacpp",
    "timm",
    "x-transformers",
)


INSTRUCTIONS = {"avx2": "AVX2", "avx512_vnni": "AVX512-VNNI", "avx512_bf16": "AVX512-BF16", "amx_int8": "AMX"}


def allowed() -> set[int]:
    """The processors that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cores() -> int:
    """Physical cores among them: those whose threads are siblings count once."""
    topology = Path("/sys/devices/system/cpu")
    files = [topology / f"cpu{number}" / "topology" / "thread_siblings_list" for number in allowed()]
    return len({file.read_text() if file.exists() else str(file) for file in files})


def described() -> dict[str, Any]:
    """Processor, cores, memory, system and versions."""
    flags = (_first("/proc/cpuinfo", "flags") or "").split()
    return {
        "commit": _commit(),
        "processor": _first("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": cores(),
        "instructions": [name for flag, name in INSTRUCTIONS.items() if flag in flags],
        "processors": len(allowed()),
        "memory_gb": round(int((_first("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20, 1),
        "system": platform.system(),
        "python": sys.version.split()[0],
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "waiting": {name: os.environ[name] for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT") if name in os.environ},
    }


def _commit() -> str:
    command = ("git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first(file: str, key: str) -> str | None:
    path = Path(file)
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return None
