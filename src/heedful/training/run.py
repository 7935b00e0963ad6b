"""A training run: files in, model folder out.

``train`` is the sequence: settings (``resolve``) → data → task and model → time (``time_limit``) → folder
(``run_folder``), which is ``prepare``; then optimiser and loop (``build_loop``), ``loop.fit()``, and ``finish``.

The first weights are those of the checkpoint of a resumed run, else of the model named by ``--from``, else fresh
weights of the preset. Settings are taken from the command line, else ``--config``, else the recipe, else what the data
suggests, else the machine; they are printed and saved in ``run.toml``, which ``--config`` reads.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from heedful import tasks
from heedful.data import Rows
from heedful.data.batching import training_batches
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError
from heedful.kernels.onednn_linear import emulates_bfloat16
from heedful.kernels.plan import apply_training_plan
from heedful.layers.experts import Router
from heedful.layers.norm import BatchNorm
from heedful.models import Model
from heedful.models.base import device_of
from heedful.pretrained import read_card
from heedful.pretrained.fill_model import align_weights
from heedful.pretrained.upload import check_push
from heedful.settings import ResolvedSettings, RunSettings
from heedful.stack import set_drop_path
from heedful.tasks.known_models import advice_for
from heedful.tasks.model_setup import fresh_model, new_model, replace_head
from heedful.tasks.run_data import counting_unreadable_images, equality_rule, read_run_data
from heedful.tasks.task import Encoded, Measured, Task
from heedful.training.averages import create_average
from heedful.training.ceiling import Ceiling, flops_of, peak_flops
from heedful.training.checkpoint import Checkpoints
from heedful.training.clock import STOPPED, ReservedTime, running_time
from heedful.training.determinism import deterministic, fixed_workspace, threads_restored, use_threads
from heedful.training.engine import Alone, create_engine, uses_same_parameters
from heedful.training.finish import finish
from heedful.training.guard import GradientLimits
from heedful.training.loader import Loader
from heedful.training.log import Log, logged
from heedful.training.loop import Loop
from heedful.training.loop_parts import CustomParts, Evaluation, Logging, Objective, Optimiser, Saving
from heedful.training.memory import within_memory
from heedful.training.muon import muon
from heedful.training.optimisation import OPTIMISERS, adamw, layer_rates
from heedful.training.pace import Changes, Pace, decision_texts
from heedful.training.precision import evaluation_autocast, tf32
from heedful.training.report import baseline_seconds, card_of, digest, opening_lines, write_trained_on
from heedful.training.reporters import check_reports, reporters
from heedful.training.resolve import for_ranks, resolved, with_recipe
from heedful.training.router_loss import has_experts, with_router_loss
from heedful.training.run_folder import (
    check_checkpoint,
    check_overwrite,
    check_unused,
    create_run_folder,
    mark_complete,
    read_starting_tensors,
    resumed_settings,
    save_resumed_settings,
    save_settings,
    save_task_and_model,
    stored_weights,
    write_starting_tensors,
)
from heedful.training.schedule import Limits, schedule
from heedful.training.teacher import TimeTooShort, with_teacher
from heedful.training.time_limit import TimePlan, ending_seconds, plan_run
from heedful.training.validation import Validation
from heedful.util.busy_machine import sleep_while_waiting
from heedful.util.locks import locked
from heedful.util.ranks import Ranks, join_ranks, own_device

if TYPE_CHECKING:
    from heedful.training.record_attention import AttentionRecorder

TRACE = "trace.json"  # of --training.profile
LOG_LINES = 20  # of a short run
FEW_EXAMPLES = 50_000  # up to which the steps of an epoch are counted for that
SHORT_EPOCH = 250  # steps below which evaluations are so many steps apart: each predicts hundreds of examples
Say = Callable[[str], None]
Draw = Callable[[Path, Measured, Rows], object]
Audit = Callable[[Task, Rows, Rows, Encoded], Sequence[str]]


def train(
    settings: RunSettings,
    say: Say = print,
    quiet: bool = False,
    draw: Draw | None = None,
    draw_attention: Callable[[Path], object] | None = None,
    started: float | None = None,
    audit: Audit | None = None,
    custom: CustomParts | None = None,
    is_teacher: bool = False,
) -> dict[str, Any]:
    """Trains a model for ``settings.task`` and writes its folder.

    With several processes (``torchrun``) each rank computes some micro-batches of every step. Only rank 0 writes and
    prints; the other ranks wait while it writes the run's first files. Rank 0 locks the folder until the run has ended.

    Args:
        settings: the settings as given; fields that are None are inferred here.
        say: is called with each line that describes the run or its result; they are also logged (``heedful.training``).
        quiet: show no progress.
        draw: called at the end with the folder, the best evaluation and its rows.
        draw_attention: called with the folder after each change of the attention maps of
            ``--training.record-attention``.
        started: ``time.monotonic`` from which ``--max-minutes`` counts; None: now.
        audit: given the task, its training and validation rows and the encoded training examples, returns warnings
            about the data; they are printed before the first step.
        custom: optimiser, schedule, objective, metrics and callbacks that are passed from Python.
        is_teacher: the run trains the teacher of another run, in whose folder it is.

    Returns:
        ``{"task", "model", "metrics", "seconds", "steps", "epochs", "stopped_because", "parameters", "trained",
        "settings"}``, the ``"verdict"`` (see :func:`heedful.training.report.save_verdict`), and the task's details of
        the best evaluation (``"by_class"``, ...).

    Raises:
        HeedfulError: the data or settings are wrong (raised before anything is written), another process trains in the
            folder, or the folder holds a run and neither ``resume`` nor ``overwrite`` is given.
    """
    started, custom = time.monotonic() if started is None else started, custom or CustomParts()
    with join_ranks() as ranks, threads_restored(), STOPPED.counted(), ExitStack() as stack:
        if not ranks.is_first:
            say, quiet, draw, draw_attention, audit = print_nothing, True, None, None, None
            ranks.wait_for_first()
            settings = replace(settings, resume=True, overwrite=False)  # rank 0 has created the folder
        else:
            say = logged(say)
        stack.enter_context(sleep_while_waiting(say))
        with ranks.while_others_wait() if ranks.is_first else nullcontext():
            if ranks.is_first and not stack.enter_context(locked(Path(settings.out))):
                say(f"! the file system of {settings.out} has no file locks; do not start a second run in that folder")
            check_unused(settings)
            run = prepare(
                settings,
                ranks,
                say,
                started=started,
                draw_attention=draw_attention,
                audit=audit,
                custom=custom,
                train_teacher=None if is_teacher else partial(train, quiet=quiet, started=started),
                is_teacher=is_teacher,
            )
        ranks.barrier()  # until all have read the data
        validation = Validation(run.task, run.model, run.valid, run.settings, run.recorder, custom.metrics)
        loop = build_loop(run, validation, ranks, quiet, say)
        with (
            deterministic(run.settings.deterministic),
            tf32(run.settings.training.tf32, run.device),
            within_memory(run.settings.training),
            profiled(run, loop, ranks),
        ):
            outcome = loop.fit()
        with tf32(run.settings.training.tf32, run.device):
            result = finish(run, loop, validation, outcome, say, draw)
        if loop.callbacks is not None:
            loop.callbacks.end(result)
        return result


@contextmanager
def profiled(run: Run, loop: Loop, ranks: Ranks) -> Iterator[None]:
    """Context manager that with ``--training.profile`` writes ``trace.json``, the profile of steps 4 to 8, on rank 0.

    Chrome's ``chrome://tracing`` and https://ui.perfetto.dev show it.
    """
    if not run.settings.training.profile or not ranks.is_first:
        yield
        return
    from torch import profiler

    path = run.out / TRACE
    steps = profiler.schedule(wait=2, warmup=1, active=5, repeat=1)
    with profiler.profile(schedule=steps, on_trace_ready=lambda trace: trace.export_chrome_trace(str(path))) as trace:
        loop.after_step = trace.step
        yield


def print_nothing(line: str) -> None:
    """Prints nothing, for ranks above 0."""


# -------------------------------------------------------------------------------------------- settings, data and model


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run before its first step: its settings, task, model and data.

    Attributes:
        settings: all settings, resolved and fitted to ``--max-minutes``.
        task: the task, with its tokenizer or label names.
        model: the model, on ``device``; with ``--training.shard`` on the CPU, until its blocks are sharded one by one.
        device: the device that computes.
        train: encoded training examples.
        valid: encoded validation examples.
        started: ``time.monotonic`` from which ``--max-minutes`` counts.
        ending_seconds: seconds of ``--max-minutes`` reserved for what follows the last evaluation.
        card: content of ``heedful.json``; without a digest of the data until the settings are fitted to the time.
        plan: time plan of a new run with ``--max-minutes``.
        recorder: records attention maps; on rank 0 with ``--training.record-attention``.
        custom: the parts passed from Python.
        starting: tensors that the task computed from the examples by the starting weights.
        is_teacher: True for the run that trains the teacher of another one, which gets the verdict.
    """

    settings: ResolvedSettings
    task: Task
    model: Model
    device: torch.device
    train: Encoded
    valid: Encoded
    started: float
    ending_seconds: float
    card: dict[str, Any] = field(default_factory=lambda: {"data": {"sha256": ""}})
    plan: TimePlan | None = None
    recorder: AttentionRecorder | None = None
    custom: CustomParts = field(default_factory=CustomParts)
    starting: Mapping[str, torch.Tensor] = field(default_factory=dict)
    is_teacher: bool = False

    @property
    def out(self) -> Path:
        """The run's folder."""
        return Path(self.settings.out)


