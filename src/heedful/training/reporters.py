"""Reporters of a run's log to other programs: TensorBoard, Weights & Biases, Trackio."""

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
    """Base class of reporters, which send the lines of a run's log to other programs.

    Args:
        out: the run's folder; the run is reported under its name.
        settings: settings of the run.
    """

    package: ClassVar[str]  # required package

    def __init__(self, out: Path, settings: Mapping[str, Any]) -> None:
        self.out, self.settings = out, settings

    @abstractmethod
    def begin(self, step: int) -> None:
        """Starts or resumes the report of a run that has done ``step`` steps."""

    @abstractmethod
    def show(self, step: int, numbers: Mapping[str, float]) -> None:
        """Reports the numbers of a line, which is for ``step``."""

    @abstractmethod
    def end(self) -> None:
        """Ends the report; waits until all lines are written or sent."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Reports the finite numbers of a line of the log, and its samples."""
        numbers = {n: float(v) for n, v in line.items() if isinstance(v, int | float) and math.isfinite(v)}
        self.show(int(line["step"]), {name: value for name, value in numbers.items() if name != "step"})
        if samples := line.get("samples"):
            self.show_samples(int(line["step"]), samples)

    @abstractmethod
    def show_samples(self, step: int, samples: Sequence[Mapping[str, str]]) -> None:
        """Reports the samples of a line: inputs and outputs of an evaluation."""


class TensorBoard(Reporter):
    """Reporter to TensorBoard: writes event files; a resumed run drops the events after its checkpoint."""

    package = "tensorboard"

    def begin(self, step: int) -> None:
        """Opens an event file."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tensorboard's, about other packages
            from torch.utils.tensorboard import SummaryWriter

            self._writer: Any = SummaryWriter(str(self.out / "tensorboard"), purge_step=step + 1)

    def show(self, step: int, numbers: Mapping[str, float]) -> None:
        """Writes each number as a scalar."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def show_samples(self, step: int, samples: Sequence[Mapping[str, str]]) -> None:
        """Writes the samples as one text with a line for each."""
        texts = [" → ".join(f"`{text}`" for text in sample.values()) for sample in samples]
        self._writer.add_text("samples", "  \n".join(texts), step)

    def end(self) -> None:
        """Writes buffered events, and closes the file."""
        self._writer.close()


class _Service(Reporter):
    """Base of services whose package has ``init``, ``log``, ``Table`` and ``finish``; the folder identifies a run."""

    def begin(self, step: int) -> None:
        """Opens the run in the other program, or resumes it."""
        self._module = module = importlib.import_module(self.package)
        name = self.out.resolve()
        try:
            self._run: Any = module.init(
                project="heedful", config=dict(self.settings), resume="allow", **self.init_options(name)
            )
        except Exception as error:  # each package has its own errors of networks, keys and disks
            raise HeedfulError(
                f"{self.package} cannot start ({' '.join(str(error).split())[:200]}); {self.remedy}"
            ) from None

    remedy: ClassVar[str]

    def init_options(self, out: Path) -> dict[str, Any]:
        """Returns further arguments for the ``init`` function of the reporter's package."""
        return {}

    def show(self, step: int, numbers: Mapping[str, float]) -> None:
        """Logs the numbers of a line in one call."""
        self._run.log(dict(numbers), step=step)

    def show_samples(self, step: int, samples: Sequence[Mapping[str, str]]) -> None:
        """Logs the samples as a table with a row for each."""
        columns = list(dict.fromkeys(name for sample in samples for name in sample))
        rows = [[sample.get(name, "") for name in columns] for sample in samples]
        self._run.log({"samples": self._module.Table(columns=columns, data=rows)}, step=step)

    def end(self) -> None:
        """Waits until all lines are sent or on disk."""
        self._run.finish()


class Wandb(_Service):
    """Reporter to Weights & Biases, whose files are in the run's folder; with WANDB_MODE=offline nothing is sent."""

    package = "wandb"
    remedy = "log in with: wandb login, or set WANDB_MODE=offline, or leave wandb out of --training.report"

    def init_options(self, out: Path) -> dict[str, Any]:
        """Returns the options ``dir``, ``name`` and ``id`` of ``wandb.init``; the id is made from the run's folder."""
        return {"name": out.name, "dir": str(out), "id": _id_of(out)}


class Trackio(_Service):
    """Reporter to Trackio: ``trackio show --project heedful`` shows the runs."""

    package = "trackio"
    remedy = "read its message, or leave trackio out of --training.report"

    def init_options(self, out: Path) -> dict[str, Any]:
        """Returns options of ``trackio.init``: a run's name that no other folder has, and no system metrics.

        Trackio identifies runs by their name.
        """
        return {"name": f"{out.name}-{_id_of(out)[:6]}", "auto_log_gpu": False, "auto_log_cpu": False, "embed": False}


def _id_of(out: Path) -> str:
    return hashlib.blake2b(str(out).encode(), digest_size=8).hexdigest()


REPORTERS: Mapping[str, type[Reporter]] = {"tensorboard": TensorBoard, "wandb": Wandb, "trackio": Trackio}


def check_reports(names: Sequence[str]) -> None:
    """Raises ``HeedfulError`` if a reporter's package is not installed."""
    missing = [name for name in names if importlib.util.find_spec(REPORTERS[name].package) is None]
    if missing:
        extras = ",".join(missing)
        raise HeedfulError(
            f"{' and '.join(missing)} of --training.report is not installed; pip install 'heedful[{extras}]'"
        )


def reporters(names: Sequence[str], out: Path, settings: Mapping[str, Any]) -> list[Reporter]:
    """Returns a reporter for each of ``names``, the values of ``--training.report``."""
    return [REPORTERS[name](out, settings) for name in names]
