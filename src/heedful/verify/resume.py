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
from typing import Any

from heedful.errors import HeedfulError
from heedful.settings import RunSettings
from heedful.verify.check_report import CheckResult, CheckResults
from heedful.verify.kills import MOMENTS, Session, kill_at, unfinished
from heedful.verify.resume_options import check_repeatable

NAME = "run"  # name of every run folder, so that files that contain it are equal


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill of a training run.

    Attributes:
        run: number of the run, from 1.
        aim: the intended moment, one of ``kills.MOMENTS``.
        step: last logged step; None if no step was logged yet.
        writing: names of half-written files.
        seconds: time since the start of the process.
        process: rank that was killed; None: all.
    """

    run: int
    aim: str
    step: int | None
    writing: tuple[str, ...]
    seconds: float
    process: int | None = None

    def __str__(self) -> str:
        subject = "killed" if self.process is None else f"rank {self.process} killed"
        step = "before the first line of the log" if self.step is None else f"after step {self.step:,}"
        were = "were" if len(self.writing) > 1 else "was"
        writing = f", while {' and '.join(self.writing)} {were} being written" if self.writing else ""
        return f"{subject} {step}, {self.seconds:.1f} s after its start{writing}"


@dataclass(frozen=True, kw_only=True)
class ResumeReport(CheckResults):
    """Result of ``verify resume``: one result per compared item, over all runs."""

    task: str
    kills: tuple[Kill, ...]
    runs: int

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        during = sum(bool(kill.writing) for kill in self.kills)
        runs = f"{self.runs} {'run' if self.runs == 1 else 'runs'}"
        counts = f"{len(self.kills)} kills in {runs}, {during} of them during a write"
        differing = [check.name for check in self.checks if check.verdict == "failed"]
        verdict = f"different: {', '.join(differing)}" if differing else "ok, the same bits"
        return f"{verdict}: {counts} ({self.seconds:.0f} s)"

    def as_dict(self) -> dict[str, Any]:
        """Returns ``{"ok", "checks", "kills", "runs", "task", "seconds"}`` in plain values."""
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
    """Checks that a run ends with the same bits wherever it is killed and resumed.

    The run is trained once undisturbed. Then it is started in another folder, killed (SIGKILL to the process groups of
    all ranks) at random moments, many of them while a file is being written, and resumed with ``--resume`` each time.
    If it ends before all kills are done, another run is started. Each run is compared with the undisturbed one
    (``run_comparison.compare_runs``). With several ranks, every second kill takes one random rank, and the others must
    end by themselves.

    Args:
        settings: the parsed ``arguments``; their seed also determines the moments of the kills.
        arguments: arguments of ``heedful train``, without ``--out``.
        kills: number of kills.
        processes: number of ranks on this machine.
        out: folder for the runs; by default a temporary one.
        say: called with a line for each kill.
        status: called with the current activity and the remaining time.

    Raises:
        HeedfulError: for options whose run cannot be repeated with the same bits, or if the undisturbed run fails.
    """
    check_repeatable(settings, kills, processes)
    if settings.training.keep_checkpoints is None:
        arguments = [
            *arguments,
            "--training.keep-checkpoints=1",
        ]  # a run that patience ended keeps no checkpoint by default
    if out is not None and Path(out).exists() and (not Path(out).is_dir() or any(Path(out).iterdir())):
        raise HeedfulError(f"--out {out} exists and is not empty; name a new folder")
    started = time.monotonic()
    with TemporaryDirectory() as temporary:
        killed_runs = _KilledRuns(
            arguments, Path(out or temporary), kills, processes, random.Random(settings.seed or 0)
        )
        results = _worst_results(
            list(killed_runs.results_of_runs(say, status or (lambda line: None), keep=out is not None))
        )
    return ResumeReport(
        task=settings.task,
        kills=tuple(killed_runs.kills),
        runs=killed_runs.runs,
        checks=results,
        seconds=round(time.monotonic() - started, 1),
    )


class _KilledRuns:
    """Trains runs in ``folder`` and kills them; holds their kills and durations."""

    def __init__(self, arguments: Sequence[str], folder: Path, kills: int, processes: int, draw: random.Random) -> None:
        self.arguments, self.folder, self.wanted, self.random = arguments, folder, kills, draw
        self.processes = processes
        self.kills: list[Kill] = []
        self.runs = 0
        self.run_seconds, self.training_seconds = 0.0, 0.0  # of the undisturbed run
        self.error: str | None = None  # of the current run
        self.left_running: str | None = None  # how another rank failed to end

    def results_of_runs(
        self, say: Callable[[str], object], status: Callable[[str], object], *, keep: bool
    ) -> Iterator[list[CheckResult]]:
        """Trains all runs; yields the results of each killed run."""
        from heedful.verify.run_comparison import compare_runs

        first = self.folder / "undisturbed" / NAME
        first.parent.mkdir(parents=True)
        status("the undisturbed run")
        with Session(self.arguments, first, self.processes) as session:
            session.until(session.has_started)
            start_seconds = session.seconds
            error = session.end()
            self.run_seconds, self.training_seconds = session.seconds, session.seconds - start_seconds
        if error is not None:
            raise HeedfulError(error)
        started = time.monotonic()
        while len(self.kills) < self.wanted:
            self.runs += 1
            stopped = self.folder / f"killed-{self.runs}" / NAME
            stopped.parent.mkdir()
            for kill in self._kills_of_run(stopped):
                say(f"{len(self.kills):>4}  run {self.runs}: {kill}")
                seconds_per_kill = (time.monotonic() - started) / len(self.kills)
                seconds_left = round(seconds_per_kill * (self.wanted - len(self.kills)) + self.run_seconds)
                status(f"kill {len(self.kills)} of {self.wanted}, {seconds_left // 60}:{seconds_left % 60:02} left")
            if self.error is not None:
                say(f"      run {self.runs} could not be resumed: {self.error}")
                yield self._end_results()
                continue
            results = [*self._end_results(), *compare_runs(first, stopped)]
            differing = [check.name for check in results if check.verdict == "failed"]
            say(f"      run {self.runs} ended " + (f"different: {', '.join(differing)}" if differing else "the same"))
            if not keep and not differing:
                shutil.rmtree(stopped.parent)
            yield results

    def _end_results(self) -> list[CheckResult]:
        """Returns the results on resuming the run and on the ranks that a kill left alone."""
        results = [_result("going on", "every run resumed after every kill, and ended", self.error)]
        if self.processes > 1:
            meaning = "after a kill of one rank, the others ended by themselves with a message"
            results.append(_result("left alone", meaning, self.left_running))
        return results

    def _kills_of_run(self, out: Path) -> Iterator[Kill]:
        """Trains one run, killed and resumed until it ends, and yields its kills; sets ``error`` if resuming fails."""
        resume: list[str] = []
        self.left_running = None
        while True:
            aim = MOMENTS[self.random.randrange(len(MOMENTS))]
            with Session([*self.arguments, *resume], out, self.processes, self._next_victim()) as session:
                if len(self.kills) == self.wanted or not kill_at(
                    session, aim, self.run_seconds, self.training_seconds, self.random
                ):
                    self.error = session.end()
                    return
                self.left_running = self.left_running or session.left_running
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
            resume = ["--resume"]

    def _next_victim(self) -> int | None:
        """Returns the rank that the next kill takes; None for all."""
        return self.random.randrange(self.processes) if self.processes > 1 and len(self.kills) % 2 else None


def _step(out: Path) -> int | None:
    """Returns the step of the last line in the log of a run."""
    path = out / "metrics.jsonl"
    for line in reversed(path.read_text(encoding="utf-8").splitlines() if path.is_file() else []):
        try:
            return int(json.loads(line)["step"])
        except ValueError:  # half-written
            continue
    return None


def _result(name: str, description: str, error: str | None) -> CheckResult:
    return CheckResult(
        name=name,
        description=description,
        verdict="ok" if error is None else "failed",
        difference=float(error is not None),
        tolerance=0.0,
        reason=error or "",
    )


def _worst_results(runs: Sequence[Sequence[CheckResult]]) -> tuple[CheckResult, ...]:
    """Returns the worst result of each name over all runs."""
    worst: dict[str, CheckResult] = {}
    for result in (result for results in runs for result in results):
        if result.name not in worst or (result.verdict, worst[result.name].verdict) == ("failed", "ok"):
            worst[result.name] = result
    return tuple(worst.values())