def prepare(
    given: RunSettings,
    ranks: Ranks,
    say: Say,
    *,
    started: float,
    draw_attention: Callable[[Path], object] | None = None,
    audit: Audit | None = None,
    custom: CustomParts | None = None,
    train_teacher: Callable[..., dict[str, Any]] | None = None,
    is_teacher: bool = False,
) -> Run:
    """Reads the data, creates or loads the model, and returns the run before its first step.

    All ranks return the same run; only rank 0 writes the run's folder. ``train_teacher`` trains a run first, where the
    task suggests a teacher (``heedful.training.teacher``); None: no teacher is trained. ``is_teacher`` is that
    of ``train``.
    """
    out, custom = Path(given.out), custom or CustomParts()
    begun, cpu_seconds = running_time(), time.process_time()
    kind, given = _given_settings(given, ranks, say)
    same: Same = content_digest
    if given.resume:
        custom.check_resumed(given.out, read_card(out / "last").get("custom", {}))
        kind, same = kind.for_folder(out / "last"), equality_rule(read_card(out / "last"))
    given, chosen_by = (given, given) if custom.objective is None else _for_objective(kind, given)
    kind, given, rows, valid_rows = read_run_data(kind, given, say, same, chosen_by)
    is_taught = False
    if train_teacher is not None and not given.resume and custom.objective is None and ranks.size == 1:
        parts = replace(custom, metrics={}, callbacks=None)
        with_one = with_teacher(kind, rows, given, train_teacher, say, custom=parts, audit=audit)
        is_taught = with_one.teacher != given.teacher  # the run of the teacher has said what concerns the data
        audit = None if is_taught else audit
        if with_one is not given:
            kind, given = tasks.chosen(with_one).for_rows(rows, with_one), with_one
    advice = advice_for(kind, rows, given) if ranks.is_first and not is_taught else None
    device = device_of(own_device(given.device))
    with counting_unreadable_images(kind, rows, valid_rows):
        settings = resolved(kind, rows, given, device, say)
        use_threads(settings.training.threads, say)
        task, model = _task_and_model(kind, rows, settings)
        task.before_training(model, settings)
        align_weights(model if settings.training.shard else model.to(device))
        train, valid = (task.encode(part, settings.data.max_length) for part in (rows, valid_rows))
    starting = _starting_tensors(task, model, (train, valid), settings)

    slowdown = (running_time() - begun) / max(0.1, time.process_time() - cpu_seconds)
    run = Run(
        settings=settings,
        task=task,
        model=model,
        device=device,
        train=train,
        valid=valid,
        started=started,
        ending_seconds=ending_seconds(
            settings, model, baseline_seconds(task, rows, len(model.labels)) if settings.max_minutes else 0.0, slowdown
        ),
        custom=custom,
        starting=starting,
        is_teacher=is_teacher,
    )
    if not settings.resume and settings.max_minutes:
        with tf32(settings.training.tf32, device):
            run = _fit_to_time(run, given, lambda other: resolved(kind, rows, other, device), ranks)
        members = settings.model.members or 1
        is_short = run.plan is not None and run.plan.epochs < 1 and members > 1
        if is_short and is_teacher:
            raise TimeTooShort(f"--max-minutes {settings.max_minutes:g} is no epoch of {members} classifiers")
        if is_short and given.model.members is None:
            say(f"time       {settings.max_minutes:g} min are no epoch of {members} classifiers: one is trained")
            single = replace(given, model=replace(given.model, members=1))
            return prepare(
                single, ranks, say, started=started, draw_attention=draw_attention, audit=audit, custom=custom
            )
    elif not settings.resume and given.training.log_every is None:
        run = replace(run, settings=_with_log_lines(run))
    _say_opening(run, ranks, say, _notes(rows, valid_rows), advice)
    for line in audit(task, rows, valid_rows, train) if audit is not None else ():
        say(line)

    recorder = _recorder(run, draw_attention) if run.settings.training.record_attention and ranks.is_first else None
    card = card_of(task, train.rows, run.settings, rows.mapping, same)
    if names := custom.names():
        card["custom"] = names
    run = replace(run, card=card, recorder=recorder)
    _write_first_files(run)
    return run


