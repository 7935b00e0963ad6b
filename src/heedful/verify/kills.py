"""A run in a process of its own, and the moments at which it is killed."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from threading import current_thread, main_thread
from typing import IO, Any, Self

from heedful.training.run_folder import BEGINNING, MODELS, SHARDS
from heedful.util.files import TEMPORARY

AIMS = ("training", "save", "any time", "save", "after a save", "save", "training", "beginning", "model", "training")
WHOLE = "checkpoint.pt"
INDEX = ".metadata"  # of a folder of shares, written last
PAUSE = 1e-4  # seconds between two looks into the folder
ALONE, ASKED = 5, 30  # seconds in which the others of a killed process are to end: by themselves, and when told to
TRACEBACK = "Traceback (most recent call last)"
KILLED = -signal.SIGKILL if hasattr(signal, "SIGKILL") else 1  # the exit status of a killed process; 1 on Windows
READY = ".ready"  # the ending of a folder of files that are all there and are being moved


class Session:
    """From the start of a run to its kill: ``heedful train``, in one process or in several that learn together, each in
    a process group of its own, watched through the run's folder. None outlives us where we are told to end (SIGTERM).
    """

    def __init__(self, arguments: Sequence[str], out: Path, processes: int = 1, victim: int | None = None) -> None:
        self.out = out
        self.victim = victim  # the one of its processes that is killed; None: all
        self.stayed: str | None = None  # what was wrong with how the others ended
        self.before = (_identity(out / "metrics.jsonl"), _identity(out / WHOLE))
        self._errors: list[IO[bytes]] = [TemporaryFile() for _ in range(processes)]  # noqa: SIM115 (closed by __exit__)
        self._started = time.monotonic()
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "heedful", "train", *arguments, "--out", str(out), "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                env=None if each is None else os.environ | each,
            )
            for each, errors in zip(_together(processes), self._errors, strict=True)
        ]

    def __enter__(self) -> Self:
        self._answer: Any = signal.signal(signal.SIGTERM, _leave) if current_thread() is main_thread() else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._answer is not None:
            signal.signal(signal.SIGTERM, self._answer)
        self._kill(self._processes)
        for errors in self._errors:
            errors.close()

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self._started

    @property
    def runs(self) -> bool:
        """True if none of its processes has ended."""
        return all(process.poll() is None for process in self._processes)

    def end(self) -> str | None:
        """Waits for the end; None where that is a good one, else how what failed did, and what it had said."""
        ended = [process.wait() for process in self._processes]
        failed = [(place, status, self._last_line(place)) for place, status in enumerate(ended) if status != 0]
        telling = [one for one in failed if one[1] < 0 or one[2]]  # where the first says why, the others end quietly
        return "; ".join(self._ending(*one) for one in telling or failed) or None

    def _ending(self, place: int, status: int, said: str) -> str:
        if status > 0 and said:
            return said
        who = "the run" if len(self._processes) == 1 else f"process {place}"
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        return f"{who} {how}" + (f"; it had said: {said}" if said else "")

    def kill(self) -> bool:
        """SIGKILL to every process and what it started, or to the ``victim`` alone; whether any was still running."""
        if self.victim is None:
            return self._kill(self._processes)
        running = self._kill([self._processes[self.victim]])
        if running:  # else it was at its end, to which the others may go
            self._see_the_others_end([place for place in range(len(self._processes)) if place != self.victim])
        return running

    def _kill(self, processes: Sequence[subprocess.Popen[bytes]]) -> bool:
        for process in processes:
            _end(process, kill=True)
        ended = [process.wait() for process in processes]
        return KILLED in ended

    def _see_the_others_end(self, places: Sequence[int]) -> None:
        """They are to notice, or to heed SIGTERM, which is what ``torchrun`` sends them, and to say so in a line."""
        others = [self._processes[place] for place in places]
        for end, kill in ((ALONE, False), (ASKED, True)):
            limit = time.monotonic() + end
            while any(process.poll() is None for process in others) and time.monotonic() < limit:
                time.sleep(PAUSE)
            for process in others:
                _end(process, kill=kill)
        if KILLED in [process.wait() for process in others]:
            self.stayed = f"process {self.victim} was killed, and another went on in spite of SIGTERM"
            return
        for place in places:
            if TRACEBACK in self._said(place):
                self.stayed = f"process {self.victim} was killed, and another ended with: {self._last_line(place)}"

    def _said(self, place: int) -> str:
        self._errors[place].seek(0)
        return self._errors[place].read().decode(errors="replace")

    def _last_line(self, place: int) -> str:
        lines = self._said(place).strip().splitlines() or [""]
        return lines[-1].removeprefix("heedful: ")

    def until(self, seen: Callable[[], bool]) -> bool:
        """Waits until something is ``seen`` in the folder; False where the process ended first."""
        while self.runs:
            if seen():
                return True
            time.sleep(PAUSE)
        return False

    # --------------------------------------------------------------------------------------------- what is to be seen

    def learning(self) -> bool:
        """Returns the run was taken up or begun: its log was opened."""
        return _identity(self.out / "metrics.jsonl") not in (None, self.before[0])

    def beginning(self) -> bool:
        """Returns the run's folder is being made."""
        return (self.out / BEGINNING).exists()

    def saved(self) -> bool:
        """Returns a checkpoint was written."""
        return _identity(self.out / WHOLE) not in (None, self.before[1])

    def writing(self) -> bool:
        """Anything is being written."""
        return any(name != BEGINNING for name in unfinished(self.out))

    def writing_model(self) -> bool:
        """Files of a model are being written, or moved to their place."""
        return any(name not in (BEGINNING, WHOLE) for name in unfinished(self.out))


