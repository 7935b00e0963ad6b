"""The training loop: it takes functions and small objects, and knows no model and no task."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from heedful.errors import HeedfulError, nearest
from heedful.kernels.allocator import FreeMemory
from heedful.training.averages import Average
from heedful.training.best_weights import BestWeights
from heedful.training.callbacks import Callbacks
from heedful.training.checkpoint import FORMAT, Interrupts, with_stored, without_stored
from heedful.training.clock import Clock, ReservedTime, running_time
from heedful.training.engine import Alone
from heedful.training.feed import PrefetchingLoader
from heedful.training.gradient import Gradient, MicroBatches
from heedful.training.guard import GradientLimits, largest_gradient, spike_ratio
from heedful.training.log import LogWindow
from heedful.training.loop_parts import Evaluation, Logging, Objective, Optimiser, Outcome, Saving, Steps
from heedful.training.pace import Pace
from heedful.training.schedule import Limits, Schedule
from heedful.util.ranks import is_loss, loss_message
from heedful.util.sharding import followed

NORM_EPS = 1e-6  # added to a norm by PyTorch's clipping
MIN_SECONDS = 60.0  # between two checkpoints at ends of epochs


@dataclass
class _Counters:
    """Counters of the loop that a checkpoint stores."""

    step: int = 0
    tokens: int = 0  # predictions: the task's `count`
    evaluated: int = 0  # the step evaluated last
    norms: list[float] = field(default_factory=list)  # of the last gradients, if spikes are skipped
    skipped: int = 0  # number of skipped steps
    parts: int = 1  # into which micro-batches are split to fit the memory


@dataclass(kw_only=True)
class Loop:
    """Training loop of ``model``; ``Loop(...).fit()`` runs until a limit is met or patience ends.

    The gradient of a step is that of (Σ loss over its micro-batches) / (Σ count over them); how the examples are spread
    over micro-batches changes nothing.

    If ``saving`` has a checkpoint, the run resumes from it. With limits in steps or epochs it ends with the same
    bits as a run that was never stopped, on the same machine, torch, device and number of threads (on a GPU with
    deterministic kernels). After Ctrl-C or SIGTERM the loop ends its step, saves, and raises ``KeyboardInterrupt`` or
    ``SystemExit(143)``. An evaluation is interrupted at once and repeated on resuming. A second Ctrl-C ends the run at
    once, without saving.

    With several ranks, each computes every n-th micro-batch of a step, and all end the step with the gradient that a
    single process would compute. Random numbers in a micro-batch (dropout) are a function of (seed, step, the
    micro-batch's number in the step), so they are the same on any rank. If a rank is lost, the other ranks end with an
    error; one that has the whole model and knows that the last step has ended writes a checkpoint.

    If a micro-batch does not fit the memory of one process, this and all later micro-batches are split into halves,
    quarters and so on, with the same gradient.
    """

    model: nn.Module  # batches are moved to its device
    objective: Objective
    loader: Steps
    optimiser: Optimiser  # its learning rates are the peaks
    schedule: Schedule
    limits: Limits
    gradient_limits: GradientLimits = field(default_factory=GradientLimits)
    precision: Literal["fp32", "bf16"] = "fp32"  # bf16: autocast in forward passes; weights and optimiser stay fp32
    seed: int = 0  # of random numbers in the forward pass
    engine: Alone = field(default_factory=Alone)  # how several processes train together
    average: Average | None = None  # evaluated and saved as the best in place of the weights themselves
    evaluation: Evaluation | None = None
    saving: Saving | None = None
    logging: Logging = field(default_factory=Logging)
    callbacks: Callbacks | None = None
    after_step: Callable[[], object] | None = None  # called after each step, before the callbacks
    reserved: ReservedTime = field(default_factory=ReservedTime)
    pace: Pace | None = None  # changes the planned steps of ``limits`` as the machine allows; None: they stay

    def __post_init__(self) -> None:
        self._check_options()
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._device = self._parameters[0].device
        self._peaks = [group["lr"] for group in self.optimiser.param_groups]
        # True: each step's loss and norm are checked before the weights change, for which the CPU waits for a GPU.
        spikes = self.gradient_limits.skip_spikes is not None
        self._checks_each_step = self._device.type == "cpu" or self.logging.every == 1 or spikes
        self._counters = _Counters()
        self._feed = PrefetchingLoader(self.loader, lambda step, batches: self._gradient.micro_batches(step, batches))
        self._interrupted = False  # True: a rank has received a signal
        self._total = 0  # predictions in the next step, if there are several ranks
        self._clock = Clock(self.limits, self.reserved)
        self._window = LogWindow()
        metric, latest = (self.evaluation.metric, self.evaluation.latest) if self.evaluation else ("loss", False)
        self._best = BestWeights(metric, self._margin, self._scored, latest)
        self._pending: list[tuple[Tensor, Tensor]] = []  # loss and gradient norm of steps that were not checked yet
        self._last_loss: tuple[Tensor, int] | None = None  # of the last step: summed, and number of predictions
        self._saved: tuple[int, int] | None = None  # step and evaluation of the last checkpoint
        self._saved_at = 0.0  # seconds of the run when it was written
        self._reduced = False  # True: the newest checkpoint lacks weights that the run folder stores
        self._loader_before: dict[str, Any] | None = None  # state of the loader before the step in flight
        self._free_memory = FreeMemory()

    def _check_options(self) -> None:
        patience = self.evaluation.patience if self.evaluation else None
        if self.precision not in ("fp32", "bf16"):
            raise HeedfulError(f"unknown precision {self.precision!r}; {nearest(self.precision, ['fp32', 'bf16'])}")
        if patience is None and not self.limits.shares(steps=0, epochs=0.0, seconds=0.0):
            raise HeedfulError("the run has no end; set max-steps, max-epochs, max-minutes or patience")
        counts = {
            "evaluate-every": self.evaluation.every if self.evaluation else None,
            "save-every": self.saving.every if self.saving else None,
            "log-every": self.logging.every,
            "patience": patience,
        }
        for name, value in counts.items():
            if value is not None and value < 1:
                raise HeedfulError(f"{name} is {value}; give a whole number above 0")

    @property
    def step(self) -> int:
        """Number of steps done."""
        return self._counters.step

    @property
    def epochs(self) -> float:
        """Number of epochs done, with a fraction."""
        return self._feed.epochs

    def account(self) -> dict[str, float]:
        """Returns the seconds of the run until now, by what they went into (``Clock.account``)."""
        return self._clock.account()

    def fit(self) -> Outcome:
        """Trains until a limit is met, and returns the outcome; the model then has the last weights."""
        self._gradient = Gradient(
            model=self.model,
            loss=self.objective.loss,
            count=self.objective.count,
            complete=self.objective.complete,
            engine=self.engine,
            precision=self.precision,
            seed=self.seed,
            device=self._device,
            zero_grad=self.optimiser.zero_grad,
            on_split=self._note_split if self.objective.divisible else None,
        )
        self._interrupts = Interrupts()
        try:
            return self._fit()
        finally:
            self._feed.close()

    def _fit(self) -> Outcome:
        """Resumes from a checkpoint if there is one, and takes steps until a reason to stop."""
        if self.saving is not None and (state := self.saving.checkpoints.load()) is not None:
            self._restore(state, self.saving)
        counters, first, log = self._counters, self._counters.step, self.logging.log
        self._clock.start()
        reason = self._stop_reason()
        if reason and (self.evaluation is None or counters.evaluated == first):
            return replace(self._outcome(reason), stopped_because="already done")
        if self._saved is not None and self.saving is not None:
            self.saving.on_resume(self)
        log.begin(first)
        if self.callbacks is not None:
            self.callbacks.begin(self)
            reason = reason or self._callback_reason()
        self.model.train()
        ranks, all_interrupted = self.engine.ranks, False
        with log, self._interrupts as interrupts:
            self._clock.start()
            try:
                while True:
                    metrics = None
                    due = self.evaluation is not None and (bool(reason) or self._due(self.evaluation.every))
                    if due and counters.evaluated != counters.step:
                        metrics = self._measure(interrupts)
                        reason = self._stop_reason()
                    writes = bool(reason or metrics) or counters.step % self.logging.every == 0
                    if writes:
                        self._write_line(metrics)
                    if metrics and self.callbacks is not None:
                        self.callbacks.evaluated(metrics)
                        reason = reason or self._callback_reason()
                    if reason or self._save_due(evaluated=due):
                        writes = True
                        self._save()
                    if writes or ranks.size == 1:  # no rank starts a step before rank 0 has written (``_lost_rank``)
                        self._interrupted = ranks.sum(interrupts.received)[0] > 0
                    all_interrupted = self._interrupted
                    if all_interrupted:
                        raise KeyboardInterrupt
                    if reason:
                        return self._outcome(reason)
                    self._step()
                    reason = self._stop_reason()
            except KeyboardInterrupt:
                if all_interrupted or interrupts.deferred:
                    self._save()
                    self._wait()
                    log.note(f"stopped after step {counters.step:,}{self._newest_checkpoint()}")
                raise interrupts.error() from None
            except RuntimeError as error:
                if ranks.size == 1 or not is_loss(error):
                    raise
                raise self._lost_rank(error) from None
            finally:
                self._wait()

    # ------------------------------------------------------------------------------------------------------------ steps

    def _step(self) -> None:
        """Takes an optimisation step; does not wait for a GPU unless each step is checked."""
        counters = self._counters
        self._loader_before = self._feed.state_dict()
        micro_batches = self._feed.take(counters.step)
        if self.engine.ranks.size > 1:
            micro_batches = replace(micro_batches, total=self._total)
        if micro_batches.total == 0:
            raise HeedfulError(
                f"step {counters.step + 1} has no target token or label; check that the targets are not empty"
            )
        factor = self.schedule(counters.step + 1, self._clock.progress)
        for group, peak in zip(self.optimiser.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        loss, norm = self._learn(micro_batches)
        self._pending.append((loss, norm))
        self._last_loss = (loss, micro_batches.total)
        if self.logging.ceiling is not None:
            self.logging.ceiling.add(micro_batches.own)
        counters.step += 1
        counters.tokens += micro_batches.total
        self._window.tokens += micro_batches.total
        self._loader_before = None
        self._window.seconds += self._clock.lap("steps")
        if self.after_step is not None:
            self.after_step()
        if self.callbacks is not None:
            self.callbacks.step()
            self._clock.lap()  # the callbacks' time is not part of a step

    def _learn(self, micro_batches: MicroBatches) -> tuple[Tensor, Tensor]:
        """Updates the weights; returns the step's loss, summed over all ranks, and its gradient norm."""
        step = self._counters.step + 1
        # Summed in each step, without waiting for a GPU: after a rank is lost, earlier losses could not be summed.
        loss = self.engine.ranks.all_reduce(self._gradient.compute(micro_batches))
        norm = self.engine.norm([p.grad for p in self._parameters if p.grad is not None])
        if self._device.type != "cpu" and not self._ends_at(step):  # while the device computes
            self._feed.prefetch(step)
        if self._checks_each_step and not (math.isfinite(norm.item()) and math.isfinite(loss.item())):
            raise self._not_finite(step, loss.item(), norm.item(), self._gradient.locate_nonfinite(micro_batches))
        if not self._is_spike(norm):
            if self.gradient_limits.clip is not None and not self._is_below(self.gradient_limits.clip, norm):
                nn.utils.clip_grads_with_norm_(self._parameters, self.gradient_limits.clip, norm)
            self.optimiser.step()
            if self.average is not None:
                self.average.update()
        return loss, norm

    def _note_split(self, parts: int) -> None:
        self._counters.parts = parts
        self.logging.log.note(
            f"! from step {self._counters.step + 1:,} on each batch is split into {parts} parts, since larger parts do "
            "not fit the memory; the loss of a step is the same"
        )

    def _is_below(self, clip: float, norm: Tensor) -> bool:
        """Returns True if clipping would multiply by 1, and the norm is known without waiting for a GPU."""
        return self._checks_each_step and norm.item() + NORM_EPS < 0.999 * clip  # 0.999: a margin for float32 rounding

    def _is_spike(self, norm: Tensor) -> bool:
        """Returns True if the step is to be skipped, since its gradient is far larger than usual."""
        if self.gradient_limits.skip_spikes is None:
            return False
        ratio = spike_ratio(self._counters.norms, norm.item())
        if ratio <= self.gradient_limits.skip_spikes:
            return False
        self._counters.skipped += 1
        share = largest_gradient(self.model, self.engine.norm)
        self.logging.log.note(
            f"step {self._counters.step + 1:,} is skipped: its gradient norm is {ratio:.3g} times the usual; {share}"
        )
        return True

    def _not_finite(self, step: int, loss: float, norm: float, origin: str = "") -> BaseException:
        name, value = ("gradient's norm", norm) if math.isfinite(loss) else ("loss", loss)
        where = f", first in {origin}" if origin else ""
        remedies = "lower the learning rate, lengthen the warm-up" + ", or train in fp32" * (self.precision == "bf16")
        error = HeedfulError(
            f"the {name} is {value} at step {step}{where}{self._newest_checkpoint()}; {remedies}"
            + ("" if origin else "; --training.log-every=1 names the module where it begins")
        )
        return self.engine.ranks.shared_error(error)

    def _read_losses(self) -> None:
        """Reads and checks the losses of the last steps; only here the loop waits for the device."""
        if not self._pending:
            return
        losses, norms = (torch.stack(column).tolist() for column in zip(*self._pending, strict=True))
        step = self.step - len(self._pending)
        self._pending.clear()
        for loss, norm in zip(losses, norms, strict=True):
            step += 1
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise self._not_finite(step, loss, norm)
            self._window.loss += loss
        self._window.seconds += self._clock.lap("steps")

    def _stop_reason(self) -> str | None:
        """Updates the run's progress; returns the reason to stop, or None.

        Here all ranks agree, in one collective a step, on the time, the signals received, the stop requests of
        callbacks, and the number of predictions in the next step.
        """
        ranks, step, epochs = self.engine.ranks, self.step, self._feed.epochs
        if self.pace is not None and self.pace.is_due(step):
            self._change_pace(self.pace)
        predictions = self._feed.count_next(step) if ranks.size > 1 and not self._ends_at(step) else 0
        wants_stop = self.callbacks is not None and self.callbacks.wants_stop
        seconds, reserved, signals, stops, total = ranks.sum(
            *self._clock.own_seconds(ranks, step), self._interrupts.received, wants_stop, predictions
        )
        self._interrupted, self._total = signals > 0, int(total)
        limit = self._clock.update(seconds, reserved, step, epochs)
        self.logging.log.tick(step, self._clock.progress, self._clock.left())
        patience = self.evaluation.patience if self.evaluation else None
        if patience is not None and self._best.stale >= patience:
            return "patience"
        return limit or ("callback" if stops else None)

    def _change_pace(self, pace: Pace) -> None:
        """Plans the rest of the run anew by its speed since the last such step, or as this run did before a kill."""
        step, clock = self.step, self._clock
        decided = pace.recorded(step)
        if decided is None:
            self._read_losses()
            every = self.evaluation.every if self.evaluation else None
            decided = self.engine.ranks.broadcast(pace.decide(step, clock, every or step / self._feed.epochs))
        if (line := pace.change(step, decided, clock.spent["steps"])) is not None:
            self.logging.log.note(line)
        self._use_planned_steps(pace)

    def _use_planned_steps(self, pace: Pace) -> None:
        self.limits = self._clock.limits = replace(self.limits, planned_steps=pace.planned)
        self._clock.least_progress = pace.least_progress

    def _ends_at(self, step: int) -> bool:
        """Returns True if the run ends after ``step`` steps whatever the time; all ranks return the same."""
        shares = self.limits.shares(steps=step, epochs=self._feed.epochs, seconds=0.0)
        return any(share >= 1 for share in shares.values())

    def _callback_reason(self) -> str | None:
        """Returns "callback" if a callback of any rank stops the run, else None."""
        if self.callbacks is None:
            return None
        return "callback" if self.engine.ranks.sum(self.callbacks.wants_stop)[0] else None

    def last_loss(self) -> float | None:
        """Returns the loss of the last step for each prediction; None before the first step. Waits for the device."""
        return None if self._last_loss is None else self._last_loss[0].item() / self._last_loss[1]

    def _due(self, every: int | None) -> bool:
        step = self.step
        return step > 0 and (step % every == 0 if every else float(self._feed.epochs).is_integer())

    # ------------------------------------------------------------------------------------------------------ evaluations

    def _measure(self, interrupts: Interrupts) -> dict[str, float] | None:
        """Evaluates, and saves the weights if they are the best; training's random numbers stay the same."""
        assert self.evaluation is not None
        self._read_losses()
        weights = nullcontext() if self.average is None else self.average.swapped()
        self.model.eval()
        try:
            with weights, torch.no_grad():
                metrics = self._evaluated(self.evaluation, interrupts)
                if metrics is not None and self._best.update(self.step, metrics):
                    self.evaluation.on_better(metrics)
        finally:
            self.model.train()
        self._counters.evaluated = self.step
        self._clock.lap("evaluations")
        return metrics

    def _evaluated(self, evaluation: Evaluation, interrupts: Interrupts) -> dict[str, float] | None:
        """Evaluates on all ranks. One process can be interrupted at once; several end the evaluation first."""
        ranks = self.engine.ranks
        share, started = ranks.broadcast(self._clock.evaluation_share()), running_time()
        if share < 1:
            self.logging.log.note(
                f"! step {self.step:,}: --max-minutes leaves time for only {share:.0%} of the validation examples"
            )
        with (
            self.engine.evaluating(self.model),
            interrupts.at_once() if ranks.size == 1 else nullcontext(),
            followed(self._show_evaluation),
        ):
            measured = evaluation.measure(self.step, share)
        if share == 1:
            self._clock.evaluation_seconds = running_time() - started
        local_metrics = None if measured is None else {name: float(value) for name, value in measured.items()}
        metrics: dict[str, float] | None = ranks.broadcast(local_metrics)
        return metrics

    def _show_evaluation(self, done: int, total: int) -> None:
        self.logging.log.evaluating(self.step, done, total, self._clock.left())

    def _margin(self) -> float:
        return 0.0 if self.evaluation is None else float(self.engine.ranks.broadcast(self.evaluation.margin()))

    def _scored(self) -> int:
        return 0 if self.evaluation is None else int(self.engine.ranks.broadcast(self.evaluation.scored()))

    def forget_best(self, saved: Mapping[str, float]) -> bool:
        """Forgets which weights are the best if the saved best weights have other metrics; returns True if it did.

        ``saved`` are the metrics in the folder of the saved weights.
        """
        if self._best.same(saved):
            return False
        self._best.forget()
        return True

    # -------------------------------------------------------------------------------------------------------------- log

    def _write_line(self, metrics: Mapping[str, float] | None) -> None:
        """Writes a line of the log: the mean loss and speed since the last line, and the evaluation if there was
        one.
        """
        self._read_losses()
        counters, window = self._counters, self._window
        line: dict[str, Any] = {"step": counters.step, "epoch": round(self._feed.epochs, 4)}
        if window.tokens:
            line["loss"] = window.loss / window.tokens
            line["lr"] = max(group["lr"] for group in self.optimiser.param_groups)
            line[f"{self.objective.unit}_per_second"] = round(window.tokens / window.seconds, 1)
        if (ceiling := self.logging.ceiling) is not None:
            if (share := ceiling.share(window.seconds)) is not None:
                line["share_of_ceiling"] = round(share, 4)
            self._clock.lap()  # the measurement is not part of a step
        if counters.skipped:
            line["skipped"] = counters.skipped
        line["seconds"] = round(self._clock.seconds, 3)
        line.update({f"valid_{name}": value for name, value in (metrics or {}).items()})
        if metrics and self.evaluation is not None and (samples := self.evaluation.samples()):
            line["samples"] = list(samples)
        if window.tokens or metrics:
            self.logging.log.write(line, left=self._clock.left())
            self._free_memory.release_if_grown()
        self._window = LogWindow()

    # ------------------------------------------------------------------------------------------------------ checkpoints

    def _save_due(self, evaluated: bool) -> bool:
        """Returns True if a checkpoint is due; a short epoch may end without a checkpoint."""
        if self.saving is None:
            return False
        if self.saving.every is not None:
            return self._due(self.saving.every)
        return evaluated or (
            self._due(None) and (self._saved is None or self._clock.updated - self._saved_at >= MIN_SECONDS)
        )

    def _save(self, rescue: bool = False) -> None:
        """Writes the state after the last complete step, unless it is written already.

        ``rescue``: this rank writes in place of rank 0, which was lost.
        """
        counters = self._counters
        self._read_losses()
        if self.saving is None or (self._saved == (counters.step, counters.evaluated) and not rescue):
            return  # a rescue writes again: it is not known whether the lost rank ended its writing
        state = self.state()
        if rescue:
            self.saving.checkpoints.rescue(state)
        elif self.engine.writes:
            self.saving.checkpoints.save(state, wait=False)
        self._saved, self._saved_at = (counters.step, counters.evaluated), self._clock.updated
        self._reduced = False
        if self.callbacks is not None and not rescue:
            self.callbacks.saved()
        self._clock.lap()

    def _wait(self) -> None:
        """Waits until the last checkpoint is written."""
        if self.saving is not None:
            self.saving.checkpoints.wait()

    def state(self) -> dict[str, Any]:
        """Returns the state of the run as a checkpoint stores it."""
        window = {f"window_{name}": value for name, value in vars(self._window).items()}
        return {
            "format": FORMAT,
            "numbers": asdict(self._counters) | self._clock.state() | self._best.state() | window,
            "loader": self._feed.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            **self.engine.state(self.model, self.optimiser),
        }

    def reduce_checkpoint(self) -> None:
        """Rewrites the checkpoint of a run that has ended, without the weights that the run folder stores too.

        The complete checkpoint stays until the smaller one is written. The next checkpoint is complete again.
        """
        if self.saving is not None and self.saving.stored is not None and not self._reduced:
            self.saving.checkpoints.replace(without_stored(self.state(), self.saving.stored))

    def _restore(self, state: Mapping[str, Any], saving: Saving) -> None:
        """Restores a checkpoint.

        The optimiser keeps the settings given now. Its moments are restored, and also the learning rate of the last
        step, since the log line of that step may not be written yet.
        """
        path = saving.checkpoints.path
        if saving.stored is not None:
            whole = with_stored(state, saving.stored, path)
            state, self._reduced = whole, whole is not state
        if state.get("format") != FORMAT:
            raise HeedfulError(f"{path} was not written by this version of heedful; start a new run")
        if (state["average"] is None) != (self.average is None):
            raise HeedfulError(
                f"{path} was written with averaging {'on' if state['average'] else 'off'}; resume with the same "
                "--averaging options"
            )
        restored = ("params", "lr")
        settings = [{k: v for k, v in group.items() if k not in restored} for group in self.optimiser.param_groups]
        self._feed.load_state_dict(state["loader"])
        try:
            self.engine.restore(self.model, self.optimiser, state)
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise HeedfulError(
                f"the weights in {path} do not fit this model; resume with the model the run started with ({reason})"
            ) from None
        for group, given in zip(self.optimiser.param_groups, settings, strict=True):
            group.update(given)
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        numbers = state["numbers"]
        self._counters = _Counters(**{field.name: numbers[field.name] for field in fields(_Counters)})
        self._clock.restore(numbers)
        if self.pace is not None:
            self.pace.begin(self._counters.step, self._clock.spent["steps"])
            self._use_planned_steps(self.pace)
        self._best.restore(numbers)
        self._window = LogWindow(**{field.name: numbers[f"window_{field.name}"] for field in fields(LogWindow)})
        if self.engine.ranks.size == 1:  # several ranks never split
            self._gradient.parts = self._counters.parts
        self._saved, self._saved_at = (self._counters.step, self._counters.evaluated), self._clock.seconds

    # -------------------------------------------------------------------------------------------------------------- end

    def _lost_rank(self, error: BaseException) -> HeedfulError:
        """Saves the state after another rank was lost, if this rank has all of it; returns the error.

        During a step any rank may write in place of rank 0: if rank 0 was lost, it had completed the step before.
        """
        before, first, sharded = self._loader_before, self.engine.ranks.is_first, self.engine.needs_all
        if before is not None:
            self._feed.load_state_dict(before)  # the step in flight did not end
        if not sharded and (first or before is not None):
            self._save(rescue=not first)
        with suppress(Exception, SystemExit):  # a write may have failed with the lost rank
            self._wait()
        return HeedfulError(loss_message(error, f", at step {self.step + 1:,}{self._newest_checkpoint()}"))

    def _newest_checkpoint(self) -> str:
        """Returns the end of a message that names the newest checkpoint; "" without one."""
        if self.saving is None or self.saving.checkpoints.step is None:
            return ""
        checkpoints = self.saving.checkpoints
        return f"; the checkpoint of step {checkpoints.step:,} is in {checkpoints.path}"

    def _outcome(self, reason: str) -> Outcome:
        return Outcome(
            steps=self.step,
            epochs=self._feed.epochs,
            tokens=self._counters.tokens,
            seconds=self._clock.seconds,
            best=self._best.best,
            highest=self._best.highest[1] if self._best.highest else None,
            met=reason,
            stopped_because=reason,
        )
