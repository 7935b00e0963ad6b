"""Fits a new run to ``--max-minutes``: model size, batch, warm-up, number of steps, evaluations.

The first steps of the run are measured on a copy of its model. What nobody set is then fitted to the time, printed, and
written to ``run.toml`` before step 1, so that a resumed run reads it and measures nothing. Nothing that was set is
changed. With the number of steps fixed, a resumed run ends with the same bits; the clock only guards the limit.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch

from heedful.config import ModelConfig
from heedful.errors import many
from heedful.models import Model
from heedful.models.create import create
from heedful.pretrained.fill_model import make_contiguous
from heedful.settings import ResolvedSettings, RunSettings
from heedful.tasks.model_setup import stacks_of
from heedful.tasks.task import Encoded, Task
from heedful.training.clock import ReservedTime
from heedful.training.loader import Loader
from heedful.training.log import Log
from heedful.training.loop import Loop
from heedful.training.loop_parts import Logging, Outcome
from heedful.training.schedule import Limits
from heedful.training.validation import MAX_PREDICTED, part, units
from heedful.util.ranks import Ranks

MARGIN = 0.9  # share of the time that is planned: the machine may become slower
EVALUATING = 0.2  # share of it for all evaluations together
MEASURING = 0.03  # share of the limit for measuring the steps of one size, and as much for an evaluation
LONGEST = 5.0  # seconds for either at most
LEAST_STEPS, MANY_STEPS = 300, 1000  # a smaller model is taken below the first, or below one pass up to the second
FEW_STEPS = 150  # a smaller batch is taken below
QUICKER = 0.8  # share of the seconds of a step that a smaller model may take at most
FAR = 4  # times too few steps from which on the smallest model alone is tried
WARMUP = 0.1  # share of the steps at most
EVALUATIONS = 3, 10  # fewest where there is time, and most
EXAMPLES, FEWEST_EXAMPLES = 200, 16  # of an evaluation: wanted, and at least
NARROWEST = 32  # width of a model
CLOSING, MOST_SLOWDOWN = 3.0, 10.0  # seconds of work at the end of a run, and how often as long it may take
WRITTEN, BYTES_A_SECOND = 3, 1e8  # copies of the weights that are written at the end of a run, and how fast
TRIAL_STEPS = 30  # steps at most by which a run's speed is measured
TOO_LONG = 3  # times the seconds for measuring that the first step may take before it is the only one
TRIAL_EXAMPLES = (1, 8, 64)  # validation examples by which the speed of an evaluation is measured, as time allows
LATE = 0.3  # share of the limit below which what came before is to blame for few steps


class Speed(NamedTuple):
    """Measured speed of a run."""

    step: float  # seconds of an optimisation step
    steps_per_epoch: int
    read: float = 0.0  # seconds of the loss of a validation example
    answer: float = 0.0  # seconds of answering one

    def evaluation(self, examples: int) -> float:
        """Seconds of an evaluation of so many examples."""
        return self.read * examples + self.answer * min(examples, MAX_PREDICTED)


class Trial(Protocol):
    """Measures a run with given settings."""

    def steps(self, seconds: float) -> Speed:
        """Speed of its steps, measured for about so many seconds."""

    def evaluation(self, seconds: float) -> tuple[float, float]:
        """Seconds of the loss of a validation example and of answering one, measured for about so many seconds."""


@dataclass(frozen=True, kw_only=True)
class TimePlan:
    """Steps and evaluations that fit into the time.

    Attributes:
        settings: with what was fitted.
        speed: of the run.
        steps: that the run makes.
        evaluations: their number.
        examples: validation examples of each.
        warmup: steps of warm-up.
        left: seconds that were left for steps and evaluations.
        notes: what differs from the suggested settings.
    """

    settings: ResolvedSettings
    speed: Speed
    steps: int
    evaluations: int
    examples: int
    warmup: int
    left: float
    notes: tuple[str, ...] = ()

    @property
    def passes(self) -> float:
        """Passes over the training data."""
        return self.steps / self.speed.steps_per_epoch

    @property
    def evaluation_seconds(self) -> float:
        """Expected seconds of an evaluation."""
        return self.speed.evaluation(self.examples)

    def lines(self) -> list[str]:
        """The plan for people, and a line with ``!`` where the time is too short to learn from the data."""
        t, minutes = self.settings.training, self.settings.max_minutes or 0.0
        batch = f"{t.batch_tokens:,} tokens" if t.batch_tokens else f"{t.batch_size or 0:,} examples"
        lines = [
            f"time       {minutes:g} min: {self.steps:,} steps of {batch} ({self.passes:.2g} passes), warm-up "
            f"{self.warmup:,}, {many(self.evaluations, 'evaluation')} of {many(self.examples)}"
        ]
        if self.notes:
            lines.append(f"           fitted to the time: {', '.join(self.notes)}")
        smaller = "a smaller model for --from" if self.settings.start_from else "a smaller --preset"
        if self.left < LATE * 60 * minutes and self.passes < 1:
            before = minutes - max(0.0, self.left) / 60
            lines.append(
                f"! reading the data and measuring took {before:.1f} of {minutes:g} minutes, and {self.steps:,} steps "
                f"are left; give {self._minutes(self.speed.steps_per_epoch)} minutes, or fewer rows (--data.limit)"
            )
        elif 1 < self.steps <= self.warmup:
            lines.append(
                f"! {minutes:g} minutes end inside the warm-up: {self.steps:,} of {self.warmup:,} steps "
                f"(--training.warmup); lower it, give {self._minutes(10 * self.warmup)} minutes, or take {smaller}"
            )
        elif self.passes < 1:
            lines.append(
                f"! {minutes:g} minutes see {100 * self.passes:.0f} % of the training data once; for all of it give "
                f"{self._minutes(self.speed.steps_per_epoch)} minutes, {smaller}, or fewer rows "
                "(--data.limit)"
            )
        return lines

    def _minutes(self, steps: int) -> int:
        limit = self.settings.max_minutes or 0.0
        seconds = (steps * self.speed.step + self.evaluations * self.evaluation_seconds) / MARGIN
        return max(math.ceil(limit) + 1, math.ceil((60 * limit - self.left + seconds) / 60))


def fitted(
    asked: RunSettings,
    candidates: Iterable[tuple[ResolvedSettings, tuple[str, ...]]],
    smaller_batch: Callable[[ResolvedSettings], ResolvedSettings | None],
    trial: Callable[[ResolvedSettings], Trial],
    seconds: Callable[[], float],
    held: int,
) -> TimePlan:
    """Plans a run.

    Args:
        asked: settings that somebody set, which stay as they are.
        candidates: settings with ever smaller models and what was changed in them, the suggested ones first.
        smaller_batch: the settings with half a batch; None where the batch stays.
        trial: makes what measures the speed under some settings.
        seconds: how many are left for steps and evaluations, asked again after each measurement.
        held: number of validation examples.
    """
    each = min(LONGEST, MEASURING * 60 * (asked.max_minutes or 0.0))
    first, *others = candidates
    settings, notes = first
    tried = trial(settings)
    speed = tried.steps(each)
    while others and (few := _lacking(settings, speed, seconds())) > 1:
        smaller, changes = others.pop(-1 if few >= FAR else 0)
        if few >= FAR:
            others = []
        other = trial(smaller)
        found = other.steps(each)
        if found.step <= QUICKER * speed.step:
            settings, notes, tried, speed = smaller, changes, other, found
    while _steps(seconds(), speed) < min(_wanted(settings, speed), FEW_STEPS):
        halved = smaller_batch(settings)
        if halved is None:
            break
        settings, speed = halved, Speed(speed.step / 2, 2 * speed.steps_per_epoch)
        notes = (*(note for note in notes if note != "batch"), "batch")
    speed = Speed(speed.step, speed.steps_per_epoch, *tried.evaluation(each))
    return planned(settings, asked, speed, seconds(), held, notes)


def _lacking(settings: ResolvedSettings, speed: Speed, seconds: float) -> float:
    """Returns the wanted number of steps relative to the number that fits into the time."""
    wanted = min(_wanted(settings, speed), max(LEAST_STEPS, min(speed.steps_per_epoch, MANY_STEPS)))
    return wanted / max(1.0, _steps(seconds, speed))


def planned(
    settings: ResolvedSettings, asked: RunSettings, speed: Speed, seconds: float, held: int, notes: tuple[str, ...] = ()
) -> TimePlan:
    """Divides ``seconds`` into steps and evaluations of at most ``held`` examples."""
    training, given = settings.training, asked.training
    usable, wanted = max(0.0, MARGIN * seconds), _wanted(settings, speed)
    every = training.evaluate_every or max(speed.steps_per_epoch, 250 if speed.steps_per_epoch < 250 else 0)
    count = max(1, math.ceil(min(wanted, usable / speed.step) / every))
    examples = min(held, given.evaluate_examples or held)
    fits = int((usable - count * speed.evaluation(examples)) / speed.step)
    if fits >= wanted:
        return TimePlan(
            settings=_with(settings, planned_steps=fits),
            speed=speed,
            steps=wanted,
            evaluations=count,
            examples=examples,
            warmup=training.warmup,
            left=seconds,
            notes=notes,
        )
    budget = EVALUATING * usable
    if given.evaluate_every is None:
        count = min(max(count, EVALUATIONS[0]), EVALUATIONS[1])
        while count > 2 and _affordable(speed, budget / count, held) < min(examples, EXAMPLES):
            count -= 1
    if given.evaluate_examples is None:
        least = min(held, FEWEST_EXAMPLES)
        examples = max(least, _affordable(speed, budget / count, examples))
    steps = max(1, min(wanted, int((usable - count * speed.evaluation(examples)) / speed.step)))
    changes: dict[str, int] = {"planned_steps": steps}
    warmup = training.warmup
    if given.warmup is None:
        warmup = changes["warmup"] = min(warmup, max(1, int(WARMUP * steps)))
    if given.evaluate_every is None:
        changes["evaluate_every"] = math.ceil(steps / count)
    if given.evaluate_examples is None and examples < held:
        changes["evaluate_examples"] = examples
    if given.log_every is None:
        changes["log_every"] = min(training.log_every, max(1, steps // 20))
    count = math.ceil(steps / (changes.get("evaluate_every") or every))
    return TimePlan(
        settings=_with(settings, **changes),
        speed=speed,
        steps=steps,
        evaluations=count,
        examples=examples,
        warmup=warmup,
        left=seconds,
        notes=notes,
    )


def sizes(asked: RunSettings, suggested: RunSettings, config: ModelConfig) -> Iterator[dict[str, int]]:
    """Ever smaller widths and depths of the suggested model; none where the size was set, or the model is fine-tuned.

    >>> import heedful.presets
    >>> asked = RunSettings(task="translation", train=("a.tsv",), out="a")
    >>> list(sizes(asked, asked, heedful.presets.get("transformer-small")))
    [{'dim': 128, 'depth': 4}, {'dim': 128, 'depth': 2}, {'dim': 64, 'depth': 2}]
    """
    shape = ("dim", "depth", "encoder_depth", "decoder_depth", "heads", "kv_heads", "ff_dim")
    set_by_hand = asked.preset or asked.start_from or any(getattr(asked.model, name) for name in shape)
    if set_by_hand or suggested.start_from:
        return
    stack = stacks_of(config)[0]
    shallow = max(1, stack.depth // 2)
    found = {(stack.dim, stack.depth)}
    for dim, depth in ((stack.dim // 2, stack.depth), (stack.dim // 2, shallow), (stack.dim // 4, shallow)):
        if dim >= NARROWEST and dim % (2 * stack.heads) == 0 and (dim, depth) not in found:
            found.add((dim, depth))
            yield {"dim": dim, "depth": depth}


def half_batch(
    asked: RunSettings, suggested: ResolvedSettings
) -> Callable[[ResolvedSettings], ResolvedSettings | None]:
    """A function that halves the batch of settings, down to a quarter of the suggested one; None from there on, and
    where the batch was set.
    """
    given, first = asked.training, suggested.training

    def halved(settings: ResolvedSettings) -> ResolvedSettings | None:
        training = settings.training
        name = "batch_tokens" if training.batch_tokens else "batch_size"
        batch, begun = getattr(training, name), getattr(first, name)
        if given.batch_tokens or given.batch_size or not batch or batch // 2 < max(1, (begun or 0) // 4):
            return None
        return _with(settings, **{name: batch // 2})

    return halved


# -------------------------------------------------------------------------------------------------------- a run's plan


def plan_run(
    given: RunSettings,
    settings: ResolvedSettings,
    task: Task,
    model: Model,
    valid: Encoded,
    *,
    ends: float,
    ranks: Ranks,
    resolve: Callable[[RunSettings], ResolvedSettings],
    build_loop: Callable[[ResolvedSettings, Model], Loop],
) -> TimePlan | None:
    """Plans a new run; None where no step can be measured: their number was given, or the model is sharded.

    Args:
        given: settings that somebody set.
        settings: the same, resolved.
        task: its task.
        model: its model, which stays as it is.
        valid: its validation examples.
        ends: ``time.monotonic`` at which steps and evaluations must have ended.
        ranks: the processes of the run.
        resolve: resolves other settings of the same run.
        build_loop: makes the loop for settings and a model.
    """
    if settings.training.planned_steps is not None or settings.training.shard:
        return None

    def candidates() -> Iterator[tuple[ResolvedSettings, tuple[str, ...]]]:
        yield settings, ()
        for shape in sizes(given, settings, model.config):
            smaller = replace(given, model=replace(given.model, **shape))  # type: ignore[arg-type]  # dim and depth
            yield resolve(smaller), tuple(f"model {name} {value}" for name, value in shape.items())

    def trial(other: ResolvedSettings) -> Trial:
        same = other.start_from is not None or other.model == settings.model
        own = copy.deepcopy(model) if same else fresh_model(task, other, model.device)
        return LoopTrial(other, task, own, valid, ranks, build_loop)

    return fitted(
        given,
        candidates(),
        half_batch(given, settings),
        trial,
        lambda: ends - time.monotonic(),
        units(task, valid),
    )


class LoopTrial:
    """Measures the speed of a run on a model of its own; nothing of the run is changed."""

    def __init__(
        self,
        settings: ResolvedSettings,
        task: Task,
        model: Model,
        valid: Encoded,
        ranks: Ranks,
        build_loop: Callable[[ResolvedSettings, Model], Loop],
    ) -> None:
        self.settings, self.task, self.model, self.valid = settings, task, model, valid
        training = settings.training
        own = -(-training.accumulate // ranks.size)  # micro-batches of a step on one rank
        quiet = replace(settings, training=replace(training, accumulate=own, report=(), record_attention=()))
        self.loop = replace(
            build_loop(quiet, model),
            evaluation=None,
            saving=None,
            logging=Logging(log=Log(quiet=True), every=1),
            reserved=ReservedTime(),
        )

    def steps(self, seconds: float) -> Speed:
        """Speed of the optimisation steps; the first, which is slower, counts only where it takes far too long."""
        with self._own_random_numbers():
            outcome = self._fit(Limits(max_steps=1))
            left = max(seconds / 4, seconds - outcome.seconds, 1e-3)
            if outcome.seconds < TOO_LONG * seconds:
                outcome = self._fit(Limits(max_steps=TRIAL_STEPS, max_minutes=left / 60))
        loader = self.loop.loader
        assert isinstance(loader, Loader)
        batches = loader.steps_per_epoch * loader.accumulate
        return Speed(outcome.seconds / outcome.steps, max(1, -(-batches // self.settings.training.accumulate)))

    def evaluation(self, seconds: float) -> tuple[float, float]:
        """Seconds of the loss of a validation example and of predicting one; untrained models are slowest."""
        task, model, most = self.task, self.model.eval(), units(self.task, self.valid)
        began = time.monotonic()
        read = answer = 0.0
        with self._own_random_numbers(), torch.no_grad():
            for count in sorted({min(most, examples) for examples in TRIAL_EXAMPLES}):
                some = part(task, self.valid, count / most, self.settings.data.max_length)
                count = units(task, some)
                first = time.monotonic()
                task.measure(model, some.examples, some.rows, most=1)
                middle = time.monotonic()
                task.measure(model, some.examples, some.rows, most=count)
                last = time.monotonic()
                read = (middle - first) / count
                answer = max(0.0, (last - middle) - (middle - first)) / count
                if last - began > seconds / 4:
                    break
        return read, answer

    def _fit(self, limits: Limits) -> Outcome:
        return replace(self.loop, limits=limits).fit()

    def _own_random_numbers(self) -> AbstractContextManager[Any]:
        device = self.model.device
        return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def fresh_model(task: Task, settings: ResolvedSettings, device: torch.device) -> Model:
    """Returns the model of a run with fresh weights, ready for training."""
    model = create(task.config(settings), seed=settings.seed)
    task.before_training(model, settings)
    make_contiguous(model.to(device))
    return model


def ending_seconds(settings: ResolvedSettings, model: Model, slowdown: float) -> float:
    """Seconds of --max-minutes reserved for what follows the last evaluation: writing weights, the verdict, pictures.

    ``slowdown`` is the time of reading the data by that which the processor worked on it: other programs had the rest.
    """
    limit = 60 * (settings.max_minutes or 0.0)
    work = CLOSING * min(MOST_SLOWDOWN, max(1.0, slowdown))
    return min(0.15 * limit, work + 0.02 * limit + WRITTEN * 4 * model.count() / BYTES_A_SECOND)


# ------------------------------------------------------------------------------------------------------------- helpers


def _affordable(speed: Speed, seconds: float, most: int) -> int:
    """Largest number of examples up to ``most`` whose evaluation takes no longer than ``seconds``."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if speed.evaluation(middle) <= seconds else (low, middle - 1)
    return low


def _wanted(settings: ResolvedSettings, speed: Speed) -> int:
    """Steps by the other limits."""
    limits = [settings.max_steps] if settings.max_steps else []
    if settings.max_epochs:
        limits.append(settings.max_epochs * speed.steps_per_epoch)
    return min(limits, default=10**9)


def _steps(seconds: float, speed: Speed) -> float:
    return (1 - EVALUATING) * MARGIN * seconds / speed.step


def _with(settings: ResolvedSettings, **training: int) -> ResolvedSettings:
    return replace(settings, training=replace(settings.training, **training))  # type: ignore[arg-type]