def _together(processes: int) -> list[dict[str, str] | None]:
    """Returns the environment of each process, as ``torchrun`` sets it; [None] for a single one."""
    if processes == 1:
        return [None]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = os.environ.get("OMP_NUM_THREADS", "1")  # for the same bits on every start, and they share the cores
    alike = {"WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": threads}
    each = [alike | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(processes)]
    return [{name: str(value) for name, value in one.items()} for one in each]


def _leave(*_: object) -> None:
    raise SystemExit(143)


def aimed(session: Session, aim: str, whole: float, learning: float, draw: random.Random) -> bool:
    """Kills a session at a moment of the kind ``aim``; False where it ended before.

    Args:
        session: just started.
        aim: of ``AIMS``. "save" and "model" are the moments at which a file is being written, the first of any, the
            second of a model; "after a save" is right after a checkpoint was; "beginning" while the folder is made, or
            where it is made, at any time.
        whole: seconds that a run takes.
        learning: those of them after its log was opened.
        draw: the source of what is random.
    """
    again = session.out.exists()
    if aim == "any time" or (aim == "beginning" and again):
        end = draw.uniform(0, whole)
        session.until(lambda: session.seconds > end)
        return session.kill()
    if aim == "beginning":
        seen, wait = session.beginning, draw.uniform(0, 0.02)
    elif aim == "training":
        seen, wait = session.learning, draw.uniform(0, learning / 4)
    elif aim == "after a save":
        seen, wait = session.saved, draw.choice([0.0, 0.002, 0.01])
    else:
        seen, wait = session.writing if aim == "save" else session.writing_model, draw.choice([0.0, 0.0, 0.001])
        if again and session.until(session.learning):
            time.sleep(draw.uniform(0, learning / 6))  # not always the first save
    if session.until(seen) and wait:
        time.sleep(wait)
    return session.kill()


def _end(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    """Ends a process that still runs, and what it started, by SIGKILL or SIGTERM. Windows has neither signals nor
    process groups: there the process alone is terminated, which no handler can notice.
    """
    if process.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL if kill else signal.SIGTERM)
    elif kill:
        process.kill()
    else:
        process.terminate()


def unfinished(out: Path) -> list[str]:
    """Returns what a run is writing in its folder, or was when it was killed: files, and "last/" for a model."""
    found = [BEGINNING] if (out / BEGINNING).exists() else []
    for part in MODELS:
        try:
            entries = {entry.name: entry.is_dir() for entry in os.scandir(out / part)}
        except OSError:  # not there, or not any more
            continue
        found += [
            SHARDS for name in entries if name.startswith(f"{SHARDS}-") and not (out / part / name / INDEX).exists()
        ]
        found += [
            _called(part, name, is_folder)
            for name, is_folder in entries.items()
            if TEMPORARY.fullmatch(name) or name.endswith(READY)
        ]
    return found


def _called(part: str, name: str, is_folder: bool) -> str:
    """Returns the file, or the folder of a model, that a half written one was to become."""
    inside = "" if part == "." else f"{part}/"
    if name.endswith(READY) or re.fullmatch(r"\.\d+-\d+\.part", name):
        return inside or "the best model"
    if new := re.fullmatch(r"\.(.+)\.\d+-\d+\.part", name):
        return f"{inside}{new[1]}{'/' if is_folder else ''}"
    if file := re.fullmatch(r"\.(.+)\.[a-z0-9_]{8}", name):
        return inside + file[1]
    return inside + name.removesuffix(".part")


def _identity(path: Path) -> tuple[int, int] | None:
    """Tells a file from another that was put in its place."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns if path.name == WHOLE else 0
