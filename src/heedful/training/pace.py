"""Pace of a run with ``--max-minutes``: at set steps its speed is measured again, and the rest of the run planned anew.

The first plan (``time_limit``) stands on a few steps of an untrained model, and other programs come and go. Without
new plans a run ends at half of its time, or its clock cuts the schedule off. What is decided is written to ``run.toml``
before it acts, so that a run that is killed and resumed, or repeated with that file, takes the same steps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from heedful.training.clock import Clock

SHARES = (0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.85, 0.93)  # of the planned steps, at which the rest is planned
# Share of the run after which its schedule does not rise again: where more steps fit, the learning rate waits until the
# longer plan has come as far.
NO_RISE = 0.65
SPACING = 0.04  # share of the planned steps between two decisions, at least: a plan that shrinks passes several shares
USED = 0.97  # share of the remaining seconds that is planned
LEAST_CHANGE = 0.01  # share of the planned steps below which they stay
TOLD = 0.15  # share of the steps that were told last from which on people are told the new number
Changes = Sequence[tuple[int, int]]  # (step after which it was decided, planned steps from then on)


class Pace:
    """Planned steps of a run with ``--max-minutes``, and how they change.

    Args:
        planned: the steps that were planned before the first step.
        changes: decisions of this run before it was resumed, or of the run that is repeated.
        save: called with all decisions before a new one acts.
    """

    def __init__(self, planned: int, changes: Changes, save: Callable[[Changes], object]) -> None:
        self.first, self.changes, self.save = planned, list(changes), save
        self._told = planned
        self.least_progress = 0.0  # share of the run that the schedule has reached and does not fall below
        self.begin(0, 0.0)

    def begin(self, step: int, seconds: float) -> None:
        """Begins after ``step`` steps, which took ``seconds``, with the decisions before."""
        before = [change for change in self.changes if change[0] <= step]
        self._decided_at, self.planned, self._decided, self.least_progress = 0, self.first, 0, 0.0
        for change in before:
            self._take(*change)
        self._mark = step, seconds  # step and seconds of all steps at the last decision

    def _take(self, step: int, planned: int) -> None:
        done = step / self.planned
        if done > NO_RISE:
            self.least_progress = max(self.least_progress, done)
        self._decided_at, self.planned = step, planned
        self._decided += 1

    def is_due(self, step: int) -> bool:
        """Returns True if the rest of the run is to be planned after ``step`` steps; all ranks return the same."""
        if self._decided == len(SHARES) or not self._mark[0] < step < self.planned:
            return False
        share = max(SHARES[self._decided], self._decided_at / self.planned + SPACING)
        return step >= share * self.planned

    def recorded(self, step: int) -> int | None:
        """Returns the planned steps that were decided after ``step`` before the run was killed; None: not known."""
        return next((planned for at, planned in self.changes[self._decided :] if at == step), None)

    def decide(self, step: int, clock: Clock, every: float) -> int:
        """Returns the steps that fit into the time.

        A step is expected to take the mean of what it took since the last decision and since the start of the run:
        other programs come and go. ``every`` is the number of steps between two evaluations, of which each takes as
        long as the last; the clock keeps the time of the last evaluation apart.
        """
        seconds_left = clock.seconds_for_steps()
        assert seconds_left is not None
        (last_step, last_seconds), seconds = self._mark, clock.spent["steps"]
        seconds_per_step = max(((seconds - last_seconds) / (step - last_step) + seconds / step) / 2, 1e-9)

        def needed(more: int) -> float:
            evaluations = (step + more - 1) // every - step // every
            return more * seconds_per_step + evaluations * clock.evaluation_seconds

        most = max(0, int(USED * seconds_left / seconds_per_step))
        planned = step + max(1, bisect_right(range(most + 1), USED * seconds_left, key=needed) - 1)
        return self.planned if abs(planned - self.planned) < LEAST_CHANGE * self.planned else planned

    def change(self, step: int, planned: int, seconds: float) -> str | None:
        """Takes over the planned steps that were decided after ``step``; returns a line for people if they differ."""
        if self.recorded(step) is None:
            self.changes = [*self.changes[: self._decided], (step, planned)]
            self.save(self.changes)
        self._take(step, planned)
        self._mark = step, seconds
        if abs(planned - self._told) < TOLD * self._told:
            return None
        before, self._told = self._told, planned
        quicker = "quicker" if planned > before else "slower"
        return f"step {step:,}: the run is {quicker} than planned; {planned:,} steps fit into its time, not {before:,}"


def decision_texts(changes: Changes) -> tuple[str, ...]:
    """Returns decisions as ``--training.replanned`` holds them.

    >>> decision_texts([(20, 300), (45, 310)])
    ('20:300', '45:310')
    """
    return tuple(f"{step}:{planned}" for step, planned in changes)
