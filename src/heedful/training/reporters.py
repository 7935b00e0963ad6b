"""Where else the log of a run is shown: TensorBoard, Weights & Biases, Trackio."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from heedful.errors import HeedfulError


class Reporter(ABC):
    """Shows the lines of a run's log.

    Args:
        out: the run's folder, whose name is the run's.
        settings: how the run is made.
    """

    package: ClassVar[str]  # what has to be installed

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self.out, self.settings = out, settings

    @abstractmethod
    def begin(self, step: int) -> None:
        """Before the first line, which is of a later step than ``step``."""

    @abstractmethod
    def show(self, step: int, numbers: Mapping[str, float]) -> None:
        """The numbers of a line."""

    @abstractmethod
    def end(self) -> None:
        """After the last line; nothing may be lost."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Show a line of the log: those of its numbers that are some."""
        numbers = {n: float(v) for n, v in line.items() if isinstance(v, int | float) and math.isfinite(v)}
        self.show(int(line["step"]), {name: value for name, value in numbers.items() if name != "step"})
        if samples := line.get("samples"):
            self.tell(int(line["step"]), samples)

    @abstractmethod
    def tell(self, step: int, samples: Sequence[Mapping[str, str]]) -> None:
        """The samples of a line, if it has some."""


class TensorBoard(Reporter):
    """``tensorboard --logdir RUN``. A resumed run drops what was written after its checkpoint."""

    package = "tensorboard"

    def begin(self, step: int) -> None:
        """Open a file of events."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own, of other packages
            from torch.utils.tensorboard import SummaryWriter

            self._writer: Any = SummaryWriter(str(self.out / "tensorboard"), purge_step=step + 1)

    def show(self, step: int, numbers: Mapping[str, float]) -> None:
        """A scalar each."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def tell(self, step: int, samples: Sequence[Mapping[str, str]]) -> None:
        """A text of all, each a line."""
        texts = [" → ".join(f"`{text}`" for text in sample.values()) for sample in samples]
        self._writer.add_text("samples", "  \n".join(texts), step)

    def end(self) -> None:
        """Write what waits."""
        self._writer.close()


class _Service(Reporter):
    """A package with ``init``, ``log``, ``Table`` and ``finish``; by its folder a run is known, and goes on."""

    def begin(self, step: int) -> None:
        """Open the run, or go on with it."""
        self._module = module = importlib.import_module(self.package)
        name = self.out.resolve()
        try:
            self._run: Any = module.init(
                project="heedful", config=dict(self.settings), resume="allow", **self.more(name)
            )
        except Exception as error:  # each has errors of its own, of networks, keys and disks
            raise HeedfulError(
                f"{self.package} cannot begin ({' '.join(str(error).split())[:200]}); {self.remedy}"
            ) from None

    remedy: ClassVar[str]

    def more(self, out: Path) -> dict[str, Any]:
        """Further arguments of its ``init``."""
        return {}

    def show(self, step: int, numbers: Mapping[str, float]) -> None:
        """One call a line."""
        self._run.log(dict(numbers), step=step)

    def tell(self, step: int, samples: Sequence[Mapping[str, str]]) -> None:
        """A table of all, each a row."""
        columns = list(dict.fromkeys(name for sample in samples for name in sample))
        rows = [[sample.get(name, "") for name in columns] for sample in samples]
        self._run.log({"samples": self._module.Table(columns=columns, data=rows)}, step=step)

    def end(self) -> None:
        """Wait until all is sent or on disk."""
        self._run.finish()


class Wandb(_Service):
    """Weights & Biases: its files lie in the run's folder; WANDB_MODE=offline keeps them there."""

    package = "wandb"
    remedy = "log in with: wandb login, or set WANDB_MODE=offline, or leave wandb out of --training.report"

    def more(self, out: Path) -> dict[str, Any]:
        """Its files in the run's folder, and a name for the run that only this folder has."""
        return {"name": out.name, "dir": str(out), "id": _own(out)}


class Trackio(_Service):
    """Trackio: ``trackio show --project heedful``."""

    package = "trackio"
    remedy = "see what its message says, or leave trackio out of --training.report"

    def more(self, out: Path) -> dict[str, Any]:
        """A name that only this folder has, for it is what a run is known by; the machine's own figures left out."""
        return {"name": f"{out.name}-{_own(out)[:6]}", "auto_log_gpu": False, "auto_log_cpu": False, "embed": False}


def _own(out: Path) -> str:
    """The same for the same folder, for another another."""
    return hashlib.blake2b(str(out).encode(), digest_size=8).hexdigest()


REPORTERS: Mapping[str, type[Reporter]] = {"tensorboard": TensorBoard, "wandb": Wandb, "trackio": Trackio}


def check_reports(names: Sequence[str]) -> None:
    """Raise ``HeedfulError`` where a package is missing."""
    missing = [name for name in names if importlib.util.find_spec(REPORTERS[name].package) is None]
    if missing:
        extras = ",".join(missing)
        raise HeedfulError(
            f"{' and '.join(missing)} of --training.report is not installed; pip install 'heedful[{extras}]'"
        )


def reporters(names: Sequence[str], out: Path, settings: Mapping[str, Any]) -> list[Reporter]:
    """The reporters of these names."""
    return [REPORTERS[name](out, settings) for name in names]