def _say_opening(
    run: Run, ranks: Ranks, say: Say, notes: Sequence[str], advice: Callable[[], str] | None = None
) -> None:
    """Prints the first lines of a run; ``advice`` returns a line on a model to start from."""
    names = run.custom.names()
    for line in (
        *opening_lines(run.task, run.train, run.valid, run.model, run.device, run.settings, ranks.size, notes),
        *([advice()] if advice is not None else []),
        *([f"custom     {', '.join(f'{part} {name}' for part, name in names.items())}"] if names else []),
        *(run.plan.lines() if run.plan is not None else ()),
    ):
        say(line)


def _for_objective(kind: type[Task], given: RunSettings) -> tuple[RunSettings, RunSettings]:
    """Returns the settings of a run with an objective of its own, and those by which the task's variant is chosen.

    Such an objective reads the batches of a single model, and each example once: without R-Drop unless it is given.
    """
    if given.model.r_drop is None and "model.r_drop" in kind.used_settings and not given.resume:
        given = replace(given, model=replace(given.model, r_drop=0.0))
    return given, replace(given, model=replace(given.model, members=given.model.members or 1))


def _given_settings(given: RunSettings, ranks: Ranks, say: Say) -> tuple[type[Task], RunSettings]:
    """Returns the task's class, and the settings as given: on the command line, by the resumed run, by the recipe."""
    check_overwrite(given)
    if given.resume:
        given = resumed_settings(given, say, tidy=ranks.is_first)
    given = replace(given, seed=given.seed or 0)
    if given.deterministic:
        fixed_workspace()
    kind = tasks.chosen(given)
    check_reports(given.training.report or ())
    if given.push is not None and ranks.is_first:
        check_push(given.push)
    return kind, for_ranks(with_recipe(kind, given), ranks, say)


