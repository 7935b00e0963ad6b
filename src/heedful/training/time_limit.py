"""Fits a new run to ``--max-minutes``: model size, batch, warm-up, number of steps, evaluations.

The first steps of the run are measured on a copy of its model. Unset options are then chosen to fit the time, printed,
and written to ``run.toml`` before step 1, so that a resumed run reads them and measures nothing. Given options stay.
The number of steps is planned anew during the run (``pace``), the other choices are final. Without ``--max-epochs`` and
``--max-steps`` the time is the only limit, and the validation data say when more steps do not help (patience).

What ``--max-minutes`` changes elsewhere:

- ``resolve.suggested`` suggests no ``max_epochs``;
- ``run.prepare`` calls ``plan_run``, which may also train one classifier in place of an ensemble;
- ``schedule.Limits.progress`` counts planned steps, and ``loop._change_pace`` asks ``pace.decide`` for a new plan;
- ``clock`` reserves the time of the last evaluations, limits the others (``evaluation_share``), and ends the run;
- ``validation`` judges no more examples than the time for the verdict covers (``Validation.has_time`` is False);
- ``run_folder._with_more_time`` resumes a run with another number of minutes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from heedful.config import ModelConfig
from heedful.errors import plural
from heedful.models import Model
from heedful.settings import ResolvedSettings, RunSettings
from heedful.tasks.model_setup import fresh_model, stacks_of
from heedful.tasks.task import Encoded, Task
from heedful.training.clock import ReservedTime, running_time
from heedful.training.loader import Loader
from heedful.training.log import Log
from heedful.training.loop import Loop
from heedful.training.loop_parts import Logging, Outcome
from heedful.training.precision import evaluation_autocast
from heedful.training.schedule import Limits
from heedful.training.validation import MAX_PREDICTED, part, units
from heedful.util.ranks import Ranks

MARGIN = 0.9  # share of the time that is planned: the machine may become slower
EVALUATING = 0.2  # share of the planned time for all evaluations together
MEASURING = 0.01  # share of the limit for each measurement of steps, and as much for that of an evaluation
MAX_MEASURING = 5.0  # maximum seconds of either
# A smaller model is chosen below so many steps, by its kind, or below one epoch of up to MANY_STEPS. An encoder-decoder
# needs the most: of English to German, 10,450 pairs, two minutes on a core were 342 steps of width 128 and depth 4
# (loss 5.64, BLEU 0.4), or 1,090 of 64 and 2 (4.17, 3.7).
LEAST_STEPS = {"encoder": 300, "ensemble": 300, "vision": 300, "decoder": 300, "encoder-decoder": 800}
MANY_STEPS = 1000
FEW_STEPS = 150  # a smaller batch is chosen below this
FASTER = 0.8  # maximum seconds of a step of a smaller model, as a share of the larger model's
FAR = 4  # only the smallest model is measured if the steps are too few by this factor
WARMUP = 0.1  # maximum share of the steps
EVALUATIONS = 3, 10  # minimum where there is time, and number from which more must be cheap
CHEAP = 0.1  # share of the planned time for evaluations above that number
EXAMPLES, MIN_EXAMPLES = 200, 16  # of an evaluation: wanted, and minimum
# Widths that models are known to need, by their kind; no model is narrower than MIN_DIM. In two minutes on a core a
# translator of 50,000 pairs learned more with 64 than with 128 (loss 4.62 and 4.82), and neither was of use.
NEEDED_DIM = {"encoder": 64, "ensemble": 64, "vision": 64, "decoder": 128, "encoder-decoder": 128}
MIN_DIM = 64
QUIET = 0.25  # quantile of the measured steps that tells the machine's speed without its other programs
# seconds of work at the end of a run with a small simple baseline, and the largest factor that it may take longer
CLOSING, MAX_SLOWDOWN = 2.5, 10.0
WRITTEN, BYTES_A_SECOND = 3, 1e8  # copies of the weights that are written at the end of a run, and how fast
TRIAL_STEPS = 30  # maximum steps of a measurement
TRIAL_EXAMPLES = (1, 8, 64)  # validation examples of the measurement of an evaluation, as time allows
LATE = 0.3  # share of the limit; if less is left for steps, the time before them is named as the cause


class Speed(NamedTuple):
    """Measured speed of a run's steps and evaluations, in seconds."""

    step: float  # seconds of an optimisation step
    steps_per_epoch: int
    loss: float = 0.0  # seconds of the loss of a validation example
    prediction: float = 0.0  # seconds of predicting one
    quiet_step: float = 0.0  # seconds of a quick step, which no other program interrupted; 0: as ``step``

    @property
    def quickest(self) -> float:
        """Seconds of a quick step."""
        return self.quiet_step or self.step

    def evaluation(self, examples: int) -> float:
        """Returns the seconds that an evaluation of ``examples`` examples takes."""
        return self.loss * examples + self.prediction * min(examples, MAX_PREDICTED)


