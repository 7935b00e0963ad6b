"""Sharded checkpoint: each rank writes its shards, and any number of ranks can read them."""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from heedful.errors import HeedfulError
from heedful.training.checkpoint import Checkpoints, DamagedCheckpoint, copy_to_cpu, write_errors
from heedful.training.run_folder import SHARDS
from heedful.util.ranks import Ranks

DIGESTS = "digests"  # key of the digests of shard files, by name
REMEDY = "start a new run, or replace it by an undamaged copy"
State = dict[str, Any]


class ShardedCheckpoints(Checkpoints):
    """Checkpoints of a sharded model: a folder of shards (``torch.distributed.checkpoint``) and a ``checkpoint.pt``.

    ``checkpoint.pt`` names the folder, and holds a digest of each of its files, checked when they are read. It is
    replaced after the shards are written and before older shards are removed, so it always names a complete folder.
    Tensors are stored by name, so another number of ranks can resume. All ranks must call ``save``, ``wait`` and
    ``load`` together.

    Args:
        folder: the run's folder, which all ranks can read and write.
        ranks: the ranks that write and read together.
        state: function that returns the loop's state; ``load`` reads into the tensors of this state.
        keep: maximum number of checkpoints.
    """

    def __init__(self, folder: str | os.PathLike[str], ranks: Ranks, state: Callable[[], State], keep: int = 1) -> None:
        super().__init__(folder, keep, warns=ranks.is_first)
        self.ranks, self.state = ranks.with_new_group(), state
        self._number = 0  # of the last folder
        _ignore_warning()

    def _copy(self, state: Mapping[str, Any]) -> State:
        small_values, shards = _split(state)
        stager = DefaultStager(StagingOptions(False, False, False, False))
        try:
            staged = stager.stage(shards)
        finally:
            stager.close()
        assert isinstance(staged, dict)  # not a Future: the stager is synchronous
        return _join(copy_to_cpu(small_values), staged)

    def _write(self, state: Mapping[str, Any]) -> None:
        """Writes each rank's shards, then on rank 0 the file that names them; called on all ranks."""
        ranks, (small_values, shards) = self.ranks, _split(state)
        self._number += 1
        folder = self.path.parent / f"{SHARDS}-{state['numbers']['step']}-{self._number}"
        with write_errors(folder):
            if ranks.is_first:
                shutil.rmtree(folder, ignore_errors=True)
            ranks.barrier()
            try:
                dcp.save(shards, checkpoint_id=folder, process_group=ranks.group, no_dist=ranks.size == 1)
            except dcp.api.CheckpointException as error:  # raised on all ranks where one fails
                raise ranks.shared_error(self._write_error(folder, error)) from None
        digests = self._digests([path for path in sorted(folder.iterdir()) if self._wrote(path.name)])
        if ranks.is_first:
            with ranks.while_others_wait():
                super()._write({**small_values, SHARDS: folder.name, "number": self._number, DIGESTS: digests})
                self._prune()
        else:
            ranks.wait_for_first()
            self._step = state["numbers"]["step"]

    def _candidates(self) -> list[Path]:
        paths: list[Path] = self.ranks.broadcast(super()._candidates())
        return paths

    def size(self) -> int:
        """Returns the total size of all checkpoints on disk with their shards, in bytes."""
        shards = self.path.parent.glob(f"{SHARDS}-*/*")
        return super().size() + sum(path.stat().st_size for path in shards)

    def clear(self) -> None:
        """Removes all checkpoints with their shards; only rank 0 may call this."""
        super().clear()
        self._prune()

    def _prune(self) -> None:
        """Removes the folders of shards that no checkpoint names."""
        named = set(self._shard_folders())
        for folder in self.path.parent.glob(f"{SHARDS}-*"):
            if folder.name not in named:
                shutil.rmtree(folder, ignore_errors=True)

    def _shard_folders(self) -> Iterator[str]:
        """Yields the folders that the checkpoints name."""
        for path in self.paths().values():
            with suppress(DamagedCheckpoint):
                yield super()._read(path)[SHARDS]

    def _read(self, path: Path) -> State:
        """Returns the content of ``checkpoint.pt`` if all of its shards are undamaged; the same on all ranks."""
        small_values = self._read_on_all_ranks(path)
        if SHARDS not in small_values:
            raise HeedfulError(f"{path} was written without --training.shard; resume without it")
        folder, digests = path.parent / small_values[SHARDS], small_values[DIGESTS]
        files = sorted(folder / name for name in digests)
        if self._digests(files[self.ranks.rank :: self.ranks.size]) != digests:
            raise DamagedCheckpoint(f"{folder} is cut off or damaged; {REMEDY}")
        return small_values

    def _read_on_all_ranks(self, path: Path) -> State:
        """Returns the content of ``checkpoint.pt`` if all ranks can read it; else raises the error of one rank on all
        ranks.
        """
        state: State = {}
        own_error: HeedfulError | None = None
        try:
            state = super()._read(path)
        except HeedfulError as error:
            own_error = error
        errors = [error for error in self.ranks.gather(own_error) if error]
        if errors:
            raise next((error for error in errors if not isinstance(error, DamagedCheckpoint)), errors[0])
        return state

    def load(self) -> State | None:
        """Returns the state in the newest undamaged checkpoint, with this rank's shards; all ranks must call this."""
        try:
            small_values = super().load()
        except HeedfulError as error:
            raise self.ranks.shared_error(error) from None
        if small_values is None:
            return None
        folder = self.path.parent / small_values.pop(SHARDS)
        self._number = small_values.pop("number")
        del small_values[DIGESTS]
        present, shards = _split(self.state())
        try:
            dcp.load(shards, checkpoint_id=folder, process_group=self.ranks.group, no_dist=self.ranks.size == 1)
        except dcp.api.CheckpointException as error:  # raised on all ranks where one fails
            raise self.ranks.shared_error(_other_model(folder, error)) from None
        except (OSError, RuntimeError, ValueError) as error:
            raise _other_model(folder, error) from None
        return _join({**small_values, "optimiser": present["optimiser"]}, shards)

    def _wrote(self, name: str) -> bool:
        """Returns True if this rank wrote the shard file; rank 0 writes the index."""
        return name.startswith(f"__{self.ranks.rank}_") or (self.ranks.is_first and not name.startswith("__"))

    def _digests(self, files: Sequence[Path]) -> dict[str, str]:
        """Returns the SHA-256 of the files of all ranks, by name; for an unreadable file, the reason instead."""
        of_ranks = self.ranks.gather(dict(map(_digest, files)))
        return {name: digest for digests in of_ranks for name, digest in digests.items()}

    def _write_error(self, folder: Path, error: dcp.api.CheckpointException) -> HeedfulError:
        if self.ranks.is_first:
            shutil.rmtree(folder, ignore_errors=True)
        return HeedfulError(f"cannot write {folder}: {_reason(error)}; make room, or use another folder")


