"""Clock of a run: seconds, limits, and the share of the validation examples that there is time to evaluate."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from heedful.training.schedule import Limits
from heedful.util.ranks import Ranks

OVERRUN = 1.25  # an evaluation is shortened if it is expected to take longer than this factor of the time left
BEAT, LONGEST_BEAT = 0.25, 1.0  # seconds between two looks at the clock; from which on a process may have been stopped
LATEST = 30.0  # seconds between the end of a stop and Python's answer to the signal, at most
Use = Literal["steps", "evaluations", "rest"]


class StoppedTime:
    """Seconds for which this process was stopped by a signal (SIGSTOP, Ctrl-Z) until it was continued.

    A thread looks at the clock every quarter of a second. SIGCONT, which continues a process, says that the last long
    gap between two looks was a stop; a gap without that signal is only a busy machine.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last = time.monotonic()  # last look at the clock
        self._gap, self._gap_end = 0.0, 0.0  # the newest long gap that is not counted yet, and when it ended
        self._done = threading.Event()

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._last >= LONGEST_BEAT:
            self._gap, self._gap_end = now - self._last, now
        self._last = now

    def _look_repeatedly(self) -> None:
        while not self._done.wait(BEAT):
            self._look()

    def _continued(self, *_: object) -> None:
        self._look()
        if self._last - self._gap_end < LATEST:
            self.seconds += self._gap
        self._gap = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Context manager that counts stops from 0; without effect outside the main thread and on Windows."""
        self.seconds = 0.0
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCONT"):
            yield
            return
        self._last, self._gap = time.monotonic(), 0.0
        self._done.clear()
        thread = threading.Thread(target=self._look_repeatedly, name="stopped-time", daemon=True)
        thread.start()
        before = signal.signal(signal.SIGCONT, self._continued)
        try:
            yield
        finally:
            signal.signal(signal.SIGCONT, before)
            self._done.set()
            thread.join()


STOPPED = StoppedTime()


def running_time() -> float:
    """Returns ``time.monotonic`` without the seconds for which this process was stopped (``StoppedTime``).

    On Linux and macOS neither clock counts the time for which the machine sleeps.
    """
    return time.monotonic() - STOPPED.seconds


@dataclass(frozen=True, kw_only=True)
class ReservedTime:
    """Seconds of ``max_minutes`` that are reserved for work other than steps.

    Attributes:
        beginning: before the first step of a new run: reading data, planning.
        evaluation: expected duration of an evaluation, until an evaluation is measured; 0: not known.
        ending: what follows the last evaluation: writing weights, the verdict.
    """

    beginning: float = 0.0
    evaluation: float = 0.0
    ending: float = 0.0


class Clock:
    """Clock of a run: counts the seconds of training and evaluating, over all sessions, and checks the run's limits.

    All ranks use the clock of rank 0 (:meth:`own_seconds`, :meth:`update`).

    Args:
        limits: limits at which the run ends.
        reserved: seconds of ``max_minutes`` for work other than steps.
    """

    def __init__(self, limits: Limits, reserved: ReservedTime) -> None:
        self.limits = limits
        self.beginning, self.evaluation_seconds = reserved.beginning, reserved.evaluation
        self.ending = reserved.ending
        self.seconds = 0.0
        self.spent: dict[Use, float] = {"steps": 0.0, "evaluations": 0.0, "rest": 0.0}  # what the seconds went into
        self.updated = 0.0  # seconds at the last update, the same on all ranks
        self.progress: float | None = None  # share of the run that is done; None: no limit
        self.least_progress = 0.0  # share below which it does not fall, though the run has become longer
        self._mark = running_time()

    def start(self) -> None:
        """Starts or restarts the clock; the time since the last lap is not counted."""
        self._mark = running_time()

    def lap(self, use: Use = "rest") -> float:
        """Adds the seconds since the last lap to the total and to those of their ``use``, and returns them."""
        now = running_time()
        seconds, self._mark = now - self._mark, now
        self.seconds += seconds
        self.spent[use] += seconds
        return seconds

    def own_seconds(self, ranks: Ranks, steps: int) -> tuple[float, float]:
        """Returns the seconds of the run and the reserved seconds on rank 0, and zeros on other ranks."""
        return (self.seconds, self._reserved(steps)) if ranks.is_first else (0.0, 0.0)

    def update(self, seconds: float, reserved: float, steps: int, epochs: float) -> str | None:
        """Updates the progress of the run; returns the name of a limit that is met, or None.

        ``seconds`` and ``reserved`` are :meth:`own_seconds`, summed over the ranks.
        """
        self.seconds = seconds
        self.updated = self.seconds
        progress = self.limits.progress(steps=steps, epochs=epochs, seconds=self.seconds)
        self.progress = None if progress is None else max(progress, self.least_progress)
        shares = self.limits.shares(steps=steps, epochs=epochs, seconds=self.seconds + reserved)
        return next((name for name, share in shares.items() if share >= 1), None)

    def _reserved(self, steps: int) -> float:
        """Returns the part of max_minutes, in seconds, that is kept for start-up, an evaluation and the end.

        It is 0 before the first step, so that at least one step always runs.
        """
        return self.beginning + self.evaluation_seconds + self.ending if steps else 0.0

    def seconds_for_steps(self) -> float | None:
        """Returns the seconds of ``max_minutes`` that are left for steps and evaluations before the last evaluation.

        None if there is no such limit.
        """
        minutes = self.limits.max_minutes
        return None if minutes is None else 60 * minutes - self._elapsed() - self._reserved(1)

    def evaluation_share(self) -> float:
        """Returns the share (0 to 1) of the validation examples that can be evaluated before ``max_minutes`` end.

        Assumes the speed of the last evaluation. A small overrun is allowed.
        """
        minutes = self.limits.max_minutes
        if minutes is None or not self.evaluation_seconds:
            return 1.0
        left = max(0.0, 60 * minutes - self._elapsed() - self.beginning - self.ending)
        return 1.0 if self.evaluation_seconds <= OVERRUN * left + 1 else left / self.evaluation_seconds

    def left(self) -> float | None:
        """Returns the expected seconds to the end of the run, by its speed or by ``max_minutes``; None: unknown."""
        elapsed, minutes = self._elapsed(), self.limits.max_minutes
        by_pace = elapsed * (1 / self.progress - 1) if self.progress else None
        by_clock = None if minutes is None else 60 * minutes - elapsed - self.beginning
        return min((seconds for seconds in (by_pace, by_clock) if seconds is not None), default=None)

    def _elapsed(self) -> float:
        return self.seconds + running_time() - self._mark

    def account(self) -> dict[str, float]:
        """Returns the seconds since the start of the run, by what they went into; of a resumed run in all sessions."""
        return {
            "reading and planning": self.beginning,
            "training": self.spent["steps"],
            "evaluations": self.spent["evaluations"],
            "saving and verdict": self.spent["rest"] + running_time() - self._mark,
        }

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint stores of the clock; :meth:`restore` takes it."""
        return {
            "seconds": self.seconds,
            "spent_seconds": self.beginning,
            "evaluation_seconds": self.evaluation_seconds,
            **{f"{use}_seconds": seconds for use, seconds in self.spent.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a ``state`` from a checkpoint; early checkpoints of version 0.1 hold only ``seconds``."""
        self.seconds = self.updated = state["seconds"]
        self.spent = {use: state.get(f"{use}_seconds", 0.0) for use in self.spent}
        self.beginning = state.get("spent_seconds", 0.0)
        self.evaluation_seconds = state.get("evaluation_seconds", 0.0)