class Trial(Protocol):
    """Protocol of an object that measures the speed of a run with certain settings."""

    def steps(self, seconds: float) -> Speed:
        """Measures optimisation steps for about ``seconds``."""

    def evaluation(self, seconds: float) -> tuple[float, float]:
        """Measures for about ``seconds``; returns the seconds for the loss, and for the prediction, of an example."""


@dataclass(frozen=True, kw_only=True)
class TimePlan:
    """Plan of a run with ``--max-minutes``: the steps and evaluations that fit into the time.

    Attributes:
        settings: the settings, fitted to the time.
        speed: measured speed of the run.
        steps: number of steps.
        evaluations: number of evaluations.
        examples: number of validation examples in an evaluation.
        warmup: number of warm-up steps.
        left: seconds that were left for steps and evaluations.
        notes: differences from the suggested settings, for people.
        needed_dim: width that such models are known to need, if the chosen one is below; else 0.
    """

    settings: ResolvedSettings
    speed: Speed
    steps: int
    evaluations: int
    examples: int
    warmup: int
    left: float
    notes: tuple[str, ...] = ()
    needed_dim: int = 0

    @property
    def epochs(self) -> float:
        """Number of epochs of the planned steps."""
        return self.steps / self.speed.steps_per_epoch

    @property
    def evaluation_seconds(self) -> float:
        """Expected seconds of an evaluation."""
        return self.speed.evaluation(self.examples)

    def lines(self) -> list[str]:
        """Returns the plan as lines for people, with a warning (``!``) if the time is too short for the data."""
        t, minutes = self.settings.training, self.settings.max_minutes or 0.0
        batch = f"{t.batch_tokens:,} tokens" if t.batch_tokens else f"{t.batch_size or 0:,} examples"
        lines = [
            f"time       {minutes:g} min: {self.steps:,} steps of {batch} ({self.epochs:.2g} epochs), warm-up "
            f"{self.warmup:,}, {plural(self.evaluations, 'evaluation')} of {plural(self.examples)}"
        ]
        if self.notes:
            lines.append(f"           fitted to the time: {', '.join(self.notes)}")
        if self.needed_dim:
            lines.append(
                f"! a width of {self.settings.model.dim} is below the {self.needed_dim} that such models are known to "
                f"need; give more minutes, or --model.dim {self.needed_dim}"
            )
        smaller = "a smaller model for --from" if self.settings.start_from else "a smaller --preset"
        if self.left < LATE * 60 * minutes and self.epochs < 1:
            before = minutes - max(0.0, self.left) / 60
            lines.append(
                f"! reading the data and measuring the speed took {before:.1f} of {minutes:g} minutes, "
                f"and {self.steps:,} steps are left; give {self._minutes(self.speed.steps_per_epoch)} minutes, "
                "or fewer rows (--data.limit)"
            )
        elif 1 < self.steps <= self.warmup:
            lines.append(
                f"! {minutes:g} minutes end inside the warm-up, after {self.steps:,} of its {self.warmup:,} steps; "
                f"lower --training.warmup, give {self._minutes(10 * self.warmup)} minutes, or take {smaller}"
            )
        elif self.epochs < 1:
            lines.append(
                f"! {minutes:g} minutes are enough for {100 * self.epochs:.0f} % of the training data; for all of it "
                f"give {self._minutes(self.speed.steps_per_epoch)} minutes, {smaller}, or fewer rows "
                "(--data.limit)"
            )
        return lines

    def _minutes(self, steps: int) -> int:
        limit = self.settings.max_minutes or 0.0
        seconds = (steps * self.speed.step + self.evaluations * self.evaluation_seconds) / MARGIN
        return max(math.ceil(limit) + 1, math.ceil((60 * limit - self.left + seconds) / 60))


