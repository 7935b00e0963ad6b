"""Checkpoint, the file from which a run resumes: atomic, with a digest, written in the background; and deferred
interrupts.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import pickle
import re
import signal
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import torch

from heedful.errors import HeedfulError
from heedful.util.files import atomic_file, check_regular, move, sync

FORMAT, REDUCED = 3, 4  # formats of a state: complete, and without the weights that the run folder stores

log = logging.getLogger("heedful")


class DamagedCheckpoint(HeedfulError):
    """Error for a checkpoint whose content differs from what was written."""


class Checkpoints:
    """The checkpoint of a run, ``checkpoint.pt`` in ``folder``: tensors, numbers, strings, lists, dictionaries.

    A checkpoint is written to a temporary file, which is then renamed, so that a complete checkpoint exists at any
    moment. It ends with a digest of all its bytes (a zip file's comment), which is checked first when it is read.
    Reading a checkpoint runs no code from it (``weights_only``). Older checkpoints are ``checkpoint.1.pt``, the one
    before last, and so on. A run resumes from the newest undamaged one.

    Args:
        folder: the run's folder.
        keep: maximum number of checkpoints.
        warns: True if this process logs warnings; of several ranks only one does.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 1, *, warns: bool = True) -> None:
        self.path = Path(folder) / "checkpoint.pt"
        self.keep, self.warns = keep, warns
        self._step: int | None = None  # of the newest checkpoint that this process knows to be on disk
        self._damaged: list[Path] = []  # newer than the one that was loaded; removed by the next write
        self._writer: threading.Thread | None = None
        self._error: BaseException | None = None  # of the writer, until wait()

    def save(self, state: Mapping[str, Any], *, wait: bool = True) -> None:
        """Writes ``state`` as the newest checkpoint.

        With ``wait=False`` the state is copied in memory and written by a thread; later changes of its tensors have no
        effect. At most one checkpoint is being written: the next ``save`` and :meth:`wait` wait until it is complete. A
        process that ends meanwhile waits for the thread, unless it is killed by SIGKILL. After a failed write the next
        ``save`` waits until its own write has ended.

        Raises:
            HeedfulError: the checkpoint cannot be written; the last checkpoint stays.
        """
        last_error = self._join_writer()
        if wait or last_error is not None:
            self._write(state)
            if last_error is not None and self.warns:
                log.warning(f"the newest checkpoint was written, but an earlier checkpoint was not: {last_error}")
            return
        self._writer = threading.Thread(target=self._write_in_thread, args=(self._copy(state),), name="checkpoint")
        self._writer.start()

    def wait(self) -> None:
        """Waits until nothing is being written; raises the error of the last write, if it failed."""
        if (error := self._join_writer()) is not None:
            raise error

    @property
    def step(self) -> int | None:
        """Step of the newest checkpoint on disk, after waiting for a write in progress; None if no checkpoint is
        known.
        """
        if self._writer is not None:
            self._writer.join()
        return self._step

    def _join_writer(self) -> BaseException | None:
        """Waits for the writer, and returns the error of its last write, or None."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        error, self._error = self._error, None
        return error

    def _copy(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns a copy of the parts of ``state`` that the thread writes."""
        copy: Mapping[str, Any] = copy_to_cpu(state)
        return copy

    def _write_in_thread(self, state: Mapping[str, Any]) -> None:
        try:
            self._write(state)
        except BaseException as error:  # wait() raises it in the main thread
            self._error = error

    def rescue(self, state: Mapping[str, Any]) -> None:
        """Writes the newest checkpoint in place of a lost rank. Of several ranks that call this, one writes."""
        temporary = self.path.with_name(f".{self.path.name}.{state['numbers']['step']}-0.part")
        with write_errors(self.path):
            try:
                with atomic_file(self.path, temporary) as file:
                    self._dump(file, state)
            except FileExistsError:
                return
            self._step = _step_of(state)

    def _write(self, state: Mapping[str, Any]) -> None:
        with write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self.path) as file:
                self._dump(file, state)
                self._renumber()
            for number, path in self.paths().items():
                if number >= self.keep:
                    path.unlink(missing_ok=True)
            self._step = _step_of(state)

    def replace(self, state: Mapping[str, Any]) -> None:
        """Replaces the newest checkpoint by the same ``state`` in another form; older checkpoints stay."""
        self.wait()
        with write_errors(self.path), atomic_file(self.path) as file:
            self._dump(file, state)

    def _dump(self, file: BinaryIO, state: Mapping[str, Any]) -> None:
        torch.save(dict(state), file)
        _append_digest(file)
        sync(file)

    def _renumber(self) -> None:
        """Makes room for a new checkpoint: renames number n to n + 1, up to the first missing number.

        A kill in between leaves a gap, which :meth:`load` skips.
        """
        for path in self._damaged:
            path.unlink(missing_ok=True)
        self._damaged.clear()
        paths = self.paths()
        gap = next(number for number in count() if number not in paths)
        for number in reversed(range(min(gap, self.keep - 1))):
            move(paths[number], self._path(number + 1))

    def _path(self, number: int) -> Path:
        return self.path.with_name(f"checkpoint.{number}.pt") if number else self.path

    def paths(self) -> dict[int, Path]:
        """Returns the checkpoint files on disk by number, 0 being the newest, 1 the one before it, and so on."""
        matches = (FILE_NAME.fullmatch(path.name) for path in self.path.parent.glob("checkpoint*.pt"))
        return {n: self._path(n) for n in sorted(int(match[1] or 0) for match in matches if match)}

    def load(self) -> dict[str, Any] | None:
        """Returns the state in the newest undamaged checkpoint, on the CPU; None if there is no checkpoint.

        Raises:
            HeedfulError: all checkpoints are damaged.
        """
        self.wait()
        self._damaged.clear()
        first_error: DamagedCheckpoint | None = None
        for path in self._candidates():
            try:
                state = self._read(path)
            except DamagedCheckpoint as error:
                first_error = first_error or error
                self._damaged.append(path)
                continue
            self._step = _step_of(state)
            if self._damaged and self.warns:
                names = ", ".join(damaged.name for damaged in self._damaged)
                log.warning(
                    f"{names} in {path.parent} is cut off or damaged; the run resumes from the older {path.name}"
                )
            return state
        self._damaged.clear()
        if first_error is not None:
            raise first_error
        return None

    def _candidates(self) -> list[Path]:
        return list(self.paths().values())

    def _read(self, path: Path) -> dict[str, Any]:
        check_regular(path, "remove it and start a new run, or replace it by an undamaged copy")
        try:
            with path.open("rb") as file:
                if not _has_digest(file):
                    raise pickle.UnpicklingError
                file.seek(0)
                state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        except OSError as error:
            kind = DamagedCheckpoint if error.errno == errno.EIO else HeedfulError  # EIO: the disk is damaged
            raise kind(f"cannot read {path}: {error.strerror}; make it readable, or start a new run") from None
        except (pickle.UnpicklingError, RuntimeError):  # torch raises these for a file that heedful did not write
            raise DamagedCheckpoint(
                f"{path} is cut off or damaged; remove it and start a new run, or replace it by an undamaged copy"
            ) from None
        return state

    def size(self) -> int:
        """Returns the total size of all checkpoints on disk, in bytes."""
        return sum(path.stat().st_size for path in self.paths().values())

    def clear(self) -> None:
        """Removes all checkpoints."""
        self.wait()
        with write_errors(self.path):
            for path in self.paths().values():
                path.unlink(missing_ok=True)
        self._step = None


