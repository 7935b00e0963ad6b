"""The process that a program runs in. Two engines in one process would disturb each other by their waiting threads.

Lines of JSON come in, one answer each goes out; between them the process sleeps:

    {"open": name, "program": ..., "row": ..., "setting": {...}}   {"opened": name} or {"absent": why}
    {"run": name, "work": {...}, "times": n}                       {"seconds": of one}
    {"answer": name, "work": {...}, "file": "a.npy"}               {"saved": "a.npy"}: of the last run

Whatever goes wrong is an answer, too: {"failed": why}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.programs import Absent, Call, Ready, Setting
from benchmarks.speed.works import LOADING, Work, action


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer each line of the standard input; what libraries print goes to the standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            told = answer(json.loads(line))
        except Absent as error:
            told = {"absent": str(error)}
        except Exception as error:
            told = {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        print(json.dumps(told), file=out, flush=True)


class Programs:
    """Programs that are open in this process, and the calls that were made ready."""

    def __init__(self) -> None:
        self.ready: dict[str, Ready] = {}
        self.calls: dict[tuple[str, str], Call] = {}
        self.answers: dict[tuple[str, str], Any] = {}
        self.device = "cpu"

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """See the head of this file."""
        if "open" in asked:
            return self.open(**asked)
        work = Work.told(asked["work"])
        if "run" in asked:
            return {"seconds": self.seconds(asked["run"], work, asked["times"])}
        np.save(asked["file"], as_array(self.answers[asked["answer"], work.name]))
        return {"saved": asked["file"]}

    def open(self, *, open: str, program: str, row: str, setting: dict[str, Any]) -> dict[str, Any]:
        """Open a program by the file of ``programs`` and its function of the row's action."""
        given = Setting(**{**setting, "model": Path(setting["model"])})
        self.device = given.device
        self.calls = {key: call for key, call in self.calls.items() if key[0] != open}
        make = getattr(import_module(f"benchmarks.speed.programs.{program}"), action(row))
        self.ready[open] = opened_each_time(make, given) if row == LOADING else make(given)
        return {"opened": open}

    def call(self, name: str, work: Work) -> Call:
        """The work of an open program, made ready once."""
        key = name, work.name
        if key not in self.calls:
            self.calls[key] = self.ready[name](work)
        return self.calls[key]

    def seconds(self, name: str, work: Work, times: int) -> float:
        """Of one call, the mean of ``times``; one more goes before, uncounted, where the work is small."""
        call = self.call(name, work)
        if times > 1:
            call()
        self.settle()
        begun = time.perf_counter()
        for _ in range(times):
            answer = call()
        self.settle()
        taken = time.perf_counter() - begun
        self.answers[name, work.name] = answer
        return taken / times

    def settle(self) -> None:
        """Wait for what a GPU still has to do."""
        if self.device.startswith("cuda"):
            sys.modules["torch"].cuda.synchronize()


def opened_each_time(make: Callable[[Setting], Ready], given: Setting) -> Ready:
    """Works whose every call opens the program again."""
    make(given)  # a program that cannot be opened is left out

    def ready(work: Work) -> Call:
        return lambda: make(given)(work)()

    return ready


def as_array(answer: Any) -> np.ndarray:
    """The answer of a program, which is a tensor of any kind, an array or lists, as an array."""
    if hasattr(answer, "detach"):
        answer = answer.detach().cpu()
        answer = answer.float() if answer.is_floating_point() else answer
    return np.asarray(answer)


if __name__ == "__main__":
    serve(Programs().answer)