def choose_plan(
    given: RunSettings,
    candidates: Iterable[tuple[ResolvedSettings, tuple[str, ...]]],
    smaller_batch: Callable[[ResolvedSettings], ResolvedSettings | None],
    trial: Callable[[ResolvedSettings], Trial],
    seconds: Callable[[], float],
    valid_examples: int,
    least_steps: int,
) -> TimePlan:
    """Chooses a model size and a batch by measurements, and returns the plan of the run.

    The size of the model cannot be changed later, so it is chosen by the machine's quick steps: other programs may end.
    If the time is too short for an epoch, R-Drop, which passes each example twice, is left out first.

    Args:
        given: settings as given; they do not change.
        candidates: pairs of settings and their changes, with ever smaller models; the suggested settings come first.
        smaller_batch: returns the settings with half the batch, or None if the batch must stay.
        trial: returns the measurement for some settings.
        seconds: returns the seconds left for steps and evaluations; called again after each measurement.
        valid_examples: number of validation examples.
        least_steps: number of steps below which a smaller model is chosen.
    """
    budget = min(MAX_MEASURING, MEASURING * 60 * (given.max_minutes or 0.0))
    first, *others = candidates
    settings, notes = first
    measurement = trial(settings)
    speed = measurement.steps(budget)
    is_short = _steps(seconds(), speed) < min(speed.steps_per_epoch, _steps_to_limit(settings, speed))
    if is_short and settings.model.r_drop and given.model.r_drop is None:
        settings, notes = replace(settings, model=replace(settings.model, r_drop=0.0)), (*notes, "no R-Drop")
        speed = speed._replace(step=speed.step / 2, quiet_step=speed.quiet_step / 2)
    while others and (lacking := _lacking(settings, speed, seconds(), least_steps)) > 1:
        smaller, changes = others.pop(-1 if lacking >= FAR else 0)
        if lacking >= FAR:
            others = []
        smaller_measurement = trial(smaller)
        smaller_speed = smaller_measurement.steps(budget)
        if smaller_speed.quickest <= FASTER * speed.quickest:
            settings, notes, measurement, speed = smaller, changes, smaller_measurement, smaller_speed
    while _steps(seconds(), speed) < min(_steps_to_limit(settings, speed), FEW_STEPS):
        halved = smaller_batch(settings)
        if halved is None:
            break
        settings, speed = halved, Speed(speed.step / 2, 2 * speed.steps_per_epoch, quiet_step=speed.quiet_step / 2)
        notes = (*(note for note in notes if note != "batch"), "batch")
    loss, prediction = measurement.evaluation(budget)
    speed = speed._replace(loss=loss, prediction=prediction)
    return divide_time(settings, given, speed, seconds(), valid_examples, notes)


def _lacking(settings: ResolvedSettings, speed: Speed, seconds: float, least_steps: int) -> float:
    """Returns the wanted number of steps relative to the number that fits into the time."""
    wanted_steps = min(_steps_to_limit(settings, speed), max(least_steps, min(speed.steps_per_epoch, MANY_STEPS)))
    return wanted_steps / max(1.0, _steps(seconds, speed._replace(step=speed.quickest)))


