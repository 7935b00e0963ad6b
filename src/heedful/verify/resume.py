"""``verify resume``: kills a run repeatedly and compares its end, bit by bit, with that of an uninterrupted run."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from heedful.errors import HeedfulError
from heedful.settings import RunSettings
from heedful.verify.check_report import CheckResult, Report
from heedful.verify.kills import AIMS, Session, aimed, unfinished
from heedful.verify.resume_options import check_repeatable

if TYPE_CHECKING:
    from rich.table import Table


NAME = "run"  # of the folder of each run: the same, so that what tells its name is the same


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill.

    Attributes:
        run: which of the runs, from 1.
        aim: what moment was meant.
        step: the last one in the log then; None where none was logged yet.
        writing: what was being written, and was left half done.
        seconds: after the start of the process.
        process: the one of several that was killed; None: all at once.
    """

    run: int
    aim: str
    step: int | None
    writing: tuple[str, ...]
    seconds: float
    process: int | None = None

    def __str__(self) -> str:
        who = "killed" if self.process is None else f"process {self.process} killed"
        step = "before the first line of the log" if self.step is None else f"after step {self.step:,}"
        were = "were" if len(self.writing) > 1 else "was"
        what = f", while {' and '.join(self.writing)} {were} being written" if self.writing else ""
        return f"{who} {step}, {self.seconds:.1f} s after its start{what}"