def _task_and_model(kind: type[Task], rows: Rows, settings: ResolvedSettings) -> tuple[Task, Model]:
    """Returns the task and the model: those of the resumed run, of ``--from``, or of the preset with fresh weights."""
    out = Path(settings.out)
    if settings.resume:
        check_checkpoint(out)
        return kind.load(out / "last"), kind.read_model(out / "last")
    if settings.start_from:
        task, model = kind.for_fine_tuning(settings.start_from, rows, settings)
        if settings.model.head is not None:
            replace_head(model, settings.seed, head=settings.model.head)
        if settings.lora.rank is not None or model.adapter is not None:
            _adapt(model, settings)
        return task, model
    task = kind.prepare(rows, settings)
    return task, new_model(task, settings)


def _adapt(model: Model, settings: ResolvedSettings) -> None:
    """Adds the adapter of ``--lora.rank``; for a model with an adapter, makes its fresh head trainable."""
    from heedful.adapters import LoraConfig, add_adapter, fresh_head, train_whole

    if settings.lora.rank is None:
        train_whole(model, fresh_head(model))
    elif model.adapter is not None:
        raise HeedfulError(
            f"{settings.start_from} is an adapter already; leave --lora.rank out to fine-tune it, or start from its "
            "base model"
        )
    else:
        add_adapter(model, LoraConfig(**settings.lora.given()), seed=settings.seed)
    if Path(model.folder.source).is_relative_to(Path(settings.out).resolve()):
        raise HeedfulError(
            f"--out {settings.out} holds {model.folder.source}, which the adapter needs; choose another --out"
        )


