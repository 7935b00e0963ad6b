"""Trials of a run that write nothing: all its settings, and a learning-rate range test, which suggests a rate."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from heedful.errors import HeedfulError
from heedful.settings import RunSettings
from heedful.training.determinism import deterministic, threads_restored
from heedful.training.log import Log, log_line
from heedful.training.loop import Loop
from heedful.training.memory import within_memory
from heedful.training.precision import tf32
from heedful.training.run import Run, build_loop, prepare, print_nothing
from heedful.training.schedule import Limits
from heedful.util.ranks import Ranks, join_ranks

LOWEST, HIGHEST, STEPS = 1e-7, 1.0, 100
SMOOTHING = 4  # steps before and after one over which its loss is averaged
DIVERGED = 4  # times the lowest loss at which the test stops
ROWS, BAR = 14, 40
SHOWN = 10  # steps between two lines without a progress bar


@dataclass(frozen=True)
class RangeTest:
    """Result of a learning-rate range test.

    Attributes:
        rates: learning rate of each step.
        losses: loss of each step, averaged with the losses of the four steps before and after it.
        lowest: the rate at which the loss was lowest.
        steepest: the rate at which the loss fell fastest, relative to the logarithm of the rate.
        suggested: the smaller of ``steepest`` and a tenth of ``lowest``, which is far from rates that diverge.
    """

    rates: list[float]
    losses: list[float]
    lowest: float
    steepest: float
    suggested: float

    def lines(self) -> list[str]:
        """Returns the lines of a table of rates and losses, with bars, for people."""
        low, high = min(self.losses), max(self.losses[: self.rates.index(self.lowest) + 1])
        stride = -(-len(self.rates) // ROWS)
        bars = [BAR * (loss - low) / ((high - low) or 1) for loss in self.losses]
        table = [
            f"{rate:9.2e}  {loss:9.4f}  {'█' * min(BAR, round(bar))}"
            for rate, loss, bar in list(zip(self.rates, self.losses, bars, strict=True))[::stride]
        ]
        summary = f"the loss falls fastest at {self.steepest:.1e} and is lowest at {self.lowest:.1e}"
        return ["     rate       loss", *table, f"{summary}: take --training.lr={self.suggested:.1e}"]


class _Diverged(Exception):
    """Raised when the loss has diverged."""


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
            self.note(f"step {line['step']} of {STEPS}  {log_line(line)}")
        if min(self.losses[-SMOOTHING:]) > DIVERGED * min(self.losses):
            raise _Diverged


def find_lr(settings: RunSettings, quiet: bool = False) -> dict[str, Any]:
    """Tries rising learning rates on the first steps of the run that ``settings`` describe; writes no files.

    Returns:
        ``{"task", "rates", "losses", "lowest", "steepest", "suggested", "lines"}``; the lines are a table for people.
    """
    if settings.training.report:
        raise HeedfulError("--lr-range-test writes no log to report; leave --training.report out")
    if settings.push is not None:
        raise HeedfulError("--lr-range-test trains no model to upload; leave --push out")
    with _prepared(settings, "--lr-range-test") as (run, ranks):
        loop = build_loop(run, None, ranks, quiet=True)
        with (
            deterministic(run.settings.deterministic),
            tf32(run.settings.training.tf32, run.device),
            within_memory(run.settings.training),
        ):
            result = range_test(loop, quiet)
    return {"task": run.task.name, **vars(result), "lines": result.lines()}


def resolved_settings(settings: RunSettings) -> RunSettings:
    """Returns all settings of the run that ``settings`` describe: those of its ``run.toml``, of which none is unset
    that the run would choose; writes no files.
    """
    with _prepared(replace(settings, push=None), "--print-config") as (run, _):  # nothing is uploaded: needs no login
        if run.task.teacher_settings(run.train.rows, settings) is not None:
            raise HeedfulError(
                "--print-config prints the settings of one run, and this one trains a teacher first; name a teacher "
                "with --teacher, or give --model.members 4 for the settings of the ensemble"
            )
        return replace(run.settings, out=settings.out, overwrite=settings.overwrite, push=settings.push)


@contextmanager
def _prepared(settings: RunSettings, option: str) -> Iterator[tuple[Run, Ranks]]:
    """Prepares a new run in a temporary folder, which is removed at the end."""
    if settings.resume:
        raise HeedfulError(f"{option} starts a new run, and --resume continues one; give one of them")
    with join_ranks() as ranks, threads_restored(), TemporaryDirectory() as folder:
        if ranks.size > 1:
            raise HeedfulError(f"{option} runs in one process; start it without torchrun")
        temporary = replace(settings, out=str(Path(folder, "trial")), overwrite=False)
        yield prepare(temporary, ranks, print_nothing, started=time.monotonic()), ranks


def range_test(loop: Loop, quiet: bool = True) -> RangeTest:
    """Tries learning rates from 1e-7 to 1, one at each step, with a fixed factor between two (Smith 2017, section 3.3).

    ``loop`` is the loop of a run before its first step. The test trains the loop's model, but does not use its
    schedule, limits and files. The rates are those of the parameter groups with the highest rate.

    Raises:
        HeedfulError: the loss did not fall at any rate.
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
    except _Diverged:
        pass
    except HeedfulError:
        if len(log.rates) < STEPS // 10:  # the learning rate is not the cause
            raise
    return _evaluate(log.rates, log.losses)


def _evaluate(rates: list[float], raw: Sequence[float]) -> RangeTest:
    losses = [statistics.fmean(raw[max(0, i - SMOOTHING) : i + SMOOTHING + 1]) for i in range(len(raw))]
    lowest = min(range(len(losses)), key=losses.__getitem__)
    falls = [losses[i - SMOOTHING] - losses[min(i + SMOOTHING, lowest)] for i in range(SMOOTHING, lowest)]
    if not falls or losses[lowest] > 0.99 * losses[0]:
        raise HeedfulError(
            f"the loss did not fall at any learning rate from {rates[0]:.0e} to {rates[-1]:.0e}; check the data with "
            "heedful audit, or give larger batches"
        )
    steepest = rates[SMOOTHING + max(range(len(falls)), key=falls.__getitem__)]
    return RangeTest(rates, losses, rates[lowest], steepest, min(steepest, rates[lowest] / 10))
