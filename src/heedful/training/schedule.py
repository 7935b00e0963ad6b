"""How far a run is, and what the learning rate is there.

A schedule is a pure function ``(step, progress) -> factor`` of the peak learning rate. ``step`` counts from 1: the step
about to be taken. ``progress``, from 0 to 1, is the share of the run done before it; ``None`` where the run has no
limit. It stands for the total number of steps, which a run limited by minutes does not know. Such a run is not
repeatable bit for bit under a schedule that reads progress; one limited by steps or epochs is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from heedful.errors import HeedfulError

Schedule = Callable[[int, float | None], float]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Where a run ends: at whichever limit it meets first; ``None``: no such limit.

    All are absolute: counted from the beginning of the run, across resumes.
    """

    max_steps: int | None = None
    max_epochs: float | None = None
    max_minutes: float | None = None  # of training and evaluating; the evaluation after the last step comes on top

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise HeedfulError(f"{name.replace('_', '-')} is {value}; give a number above 0, or leave it out")

    def shares(self, *, steps: int, epochs: float, seconds: float) -> dict[str, float]:
        """The share done of every limit that is set."""
        done = {"max_steps": steps, "max_epochs": epochs, "max_minutes": seconds / 60}
        return {name: done[name] / value for name, value in vars(self).items() if value is not None}

    def progress(self, *, steps: int, epochs: float, seconds: float) -> float | None:
        """The share of the run that is done, 0 to 1: the largest of the limits' shares; ``None`` without a limit."""
        shares = self.shares(steps=steps, epochs=epochs, seconds=seconds)
        return min(1.0, max(shares.values())) if shares else None


def constant(warmup: int = 0) -> Schedule:
    """min(1, step / warmup)."""
    return lambda step, progress: _rise(step, warmup)


def inverse_sqrt(warmup: int = 4000) -> Schedule:
    """min(step / warmup, √(warmup / step)): 1 at its peak, the step ``warmup``.

    The schedule of Vaswani et al. (2017), section 5.3, whose own peak is (dim · warmup)^−½. It needs no end of the run.
    """
    warmup = max(1, warmup)
    return lambda step, progress: min(step / warmup, math.sqrt(warmup / step))


def linear(warmup: int = 0, floor: float = 0.0) -> Schedule:
    """step / warmup, then 1 − (1 − floor) q, where q is the share done of what follows the warm-up."""
    return lambda step, progress: _rise(step, warmup) * (1 - (1 - floor) * _after(step, progress, warmup))


def cosine(warmup: int = 0, floor: float = 0.0) -> Schedule:
    """step / warmup, then floor + (1 − floor) (1 + cos πq) / 2, q as in :func:`linear`.

    Loshchilov and Hutter (2017), equation 5, without restarts.
    """

    def factor(step: int, progress: float | None) -> float:
        fall = (1 + math.cos(math.pi * _after(step, progress, warmup))) / 2
        return _rise(step, warmup) * (floor + (1 - floor) * fall)

    return factor


def _rise(step: int, warmup: int) -> float:
    return min(1.0, step / warmup) if warmup else 1.0


def _after(step: int, progress: float | None, warmup: int) -> float:
    """The share done, before ``step``, of what follows the warm-up."""
    if progress is None:
        raise HeedfulError(
            "this schedule falls towards the end of the run, but the run has none; "
            "set max-steps, max-epochs or max-minutes, or take the schedule inverse_sqrt or constant"
        )
    before = step - 1
    if before <= warmup or progress == 0:
        return 0.0
    # Where the limit is in steps this is warmup / max_steps exactly; under another limit the run's pace so far gives
    # it.
    risen = progress * warmup / before
    return (progress - risen) / (1 - risen)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "cosine": cosine,
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
}


def schedule(name: str, warmup: int, floor: float | None = None) -> Schedule:
    """The schedule of a name; a ``floor`` is an error for those that do not fall towards the end of the run."""
    if floor is None:
        return SCHEDULES[name](warmup)
    if name not in ("cosine", "linear"):
        raise HeedfulError(f"--training.floor has no effect with the schedule {name}; leave it out, or take cosine")
    return SCHEDULES[name](warmup, floor)