def _starting_tensors(
    task: Task, model: Model, parts: Sequence[Encoded], settings: ResolvedSettings
) -> dict[str, torch.Tensor]:
    """Returns what the task computes once, by the starting weights; in a resumed run it is read from its folder."""
    if settings.resume:
        tensors = read_starting_tensors(Path(settings.out))
    else:
        with evaluation_autocast(settings.training.precision, model.device), tf32(settings.training.tf32, model.device):
            tensors = task.starting_tensors(model, [part.examples for part in parts])
    if tensors:
        task.use_starting_tensors(tensors)
    return tensors


def _fit_to_time(run: Run, given: RunSettings, resolve: Callable[[RunSettings], ResolvedSettings], ranks: Ranks) -> Run:
    """Returns the run with settings that fit ``--max-minutes``, and a smaller model where the plan has one."""

    def untrained_loop(settings: ResolvedSettings, model: Model) -> Loop:
        return build_loop(replace(run, settings=settings, model=model), None, Ranks(), quiet=True)

    plan = plan_run(
        given,
        run.settings,
        run.task,
        run.model,
        run.valid,
        ends=run.started + 60 * (run.settings.max_minutes or 0.0) - run.ending_seconds,
        ranks=ranks,
        resolve=resolve,
        build_loop=untrained_loop,
    )
    if plan is None:
        return run
    model = run.model
    if plan.settings.model != run.settings.model:
        if plan.settings.start_from is None:
            model = fresh_model(run.task, plan.settings, run.device)
        else:
            run.task.before_training(model, plan.settings)  # without R-Drop
    return replace(run, settings=plan.settings, model=model, plan=plan)


def _notes(rows: Rows, valid: Rows) -> list[str]:
    """Returns notes on how the training files were read, and the notes on validation files that differ."""
    return [*rows.notes, *(f"validation: {note}" for note in valid.notes if note not in rows.notes)]


def _recorder(run: Run, draw: Callable[[Path], object] | None) -> AttentionRecorder:
    from heedful.training.record_attention import AttentionRecorder

    return AttentionRecorder(*run.task.recorded(run.model), run.settings.training.record_attention, run.out, draw)


def _write_first_files(run: Run) -> None:
    """Creates the folder of a new run, with its settings, task, untrained model and hashes of the training rows."""
    settings, out = run.settings, run.out
    if not settings.resume:
        create_run_folder(out, settings)
        save_task_and_model(run.model, run.task, out / "last", {**run.card, "steps": 0})
        write_trained_on(run.task, run.train.rows, settings)
        write_starting_tensors(out, run.starting)
    if run.recorder is not None:
        run.recorder.begin(fresh=not settings.resume)
    if not settings.resume:
        mark_complete(out, settings)


# -------------------------------------------------------------------------------------------------- optimiser and loop


