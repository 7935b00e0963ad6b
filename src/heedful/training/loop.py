"""The training loop: it takes functions, keeps one mapping of state, and knows no model and no task."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError, nearest
from heedful.kernels.allocator import Spare
from heedful.metrics.registry import sign
from heedful.training.averages import Average
from heedful.training.ceiling import Ceiling
from heedful.training.checkpoint import Checkpoints, Interrupts, completed, without
from heedful.training.engine import Alone
from heedful.training.gradient import Batch, Gradient
from heedful.training.guard import excess, longest
from heedful.training.log import Log
from heedful.training.schedule import Limits, Schedule
from heedful.util.ranks import gone, is_loss
from heedful.util.sharding import followed

FORMAT, REDUCED = 3, 4  # of the checkpoint: whole, and without the weights that the run's folder stores
OVERRUN = 1.25  # times the time left that an evaluation may be expected to take before it is cut
SOON = 60.0  # seconds after a checkpoint in which the end of an epoch is no reason for another


class Steps(Protocol):
    """Protocol of a loader; :class:`heedful.training.loader.Loader` is one."""

    @property
    def epochs(self) -> float:
        """Epochs yielded so far; a whole number exactly at the end of one."""

    def __next__(self) -> Sequence[Batch]:
        """The micro-batches of the next optimisation step, of all ranks; each is made when it is asked for."""

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go there."""


class Optimiser(Protocol):
    """Protocol of an optimiser; those of ``torch.optim`` are such."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Its groups, each with its learning rate."""

    def zero_grad(self) -> None:
        """Forget the gradients."""

    def step(self) -> Any:
        """Change the parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimiser's state."""

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restores a state."""


@dataclass(frozen=True)
class Outcome:
    """Result of a run."""

    steps: int
    epochs: float
    tokens: int  # what the objective counted, over the whole run
    seconds: float  # of training and evaluating, over all sessions of the run
    best: dict[str, Any] | None  # {"step", "value", "metrics"} of the evaluation whose weights are kept
    highest: int | None  # the step of the best value of the metric; chance may lie between it and ``best``
    met: str  # the limit: "max_steps", "max_epochs", "max_minutes" or "patience"
    stopped_because: str  # that, or "already done"


@dataclass
class _Numbers:
    """The part of the state that is the loop's own: plain numbers."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    spent_seconds: float = 0.0  # before the first step (reading data, planning): they count against max_minutes
    evaluation_seconds: float = 0.0  # of an evaluation, by the last one or by the plan; 0: not known
    evaluated: int = 0  # the step evaluated last
    best: dict[str, Any] | None = None  # of the weights that are kept
    highest: tuple[float, int] | None = None  # the metric's best value, as what is larger is better, and its step
    lowest: float = math.inf  # the loss of an evaluation
    stale: int = 0  # evaluations since the best, and since the lowest loss
    # Since the last line of the log:
    window_loss: float = 0.0
    window_tokens: int = 0
    window_seconds: float = 0.0  # of steps; evaluating and saving are left out
    norms: list[float] = field(default_factory=list)  # of the last gradients, where spikes are looked for
    skipped: int = 0  # steps
    parts: int = 1  # that a micro-batch is passed in, since it does not fit the memory


