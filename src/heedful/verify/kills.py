"""Training runs in processes of their own, and the moments at which they are killed."""

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

from heedful.training.run_folder import MODEL_FOLDERS, SHARDS, UNFINISHED_SETTINGS
from heedful.util.files import TEMPORARY

MOMENTS = ("training", "save", "any time", "save", "after a save", "save", "training", "beginning", "model", "training")
CHECKPOINT = "checkpoint.pt"
INDEX = ".metadata"  # of a folder of shards; written last
POLL_SECONDS = 1e-4  # between two checks of the run folder
OWN_SECONDS, SIGTERM_SECONDS = 5, 30  # in which the others must end after a kill: by themselves, then after SIGTERM
TRACEBACK = "Traceback (most recent call last)"
KILLED = -signal.SIGKILL if hasattr(signal, "SIGKILL") else 1  # the exit status of a killed process; 1 on Windows
READY = ".ready"  # suffix of a complete folder whose files are being moved


class Session:
    """Run of ``heedful train`` from its start to its kill: one process or several ranks, each in its own process group.

    The run is observed through its folder. SIGTERM to this process ends all processes of the run.
    """

    def __init__(self, arguments: Sequence[str], out: Path, processes: int = 1, victim: int | None = None) -> None:
        self.out = out
        self.victim = victim  # rank that is killed; None: all
        self.left_running: str | None = None  # how another process failed to end after a kill
        self.before = (_identity(out / "metrics.jsonl"), _identity(out / CHECKPOINT))
        self._errors: list[IO[bytes]] = [TemporaryFile() for _ in range(processes)]  # noqa: SIM115 (closed by __exit__)
        self._started = time.monotonic()
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "heedful", "train", *arguments, "--out", str(out), "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                env=None if variables is None else os.environ | variables,
            )
            for variables, errors in zip(_environments(processes), self._errors, strict=True)
        ]

    def __enter__(self) -> Self:
        self._handler: Any = (
            signal.signal(signal.SIGTERM, _exit_on_sigterm) if current_thread() is main_thread() else None
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
        self._kill(self._processes)
        for errors in self._errors:
            errors.close()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def is_running(self) -> bool:
        """True if no process of the run has ended."""
        return all(process.poll() is None for process in self._processes)

    def end(self) -> str | None:
        """Waits for the end of the run; returns None on success, else how each process failed, and its last message."""
        ended = [process.wait() for process in self._processes]
        failed = [(rank, status, self._last_line(rank)) for rank, status in enumerate(ended) if status != 0]
        # ranks other than the first end without a message where the first reports the error
        explained = [failure for failure in failed if failure[1] < 0 or failure[2]]
        return "; ".join(self._describe_end(*failure) for failure in explained or failed) or None

    def _describe_end(self, rank: int, status: int, message: str) -> str:
        if status > 0 and message:
            return message
        who = "the run" if len(self._processes) == 1 else f"rank {rank}"
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        return f"{who} {how}" + (f"; its last message: {message}" if message else "")

    def kill(self) -> bool:
        """Sends SIGKILL to all processes and their children, or to the ``victim``; returns True if any was running."""
        if self.victim is None:
            return self._kill(self._processes)
        running = self._kill([self._processes[self.victim]])
        if running:  # else the run had ended
            self._wait_for_others([rank for rank in range(len(self._processes)) if rank != self.victim])
        return running

    def _kill(self, processes: Sequence[subprocess.Popen[bytes]]) -> bool:
        for process in processes:
            _end(process, kill=True)
        ended = [process.wait() for process in processes]
        return KILLED in ended

    def _wait_for_others(self, ranks: Sequence[int]) -> None:
        """Checks that the other ranks end, by themselves or after SIGTERM as from ``torchrun``, without a traceback."""
        others = [self._processes[rank] for rank in ranks]
        for end, kill in ((OWN_SECONDS, False), (SIGTERM_SECONDS, True)):
            limit = time.monotonic() + end
            while any(process.poll() is None for process in others) and time.monotonic() < limit:
                time.sleep(POLL_SECONDS)
            for process in others:
                _end(process, kill=kill)
        if KILLED in [process.wait() for process in others]:
            self.left_running = f"rank {self.victim} was killed, but another rank did not end after SIGTERM"
            return
        for rank in ranks:
            if TRACEBACK in self._stderr(rank):
                self.left_running = (
                    f"rank {self.victim} was killed, and rank {rank} ended with: {self._last_line(rank)}"
                )

    def _stderr(self, rank: int) -> str:
        self._errors[rank].seek(0)
        return self._errors[rank].read().decode(errors="replace")

    def _last_line(self, rank: int) -> str:
        lines = self._stderr(rank).strip().splitlines() or [""]
        return lines[-1].removeprefix("heedful: ")

    def until(self, condition: Callable[[], bool]) -> bool:
        """Waits until ``condition()`` is True; returns False if a process of the run ended first."""
        while self.is_running:
            if condition():
                return True
            time.sleep(POLL_SECONDS)
        return False

    # --------------------------------------------------------------------------------------- conditions of the folder

    def has_started(self) -> bool:
        """Returns True if the run was started or resumed: its log was opened."""
        return _identity(self.out / "metrics.jsonl") not in (None, self.before[0])

    def is_creating_folder(self) -> bool:
        """Returns True while the run folder is being created."""
        return (self.out / UNFINISHED_SETTINGS).exists()

    def has_saved(self) -> bool:
        """Returns True if a checkpoint was written."""
        return _identity(self.out / CHECKPOINT) not in (None, self.before[1])

    def is_writing(self) -> bool:
        """Returns True while a file is being written."""
        return any(name != UNFINISHED_SETTINGS for name in unfinished(self.out))

    def is_writing_model(self) -> bool:
        """Returns True while files of a model are being written or moved."""
        return any(name not in (UNFINISHED_SETTINGS, CHECKPOINT) for name in unfinished(self.out))


def _environments(processes: int) -> list[dict[str, str] | None]:
    """Returns the environment of each process, as ``torchrun`` sets it; [None] for a single one."""
    if processes == 1:
        return [None]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = os.environ.get("OMP_NUM_THREADS", "1")  # the same bits each time; the ranks share the cores
    common = {"WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": threads}
    variables = [common | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(processes)]
    return [{name: str(value) for name, value in ranked.items()} for ranked in variables]


def _exit_on_sigterm(*_: object) -> None:
    raise SystemExit(143)


def kill_at(session: Session, moment: str, run_seconds: float, training_seconds: float, random: random.Random) -> bool:
    """Kills a training run at a given moment; returns False if it ended before.

    Args:
        session: the run, which has just started.
        moment: one of ``MOMENTS``. "save": while any file is being written; "model": while a model's file is;
            "after a save": right after a checkpoint; "beginning": while the folder is created, or at any time if it
            exists; "training": after the log was opened.
        run_seconds: duration of an undisturbed run.
        training_seconds: duration of that run from the moment its log was opened.
        random: source of random numbers.
    """
    resumed = session.out.exists()
    if moment == "any time" or (moment == "beginning" and resumed):
        end = random.uniform(0, run_seconds)
        session.until(lambda: session.seconds > end)
        return session.kill()
    if moment == "beginning":
        condition, delay = session.is_creating_folder, random.uniform(0, 0.02)
    elif moment == "training":
        condition, delay = session.has_started, random.uniform(0, training_seconds / 4)
    elif moment == "after a save":
        condition, delay = session.has_saved, random.choice([0.0, 0.002, 0.01])
    else:
        condition, delay = (
            session.is_writing if moment == "save" else session.is_writing_model,
            random.choice([0.0, 0.0, 0.001]),
        )
        if resumed and session.until(session.has_started):
            time.sleep(random.uniform(0, training_seconds / 6))  # not always the first save
    if session.until(condition) and delay:
        time.sleep(delay)
    return session.kill()


def _end(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    """Ends a running process and its children by SIGKILL or SIGTERM.

    Windows has neither signals nor process groups: there the process alone is terminated, without a handler.
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
    """Returns the files that a run is writing in its folder, or was writing when it was killed; "last/" for a model."""
    names = [UNFINISHED_SETTINGS] if (out / UNFINISHED_SETTINGS).exists() else []
    for folder in MODEL_FOLDERS:
        try:
            entries = {entry.name: entry.is_dir() for entry in os.scandir(out / folder)}
        except OSError:  # missing, or removed meanwhile
            continue
        names += [
            SHARDS for name in entries if name.startswith(f"{SHARDS}-") and not (out / folder / name / INDEX).exists()
        ]
        names += [
            _final_name(folder, name, is_folder)
            for name, is_folder in entries.items()
            if TEMPORARY.fullmatch(name) or name.endswith(READY)
        ]
    return names


def _final_name(folder: str, name: str, is_folder: bool) -> str:
    """Returns the final name of a half-written file or model folder."""
    prefix = "" if folder == "." else f"{folder}/"
    if name.endswith(READY) or re.fullmatch(r"\.\d+-\d+\.part", name):
        return prefix or "the best model"
    if new := re.fullmatch(r"\.(.+)\.\d+-\d+\.part", name):
        return f"{prefix}{new[1]}{'/' if is_folder else ''}"
    if file := re.fullmatch(r"\.(.+)\.[a-z0-9_]{8}", name):
        return prefix + file[1]
    return prefix + name.removesuffix(".part")


def _identity(path: Path) -> tuple[int, int] | None:
    """Returns the inode and time of a file, which change when another file replaces it; None without a file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns if path.name == CHECKPOINT else 0
