"""Compiles ``few_rows.cpp`` with the machine's C++ compiler.

It needs nothing but Python's own library: it also runs as a process of its own, which goes on after the program that
started it has ended, so that the next program finds the compiled file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("few_rows.cpp")
PARTS = (SOURCE.with_name("whole_sequences.h"),)  # that the source includes
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-fno-math-errno", "-fno-trapping-math")
TIMEOUT = 300  # seconds for the compiler, which needs about 3
DIGEST = 32  # bytes at the end of a compiled library


class Processor(NamedTuple):
    """A kind of processor: its name, the compiler's flags, and what ``/proc/cpuinfo`` must list."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


_V2 = frozenset(["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])
_V3 = _V2 | frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"])
_VNNI = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"])
_BF16 = _VNNI | frozenset(["avx512_bf16"])
_AMX = _BF16 | frozenset(["amx_tile", "amx_int8", "amx_bf16"])
_TILES = ("-mavx512bf16", "-mamx-tile", "-mamx-int8", "-mamx-bf16")
# by machine, the fastest first: for which processors a wheel has the library
PROCESSORS = {
    "x86_64": (
        Processor("amx", ("-march=x86-64-v4", "-mavx512vnni", *_TILES), _AMX),
        Processor("bf16", ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"), _BF16),
        Processor("vnni", ("-march=x86-64-v4", "-mavx512vnni"), _VNNI),
        Processor("v3", ("-march=x86-64-v3",), _V3),
        Processor("v2", ("-march=x86-64-v2",), _V2),
    ),
    "aarch64": (Processor("armv8", ("-march=armv8-a",), frozenset({"asimd"})),),
}


class BuildError(RuntimeError):
    """The library cannot be compiled; the message says why."""


def flags_of(processor: Processor) -> tuple[str, ...]:
    """Returns the compiler's flags for a processor; the library then also runs with an older C++ runtime."""
    return (*(flag for flag in FLAGS if flag != "-march=native"), *processor.flags, "-fno-sized-deallocation", "-g0")


def source_text(source: Path = SOURCE) -> str:
    """Returns a source with its parts, by which its library is named."""
    return "".join(file.read_text(encoding="utf-8") for file in (source, *PARTS))


def file_name(machine: str, processor: Processor) -> str:
    """Returns the name of a processor's library, which changes with the source."""
    key = source_text().encode() + "\n".join(flags_of(processor)).encode()
    return f"few_rows-{machine}-{processor.name}-{hashlib.sha256(key).hexdigest()[:12]}.so"


def features(cpuinfo: Path = Path("/proc/cpuinfo")) -> set[str]:
    """Returns the words of ``/proc/cpuinfo``, among them what the processor has; none if it cannot be read."""
    try:
        return set(cpuinfo.read_text(encoding="utf-8").split())
    except OSError:
        return set()


def packaged(folder: Path = SOURCE.parent, cpuinfo: Path = Path("/proc/cpuinfo")) -> Path | None:
    """Returns the library that came in the wheel for the processor at hand; None if there is none."""
    if platform.system() != "Linux":
        return None
    words = features(cpuinfo)
    machine = platform.machine()
    fitting = (each for each in PROCESSORS.get(machine, ()) if each.needs <= words)
    return next((file for each in fitting if (file := folder / file_name(machine, each)).is_file()), None)


def compiler() -> tuple[str, ...] | None:
    """Returns the C++ compiler's command, from ``CXX`` or g++; None if there is none, or not on Linux.

    It must be GCC: PyTorch's OpenMP runtime, which the kernels share, is GCC's libgomp.
    """
    words = (os.environ.get("CXX") or "g++").split()  # such as "ccache g++"
    path = shutil.which(words[0]) if words and platform.system() == "Linux" else None
    return None if path is None else (path, *words[1:])


def version(command: tuple[str, ...], timeout: float = TIMEOUT) -> str:
    """Returns the output of ``--version``; raises ``BuildError`` unless it is GCC."""
    done = _output(timeout, *command, "--version")
    if done.returncode or "Free Software Foundation" not in done.stdout:
        raise BuildError(f"{' '.join(command)} is not GCC, whose OpenMP runtime PyTorch uses; set CXX to g++")
    return done.stdout


def build(
    command: tuple[str, ...], file: Path, flags: tuple[str, ...], source: Path = SOURCE, timeout: float = TIMEOUT
) -> None:
    """Compiles the source into ``file`` atomically, and appends a digest. Raises ``BuildError`` if it fails."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        objects, shared = Path(folder, "few_rows.o"), Path(folder, "few_rows.so")
        # linked without -fopenmp: its functions are those of the library that PyTorch has loaded, so that both use the
        # same threads
        link = ("-shared", "-s", str(objects), "-o", str(shared))
        for step in ((*flags, "-c", str(source), "-o", str(objects)), link):
            done = _output(timeout, *command, *step)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
                reason = lines[0][:200] if lines else f"it ends with {done.returncode}"
                raise BuildError(f"{' '.join(command)} cannot compile the kernels: {reason}")
        with shared.open("ab") as end:
            end.write(hashlib.sha256(shared.read_bytes()).digest())
        shared.chmod(0o700)
        shared.replace(file)


def build_in_own_process(
    command: tuple[str, ...], file: Path, flags: tuple[str, ...], source: Path = SOURCE, timeout: float = TIMEOUT
) -> None:
    """Computes ``build`` in a process that ends by itself, whatever happens to this one."""
    told = json.dumps([command, str(file), flags, str(source), timeout])
    done = subprocess.run(
        (sys.executable, "-I", "-S", __file__, told),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C ends only this process
        check=False,
    )
    if done.returncode:
        raise BuildError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the compiler was ended")


def _output(timeout: float, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the compiler, in English; raises ``BuildError`` if it hangs."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} has not ended after {timeout:g} seconds; set CXX to another g++") from None


if __name__ == "__main__":
    given, target, used, path, limit = json.loads(sys.argv[1])
    try:
        build(tuple(given), Path(target), tuple(used), Path(path), limit)
    except (BuildError, OSError) as error:
        sys.exit(str(error))