@dataclass(kw_only=True)
class Loop:
    """Trains ``model``; ``Loop(...).fit()`` runs until a limit is met or the metric has stopped getting better.

    The gradient of a step is that of (Σ objective over its micro-batches) / (Σ count over them), the second sum taken
    before the first backward: how the examples are spread over micro-batches changes nothing.

    Where ``checkpoints`` holds a checkpoint the run is taken up from it. With limits in steps or epochs it ends with
    the same bits as a run never stopped, on the same machine, torch, device and number of threads (on a GPU with
    deterministic kernels). Ctrl-C and SIGTERM let the step in flight end, save, and go on as ``KeyboardInterrupt`` and
    ``SystemExit(143)``; an evaluation is left at once and made again on resuming; a second Ctrl-C leaves at once
    without saving.

    Of several ranks each takes every n-th micro-batch of a step, and all end it with the gradient that one process has.
    What is drawn at random in a micro-batch (dropout) is a function of (seed, step, its number in the step): it is the
    same whoever takes it. Where a rank goes, the others end with an error and, where one of them has the whole
    model and knows that the step before has ended, a checkpoint. A micro-batch that does not fit the memory of one
    process is passed in halves, quarters, ... from there on, to the same gradient.
    """

    model: nn.Module  # trained where it lies: batches are moved to its device
    objective: Callable[[nn.Module, Batch], Tensor]  # the loss *summed* over the batch's real tokens
    count: Callable[[Batch], int]  # how many those are; sees the batch before it is moved
    unit: str = "tokens"  # what is counted, as the log calls it
    loader: Steps
    optimiser: Optimiser  # its learning rates are the peaks
    schedule: Schedule
    limits: Limits
    clip: float | None = 1.0  # the largest global norm of a gradient (Pascanu et al., 2013); None: not clipped
    skip_spikes: float | None = None  # leave out a step whose gradient is so many times as long as is usual
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: autocast in forward passes; weights and optimiser stay fp32
    evaluate: Callable[[], Mapping[str, float] | None] | None = None  # measures the model as it stands
    evaluate_part: Callable[[float], Mapping[str, float] | None] | None = None  # on a share of the examples, 0 to 1
    samples: Callable[[], Sequence[Mapping[str, str]]] = list  # of what the model said when it was evaluated last
    evaluate_every: int | None = None  # steps; None: at the end of each epoch. Always after the last step too
    metric: str = "loss"  # the one of evaluate's that decides what is best; of loss and perplexity the lowest
    margin: Callable[[], float] = float  # the standard error of that metric, as evaluated last; 0: not told by chance
    patience: int | None = None  # evaluations with neither a better metric nor a lower loss after which to stop
    on_better: Callable[[Mapping[str, float]], None] | None = None  # called with the best weights in the model
    on_taken_up: Callable[[], None] | None = None  # called where a run goes on from a checkpoint
    seed: int = 0  # of what is drawn in the forward pass
    engine: Alone = field(default_factory=Alone)  # how several processes learn together
    cut: bool = True  # pass a micro-batch in parts where it does not fit; not for a loss of a batch as a whole
    average: Average | None = None  # evaluated, and given to on_better, in place of the weights themselves
    checkpoints: Checkpoints | None = None
    stored: Callable[[str], Mapping[str, Tensor]] | None = None  # weights in the folder "last" or "average" of the run
    save_every: int | None = None  # steps; None: after evaluations, and epochs a minute later. Always at the end too
    log: Log = field(default_factory=partial(Log, quiet=True))
    log_every: int = 50  # steps
    spent: float = 0.0  # seconds before the first step of a new run, which count against max_minutes
    evaluating: float = 0.0  # seconds that an evaluation is expected to take; 0: not known
    ending: float = 0.0  # seconds of max_minutes reserved for what follows the last evaluation
    ceiling: Ceiling | None = None  # tells in the log how much of what the machine can compute the run computes

    def __post_init__(self) -> None:
        if self.precision not in ("fp32", "bf16"):
            raise HeedfulError(f"unknown precision {self.precision!r}; {nearest(self.precision, ['fp32', 'bf16'])}")
        if self.patience is not None and self.evaluate is None:
            raise HeedfulError("patience needs evaluations; give validation data, or leave patience out")
        if self.patience is None and not self.limits.shares(steps=0, epochs=0.0, seconds=0.0):
            raise HeedfulError("the run has no end; set max-steps, max-epochs, max-minutes or patience")
        for name in ("evaluate_every", "save_every", "log_every", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise HeedfulError(f"{name.replace('_', '-')} is {value}; give a whole number above 0")
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._device = self._parameters[0].device
        self._peaks = [group["lr"] for group in self.optimiser.param_groups]
        # Whether each step's loss and norm are read before its weights are changed, which makes a GPU wait.
        self._careful = self._device.type == "cpu" or self.log_every == 1 or self.skip_spikes is not None
        self._progress: float | None = None  # the share of the run that is done
        self._numbers = _Numbers()
        self._pending: list[tuple[Tensor, Tensor]] = []  # loss and gradient norm of the steps not read yet
        self._saved: tuple[int, int] | None = None  # step and evaluation of the last checkpoint
        self._saved_at = 0.0  # and when that was written
        self._reduced = False  # whether the newest checkpoint lacks what the folder stores
        self._looked = 0.0  # seconds of the run when all ranks looked at its clock last
        self._before: dict[str, Any] | None = None  # where the loader stood before the step in flight
        self._mark = 0.0  # when the clock was last read
        self._spare = Spare()

    @property
    def step(self) -> int:
        """Number of steps done."""
        return self._numbers.step

    def fit(self) -> Outcome:
        """Train to the end and say how it ended. The model keeps its last weights."""
        self._gradient = Gradient(
            model=self.model,
            objective=self.objective,
            count=self.count,
            engine=self.engine,
            precision=self.precision,
            seed=self.seed,
            device=self._device,
            clear=self.optimiser.zero_grad,
            on_cut=self._note_cut if self.cut else None,
        )
        self._numbers.spent_seconds, self._numbers.evaluation_seconds = self.spent, self.evaluating
        if self.checkpoints is not None and (state := self.checkpoints.load()) is not None:
            self._restore(state, self.checkpoints)
        numbers, begun = self._numbers, self._numbers.step
        self._mark = time.monotonic()
        reason = self._look()
        if reason and (self.evaluate is None or numbers.evaluated == begun):
            return replace(self._outcome(reason), stopped_because="already done")
        if self._saved is not None and self.on_taken_up is not None:
            self.on_taken_up()
        self.log.begin(begun)
        self.model.train()
        ranks, agreed = self.engine.ranks, False
        with self.log, Interrupts() as interrupts:
            self._mark = time.monotonic()
            try:
                while True:
                    measured = self.evaluate is not None and (bool(reason) or self._due(self.evaluate_every))
                    metrics = self._measure(interrupts) if measured and numbers.evaluated != numbers.step else None
                    reason = self._look()
                    if reason or metrics or numbers.step % self.log_every == 0:
                        self._report(metrics)
                    if reason or self._to_save(measured):
                        self._save()
                    agreed = ranks.sum(interrupts.received)[0] > 0
                    if agreed:
                        raise KeyboardInterrupt
                    if reason:
                        return self._outcome(reason)
                    self._step()
                    reason = self._look()
            except KeyboardInterrupt:
                if agreed or interrupts.once:
                    self._save()
                    self._wait()
                    self.log.note(f"stopped after step {numbers.step:,}{self._kept()}")
                raise interrupts.error() from None
            except RuntimeError as error:
                if ranks.size == 1 or not is_loss(error):
                    raise
                raise self._left_alone(error) from None
            finally:
                self._wait()

    def _step(self) -> None:
        """One optimisation step. A GPU is not waited for here, unless every step is looked at (``_careful``)."""
        numbers, ranks = self._numbers, self.engine.ranks
        self._before = self.loader.state_dict()
        passes = self._gradient.passes(numbers.step, next(self.loader))
        if passes.total == 0:
            raise HeedfulError(
                f"step {numbers.step + 1} has no token to learn from; check that the targets are not empty"
            )
        factor = self.schedule(numbers.step + 1, self._progress)
        for group, peak in zip(self.optimiser.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        loss = ranks.summed(self._gradient.compute(passes))
        norm = self.engine.norm([p.grad for p in self._parameters if p.grad is not None])
        if self._careful and not (math.isfinite(norm.item()) and math.isfinite(loss.item())):
            raise self._broken(numbers.step + 1, loss.item(), norm.item(), self._gradient.origin(passes))
        if not self._spiked(norm):
            if self.clip is not None:
                nn.utils.clip_grads_with_norm_(self._parameters, self.clip, norm)
            self.optimiser.step()
            if self.average is not None:
                self.average.update()
        self._pending.append((loss, norm))
        if self.ceiling is not None:
            self.ceiling.add(passes.counting)
        numbers.step += 1
        numbers.tokens += passes.total
        numbers.window_tokens += passes.total
        self._before = None
        self._clock(stepping=True)

    def _note_cut(self, parts: int) -> None:
        self._numbers.parts = parts
        self.log.note(
            f"! from step {self._numbers.step + 1:,} on a batch is learned from in {parts} parts, since a larger one "
            "does not fit the memory; the loss of a step is the same"
        )

    def _spiked(self, norm: Tensor) -> bool:
        """Returns True if the step is to be left out, since its gradient is far longer than is usual."""
        if self.skip_spikes is None:
            return False
        times = excess(self._numbers.norms, norm.item())
        if times <= self.skip_spikes:
            return False
        self._numbers.skipped += 1
        where = longest(self.model, self.engine.norm)
        self.log.note(
            f"step {self._numbers.step + 1:,} is left out: its gradient is {times:.3g} times the usual, {where}"
        )
        return True

    def _broken(self, step: int, loss: float, norm: float, place: str = "") -> BaseException:
        name, value = ("gradient's norm", norm) if math.isfinite(loss) else ("loss", loss)
        remedies = "lower the learning rate, lengthen the warm-up" + ", or train in fp32" * (self.precision == "bf16")
        error = HeedfulError(
            f"the {name} is {value} at step {step}{place and f', first in {place}'}{self._kept()}; {remedies}"
            + ("" if place else "; with --training.log-every=1 you are told where it begins")
        )
        return self.engine.ranks.alike(error)

    def _look(self) -> str | None:
        """Updates the run's progress; returns the reason to stop, or None."""
        numbers, ranks = self._numbers, self.engine.ranks
        clock = (numbers.seconds, self._reserved()) if ranks.first else (0.0, 0.0)
        self._looked, reserved = ranks.sum(*clock)  # one clock for all
        numbers.seconds = self._looked
        done: dict[str, Any] = {"steps": numbers.step, "epochs": self.loader.epochs}
        self._progress = self.limits.progress(**done, seconds=numbers.seconds)
        self.log.tick(numbers.step, self._progress, self._left())
        if self.patience is not None and numbers.stale >= self.patience:
            return "patience"
        shares = self.limits.shares(**done, seconds=numbers.seconds + reserved)
        return next((name for name, share in shares.items() if share >= 1), None)

    def _reserved(self) -> float:
        """Seconds of max_minutes that are not for steps: those before the first, the last evaluation, the writing. The
        first step is always made.
        """
        numbers = self._numbers
        return numbers.spent_seconds + numbers.evaluation_seconds + self.ending if numbers.step else 0.0

    def _evaluation_share(self) -> float:
        """Share of an evaluation, 0 to 1, that max_minutes has time for, at the pace of the last one; a small overrun
        is allowed.
        """
        numbers, minutes = self._numbers, self.limits.max_minutes
        if minutes is None or not numbers.evaluation_seconds or self.evaluate_part is None:
            return 1.0
        left = max(0.0, 60 * minutes - self._elapsed() - numbers.spent_seconds - self.ending)
        return 1.0 if numbers.evaluation_seconds <= OVERRUN * left + 1 else left / numbers.evaluation_seconds

    def _elapsed(self) -> float:
        return self._numbers.seconds + time.monotonic() - self._mark

    def _to_save(self, measured: bool) -> bool:
        """Returns True if a checkpoint is due; of many short epochs not each ends with one."""
        if self.save_every is not None:
            return self._due(self.save_every)
        return measured or (self._due(None) and (self._saved is None or self._looked - self._saved_at >= SOON))

    def _due(self, every: int | None) -> bool:
        step = self._numbers.step
        return step > 0 and (step % every == 0 if every else float(self.loader.epochs).is_integer())

    def _measure(self, interrupts: Interrupts) -> dict[str, float] | None:
        """Evaluate; see whether it is the best. What evaluation draws at random is not taken from training."""
        assert self.evaluate is not None
        self._settle()
        numbers = self._numbers
        weights = nullcontext() if self.average is None else self.average.swapped()
        self.model.eval()
        try:
            with weights, torch.no_grad():
                metrics = self._evaluated(interrupts)
                if metrics is not None:
                    self._compare(metrics)
        finally:
            self.model.train()
        numbers.evaluated = numbers.step
        self._clock()
        return metrics

    def _evaluated(self, interrupts: Interrupts) -> dict[str, float] | None:
        """Evaluates on all ranks together. One process may be interrupted; several leave together, at the end."""
        assert self.evaluate is not None
        ranks, numbers = self.engine.ranks, self._numbers
        share, began = ranks.same(self._evaluation_share()), time.monotonic()
        if share < 1:
            self.log.note(
                f"! step {numbers.step:,}: --max-minutes has time for {share:.0%} of the evaluation; it is cut to that"
            )
        with (
            self.engine.measuring(self.model),
            interrupts.at_once() if ranks.size == 1 else nullcontext(),
            followed(self._report_evaluation),
        ):
            measured = self.evaluate() if share == 1 or self.evaluate_part is None else self.evaluate_part(share)
        if share == 1:
            numbers.evaluation_seconds = time.monotonic() - began
        found = None if measured is None else {name: float(value) for name, value in measured.items()}
        shared: dict[str, float] | None = ranks.same(found)
        return shared

    def _report_evaluation(self, done: int, total: int) -> None:
        self.log.evaluating(self._numbers.step, done, total, self._left())

    def _compare(self, metrics: dict[str, float]) -> None:
        numbers = self._numbers
        if self.metric not in metrics:
            raise HeedfulError(f"the evaluation has no metric {self.metric!r}; {nearest(self.metric, metrics)}")
        loss = metrics.get("loss", math.inf)
        gained = loss < numbers.lowest
        if gained:
            numbers.lowest = loss
        if self._better(metrics):
            numbers.best = {"step": numbers.step, "value": metrics[self.metric], "metrics": metrics}
            gained = True
            if self.on_better is not None:
                self.on_better(metrics)
        numbers.stale = 0 if gained else numbers.stale + 1

    def _better(self, metrics: Mapping[str, float]) -> bool:
        """Returns True if the present weights are to be kept: their metric is the highest so far, or lies within a
        standard error of it while their loss is lower than that of the kept weights.
        """
        numbers = self._numbers
        value, loss = self._rank(metrics)
        if not math.isfinite(value):
            return False
        if numbers.best is not None and numbers.highest is not None and value <= numbers.highest[0]:
            if loss <= self._rank(numbers.best["metrics"])[1]:
                return False
            if value < numbers.highest[0]:
                return value >= numbers.highest[0] - self.engine.ranks.same(self.margin())
        numbers.highest = value, numbers.step
        return True

    def _rank(self, metrics: Mapping[str, float]) -> tuple[float, float]:
        """Returns the sort key of an evaluation: the deciding metric and, where it is equal, the loss; higher is
        better.
        """
        loss = metrics.get("loss", math.inf)
        return sign(self.metric) * metrics[self.metric], -loss if math.isfinite(loss) else -math.inf

    def _settle(self) -> None:
        """Read the losses of the steps since the last time: the one place that waits for the device."""
        numbers = self._numbers
        if not self._pending:
            return
        losses, norms = (torch.stack(column).tolist() for column in zip(*self._pending, strict=True))
        step = numbers.step - len(self._pending)
        self._pending.clear()
        for loss, norm in zip(losses, norms, strict=True):
            step += 1
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise self._broken(step, loss, norm)
            numbers.window_loss += loss
        self._clock(stepping=True)

    def _report(self, metrics: Mapping[str, float] | None) -> None:
        """A line of the log: the mean loss and speed since the last one, and the evaluation if there was one."""
        self._settle()
        numbers = self._numbers
        line: dict[str, Any] = {"step": numbers.step, "epoch": round(self.loader.epochs, 4)}
        if numbers.window_tokens:
            line["loss"] = numbers.window_loss / numbers.window_tokens
            line["lr"] = max(group["lr"] for group in self.optimiser.param_groups)
            line[f"{self.unit}_per_second"] = round(numbers.window_tokens / numbers.window_seconds, 1)
        if self.ceiling is not None:
            if (share := self.ceiling.share(numbers.window_seconds)) is not None:
                line["share_of_ceiling"] = round(share, 4)
            self._clock()  # measuring is no step
        if numbers.skipped:
            line["skipped"] = numbers.skipped
        line["seconds"] = round(numbers.seconds, 3)
        line.update({f"valid_{name}": value for name, value in (metrics or {}).items()})
        if metrics and (samples := self.samples()):
            line["samples"] = list(samples)
        if numbers.window_tokens or metrics:
            self.log.write(line, left=self._left())
            self._spare.look()
        numbers.window_loss, numbers.window_tokens, numbers.window_seconds = 0.0, 0, 0.0

    def _save(self, rescue: bool = False) -> None:
        """Write the state after the last complete step, unless it is written already; ``rescue``: for the rank that
        otherwise does.
        """
        numbers = self._numbers
        self._settle()
        if self.checkpoints is None or (self._saved == (numbers.step, numbers.evaluated) and not rescue):
            return  # of another rank it is not known whether its writing ended
        state = self.state()
        if rescue:
            self.checkpoints.rescue(state)
        elif self.engine.writes:
            self.checkpoints.save(state, wait=False)
        self._saved, self._saved_at, self._reduced = (numbers.step, numbers.evaluated), self._looked, False
        self._clock()

    def _wait(self) -> None:
        """Until the checkpoint that was saved last is there: steps do not wait for it, what follows them does."""
        if self.checkpoints is not None:
            self.checkpoints.wait()

    def state(self) -> dict[str, Any]:
        """All that a checkpoint holds, as it stands."""
        return {
            "format": FORMAT,
            "numbers": asdict(self._numbers),
            "loader": self.loader.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            **self.engine.state(self.model, self.optimiser),
        }

    def reduce_checkpoint(self) -> None:
        """Write the checkpoint of a run that has ended without the weights that its folder stores with the same bits.

        The whole checkpoint stays until the smaller one is written, and comes back with the next one that is saved.
        """
        if self.checkpoints is None or self.stored is None or self._reduced:
            return
        state = self.state()
        kept, note = without(state["model"], self.stored("last"))
        reduced = {**state, "format": REDUCED, "model": kept, "stored": {"last": note}}
        if (average := state["average"]) is not None and "weights" in average:
            kept, note = without(average["weights"], self.stored("average"))
            reduced["average"] = {**average, "weights": kept}
            reduced["stored"]["average"] = note
        self.checkpoints.replace(reduced)

    def _whole(self, state: Mapping[str, Any], checkpoints: Checkpoints) -> Mapping[str, Any]:
        """The state with the weights that the run's folder stores."""
        if state.get("format") != REDUCED or self.stored is None:
            return state
        self._reduced = True
        found = {}
        for part, note in state["stored"].items():
            tensors = state["model"] if part == "last" else state["average"]["weights"]
            found[part] = completed(tensors, note, self.stored(part))
            if found[part] is None:
                raise HeedfulError(
                    f"{checkpoints.path} needs the weights in {checkpoints.path.with_name(part)}, and these were "
                    "changed; put them back, or fine-tune them in another run with --from"
                )
        whole = {**state, "format": FORMAT, "model": found["last"]}
        return {**whole, "average": {**state["average"], "weights": found["average"]}} if "average" in found else whole

    def _restore(self, state: Mapping[str, Any], checkpoints: Checkpoints) -> None:
        """Take ``state`` up. The optimiser's settings stay those given now; only what it remembers is restored, and the
        rate of the last step, whose line may not have been written.
        """
        path, state = checkpoints.path, self._whole(state, checkpoints)
        if state.get("format") != FORMAT:
            raise HeedfulError(f"{path} is no checkpoint of this version of heedful; start the run anew")
        if (state["average"] is None) != (self.average is None):
            raise HeedfulError(f"{path} was written with averaging {'on' if state['average'] else 'off'}; resume it so")
        kept = ("params", "lr")
        settings = [{k: v for k, v in group.items() if k not in kept} for group in self.optimiser.param_groups]
        self.loader.load_state_dict(state["loader"])
        try:
            self.engine.restore(self.model, self.optimiser, state)
        except (RuntimeError, ValueError) as error:
            found = " ".join(str(error).split())
            raise HeedfulError(f"{path} is of another model; resume with the one it was begun with ({found})") from None
        for group, own in zip(self.optimiser.param_groups, settings, strict=True):
            group.update(own)
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self._numbers = _Numbers(**state["numbers"])
        if self.engine.ranks.size == 1:  # which alone cuts: several gather together, each as many passes
            self._gradient.parts = self._numbers.parts
        self._saved, self._saved_at = (self._numbers.step, self._numbers.evaluated), self._numbers.seconds

    def forget_best(self, kept: Mapping[str, float]) -> bool:
        """Where the best weights known are not those whose metrics are ``kept``, the next evaluation's are the best;
        whether it is so.
        """
        numbers = self._numbers
        same = numbers.best is None or (self.metric in kept and self._rank(kept) == self._rank(numbers.best["metrics"]))
        if not same:
            numbers.best, numbers.highest, numbers.lowest, numbers.stale = None, None, math.inf, 0
        return not same

    def _left_alone(self, error: BaseException) -> HeedfulError:
        """Another rank has gone: keep what this one has, if it has the whole of it, and say so. In a step each one may
        write, for the first, if it is that one, had ended all of the step before.
        """
        before, first, shared = self._before, self.engine.ranks.first, self.engine.needs_all
        if before is not None:
            self.loader.load_state_dict(before)  # the step in flight did not end
        if not shared and (first or before is not None):
            self._save(rescue=not first)
        with suppress(Exception, SystemExit):  # what was being written may have gone with the other
            self._wait()
        return HeedfulError(gone(error, f", at step {self._numbers.step + 1:,}{self._kept()}"))

    def _clock(self, *, stepping: bool = False) -> None:
        now = time.monotonic()
        self._numbers.seconds += now - self._mark
        if stepping:
            self._numbers.window_seconds += now - self._mark
        self._mark = now

    def _left(self) -> float | None:
        """Seconds to the end at the pace so far, or those that max_minutes leaves if they are fewer."""
        elapsed, minutes = self._elapsed(), self.limits.max_minutes
        by_pace = elapsed * (1 / self._progress - 1) if self._progress else None
        by_clock = None if minutes is None else 60 * minutes - elapsed - self._numbers.spent_seconds
        return min((seconds for seconds in (by_pace, by_clock) if seconds is not None), default=None)

    def _kept(self) -> str:
        if self.checkpoints is None or self.checkpoints.step is None:
            return ""
        return f"; the checkpoint of step {self.checkpoints.step:,} is in {self.checkpoints.path}"

    def _outcome(self, reason: str) -> Outcome:
        numbers = self._numbers
        return Outcome(
            steps=numbers.step,
            epochs=self.loader.epochs,
            tokens=numbers.tokens,
            seconds=numbers.seconds,
            best=numbers.best,
            highest=numbers.highest[1] if numbers.highest else None,
            met=reason,
            stopped_because=reason,
        )
