"""Clock of a run: seconds, limits, and the share of the validation examples that there is time to evaluate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from heedful.training.schedule import Limits
from heedful.util.ranks import Ranks

OVERRUN = 1.25  # an evaluation is shortened if it is expected to take longer than this factor of the time left


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
        self.updated = 0.0  # seconds at the last update, the same on all ranks
        self.progress: float | None = None  # share of the run that is done; None: no limit
        self._mark = time.monotonic()

    def start(self) -> None:
        """Starts or restarts the clock; the time since the last lap is not counted."""
        self._mark = time.monotonic()

    def lap(self) -> float:
        """Adds the seconds since the last lap to the total, and returns these seconds."""
        now = time.monotonic()
        seconds, self._mark = now - self._mark, now
        self.seconds += seconds
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
        self.progress = self.limits.progress(steps=steps, epochs=epochs, seconds=self.seconds)
        shares = self.limits.shares(steps=steps, epochs=epochs, seconds=self.seconds + reserved)
        return next((name for name, share in shares.items() if share >= 1), None)

    def _reserved(self, steps: int) -> float:
        """Returns the part of max_minutes, in seconds, that is kept for start-up, an evaluation and the end.

        It is 0 before the first step, so that at least one step always runs.
        """
        return self.beginning + self.evaluation_seconds + self.ending if steps else 0.0

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
        return self.seconds + time.monotonic() - self._mark

    def state(self) -> dict[str, Any]:
        """Returns what a checkpoint stores of the clock; :meth:`restore` takes it."""
        return {
            "seconds": self.seconds,
            "spent_seconds": self.beginning,
            "evaluation_seconds": self.evaluation_seconds,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores a ``state`` from a checkpoint; early checkpoints of version 0.1 hold only ``seconds``."""
        self.seconds = self.updated = state["seconds"]
        self.beginning = state.get("spent_seconds", 0.0)
        self.evaluation_seconds = state.get("evaluation_seconds", 0.0)
