"""The file a run is taken up from: written and read whole or not at all, and saved when the run is interrupted."""

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

FORMAT, REDUCED = 3, 4  # of a state: whole, and without the weights that the run's folder stores

log = logging.getLogger("heedful")


class Damaged(HeedfulError):
    """A checkpoint does not hold what was written."""


class Checkpoints:
    """The checkpoint of a run, ``checkpoint.pt`` in ``folder``: tensors, numbers, strings, lists, dictionaries.

    It is written beside the earlier one and renamed, so whatever happens one of the two is there, whole. A digest of
    all its bytes ends it, in a zip file's comment, and is compared before anything else is read; nothing in it can run
    code (``weights_only``). Those before it are ``checkpoint.1.pt``, the one before last, and so on, as many as are
    kept; the newest that is whole is taken up.

    Args:
        folder: of the run.
        keep: how many there are at most.
        speaks: whether this process tells what was left out or passed over; of several one does.
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 1, *, speaks: bool = True) -> None:
        self.path = Path(folder) / "checkpoint.pt"
        self.keep, self.speaks = keep, speaks
        self._step: int | None = None  # of the newest that this process knows to be on disk
        self._damaged: list[Path] = []  # newer than what was taken up: not kept
        self._writer: threading.Thread | None = None
        self._failed: BaseException | None = None  # of the writer, until somebody waits for it

    def save(self, state: Mapping[str, Any], *, wait: bool = True) -> None:
        """Replace the checkpoint by ``state``; where that fails, :class:`HeedfulError`, and the earlier one is kept.

        With ``wait=False`` the state is copied into memory, which is all that the caller waits for, and written by a
        thread: what happens to its tensors from now on does not change what is written. At most one is being written:
        the next ``save`` waits for it first, and so must whoever wants it to be there (``wait``). A process that ends
        meanwhile, but by SIGKILL, ends when it is written. Where the one before could not be written this one is waited
        for: there may be room again.
        """
        failed = self._joined()
        if wait or failed is not None:
            self._write(state)
            if failed is not None and self.speaks:
                log.warning(f"a checkpoint was left out and the next one is written: {failed}")
            return
        self._writer = threading.Thread(target=self._write_later, args=(self._copied(state),), name="checkpoint")
        self._writer.start()

    def wait(self) -> None:
        """Return when nothing is being written; raises what went wrong since the last time."""
        if (failed := self._joined()) is not None:
            raise failed

    @property
    def step(self) -> int | None:
        """Of which step the newest is that is on disk, when nothing is being written; None where none is known of."""
        if self._writer is not None:
            self._writer.join()
        return self._step

    def _joined(self) -> BaseException | None:
        """Waits for the writer, and returns the error of its last write, or None."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failed, self._failed = self._failed, None
        return failed

    def _copied(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Copies the parts of ``state`` that are written later."""
        copy: Mapping[str, Any] = copied(state)
        return copy

    def _write_later(self, state: Mapping[str, Any]) -> None:
        try:
            self._write(state)
        except BaseException as error:  # raised where the run can hear it, by wait()
            self._failed = error

    def rescue(self, state: Mapping[str, Any]) -> None:
        """Replaces the newest checkpoint for a process that ended. Of several that do so at one step one writes."""
        temporary = self.path.with_name(f".{self.path.name}.{state['numbers']['step']}-0.part")
        with writing(self.path):
            try:
                with atomic_file(self.path, temporary) as file:
                    self._fill(file, state)
            except FileExistsError:
                return
            self._step = _step_of(state)

    def _write(self, state: Mapping[str, Any]) -> None:
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self.path) as file:
                self._fill(file, state)
                self._make_way()
            for number, path in self.kept().items():
                if number >= self.keep:
                    path.unlink(missing_ok=True)
            self._step = _step_of(state)

    def replace(self, state: Mapping[str, Any]) -> None:
        """Replace the newest checkpoint by the same ``state`` stored otherwise; those before it stay."""
        self.wait()
        with writing(self.path), atomic_file(self.path) as file:
            self._fill(file, state)

    def _fill(self, file: BinaryIO, state: Mapping[str, Any]) -> None:
        torch.save(dict(state), file)
        _seal(file)
        sync(file)

    def _make_way(self) -> None:
        """Free the newest one's place: those up to the first gap go one further, over the oldest. A kill in between
        leaves a gap, which :meth:`load` passes over.
        """
        for path in self._damaged:
            path.unlink(missing_ok=True)
        self._damaged.clear()
        kept = self.kept()
        gap = next(number for number in count() if number not in kept)
        for number in reversed(range(min(gap, self.keep - 1))):
            move(kept[number], self._place(number + 1))

    def _place(self, number: int) -> Path:
        return self.path.with_name(f"checkpoint.{number}.pt") if number else self.path

    def kept(self) -> dict[int, Path]:
        """The checkpoints that are there, the newest first, by how many are newer."""
        found = (KEPT.fullmatch(path.name) for path in self.path.parent.glob("checkpoint*.pt"))
        return {n: self._place(n) for n in sorted(int(match[1] or 0) for match in found if match)}

    def load(self) -> dict[str, Any] | None:
        """The newest state that is whole, on the CPU; ``None`` where none was saved; :class:`HeedfulError` where all
        are damaged.
        """
        self.wait()
        self._damaged.clear()
        first: Damaged | None = None
        for path in self._candidates():
            try:
                state = self._read(path)
            except Damaged as error:
                first = first or error
                self._damaged.append(path)
                continue
            self._step = _step_of(state)
            if self._damaged and self.speaks:
                names = ", ".join(one.name for one in self._damaged)
                log.warning(f"{names} in {path.parent} is cut off or damaged; {path.name}, from before it, is taken up")
            return state
        self._damaged.clear()
        if first is not None:
            raise first
        return None

    def _candidates(self) -> list[Path]:
        return list(self.kept().values())

    def _read(self, path: Path) -> dict[str, Any]:
        check_regular(path, "remove it and start the run anew, or put a whole copy in its place")
        try:
            with path.open("rb") as file:
                if not _sealed(file):
                    raise pickle.UnpicklingError
                file.seek(0)
                state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        except OSError as error:
            kind = Damaged if error.errno == errno.EIO else HeedfulError  # the disk's own, which no right will mend
            raise kind(f"cannot read {path}: {error.strerror}; make it readable, or start anew") from None
        except (pickle.UnpicklingError, RuntimeError):  # torch's, of what heedful did not write
            raise Damaged(
                f"{path} is cut off or damaged; remove it and start the run anew, or put a whole copy in its place"
            ) from None
        return state

    def size(self) -> int:
        """Bytes of the checkpoints that are there."""
        return sum(path.stat().st_size for path in self.kept().values())

    def clear(self) -> None:
        """Remove what was saved, if anything was."""
        self.wait()
        with writing(self.path):
            for path in self.kept().values():
                path.unlink(missing_ok=True)
        self._step = None


def _step_of(state: Mapping[str, Any]) -> int | None:
    step: int | None = state.get("numbers", {}).get("step")
    return step


KEPT = re.compile(r"checkpoint(?:\.([1-9]\d*))?\.pt")
LENGTH = struct.Struct("<H")  # of a zip file's comment, right before it
DIGEST = 64  # characters of sha256 in hexadecimal
MEBIBYTE = 2**20


def _seal(file: BinaryIO) -> None:
    """Put a digest of a zip file without comment, which ``file`` is, into its comment."""
    content = file.seek(-LENGTH.size, os.SEEK_END)
    file.write(LENGTH.pack(DIGEST) + _digest(file, content))


def _sealed(file: BinaryIO) -> bool:
    """Returns True if ``file`` holds what was sealed, to the last bit."""
    content = file.seek(0, os.SEEK_END) - LENGTH.size - DIGEST
    return content > 0 and LENGTH.pack(DIGEST) + _digest(file, content) == file.read()


def _digest(file: BinaryIO, length: int) -> bytes:
    """sha256 of the first ``length`` bytes, behind which the file then stands."""
    file.seek(0)
    digest, left = hashlib.sha256(), length
    while left and (block := file.read(min(left, MEBIBYTE))):
        digest.update(block)
        left -= len(block)
    return digest.hexdigest().encode()


def copied(state: Any) -> Any:
    """``state`` with its tensors copied to the CPU, those that share memory (tied weights) sharing their copy's."""
    storages: dict[tuple[torch.device, int], torch.UntypedStorage] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            storage = value.detach().untyped_storage()
            place = (storage.device, storage.data_ptr())
            if place not in storages:
                storages[place] = torch.UntypedStorage(storage.nbytes(), device="cpu").copy_(storage)
            same = torch.empty(0, dtype=value.dtype)
            return same.set_(storages[place], value.storage_offset(), value.size(), value.stride())
        if isinstance(value, Mapping):
            return {name: copy(one) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(copy, value))
        return value

    return copy(state)


Tensors = Mapping[str, torch.Tensor]


Stored = Callable[[str], Tensors]  # returns the weights in the folder "last" or "average" of a run


def without_stored(state: Mapping[str, Any], stored: Stored) -> dict[str, Any]:
    """Returns a state without the weights that the run's folder stores with the same bits, and notes of them.

    The inverse is :func:`with_stored`.
    """
    model, note = _without(state["model"], stored("last"))
    reduced = {**state, "format": REDUCED, "model": model, "stored": {"last": note}}
    if (average := state["average"]) is not None and "weights" in average:
        weights, note = _without(average["weights"], stored("average"))
        reduced["average"] = {**average, "weights": weights}
        reduced["stored"]["average"] = note
    return reduced


def with_stored(state: Mapping[str, Any], stored: Stored, path: Path) -> Mapping[str, Any]:
    """Returns a state with the weights that the run's folder stores; a whole state as it is.

    Raises:
        HeedfulError: the folder stores other weights than it did; ``path`` is the checkpoint's.
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
                f"{path} needs the weights in {path.with_name(folder)}, and these were changed; put them back, or "
                "fine-tune them in another run with --from"
            )
        tensors = {**tensors, **{name: weights[name].detach().cpu() for name in names}}
        if folder == "last":
            whole["model"] = tensors
        else:
            whole["average"] = {**state["average"], "weights": tensors}
    return whole


def _without(tensors: Tensors, stored: Tensors) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Splits ``tensors`` into those that ``stored`` lacks, and a note of the others: their names and a digest."""
    shared = [name for name, tensor in tensors.items() if name in stored and _same(tensor, stored[name])]
    note = {"names": shared, "sha256": _digest_of(stored, shared)}
    return {name: tensor for name, tensor in tensors.items() if name not in shared}, note


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.detach().cpu(), other.detach().cpu())


def _digest_of(tensors: Tensors, names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Says in one line why ``path`` could not be written."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch reports a failed write as a RuntimeError of its own, raised while the file's OSError was in flight.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise HeedfulError(
            f"cannot write {path}: {cause.strerror}; make room, or take a folder that can be written"
        ) from None


class Interrupts:
    """While it lasts, Ctrl-C and SIGTERM are noted, and raised where the loop's state is whole.

    A second one is raised where it falls. Outside the main thread, which alone receives signals, nothing changes.
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
    def once(self) -> bool:
        """One signal has come, so the state is whole: not a second one, nor a ``KeyboardInterrupt`` out of a step."""
        return len(self._received) == 1

    @property
    def received(self) -> int:
        """Number of received signals."""
        return len(self._received)

    def check(self) -> None:
        """Raise what has come, if it has."""
        if self._received:
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """While it lasts, nothing is changed that a checkpoint holds: raise where the signal falls."""
        self.check()
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def error(self) -> BaseException:
        """The error for the caller: as if nothing had caught the signal, but with Python's own cleaning up."""
        return SystemExit(128 + signal.SIGTERM) if signal.SIGTERM in self._received else KeyboardInterrupt()