def _other_model(folder: Path, error: BaseException) -> HeedfulError:
    return HeedfulError(f"the weights in {folder} do not fit this model; {REMEDY} ({_reason(error)})")


def _reason(error: BaseException) -> str:
    """Returns the message of an error in one line of at most 200 characters.

    For a ``CheckpointException``, which holds the errors of several ranks, it is the message of the first one.
    """
    if isinstance(error, dcp.api.CheckpointException):
        error, _ = next(iter(error.failures.values()))
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]


def _digest(path: Path) -> tuple[str, str]:
    try:
        with path.open("rb") as file:
            return path.name, hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return path.name, str(error.strerror)


def load_whole_tensors(folder: Path) -> State:
    """Returns the whole tensors in a folder of shards, read by one process without the model."""
    _ignore_warning()
    with TemporaryDirectory() as temporary:
        file = Path(temporary) / "whole.pt"
        dcp_to_torch_save(folder, file)
        tensors: State = torch.load(file, weights_only=True)
    return tensors


def _split(state: Mapping[str, Any]) -> tuple[State, State]:
    """Splits a state into small values, which rank 0 writes, and tensors by name."""
    small_values = {name: value for name, value in state.items() if name != "model"}
    shards: dict[str, dict[str, Any]] = {"model": dict(state["model"]), "optimiser": dict(state["optimiser"]["state"])}
    small_values["optimiser"] = {"param_groups": state["optimiser"]["param_groups"]}
    if (average := state.get("average")) is not None:
        shards["average"] = dict(average["weights"])
        small_values["average"] = {name: value for name, value in average.items() if name != "weights"}
    return small_values, shards


def _join(small_values: State, shards: State) -> State:
    """Returns the state that :func:`_split` has split."""
    average = small_values.get("average")
    if average is not None:
        average = {**average, "weights": shards["average"]}
    optimiser = {**small_values["optimiser"], "state": shards["optimiser"]}
    return {**small_values, "model": shards["model"], "optimiser": optimiser, "average": average}


def _ignore_warning() -> None:
    """Ignores PyTorch's warning that it runs in one process, from now on: threads share the filters."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
