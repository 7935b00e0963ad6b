"""Runs one case in a process of its own: limits of time and memory, a watch over what it writes and starts.

A process is forked, so that a hang, an abort or lost memory ends that case alone, and its peak of memory is its own.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError

GIB = 1 << 30
OFTEN = 0.02  # seconds between two looks at the memory of a case
GOOD = ("accepted", "refused")
CANARY = "harm"  # the file that executed code would leave
COMMIT = ["git", "-C", "."]  # a training asks for the commit of its own folder
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn")
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink", "os.link", "shutil.rmtree")
NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.sendto")
PLAIN = ("numpy", "torch", "collections", "_codecs")  # whose objects a pickle of tensors names


class Fault(Exception):
    """Fault that a case found, where no exception tells it."""


@dataclass(frozen=True)
class Limits:
    """Limits of a case: seconds of processor time, seconds of waiting, bytes of memory beyond the parent's."""

    busy: float = 10.0
    waiting: float = 60.0
    memory: int = 2 * GIB


@dataclass(frozen=True)
class Outcome:
    """Result of a case. ``kind`` is "accepted", "refused", or what is wrong; ``detail`` groups what is alike."""

    kind: str
    detail: str
    what: str
    seconds: float = 0.0
    memory: int = 0


Case = tuple[str, Callable[[], str]]  # what was made, and the function that uses it and names what it did


def tried(make: Callable[[Path], Case], folder: Path, limits: Limits, guarded: bool = True) -> Outcome:
    """The outcome of the case that ``make`` writes in ``folder``, which is taken away afterwards.

    Args:
        make: writes the files and returns the case.
        folder: where; the case may write below ``out``, ``tmp`` and ``home`` in it and nowhere else.
        limits: of time and memory.
        guarded: whether starting a process is a fault.
    """
    for name in ("out", "tmp", "home"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    reader, writer = os.pipe()
    begun, before = time.monotonic(), _resident()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(make, folder, limits, guarded, writer)
    os.close(writer)
    text, late, peak = _listened(reader, child, limits.waiting)
    if late:
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    busy, waited = usage.ru_utime + usage.ru_stime, time.monotonic() - begun
    memory = max(0, peak - before)
    outcome = _judged(text, status, late, busy, memory, limits, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return Outcome(*outcome, seconds=waited if late else busy, memory=memory)


def _resident(process: int | str = "self") -> int:
    """Bytes of memory that hold no file."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0  # it has just ended


def _listened(reader: int, child: int, seconds: float) -> tuple[list[dict[str, str]], bool, int]:
    """Reads the child's report, a JSON object a line, whether it was late, and the most memory it was seen with."""
    whole, peak, end = b"", 0, time.monotonic() + seconds
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while time.monotonic() < end:
            ready, _, _ = select.select([pipe], [], [], OFTEN)
            peak = max(peak, _resident(child))
            if ready:
                if not (part := pipe.read(1 << 16)):
                    return _parsed(whole), False, peak
                whole += part
    return _parsed(whole), True, peak


def _parsed(whole: bytes) -> list[dict[str, str]]:
    return [json.loads(line) for line in whole.splitlines() if line.endswith(b"}")]


def _judged(
    reports: list[dict[str, str]], status: int, late: bool, busy: float, memory: int, limits: Limits, folder: Path
) -> tuple[str, str, str]:
    what = next((one["what"] for one in reports if "what" in one), "not made")
    last = reports[-1] if reports else {}
    code = os.waitstatus_to_exitcode(status)
    if late:
        return "hang", f"waited for more than {limits.waiting:g} s", what
    if code == -signal.SIGXCPU or busy > limits.busy + 1:
        return "hang", f"busy for more than {limits.busy:g} s: {last.get('detail', '')}", what
    if next(folder.rglob(CANARY), None) is not None:
        return "executed", "code in a file ran", what
    if code != 0 or "kind" not in last:
        return "crash", f"{signal.Signals(-code).name if code < 0 else code}: {_tail(folder)}", what
    if memory > limits.memory:
        return "memory", f"more than {limits.memory >> 20:,} MiB", what
    return last["kind"], last["detail"], what


def _tail(folder: Path) -> str:
    said = folder / "said"
    text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no word"


def _child(make: Callable[[Path], Case], folder: Path, limits: Limits, guarded: bool, writer: int) -> None:
    """Makes the case and runs it, reports, ends the process."""
    os.setsid()
    said = os.open(folder / "said", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, target in enumerate((nothing, said, said)):
        os.dup2(target, number)
    os.chdir(folder)
    tempfile.tempdir = None  # found before, elsewhere
    os.environ |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "HF_HOME": str(folder / "home")}

    def report(**what: str) -> None:
        os.write(writer, json.dumps(what).encode() + b"\n")

    found: list[str] = []
    try:
        what, run = make(folder)
        report(what=what)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (size + limits.memory + GIB, resource.RLIM_INFINITY))
        spent = sum(os.times()[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(spent + limits.busy) + 1, int(spent + limits.busy) + 5))
        sys.addaudithook(_watch(folder, found, guarded))
        kind, detail = _called(run)
    except BaseException:
        kind, detail = "generator", traceback.format_exc()[-900:]
    if found:
        kind, detail = found[0].split(" ")[0], found[0]
    report(kind=kind, detail=detail)
    os._exit(0)


def _called(run: Callable[[], str]) -> tuple[str, str]:
    try:
        return "accepted", run()
    except HeedfulError as error:
        message = str(error)
        if "\n" in message or not message.strip():
            return "message", f"more than a line, or none: {message[:200]!r}"
        return "refused", message
    except Fault as error:
        return "fault", str(error)
    except MemoryError as error:
        return "memory", f"MemoryError in {_frame(error)}"
    except BaseException as error:
        return "exception", f"{type(error).__name__} in {_frame(error)}: {str(error).splitlines()[:1]}"[:300]


def _frame(error: BaseException) -> str:
    """Where in the package an exception arose."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/heedful/" in frame.filename]
    if not frames:
        return "nowhere in heedful"
    name = frames[-1].filename.partition("/src/heedful/")[2] or frames[-1].filename
    return f"{name}:{frames[-1].lineno} {frames[-1].name}"


def _relative(given: tuple[Any, ...]) -> bool:
    """True for a path below an open folder; the folder is opened before its tree is removed."""
    return any(isinstance(one, int) and one > 2 for one in given[1:])


def _watch(folder: Path, found: list[str], guarded: bool) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that notes what is written outside, started, or reached over a network."""
    own = [os.path.realpath(folder / name) for name in ("out", "tmp", "home", "said")]
    allowed = (*own, "/dev/", "/proc/", "/sys/")  # these keep nothing

    def outside(path: Any) -> bool:
        if isinstance(path, int) or path is None:
            return False
        try:
            whole = os.path.realpath(os.fsdecode(path))
        except (TypeError, ValueError, UnicodeError):
            return False
        return not whole.startswith(allowed)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[2], int):
            writes = given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            if writes and outside(given[0]):
                found.append(f"written {os.fsdecode(given[0])}")
        elif event in CHANGES and not _relative(given) and outside(given[0]):
            found.append(f"written {event} {given[0]!r}")
        elif event in NETWORK:
            found.append(f"network {event}")
        elif event in STARTS and guarded and not (event == "subprocess.Popen" and given[1][:3] == COMMIT):
            found.append(f"executed {event} {given[0]!r}")
        elif event == "pickle.find_class" and not str(given[0]).startswith(PLAIN):
            found.append(f"executed pickle {given[0]}.{given[1]}")

    return hook
