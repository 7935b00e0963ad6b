"""The checkpoint of weights that no process holds whole: each writes its shares, and any number of them reads them."""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from heedful.errors import HeedfulError
from heedful.training.beginning import SHARDS
from heedful.training.checkpoint import Checkpoints, writing
from heedful.training.ranks import Ranks

DIGESTS = "digests"  # of the files of shares, by name
REMEDY = "start the run anew, or put a whole copy there"
Tree = dict[str, Any]


class ShardedCheckpoints(Checkpoints):
    """A folder of shares (``torch.distributed.checkpoint``) a checkpoint, and a ``checkpoint.pt`` that names it.

    The shares are whole before the file that names them is replaced, and older ones go after it: whatever happens, the
    file names a folder that is there. It holds a digest of each file of shares too, made by the rank that wrote it and
    compared when they are read. Tensors are told apart by name, so another number of ranks may go on.

    Args:
        folder: of the run; all ranks see it.
        ranks: those that write and read together.
        live: the state as it stands, into whose tensors is read; its average where there is one.
    """

    def __init__(self, folder: str | os.PathLike[str], ranks: Ranks, live: Callable[[], Tree]) -> None:
        super().__init__(folder)
        self.ranks, self.live = ranks, live
        self._number = 0  # of the folder written last

    def save(self, state: Mapping[str, Any], *, wait: bool = True) -> None:
        """Replace the checkpoint; called on all ranks, which write together and ``wait`` for each other in any case."""
        rest, shares = _apart(state)
        self._number += 1
        place = self.path.parent / f"{SHARDS}-{state['numbers']['step']}-{self._number}"
        with writing(place), _quietly():
            if self.ranks.first:
                shutil.rmtree(place, ignore_errors=True)
            self.ranks.wait()
            try:
                dcp.save(shares, checkpoint_id=place, no_dist=self.ranks.size == 1)
            except dcp.api.CheckpointException as error:  # all ranks hear what befell one of them
                raise self.ranks.alike(self._not_written(place, error)) from None
        digests = self._digests([path for path in sorted(place.iterdir()) if self._wrote(path.name)])
        if self.ranks.first:
            super().save({**rest, SHARDS: place.name, "number": self._number, DIGESTS: digests})
            for old in self.path.parent.glob(f"{SHARDS}-*"):
                if old != place:
                    shutil.rmtree(old, ignore_errors=True)
        self.ranks.wait()

    def load(self) -> Tree | None:
        """The state saved last, each rank's own shares of it; called on all ranks."""
        rest = super().load()
        if rest is None:
            return None
        if SHARDS not in rest:
            raise HeedfulError(f"{self.path} was not written with --training.shard; resume it without")
        place = self.path.parent / rest.pop(SHARDS)
        self._number = rest.pop("number")
        told: dict[str, str] = rest.pop(DIGESTS)
        files = sorted(place / name for name in told)
        if self._digests(files[self.ranks.rank :: self.ranks.size]) != told:
            raise self.ranks.alike(HeedfulError(f"{place} is cut off or damaged; {REMEDY}"))
        live = self.live()
        own, shares = _apart(live)
        try:
            with _quietly():
                dcp.load(shares, checkpoint_id=place, no_dist=self.ranks.size == 1)
        except dcp.api.CheckpointException as error:  # all ranks hear what befell one of them
            raise self.ranks.alike(_of_another(place, error)) from None
        except (OSError, RuntimeError, ValueError) as error:
            raise _of_another(place, error) from None
        average = rest["average"]
        if average is not None:
            average = {**average, "weights": shares["average"]}
        groups = own["optimiser"]["param_groups"]
        optimiser = {"state": shares["optimiser"], "param_groups": groups}
        return {**rest, "model": shares["model"], "optimiser": optimiser, "average": average}

    def _wrote(self, name: str) -> bool:
        """Whether a file of shares is this rank's; the index of all is the first's."""
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
    """What went wrong, of several ranks on the first that tells, in a line."""
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
    """What a folder of shares holds, each tensor whole, in one process and without the model that it is of."""
    with TemporaryDirectory() as place, _quietly():
        file = Path(place) / "whole.pt"
        dcp_to_torch_save(shares, file)
        made: Tree = torch.load(file, weights_only=True)
    return made


def _apart(state: Mapping[str, Any]) -> tuple[Tree, Tree]:
    """What is small and written by the first alone, and the tensors by name."""
    rest = {name: value for name, value in state.items() if name != "model"}
    shares: dict[str, dict[str, Any]] = {"model": dict(state["model"]), "optimiser": dict(state["optimiser"]["state"])}
    rest["optimiser"] = {"param_groups": state["optimiser"]["param_groups"]}
    if (average := state.get("average")) is not None:
        shares["average"] = dict(average["weights"])
        rest["average"] = {name: value for name, value in average.items() if name != "weights"}
    return rest, shares


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the library's warnings of what is meant so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