def build_loop(run: Run, validation: Validation | None, ranks: Ranks, quiet: bool, say: Say = print_nothing) -> Loop:
    """Returns the loop of a run before its first step; applies the run's kernels to the model.

    Args:
        run: the prepared run.
        validation: evaluates the model; None: the run is not evaluated.
        ranks: the ranks of the run.
        quiet: show no progress.
        say: is called with each line about a resumed run.
    """
    settings, model, training = run.settings, run.model, run.settings.training
    dtype = torch.bfloat16 if training.precision == "bf16" else torch.float32
    loader = _loader(run)
    if settings.model.drop_path:
        set_drop_path(model, settings.model.drop_path)
    logging = _logging(run, ranks, dtype, quiet)  # before the kernels are applied
    engine = create_engine(ranks, training.shard, training.precision == "bf16", run.device)
    apply_training_plan(
        model,
        training.kernels,
        device=run.device,
        is_sharded=training.shard,
        recompute=training.gradient_checkpointing,
        compile_blocks=training.compile,
    )
    objective = _objective(run, engine)  # may shard the weights, which the average and the optimiser then hold
    averaging = settings.averaging
    loop = Loop(
        model=model,
        objective=objective,
        loader=loader,
        average=create_average(model, polynomial=averaging.polynomial, ema=averaging.ema, last=averaging.last),
        optimiser=run.custom.create_optimizer(model) if run.custom.optimizer else _optimiser(model, settings, dtype),
        schedule=run.custom.schedule
        or schedule(training.schedule, training.warmup, training.min_lr_ratio, training.decay_ratio),
        limits=Limits(
            max_steps=settings.max_steps,
            max_epochs=settings.max_epochs,
            max_minutes=settings.max_minutes,
            planned_steps=training.planned_steps,
        ),
        gradient_limits=GradientLimits(clip=training.clip or None, skip_spikes=training.skip_spikes or None),
        precision=training.precision,
        seed=settings.seed,
        engine=engine,
        evaluation=None if validation is None else _evaluation(run, validation, engine, loader),
        saving=_saving(run, engine, lambda: loop.state(), say),
        logging=logging,
        callbacks=None if validation is None else run.custom.callbacks,
        reserved=ReservedTime(
            beginning=running_time() - run.started,
            evaluation=run.plan.evaluation_seconds if run.plan is not None else 0.0,
            ending=run.ending_seconds,
        ),
        pace=None if validation is None else _pace(run, ranks),
    )
    return loop


def _pace(run: Run, ranks: Ranks) -> Pace | None:
    """Returns the pace of a run with ``--max-minutes``; None if its planned steps were given."""
    settings, training = run.settings, run.settings.training
    if not settings.max_minutes or training.planned_steps is None or training.replanned is None:
        return None

    def save(changes: Changes) -> None:
        if ranks.is_first:
            save_settings(run.out, replace(settings, training=replace(training, replanned=decision_texts(changes))))

    return Pace(training.planned_steps, training.changes_of_plan(), save)


