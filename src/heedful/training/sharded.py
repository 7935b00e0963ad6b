"""The checkpoint of weights that no process holds whole: each writes its shares, and any number of them reads them."""

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
from heedful.training.checkpoint import Checkpoints, Damaged, copied, writing
from heedful.training.run_folder import SHARDS
from heedful.util.ranks import Ranks

DIGESTS = "digests"  # of the files of shares, by name
REMEDY = "start the run anew, or put a whole copy there"
Tree = dict[str, Any]


class ShardedCheckpoints(Checkpoints):
    """A folder of shares (``torch.distributed.checkpoint``) a checkpoint, and a ``checkpoint.pt`` that names it.

    The shares are whole before the file that names them is replaced, and older ones go after it: whatever happens, the
    file names a folder that is there. It holds a digest of each file of shares too, made by the rank that wrote it and
    compared when they are read. Tensors are told apart by name, so another number of ranks may go on.
    All ranks call ``save``, ``wait`` and ``load`` together.

    Args:
        folder: of the run; all ranks see it.
        ranks: those that write and read together.
        live: the state as it stands, into whose tensors is read; its average where there is one.
        keep: how many checkpoints there are at most.
    """

    def __init__(self, folder: str | os.PathLike[str], ranks: Ranks, live: Callable[[], Tree], keep: int = 1) -> None:
        super().__init__(folder, keep, speaks=ranks.first)
        self.ranks, self.live = ranks.aside(), live
        self._number = 0  # of the folder written last
        _hush()

    def _copied(self, state: Mapping[str, Any]) -> Tree:
        rest, shares = _apart(state)
        stager = DefaultStager(StagingOptions(False, False, False, False))
        try:
            staged = stager.stage(shares)
        finally:
            stager.close()
        assert isinstance(staged, dict)  # not a promise of one
        return _together(copied(rest), staged)

    def _write(self, state: Mapping[str, Any]) -> None:
        """On all ranks, which write together: each its shares, then the first the file that names them."""
        ranks, (rest, shares) = self.ranks, _apart(state)
        self._number += 1
        place = self.path.parent / f"{SHARDS}-{state['numbers']['step']}-{self._number}"
        with writing(place):
            if ranks.first:
                shutil.rmtree(place, ignore_errors=True)
            ranks.wait()
            try:
                dcp.save(shares, checkpoint_id=place, process_group=ranks.group, no_dist=ranks.size == 1)
            except dcp.api.CheckpointException as error:  # all ranks hear what befell one of them
                raise ranks.alike(self._not_written(place, error)) from None
        digests = self._digests([path for path in sorted(place.iterdir()) if self._wrote(path.name)])
        if ranks.first:
            with ranks.waiting():
                super()._write({**rest, SHARDS: place.name, "number": self._number, DIGESTS: digests})
                self._prune()
        else:
            ranks.follow()
            self._step = state["numbers"]["step"]

    def _candidates(self) -> list[Path]:
        found: list[Path] = self.ranks.same(super()._candidates())
        return found

    def size(self) -> int:
        """Bytes of the checkpoints that are there, with their shares."""
        shares = self.path.parent.glob(f"{SHARDS}-*/*")
        return super().size() + sum(path.stat().st_size for path in shares)

    def clear(self) -> None:
        """Remove what was saved, with its shares; called on the first rank."""
        super().clear()
        self._prune()

    def _prune(self) -> None:
        """Remove the shares that no checkpoint names any more."""
        named = set(self._named())
        for old in self.path.parent.glob(f"{SHARDS}-*"):
            if old.name not in named:
                shutil.rmtree(old, ignore_errors=True)

    def _named(self) -> Iterator[str]:
        """The folders of shares of the checkpoints that are kept."""
        for path in self.kept().values():
            with suppress(Damaged):
                yield super()._read(path)[SHARDS]

    def _read(self, path: Path) -> Tree:
        """Reads a checkpoint if all of its shards are whole; the same on all ranks."""
        rest = self._agreed(path)
        if SHARDS not in rest:
            raise HeedfulError(f"{path} was not written with --training.shard; resume it without")
        place, told = path.parent / rest[SHARDS], rest[DIGESTS]
        files = sorted(place / name for name in told)
        if self._digests(files[self.ranks.rank :: self.ranks.size]) != told:
            raise Damaged(f"{place} is cut off or damaged; {REMEDY}")
        return rest

    def _agreed(self, path: Path) -> Tree:
        """The file that names shares, where all ranks can read it; else what is wrong on the first that cannot."""
        found: Tree | HeedfulError
        try:
            found = super()._read(path)
        except HeedfulError as error:
            found = error
        wrong = [each for each in self.ranks.all(found if isinstance(found, HeedfulError) else None) if each]
        if wrong:
            raise next((each for each in wrong if not isinstance(each, Damaged)), wrong[0])
        assert isinstance(found, dict)
        return found

    def load(self) -> Tree | None:
        """The newest state that is whole, each rank's own shares of it; called on all ranks."""
        try:
            rest = super().load()
        except HeedfulError as error:
            raise self.ranks.alike(error) from None
        if rest is None:
            return None
        place = self.path.parent / rest.pop(SHARDS)
        self._number = rest.pop("number")
        del rest[DIGESTS]
        live = self.live()
        own, shares = _apart(live)
        try:
            dcp.load(shares, checkpoint_id=place, process_group=self.ranks.group, no_dist=self.ranks.size == 1)
        except dcp.api.CheckpointException as error:  # all ranks hear what befell one of them
            raise self.ranks.alike(_of_another(place, error)) from None
        except (OSError, RuntimeError, ValueError) as error:
            raise _of_another(place, error) from None
        return _together({**rest, "optimiser": own["optimiser"]}, shares)

    def _wrote(self, name: str) -> bool:
        """Returns True if a file of shares is this rank's; the index of all is the first's."""
        return name.startswith(f"__{self.ranks.rank}_") or (self.ranks.first and not name.startswith("__"))

    def _digests(self, files: Sequence[Path]) -> dict[str, str]:
        """sha256 of files by name, those of all ranks together; of one that cannot be read the reason."""
        return {name: digest for each in self.ranks.all(dict(map(_digest, files))) for name, digest in each.items()}

    def _not_written(self, place: Path, error: dcp.api.CheckpointException) -> HeedfulError:
        if self.ranks.first:
            shutil.rmtree(place, ignore_errors=True)
        return HeedfulError(f"cannot write {place}: {_reason(error)}; make room, or take a folder that can be written")