def _step_of(state: Mapping[str, Any]) -> int | None:
    step: int | None = state.get("numbers", {}).get("step")
    return step


FILE_NAME = re.compile(r"checkpoint(?:\.([1-9]\d*))?\.pt")
LENGTH = struct.Struct("<H")  # length of a zip file's comment, which it precedes
DIGEST = 64  # characters of a SHA-256 in hexadecimal
MEBIBYTE = 2**20


def _append_digest(file: BinaryIO) -> None:
    """Writes a digest of a zip file without a comment into its comment."""
    content = file.seek(-LENGTH.size, os.SEEK_END)
    file.write(LENGTH.pack(DIGEST) + _digest(file, content))


def _has_digest(file: BinaryIO) -> bool:
    """Returns True if ``file`` ends with the digest of its content."""
    content = file.seek(0, os.SEEK_END) - LENGTH.size - DIGEST
    return content > 0 and LENGTH.pack(DIGEST) + _digest(file, content) == file.read()


def _digest(file: BinaryIO, length: int) -> bytes:
    """Returns the SHA-256 of the first ``length`` bytes, and leaves the file's position after these bytes."""
    file.seek(0)
    digest, bytes_left = hashlib.sha256(), length
    while bytes_left and (block := file.read(min(bytes_left, MEBIBYTE))):
        digest.update(block)
        bytes_left -= len(block)
    return digest.hexdigest().encode()