def _objective(run: Run, engine: Alone) -> Objective:
    task, model, label_smoothing = run.task, run.model, run.settings.training.label_smoothing

    def objective(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return task.objective(model, batch, label_smoothing)

    loss = run.custom.objective or objective
    same_parameters = uses_same_parameters(model, type(task), loss)
    if has_experts(model):
        loss = with_router_loss(loss, task.count)
    return Objective(
        loss=engine.wrap(model, loss, same_parameters),
        count=task.count,
        complete=task.complete,
        unit=task.unit,
        divisible=task.additive_loss and not any(isinstance(part, BatchNorm | Router) for part in model.modules()),
    )


def _saving(run: Run, engine: Alone, state: Callable[[], dict[str, Any]], say: Say) -> Saving:
    """Returns the run's checkpoints and the steps between them; ``state`` returns the loop's state."""
    settings, ranks, keep = run.settings, engine.ranks, run.settings.training.keep_checkpoints or 1
    checkpoints = Checkpoints(run.out, keep, warns=ranks.is_first)
    if engine.needs_all:
        from heedful.training.sharded import ShardedCheckpoints  # imports torch.distributed.checkpoint: a second

        checkpoints = ShardedCheckpoints(run.out, ranks, state, keep)
    return Saving(
        checkpoints=checkpoints,
        every=settings.training.save_every,
        stored=lambda name: stored_weights(run.task, run.out / name, run.device),
        on_resume=partial(_save_new_settings, settings=settings, ranks=ranks, say=say),
    )


def _logging(run: Run, ranks: Ranks, dtype: torch.dtype, quiet: bool) -> Logging:
    """Returns the log, its reporters and the measure of the machine's peak; on ranks above 0 a log without a file."""
    every = run.settings.training.log_every
    if not ranks.is_first:
        return Logging(log=Log(None, quiet=quiet), every=every)
    settings, model, out = run.settings, run.model, run.out
    flops, passes = flops_of(model), 2 if settings.model.r_drop else 1
    return Logging(
        log=Log(
            out / "metrics.jsonl",
            quiet=quiet,
            reporters=reporters(settings.training.report, out, settings.to_dict()),
        ),
        every=every,
        ceiling=Ceiling(lambda batch: passes * flops(batch), partial(peak_flops, run.device, dtype)),
    )


def _with_log_lines(run: Run) -> ResolvedSettings:
    """Returns the settings with ``log_every`` lowered so that a short run has about ``LOG_LINES`` lines."""
    settings, training = run.settings, run.settings.training
    steps = [settings.max_steps] if settings.max_steps else []
    if settings.max_epochs and len(run.train.examples) <= FEW_EXAMPLES:
        lengths, order = _order(run)
        batches = len(training_batches(lengths, epoch=0, **order))
        steps.append(settings.max_epochs * math.ceil(batches / training.accumulate))
    if not steps:
        return settings
    every = min(training.log_every, max(1, min(steps) // LOG_LINES))
    return replace(settings, training=replace(training, log_every=every))


def _order(run: Run) -> tuple[np.ndarray, dict[str, Any]]:
    """Returns the lengths of the training examples, and what decides their batches."""
    training, lengths = run.settings.training, run.task.lengths(run.train.examples)
    tokens = training.token_budget(int(lengths.max()))
    return lengths, {"tokens": tokens, "max_rows": training.batch_size, "seed": run.settings.seed}


def _loader(run: Run) -> Loader:
    task, training, examples = run.task, run.settings.training, run.train.examples
    lengths, order = _order(run)
    return Loader(
        lengths,
        lambda indices, random: task.collate([examples[i] for i in indices], random),
        **order,
        accumulate=training.accumulate,
        digests={"training data": run.card["data"]["sha256"], "validation data": digest(run.valid.rows)},
    )


def _optimiser(model: Model, settings: ResolvedSettings, dtype: torch.dtype) -> Optimiser:
    """Returns AdamW or Muon; Muon orthogonalises in ``dtype`` where the machine has instructions for it."""
    training = settings.training
    if training.optimiser in OPTIMISERS:
        return OPTIMISERS[training.optimiser](model, lr=training.lr, weight_decay=training.weight_decay)
    product = torch.float32 if emulates_bfloat16(model.device) else dtype
    optimisers: Mapping[str, Callable[..., Optimiser]] = {"adamw": adamw, "muon": partial(muon, dtype=product)}
    return optimisers[training.optimiser](
        model,
        lr=training.lr,
        betas=training.betas,
        eps=training.eps,
        weight_decay=training.weight_decay,
        rates=layer_rates(model, settings.tuning.layer_decay),
    )


def _evaluation(run: Run, validation: Validation, engine: Alone, loader: Loader) -> Evaluation:
    """Returns the evaluations of a run, which save the best weights in its folder.

    A model with a teacher keeps the last ones: it learns from more texts than there are, and comes nearer to its
    teacher to the end, while the validation rows choose among its evaluations by chance.
    """
    training, every = run.settings.training, run.settings.training.evaluate_every
    if every is None and loader.steps_per_epoch < SHORT_EPOCH:
        every = SHORT_EPOCH

    def save_best(metrics: Mapping[str, float]) -> None:
        with engine.whole(run.model) as model:
            save_task_and_model(model, run.task, run.out, {**run.card, "metrics": dict(metrics)})
        validation.mark_best()

    return Evaluation(
        measure=validation.measure,
        every=every,
        metric=run.task.main_metric,
        margin=validation.margin,
        scored=validation.scored,
        patience=training.patience or None,
        latest=run.settings.teacher is not None,
        on_better=save_best,
        samples=lambda: validation.samples,
    )


def _save_new_settings(loop: Loop, *, settings: ResolvedSettings, ranks: Ranks, say: Say) -> None:
    """Saves the settings of a resumed run.

    If the settings have changed and the best weights are newer than the checkpoint, the run may never reach those
    weights again: then the weights of the next evaluation become the best.
    """
    out, metrics = Path(settings.out), None
    if ranks.is_first:
        is_unchanged = save_resumed_settings(out, settings)
        metrics = None if is_unchanged else read_card(out).get("metrics", {})
    metrics = ranks.broadcast(metrics)
    if metrics is not None and loop.forget_best(metrics):
        say("! the best weights are from a step after this checkpoint; the next evaluation will replace them")