@dataclass(frozen=True, kw_only=True)
class ResumeReport:
    """Result of ``verify resume``: a finding per compared item, over all runs."""

    task: str
    kills: tuple[Kill, ...]
    runs: int
    checks: tuple[CheckResult, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """True if every run went on to the end, and ended the same."""
        return not any(check.verdict == "off" for check in self.checks)

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        during = sum(bool(kill.writing) for kill in self.kills)
        runs = f"{self.runs} {'run' if self.runs == 1 else 'runs'}"
        told = f"{len(self.kills)} kills in {runs}, {during} of them during a write"
        differing = [check.name for check in self.checks if check.verdict == "off"]
        verdict = f"different: {', '.join(differing)}" if differing else "ok, the same bits"
        return f"{verdict}: {told} ({self.seconds:.0f} s)"

    def table(self) -> Table:
        """Returns a row a thing that was compared."""
        return Report(model=self.task, checks=self.checks, seconds=self.seconds).table()

    def as_dict(self) -> dict[str, Any]:
        """``{"ok", "checks", "kills", "runs", "task", "seconds"}``, plain values."""
        return {
            "ok": self.ok,
            "checks": [asdict(check) for check in self.checks],
            "kills": [asdict(kill) for kill in self.kills],
            "runs": self.runs,
            "task": self.task,
            "seconds": self.seconds,
        }


def verify_resume(
    settings: RunSettings,
    arguments: Sequence[str],
    *,
    kills: int = 20,
    processes: int = 1,
    out: str | Path | None = None,
    say: Callable[[str], object] = print,
    status: Callable[[str], object] | None = None,
) -> ResumeReport:
    """Proves that a run goes on with the same bits, wherever it is killed.

    It is made once undisturbed. Then it is begun again in another folder and killed (SIGKILL to the groups of all its
    processes) at random moments, many of them while a file is being written, and taken up with ``--resume`` each time.
    When it ends before all kills are made, another is begun. Each is compared with the first: see ``ends.compared``.
    Of several processes every second kill takes a single one, drawn at random, and the others are to end by themselves.

    Args:
        settings: what ``arguments`` say; their seed is that of the moments too.
        arguments: of ``heedful train``, without ``--out``.
        kills: how many.
        processes: that learn together, on this machine.
        out: the folder in which the runs' are made, and kept; by default one that is removed.
        say: is told each kill in a line.
        status: is told what is going on, with the time that is left.

    Raises:
        HeedfulError: for what cannot be the same twice, and where the undisturbed run fails.
    """
    check_repeatable(settings, kills, processes)
    if settings.training.keep is None:
        arguments = [*arguments, "--training.keep=1"]  # after a run that patience ended as well
    if out is not None and Path(out).exists() and (not Path(out).is_dir() or any(Path(out).iterdir())):
        raise HeedfulError(f"--out {out} is there already, and not empty; name a new folder")
    started = time.monotonic()
    with TemporaryDirectory() as place:
        trial = _KilledRuns(arguments, Path(out or place), kills, processes, random.Random(settings.seed or 0))
        findings = _joined(list(trial.made(say, status or (lambda line: None), keep=out is not None)))
    return ResumeReport(
        task=settings.task,
        kills=tuple(trial.kills),
        runs=trial.runs,
        checks=findings,
        seconds=round(time.monotonic() - started, 1),
    )


class _KilledRuns:
    """The runs in ``place`` and what is known of them so far."""

    def __init__(self, arguments: Sequence[str], place: Path, wanted: int, processes: int, draw: random.Random) -> None:
        self.arguments, self.place, self.wanted, self.draw = arguments, place, wanted, draw
        self.processes = processes
        self.kills: list[Kill] = []
        self.runs = 0
        self.whole, self.learning = 0.0, 0.0  # seconds of the undisturbed run, and those of its learning
        self.error: str | None = None  # of the run at hand
        self.stayed: str | None = None  # how processes ended that were left alone

    def made(
        self, say: Callable[[str], object], status: Callable[[str], object], *, keep: bool
    ) -> Iterator[list[CheckResult]]:
        """Makes all runs; of each that was killed, what it ended with."""
        from heedful.verify.run_comparison import compared

        first = self.place / "undisturbed" / NAME
        first.parent.mkdir(parents=True)
        status("the undisturbed run")
        with Session(self.arguments, first, self.processes) as session:
            session.until(session.learning)
            opened = session.seconds
            error = session.end()
            self.whole, self.learning = session.seconds, session.seconds - opened
        if error is not None:
            raise HeedfulError(error)
        begun = time.monotonic()
        while len(self.kills) < self.wanted:
            self.runs += 1
            stopped = self.place / f"killed-{self.runs}" / NAME
            stopped.parent.mkdir()
            for kill in self._killed(stopped):
                say(f"{len(self.kills):>4}  run {self.runs}: {kill}")
                each = (time.monotonic() - begun) / len(self.kills)
                left = round(each * (self.wanted - len(self.kills)) + self.whole)
                status(f"kill {len(self.kills)} of {self.wanted}, {left // 60}:{left % 60:02} left")
            if self.error is not None:
                say(f"      run {self.runs} could not go on: {self.error}")
                yield self._ended()
                continue
            found = [*self._ended(), *compared(first, stopped)]
            differing = [check.name for check in found if check.verdict == "off"]
            say(f"      run {self.runs} ended " + (f"different: {', '.join(differing)}" if differing else "the same"))
            if not keep and not differing:
                shutil.rmtree(stopped.parent)
            yield found

    def _ended(self) -> list[CheckResult]:
        """Returns findings on how the processes of a run ended, and those that a kill left running."""
        found = [_finding("going on", "every run was taken up after every kill, to its end", self.error)]
        if self.processes > 1:
            what = "where one of several processes was killed, the others ended by themselves, with a line"
            found.append(_finding("left alone", what, self.stayed))
        return found

    def _killed(self, out: Path) -> Iterator[Kill]:
        """One run, killed and taken up again until it ends; ``error`` is what it said where it could not go on."""
        again: list[str] = []
        self.stayed = None
        while True:
            aim = AIMS[self.draw.randrange(len(AIMS))]
            with Session([*self.arguments, *again], out, self.processes, self._victim()) as session:
                if len(self.kills) == self.wanted or not aimed(session, aim, self.whole, self.learning, self.draw):
                    self.error = session.end()
                    return
                self.stayed = self.stayed or session.stayed
                kill = Kill(
                    run=self.runs,
                    aim=aim,
                    step=_step(out),
                    writing=tuple(unfinished(out)),
                    seconds=round(session.seconds, 3),
                    process=session.victim,
                )
            self.kills.append(kill)
            yield kill
            again = ["--resume"]

    def _victim(self) -> int | None:
        """Returns the process that the next kill takes; None for all."""
        return self.draw.randrange(self.processes) if self.processes > 1 and len(self.kills) % 2 else None


def _step(out: Path) -> int | None:
    """Returns the last whole line's in the log of a run."""
    path = out / "metrics.jsonl"
    for line in reversed(path.read_text(encoding="utf-8").splitlines() if path.is_file() else []):
        try:
            return int(json.loads(line)["step"])
        except ValueError:  # it was being written
            continue
    return None


def _finding(name: str, what: str, wrong: str | None) -> CheckResult:
    return CheckResult(
        name=name,
        what=what,
        verdict="ok" if wrong is None else "off",
        difference=float(wrong is not None),
        allowed=0.0,
        reason=wrong or "",
    )


def _joined(runs: Sequence[Sequence[CheckResult]]) -> tuple[CheckResult, ...]:
    """Returns a finding of each name: the worst of all runs."""
    worst: dict[str, CheckResult] = {}
    for one in (finding for found in runs for finding in found):
        if one.name not in worst or (one.verdict, worst[one.name].verdict) == ("off", "ok"):
            worst[one.name] = one
    return tuple(worst.values())