def copy_to_cpu(state: Any) -> Any:
    """Returns ``state`` with its tensors copied to the CPU; tensors that share memory (tied weights) share the copy."""
    storages: dict[tuple[torch.device, int], torch.UntypedStorage] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            storage = value.detach().untyped_storage()
            key = (storage.device, storage.data_ptr())
            if key not in storages:
                storages[key] = torch.UntypedStorage(storage.nbytes(), device="cpu").copy_(storage)
            empty = torch.empty(0, dtype=value.dtype)
            return empty.set_(storages[key], value.storage_offset(), value.size(), value.stride())
        if isinstance(value, Mapping):
            return {name: copy(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(copy, value))
        return value

    return copy(state)


Tensors = Mapping[str, torch.Tensor]
LoadWeights = Callable[[str], Tensors]  # returns the weights in the folder "last" or "average" of a run


def without_stored(state: Mapping[str, Any], stored: LoadWeights) -> dict[str, Any]:
    """Returns ``state`` without the weights that the run folder also stores: their names and a digest take their place.

    The inverse is :func:`with_stored`.
    """
    model, note = _without(state["model"], stored("last"))
    reduced = {**state, "format": REDUCED, "model": model, "stored": {"last": note}}
    if (average := state["average"]) is not None and "weights" in average:
        weights, note = _without(average["weights"], stored("average"))
        reduced["average"] = {**average, "weights": weights}
        reduced["stored"]["average"] = note
    return reduced


def with_stored(state: Mapping[str, Any], stored: LoadWeights, path: Path) -> Mapping[str, Any]:
    """Returns ``state`` completed by the weights in the run folder; a complete state is returned unchanged.

    Raises:
        HeedfulError: the folder's weights have changed; the error names ``path``, the checkpoint.
    """
    if state.get("format") != REDUCED:
        return state
    whole = {**state, "format": FORMAT}
    for folder, note in state["stored"].items():
        tensors = state["model"] if folder == "last" else state["average"]["weights"]
        weights = stored(folder)
        names = note["names"]
        if not weights.keys() >= set(names) or _digest_of(weights, names) != note["sha256"]:
            raise HeedfulError(
                f"{path} needs the weights in {path.with_name(folder)}, which have changed; restore them, or "
                "fine-tune them in another run with --from"
            )
        tensors = {**tensors, **{name: weights[name].detach().cpu() for name in names}}
        if folder == "last":
            whole["model"] = tensors
        else:
            whole["average"] = {**state["average"], "weights": tensors}
    return whole


def _without(tensors: Tensors, stored: Tensors) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Splits ``tensors`` into the tensors that ``stored`` lacks, and a note of the other tensors: names and a
    digest.
    """
    shared = [name for name, tensor in tensors.items() if name in stored and _same(tensor, stored[name])]
    note = {"names": shared, "sha256": _digest_of(stored, shared)}
    return {name: tensor for name, tensor in tensors.items() if name not in shared}, note


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.detach().cpu(), b.detach().cpu())


def _digest_of(tensors: Tensors, names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Context manager that turns the system's errors in writing ``path`` into a ``HeedfulError`` with a remedy."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch turns the file's OSError into a RuntimeError
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise HeedfulError(f"cannot write {path}: {cause.strerror}; make room, or use another folder") from None


class Interrupts:
    """Context manager that defers Ctrl-C and SIGTERM until the loop can save a complete state.

    A second signal is raised at once. Outside the main thread, which alone receives signals, it changes nothing.
    """

    def __init__(self) -> None:
        self._received: list[int] = []
        self._at_once = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
        if self._at_once or len(self._received) > 1:
            self._at_once = False
            raise KeyboardInterrupt

    @property
    def deferred(self) -> bool:
        """True if exactly one signal was received: it was deferred, and the loop's state is complete."""
        return len(self._received) == 1

    @property
    def received(self) -> int:
        """Number of signals received so far."""
        return len(self._received)

    def check(self) -> None:
        """Raises ``KeyboardInterrupt`` if a signal was received."""
        if self._received:
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Context manager in which signals are raised at once, for code that changes nothing in a checkpoint."""
        self.check()
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def error(self) -> BaseException:
        """Returns the exception for the caller: ``SystemExit(143)`` after SIGTERM, else ``KeyboardInterrupt``."""
        return SystemExit(128 + signal.SIGTERM) if signal.SIGTERM in self._received else KeyboardInterrupt()
