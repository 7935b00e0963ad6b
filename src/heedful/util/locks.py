"""Locks of files and folders, so that only one process at a time writes."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError
from heedful.util.files import WINDOWS

LOCK = ".lock"  # in a run folder while a process writes there; a killed process leaves the file, but not the lock
LOCK_SECONDS = 0.5  # a held lock is retried for this time, since ``check_unlocked`` elsewhere holds it briefly
HELD = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}  # errors of operating systems for a held lock
LOCKED_BYTE = 1 << 30  # Windows locks bytes against reading; this one is far after the owner's name


def contents(folder: Path) -> list[Path]:
    """Returns the sorted paths of a folder's contents, without the lock file; [] for a missing folder."""
    return sorted(path for path in folder.iterdir() if path.name != LOCK) if folder.is_dir() else []


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Context manager that locks a folder for this process; creates a missing folder.

    Yields True, or False if the file system has no locks.

    The operating system releases the lock when the process ends in any way. The end of the block removes the lock file,
    and the folders that were created here and are still empty.

    Raises:
        HeedfulError: another process, or another thread of this process, holds the lock, or the folder cannot be
            written.
    """
    missing = [path for path in (folder.absolute(), *folder.absolute().parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(folder / LOCK, LOCK_SECONDS)
    except BlockingIOError:
        raise HeedfulError(_held(folder)) from None
    except OSError as error:
        raise HeedfulError(f"cannot write in {folder}: {error.strerror}; choose another folder") from None
    try:
        yield descriptor is not None
    finally:
        _release(folder / LOCK, descriptor)
        with suppress(OSError):  # stops at the first folder that is not empty
            for path in missing:
                path.rmdir()


def check_unlocked(folder: Path) -> None:
    """Raises ``HeedfulError`` if another process has locked a folder. Writes nothing."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:  # no lock file
        return
    try:
        lock_file(descriptor)
    except BlockingIOError:
        raise HeedfulError(_held(folder)) from None
    except OSError:  # a file system without locks
        pass
    finally:
        os.close(descriptor)


def _acquire(path: Path, seconds: float) -> int | None:
    """Opens and locks a lock file and writes the process id to it; returns its descriptor.

    Returns None if the file system has no locks.

    Raises ``BlockingIOError`` if the lock is still held after ``seconds``.
    """
    limit = time.monotonic() + seconds
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock_file(descriptor)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode())
                return descriptor
        except FileNotFoundError:  # its owner removed it after it was opened here
            pass
        except BlockingIOError:
            if time.monotonic() > limit:
                os.close(descriptor)
                raise
            time.sleep(LOCK_SECONDS / 10)
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            return None
        os.close(descriptor)


def _release(path: Path, descriptor: int | None) -> None:
    if descriptor is None:
        return
    if not WINDOWS:  # while the lock is held, so that the file is this one; Windows cannot remove an open file
        path.unlink(missing_ok=True)
    os.close(descriptor)
    if WINDOWS:
        with suppress(OSError):  # already opened by the next process
            path.unlink(missing_ok=True)


def lock_file(descriptor: int) -> None:
    """Locks an open file for this process until it is closed, without waiting.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file system has no locks.
    """
    try:
        if WINDOWS:
            msvcrt: Any = import_module("msvcrt")
            os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            os.lseek(descriptor, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            raise BlockingIOError(error.errno, error.strerror) from None
        raise


def _held(folder: Path) -> str:
    """Returns the message for a folder that another process has locked."""
    try:
        number, host = (folder / LOCK).read_text(encoding="utf-8").split()
    except (OSError, ValueError):  # the owner is not written yet
        owner = "another process"
    else:
        owner = f"process {number}" + ("" if host == socket.gethostname() else f" on {host}")
    return f"{folder} is in use: {owner} trains there; wait for it or stop it, or choose another --out"