def divide_time(
    settings: ResolvedSettings,
    given_settings: RunSettings,
    speed: Speed,
    seconds: float,
    valid_examples: int,
    notes: tuple[str, ...] = (),
) -> TimePlan:
    """Returns the plan that divides ``seconds`` into steps and evaluations of at most ``valid_examples`` examples."""
    training, given = settings.training, given_settings.training
    usable_seconds, wanted_steps = max(0.0, MARGIN * seconds), _steps_to_limit(settings, speed)
    every = training.evaluate_every or max(speed.steps_per_epoch, 250 if speed.steps_per_epoch < 250 else 0)
    count = max(1, math.ceil(min(wanted_steps, usable_seconds / speed.step) / every))
    examples = min(valid_examples, given.evaluate_examples or valid_examples)
    steps_that_fit = int((usable_seconds - count * speed.evaluation(examples)) / speed.step)
    if steps_that_fit >= wanted_steps:
        return TimePlan(
            settings=_with_training(settings, planned_steps=steps_that_fit, replanned=()),
            speed=speed,
            steps=wanted_steps,
            evaluations=count,
            examples=examples,
            warmup=training.warmup,
            left=seconds,
            notes=notes,
        )
    budget = EVALUATING * usable_seconds
    if given.evaluate_every is None:
        cheap = int(CHEAP * usable_seconds / max(speed.evaluation(examples), 1e-9))
        count = min(max(count, EVALUATIONS[0]), max(EVALUATIONS[1], cheap))
        while count > 2 and _affordable_examples(speed, budget / count, valid_examples) < min(examples, EXAMPLES):
            count -= 1
    if given.evaluate_examples is None:
        min_examples = min(valid_examples, MIN_EXAMPLES)
        examples = max(min_examples, _affordable_examples(speed, budget / count, examples))
    steps = max(1, min(wanted_steps, int((usable_seconds - count * speed.evaluation(examples)) / speed.step)))
    changes: dict[str, Any] = {"planned_steps": steps, "replanned": ()}
    warmup = training.warmup
    if given.warmup is None:
        warmup = changes["warmup"] = min(warmup, max(1, int(WARMUP * steps)))
    if given.evaluate_every is None:
        changes["evaluate_every"] = math.ceil(steps / count)
    if given.evaluate_examples is None and examples < valid_examples:
        changes["evaluate_examples"] = examples
    if given.log_every is None:
        changes["log_every"] = min(training.log_every, max(1, steps // 20))
    count = math.ceil(steps / (changes.get("evaluate_every") or every))
    return TimePlan(
        settings=_with_training(settings, **changes),
        speed=speed,
        steps=steps,
        evaluations=count,
        examples=examples,
        warmup=warmup,
        left=seconds,
        notes=notes,
    )


def smaller_sizes(given: RunSettings, suggested: RunSettings, config: ModelConfig) -> Iterator[dict[str, int]]:
    """Yields ever smaller widths and depths of the suggested model; none for a given size or a fine-tuned model.

    >>> import heedful.presets
    >>> given = RunSettings(task="translation", train=("a.tsv",), out="a")
    >>> list(smaller_sizes(given, given, heedful.presets.get("transformer-small")))
    [{'dim': 128, 'depth': 4}, {'dim': 128, 'depth': 2}, {'dim': 64, 'depth': 2}]
    >>> list(smaller_sizes(given, given, heedful.presets.get("vit-micro")))
    [{'dim': 64, 'depth': 2}]
    """
    shape = ("dim", "depth", "encoder_depth", "decoder_depth", "heads", "kv_heads", "ff_dim")
    is_given = given.preset or given.start_from or any(getattr(given.model, name) for name in shape)
    if is_given or suggested.start_from:
        return
    stack = stacks_of(config)[0]
    shallow = max(1, len(given.model.window or ()), stack.depth // 2)
    half, quarter = stack.dim // 2, stack.dim // 4
    sizes = dict.fromkeys(((half, stack.depth), (half, shallow), (quarter, shallow)))
    narrower = [(dim, depth) for dim, depth in sizes if dim >= MIN_DIM and dim % (2 * stack.heads) == 0]
    for dim, depth in narrower or [(stack.dim, shallow)]:
        if (dim, depth) != (stack.dim, stack.depth):
            yield {"dim": dim, "depth": depth}


def batch_halver(
    given: RunSettings, suggested: ResolvedSettings
) -> Callable[[ResolvedSettings], ResolvedSettings | None]:
    """Returns a function that halves the batch in settings, down to a quarter of the suggested batch.

    The function returns None below a quarter, or if the batch size was given.
    """
    is_given = given.training.batch_tokens or given.training.batch_size

    def halve(settings: ResolvedSettings) -> ResolvedSettings | None:
        training = settings.training
        name = "batch_tokens" if training.batch_tokens else "batch_size"
        batch, suggested_batch = getattr(training, name), getattr(suggested.training, name)
        if is_given or not batch or batch // 2 < max(1, (suggested_batch or 0) // 4):
            return None
        return _with_training(settings, **{name: batch // 2})

    return halve


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
    """Returns the plan of a new run; None if the number of steps was given or the model is sharded.

    Args:
        given: settings as given.
        settings: the resolved settings.
        task: task of the run.
        model: model of the run; it does not change.
        valid: validation examples.
        ends: ``time.monotonic`` at which steps and evaluations must have ended.
        ranks: the ranks of the run.
        resolve: resolves other settings of the same run.
        build_loop: returns the loop for settings and a model.
    """
    if settings.training.planned_steps is not None or settings.training.shard:
        return None

    def candidates() -> Iterator[tuple[ResolvedSettings, tuple[str, ...]]]:
        yield settings, ()
        for shape in smaller_sizes(given, settings, model.config):
            smaller = replace(given, model=replace(given.model, **shape))  # type: ignore[arg-type]  # dim and depth
            yield resolve(smaller), tuple(f"model {name} {value}" for name, value in shape.items())

    def trial(other: ResolvedSettings) -> Trial:
        same = other.start_from is not None or other.model == settings.model
        trial_model = copy.deepcopy(model) if same else fresh_model(task, other, model.device)
        return LoopTrial(other, task, trial_model, valid, ranks, build_loop)

    plan = choose_plan(
        given,
        candidates(),
        batch_halver(given, settings),
        trial,
        lambda: ends - running_time(),
        units(task, valid),
        LEAST_STEPS[model.config.kind],
    )
    needed_dim, dim = NEEDED_DIM[model.config.kind], plan.settings.model.dim
    is_narrow = given.model.dim is None and dim is not None and dim < needed_dim
    return replace(plan, needed_dim=needed_dim) if is_narrow else plan


class LoopTrial:
    """Trial that measures the speed of a run on a copy of its model; the run itself does not change."""

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
        per_rank = -(-training.accumulate // ranks.size)  # micro-batches of a step on one rank
        quiet = replace(settings, training=replace(training, accumulate=per_rank, report=(), record_attention=()))
        self.loop = replace(
            build_loop(quiet, model),
            evaluation=None,
            saving=None,
            logging=Logging(log=Log(quiet=True), every=1),
            reserved=ReservedTime(),
        )

    def steps(self, seconds: float) -> Speed:
        """Measures optimisation steps; the first step, which is slower, counts only if it takes all ``seconds``."""
        times: list[float] = []
        self.loop.after_step = lambda: times.append(running_time())
        with self._own_random_numbers():
            outcome = self._fit(Limits(max_steps=1))
            seconds_left = max(seconds / 4, seconds - outcome.seconds, 1e-3)
            if outcome.seconds < seconds:
                outcome = self._fit(Limits(max_steps=TRIAL_STEPS, max_minutes=seconds_left / 60))
        loader = self.loop.loader
        assert isinstance(loader, Loader)
        batches = loader.steps_per_epoch * loader.accumulate
        each = [after - before for before, after in pairwise(times[1:])]
        return Speed(
            outcome.seconds / outcome.steps,
            max(1, -(-batches // self.settings.training.accumulate)),
            quiet_step=float(np.quantile(each, QUIET)) if each and self.model.device.type == "cpu" else 0.0,
        )

    def evaluation(self, seconds: float) -> tuple[float, float]:
        """Returns the seconds for the loss, and for the prediction, of an example; an untrained model is slowest."""
        task, model, available = self.task, self.model.eval(), units(self.task, self.valid)
        started = running_time()
        loss = prediction = 0.0
        precision = evaluation_autocast(self.settings.training.precision, model.device)
        with self._own_random_numbers(), torch.no_grad(), precision:
            for count in sorted({min(available, examples) for examples in TRIAL_EXAMPLES}):
                sample = part(task, self.valid, count / available, self.settings.data.max_length)
                count = units(task, sample)
                first = running_time()
                task.measure(model, sample.examples, sample.rows, most=1)
                middle = running_time()
                task.measure(model, sample.examples, sample.rows, most=count)
                last = running_time()
                loss = (middle - first) / count
                prediction = max(0.0, (last - middle) - (middle - first)) / count
                if last - started > seconds / 4:
                    break
        return loss, prediction

    def _fit(self, limits: Limits) -> Outcome:
        return replace(self.loop, limits=limits).fit()

    def _own_random_numbers(self) -> AbstractContextManager[Any]:
        device = self.model.device
        return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def ending_seconds(settings: ResolvedSettings, model: Model, baseline: float, slowdown: float) -> float:
    """Returns the seconds of --max-minutes reserved for the end: writing weights, the verdict, figures.

    ``baseline`` is the time of the verdict's baseline (``report.baseline_seconds``). ``slowdown`` is the duration of
    reading the data divided by its processor time; it is above 1 if other programs run.
    """
    limit = 60 * (settings.max_minutes or 0.0)
    work = (CLOSING + baseline) * min(MAX_SLOWDOWN, max(1.0, slowdown))
    return min(0.1 * limit, work + 0.01 * limit + WRITTEN * 4 * model.num_parameters() / BYTES_A_SECOND)


# ------------------------------------------------------------------------------------------------------------- helpers


def _affordable_examples(speed: Speed, seconds: float, available: int) -> int:
    """Returns the largest number of examples, up to ``available``, whose evaluation takes at most ``seconds``."""
    low, high = 0, available
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if speed.evaluation(middle) <= seconds else (low, middle - 1)
    return low


def _steps_to_limit(settings: ResolvedSettings, speed: Speed) -> int:
    """Returns the number of steps until max_steps or max_epochs, whichever comes first; 10⁹ if neither is set."""
    limits = [settings.max_steps] if settings.max_steps else []
    if settings.max_epochs:
        limits.append(settings.max_epochs * speed.steps_per_epoch)
    return min(limits, default=10**9)


def _steps(seconds: float, speed: Speed) -> float:
    return (1 - EVALUATING) * MARGIN * seconds / speed.step


def _with_training(settings: ResolvedSettings, **training: Any) -> ResolvedSettings:
    return replace(settings, training=replace(settings.training, **training))