def _of_another(place: Path, error: BaseException) -> HeedfulError:
    return HeedfulError(f"{place} is of another model; {REMEDY} ({_reason(error)})")


def _reason(error: BaseException) -> str:
    """Returns the error of the first rank that has one, in a line."""
    if isinstance(error, dcp.api.CheckpointException):
        error, _ = next(iter(error.failures.values()))
    return " ".join(str(getattr(error, "strerror", None) or error).split())[:200]


def _digest(path: Path) -> tuple[str, str]:
    try:
        with path.open("rb") as file:
            return path.name, hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return path.name, str(error.strerror)


def whole(shares: Path) -> Tree:
    """Loads the tensors of a folder of shards, each whole, in one process and without their model."""
    _hush()
    with TemporaryDirectory() as place:
        file = Path(place) / "whole.pt"
        dcp_to_torch_save(shares, file)
        made: Tree = torch.load(file, weights_only=True)
    return made


def _apart(state: Mapping[str, Any]) -> tuple[Tree, Tree]:
    """Splits a state into small values, written by the first rank alone, and tensors by name."""
    rest = {name: value for name, value in state.items() if name != "model"}
    shares: dict[str, dict[str, Any]] = {"model": dict(state["model"]), "optimiser": dict(state["optimiser"]["state"])}
    rest["optimiser"] = {"param_groups": state["optimiser"]["param_groups"]}
    if (average := state.get("average")) is not None:
        shares["average"] = dict(average["weights"])
        rest["average"] = {name: value for name, value in average.items() if name != "weights"}
    return rest, shares


def _together(rest: Tree, shares: Tree) -> Tree:
    """The inverse of :func:`_apart`."""
    average = rest.get("average")
    if average is not None:
        average = {**average, "weights": shares["average"]}
    optimiser = {**rest["optimiser"], "state": shares["optimiser"]}
    return {**rest, "model": shares["model"], "optimiser": optimiser, "average": average}


def _hush() -> None:
    """No word of the library's on a process that is alone, as is meant; for good, for threads share what is shown."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
