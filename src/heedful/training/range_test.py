"""The learning-rate range test: at which rates a run begins to learn, and at which it falls apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from heedful.errors import HeedfulError
from heedful.settings import RunSettings
from heedful.training.determinism import deterministic, threads_restored
from heedful.training.log import Log, describe
from heedful.training.loop import Loop
from heedful.training.memory import within_memory
from heedful.training.run import build_loop, prepare, print_nothing
from heedful.training.schedule import Limits
from heedful.util.ranks import joined

LOWEST, HIGHEST, STEPS = 1e-7, 1.0, 100
AROUND = 4  # steps before and after one, over which its loss is a mean
APART = 4  # times the lowest loss: no more is to be learned from higher rates
ROWS, BAR = 14, 40
SHOWN = 10  # steps between two lines, where there is no bar


@dataclass(frozen=True)
class Tried:
    """Result of a range test.

    Attributes:
        rates: of each step.
        losses: of each step, the mean with the four before and after it.
        lowest: the rate at which that was lowest.
        steepest: the rate at which it fell fastest, per factor of the rate.
        suggested: ``steepest``, or a tenth of ``lowest`` if that is less: far from where all falls apart.
    """

    rates: list[float]
    losses: list[float]
    lowest: float
    steepest: float
    suggested: float

    def lines(self) -> list[str]:
        """A table with bars, for people."""
        low, high = min(self.losses), max(self.losses[: self.rates.index(self.lowest) + 1])
        each = -(-len(self.rates) // ROWS)
        bars = [BAR * (loss - low) / ((high - low) or 1) for loss in self.losses]
        table = [
            f"{rate:9.2e}  {loss:9.4f}  {'█' * min(BAR, round(bar))}"
            for rate, loss, bar in list(zip(self.rates, self.losses, bars, strict=True))[::each]
        ]
        told = f"the loss falls fastest at {self.steepest:.1e} and is lowest at {self.lowest:.1e}"
        return ["     rate       loss", *table, f"{told}: take --training.lr={self.suggested:.1e}"]


class _Apart(Exception):
    """The loss has grown beyond what more steps could tell of."""


class _Losses(Log):
    def __init__(self, quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self.rates: list[float] = []
        self.losses: list[float] = []

    def write(self, line: Mapping[str, Any], *, left: float | None = None) -> None:
        self.rates.append(line["lr"])
        self.losses.append(line["loss"])
        self._shown = line
        if not self._bar.active and line["step"] % SHOWN == 0:
            self.note(f"step {line['step']} of {STEPS}  {describe(line)}")
        if min(self.losses[-AROUND:]) > APART * min(self.losses):
            raise _Apart


def find_lr(settings: RunSettings, quiet: bool = False) -> dict[str, Any]:
    """Runs the range test on the run that ``settings`` describe, and leaves nothing behind.

    Returns:
        ``{"task", "rates", "losses", "lowest", "steepest", "suggested", "lines"}``, the last for people.
    """
    if settings.resume:
        raise HeedfulError(
            "--lr-range-test looks at a run's beginning, and --resume goes on with one; give one of them"
        )
    if settings.training.report:
        raise HeedfulError("--lr-range-test leaves no log to report; leave --training.report out")
    with joined() as ranks, threads_restored(), TemporaryDirectory() as folder:
        if ranks.size > 1:
            raise HeedfulError("--lr-range-test is a matter of one process; leave torchrun out")
        temporary = replace(settings, out=str(Path(folder, "range_test")), overwrite=False)
        run = prepare(temporary, ranks, print_nothing, started=time.monotonic())
        loop = build_loop(run, None, ranks, quiet=True)
        with deterministic(run.settings.deterministic), within_memory(run.settings.training):
            result = range_test(loop, quiet)
    return {"task": run.task.name, **vars(result), "lines": result.lines()}


def range_test(loop: Loop, quiet: bool = True) -> Tried:
    """Try rates from 1e-7 to 1, each a fixed factor above the one before, a step each (Smith 2017, section 3.3).

    ``loop`` is that of a run that has not begun: its model and data are used up, its schedule, limits and whatever it
    would write are not. The rates are those of the groups that learn fastest. Raises :class:`HeedfulError` where the
    loss did not fall at any rate.
    """
    peak = max(group["lr"] for group in loop.optimiser.param_groups)
    log = _Losses(quiet)

    def rising(step: int, progress: float | None) -> float:
        return LOWEST * (HIGHEST / LOWEST) ** ((step - 1) / (STEPS - 1)) / peak

    trial = replace(
        loop,
        schedule=rising,
        limits=Limits(max_steps=STEPS),
        gradient_limits=replace(loop.gradient_limits, skip_spikes=None),
        evaluation=None,
        average=None,
        saving=None,
        logging=replace(loop.logging, log=log, every=1),
    )
    try:
        trial.fit()
    except _Apart:
        pass
    except HeedfulError:
        if len(log.rates) < STEPS // 10:  # no rate is to blame
            raise
    return _read(log.rates, log.losses)


def _read(rates: list[float], raw: Sequence[float]) -> Tried:
    losses = [statistics.fmean(raw[max(0, i - AROUND) : i + AROUND + 1]) for i in range(len(raw))]
    place = min(range(len(losses)), key=losses.__getitem__)
    falls = [losses[i - AROUND] - losses[min(i + AROUND, place)] for i in range(AROUND, place)]
    if not falls or losses[place] > 0.99 * losses[0]:
        raise HeedfulError(
            f"the loss did not fall at any learning rate from {rates[0]:.0e} to {rates[-1]:.0e}; look at the data with "
            "heedful audit, or give larger batches"
        )
    steepest = rates[AROUND + max(range(len(falls)), key=falls.__getitem__)]
    return Tried(rates, losses, rates[place], steepest, min(steepest, rates[place] / 10))
