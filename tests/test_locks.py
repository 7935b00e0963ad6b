"""A folder is locked by one process at a time."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import heedful.util.locks
from heedful.errors import HeedfulError
from heedful.util.locks import LOCK, check_unlocked, contents, locked

HOLDER = """
import sys, pathlib
from heedful.util.locks import locked
with locked(pathlib.Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of ``tmp_path / "run"``."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_folder_is_locked_by_one_process(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    for attempt in (lambda: locked(tmp_path / "run").__enter__(), lambda: check_unlocked(tmp_path / "run")):
        with pytest.raises(HeedfulError, match=f"run is in use: process {holder.pid} .*--out") as told:
            attempt()
        assert "\n" not in str(told.value)
    assert contents(tmp_path / "run") == []
    assert (tmp_path / "run" / LOCK).is_file(), "the other process still holds it"


def test_a_killed_process_holds_no_lock(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / LOCK).is_file()
    check_unlocked(tmp_path / "run")
    with locked(tmp_path / "run") as has_locks:
        assert has_locks
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_lock_leaves_nothing(tmp_path: Path) -> None:
    with locked(tmp_path / "new" / "run"):
        assert contents(tmp_path / "new" / "run") == []
        assert contents(tmp_path / "none") == []
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "new" / "run"):
        (tmp_path / "new" / "run" / "run.toml").touch()
    assert contents(tmp_path / "new" / "run") == [tmp_path / "new" / "run" / "run.toml"]


@pytest.mark.parametrize("new_name", [None, ".nfs0001"], ids=["removed", "renamed"])
def test_a_lock_file_that_its_owner_removed_meanwhile_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_name: str | None
) -> None:
    """The owner ends after the next process opened the file. NFS renames an open file in place of removing it."""
    lock_file = heedful.util.locks.lock_file
    calls: list[int] = []

    def late(descriptor: int) -> None:
        if not calls and new_name is None:
            (tmp_path / LOCK).unlink()
        elif not calls:
            (tmp_path / LOCK).rename(tmp_path / new_name)
        calls.append(descriptor)
        lock_file(descriptor)

    monkeypatch.setattr(heedful.util.locks, "lock_file", late)
    with locked(tmp_path):
        assert (tmp_path / LOCK).read_text(encoding="utf-8").startswith(f"{os.getpid()} ")
        with pytest.raises(HeedfulError, match="is in use"):
            check_unlocked(tmp_path)
        with pytest.raises(HeedfulError, match="is in use"), locked(tmp_path):
            raise AssertionError("locked twice")


def test_a_file_system_without_locks_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(descriptor: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(heedful.util.locks, "lock_file", without)
    with locked(tmp_path / "run") as has_locks:
        assert not has_locks
        check_unlocked(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HeedfulError, match=r"cannot write in .*file"), locked(tmp_path / "file" / "run"):
        raise AssertionError("locked")


def test_windows_locks_a_byte_behind_the_owner_s_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[int, int] = {}

    def locking(descriptor: int, mode: int, count: int) -> None:
        if held:
            raise PermissionError(errno.EACCES, "Permission denied")
        held[descriptor] = os.lseek(descriptor, 0, os.SEEK_CUR)

    monkeypatch.setitem(sys.modules, "msvcrt", types.SimpleNamespace(LK_NBLCK=2, locking=locking))
    monkeypatch.setattr(heedful.util.locks, "WINDOWS", True)
    monkeypatch.setattr(heedful.util.locks, "LOCK_SECONDS", 0.0)
    with locked(tmp_path / "run"):
        assert list(held.values()) == [heedful.util.locks.LOCKED_BYTE]
        assert (tmp_path / "run" / LOCK).read_text(encoding="utf-8").startswith(f"{os.getpid()} ")
        with pytest.raises(HeedfulError, match=f"process {os.getpid()} "):
            check_unlocked(tmp_path / "run")
