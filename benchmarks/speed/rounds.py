"""Workers, started and asked in turns: each round, each program does the work; ratios are taken within a round."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.speed.weights import place
from benchmarks.speed.works import Competitor, Work, data

REST = 0.3  # seconds between turns: waiting threads of some engines spin for 0.2 s after their last work
OWN = ("ceilings", "judge")
TURN = 0.5  # seconds that a turn lasts at least; small works are done several times in one


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of all rounds."""

    folder: Path  # of weights, answers and the workers' log
    rounds: int
    short: bool
    threads: int
    device: str
    nanogpt: str | None = None

    def environment(self) -> dict[str, str]:
        """All programs get the same threads."""
        count = str(self.threads)
        return {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "TOKENIZERS_PARALLELISM": "false"}


class Worker:
    """A process that answers lines of JSON with lines of JSON."""

    def __init__(self, module: str, plan: Plan, log: IO[str]) -> None:
        command = [sys.executable, "-m", f"benchmarks.speed.{module}"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=plan.environment())

    def ask(self, **asked: Any) -> dict[str, Any]:
        """One question, one answer; a process that died answers ``failed``."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        return json.loads(line) if line else {"failed": f"the process ended with {self.process.wait()}"}

    def close(self) -> None:
        """Let it end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # it died, and a question was left unsent
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@dataclass
class Times:
    """The results of the rounds of one work: seconds of each competitor, ceilings, the files of answers."""

    seconds: dict[Competitor, list[float]] = field(default_factory=dict)
    ceilings: list[dict[str, float]] = field(default_factory=list)
    answers: dict[Competitor, str] = field(default_factory=dict)


class Workers:
    """The processes of a run, started when they are first needed."""

    def __init__(self, plan: Plan, log: IO[str]) -> None:
        self.plan, self.log, self.ceilings, self.judge = plan, log, *(Worker(each, plan, log) for each in OWN)
        self.ceilings.ask(open="ceilings", device=plan.device, short=plan.short)
        self.programs: dict[str, Worker] = {}

    def of(self, competitor: Competitor) -> Worker:
        """A process for itself; the short form, where times mean nothing, has one a program."""
        key = competitor.program if self.plan.short else competitor.name
        if key not in self.programs:
            self.programs[key] = Worker("worker", self.plan, self.log)
        return self.programs[key]

    def opening(self, competitor: Competitor) -> Worker:
        """The process in which a program is to be opened: a new one, if an earlier model ended it."""
        worker = self.of(competitor)
        if worker.process.poll() is None:
            return worker
        worker.close()
        self.programs = {key: other for key, other in self.programs.items() if other is not worker}
        return self.of(competitor)

    def close(self) -> None:
        """Let the programs end."""
        while self.programs:
            self.programs.popitem()[1].close()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
        self.ceilings.close()
        self.judge.close()


@contextmanager
def busy(plan: Plan, log: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """Runs a process that keeps as many cores busy as the programs have threads."""
    command = [sys.executable, "-m", "benchmarks.speed.busy"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=plan.environment())
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError(f"the process that keeps the cores busy ended with {process.wait()}; see the log")
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Row:
    """The programs of a row, each opened once."""

    def __init__(self, row: str, model: str, competitors: Sequence[Competitor], plan: Plan, workers: Workers) -> None:
        self.plan, self.workers = plan, workers
        self.open: list[Competitor] = []
        self.left_out: dict[str, str] = {}  # competitors, and why
        for each in competitors:
            setting = {
                "model": str(place(plan.folder, model, each.form)),
                "precision": each.precision,
                "way": each.way,
                "threads": plan.threads,
                "device": plan.device,
                "nanogpt": plan.nanogpt,
            }
            told = workers.opening(each).ask(open=each.name, program=each.program, row=row, setting=setting)
            self.note(each, told)
            if "opened" in told:
                self.open.append(each)

    def note(self, competitor: Competitor, told: Mapping[str, Any]) -> None:
        """Keep why a competitor is left out."""
        why = told.get("absent") or told.get("failed")
        if why:
            self.left_out[competitor.name] = why

    def measure(self, work: Work) -> Times:
        """The rounds of a work; odd rounds go backwards, so that no one always comes after the same other."""
        with busy(self.plan, self.workers.log) if work.is_busy else nullcontext():
            return self._measured(work)

    def _measured(self, work: Work) -> Times:
        made, wanted, times = Times(), data(work), dict[Competitor, int]()
        for each in self.open:
            told = self.workers.of(each).ask(run=each.name, work=wanted, times=1)  # the first is not counted
            if told.get("seconds", TURN) < TURN:  # the first is too slow to tell how often a turn holds a small work
                told = self.workers.of(each).ask(run=each.name, work=wanted, times=1)
            self.note(each, told)
            if "seconds" in told:
                times[each] = 1 if self.plan.short else math.ceil(TURN / told["seconds"])
                made.seconds[each] = []
        for turn in range(self.plan.rounds):
            print(f"{work.name}: round {turn + 1} of {self.plan.rounds}", file=sys.stderr, flush=True)
            made.ceilings.append(self.workers.ceilings.ask(measure=True))
            for each in list(times)[:: -1 if turn % 2 else 1]:
                time.sleep(0 if self.plan.short else REST)
                told = self.workers.of(each).ask(run=each.name, work=wanted, times=times[each])
                self.note(each, told)
                made.seconds[each].append(told.get("seconds", math.nan))
        for each in times:
            if any(map(math.isnan, made.seconds[each])):
                del made.seconds[each]  # it failed on the way
        for number, each in enumerate(made.seconds):
            file = str(self.plan.folder / f"answer-{wanted['batch']}-{number}.npy")
            told = self.workers.of(each).ask(answer=each.name, work=wanted, file=file)
            self.note(each, told)
            if "saved" in told:
                made.answers[each] = file
        return made
