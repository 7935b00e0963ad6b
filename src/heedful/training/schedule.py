"""Limits of a run and learning-rate schedules.

A schedule is a pure function ``(step, progress) -> factor`` of the peak learning rate. ``step`` counts from 1: the next
step. ``progress``, from 0 to 1, is the share of the run done before it; None where the run has no limit. Schedules use
``progress`` in place of the total number of steps. A run limited by minutes knows that number if it was planned
(:mod:`heedful.training.time_limit`). Without a plan, a run with such a schedule is not repeatable bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from heedful.errors import HeedfulError

Schedule = Callable[[int, float | None], float]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a run, which ends at the first limit that it meets; None: no such limit.

    All limits count from the beginning of the run, also after it was resumed.
    """

    max_steps: int | None = None
    max_epochs: float | None = None
    max_minutes: float | None = None  # from the start of the program to the last evaluation and writing
    planned_steps: int | None = None  # steps that fit into max_minutes

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise HeedfulError(f"{name.replace('_', '-')} is {value}; give a number above 0, or leave it out")

    def shares(self, *, steps: int, epochs: float, seconds: float) -> dict[str, float]:
        """Returns the share of each set limit that is done, by its name; planned steps replace ``max_minutes``."""
        return self._shares(steps, epochs, seconds, clock=True)

    def progress(self, *, steps: int, epochs: float, seconds: float) -> float | None:
        """Returns the share of the run that is done, from 0 to 1: the largest share of a limit. None without a limit.

        If steps are planned, the clock has no effect.
        """
        shares = self._shares(steps, epochs, seconds, clock=self.planned_steps is None)
        return min(1.0, max(shares.values())) if shares else None

    def _shares(self, steps: int, epochs: float, seconds: float, clock: bool) -> dict[str, float]:
        limits = (
            ("max_steps", steps, self.max_steps),
            ("max_epochs", epochs, self.max_epochs),
            ("max_minutes", steps, self.planned_steps),
            ("max_minutes", seconds / 60, self.max_minutes if clock else None),
        )
        shares: dict[str, float] = {}
        for name, done, limit in limits:
            if limit is not None:
                shares[name] = max(shares.get(name, 0.0), done / limit)
        return shares


def constant(warmup: int = 0) -> Schedule:
    """Returns the constant schedule: min(1, step / warmup)."""
    return lambda step, progress: _rise(step, warmup)


def inverse_sqrt(warmup: int = 4000) -> Schedule:
    """Returns the inverse square root schedule: min(step / warmup, √(warmup / step)), 1 at step ``warmup``.

    This is the schedule of Vaswani et al. (2017), section 5.3. Their peak is (dim · warmup)^−½; here it is the given
    learning rate. The schedule does not depend on the length of the run.
    """
    warmup = max(1, warmup)
    return lambda step, progress: min(step / warmup, math.sqrt(warmup / step))


def linear(warmup: int = 0, min_lr_ratio: float = 0.0) -> Schedule:
    """Returns the linear schedule: step / warmup, then 1 − (1 − min_lr_ratio) q.

    q is the share done of the run after the warm-up.
    """
    return lambda step, progress: _rise(step, warmup) * (1 - (1 - min_lr_ratio) * _after(step, progress, warmup))


def cosine(warmup: int = 0, min_lr_ratio: float = 0.0) -> Schedule:
    """Returns the cosine schedule: step / warmup, then min_lr_ratio + (1 − min_lr_ratio) (1 + cos πq) / 2.

    q is the share done of the run after the warm-up. Loshchilov and Hutter (2017), equation 5, without restarts.
    """

    def factor(step: int, progress: float | None) -> float:
        fall = (1 + math.cos(math.pi * _after(step, progress, warmup))) / 2
        return _rise(step, warmup) * (min_lr_ratio + (1 - min_lr_ratio) * fall)

    return factor


def wsd(warmup: int = 0, min_lr_ratio: float = 0.0, decay_ratio: float = 0.2) -> Schedule:
    """Returns the warm-up, stable, decay schedule: step / warmup, then 1, and in the last part 1 − (1 − m) √q.

    The last part is the share ``decay_ratio`` of the run; m is ``min_lr_ratio``, and q is the share done of the last
    part. The phases are those of Hu et al. (2024), section 4; the square root and the default ``decay_ratio`` of a
    fifth are those of Hägele et al. (2024), section 3 ("1-sqrt"). Until the decay begins, the rate does not depend on
    the length of the run: a run that is resumed before the decay, with a later limit, continues as if it had had this
    limit from the start.
    """

    def factor(step: int, progress: float | None) -> float:
        over = max(0.0, 1 - (1 - _with_limit(progress)) / decay_ratio)
        return _rise(step, warmup) * (1 - (1 - min_lr_ratio) * math.sqrt(over))

    return factor


def _rise(step: int, warmup: int) -> float:
    return min(1.0, step / warmup) if warmup else 1.0


def _after(step: int, progress: float | None, warmup: int) -> float:
    """Returns the share of the steps after the warm-up that are done before ``step``."""
    progress = _with_limit(progress)
    before = step - 1
    if before <= warmup or progress == 0:
        return 0.0
    # With a limit in steps this is exactly warmup / max_steps; with another limit it follows from the pace so far.
    risen = progress * warmup / before
    return (progress - risen) / (1 - risen)


def _with_limit(progress: float | None) -> float:
    if progress is None:
        raise HeedfulError(
            "this schedule falls towards the end of the run, but the run has no limit; "
            "set max-steps, max-epochs or max-minutes, or use the schedule inverse_sqrt or constant"
        )
    return progress


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "cosine": cosine,
    "inverse_sqrt": inverse_sqrt,
    "linear": linear,
    "wsd": wsd,
}
OPTIONS = {"min_lr_ratio": ("cosine", "linear", "wsd"), "decay_ratio": ("wsd",)}  # and the schedules that have them


def schedule(name: str, warmup: int, min_lr_ratio: float | None = None, decay_ratio: float | None = None) -> Schedule:
    """Returns the schedule called ``name``; raises ``HeedfulError`` for an option that it does not have."""
    options = {"min_lr_ratio": min_lr_ratio, "decay_ratio": decay_ratio}
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if name not in OPTIONS[option]:
            flag = f"--training.{option.replace('_', '-')}"
            raise HeedfulError(
                f"{flag} has no effect with the schedule {name}; leave it out, or use {OPTIONS[option][0]}"
            )
    return SCHEDULES[name](warmup, **given)
