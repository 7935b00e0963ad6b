"""A training run: files in, model folder out.

``train`` is the sequence: settings (``resolve``) → data → task and model → time (``time_limit``) → folder
(``run_folder``), which is ``prepare``; then optimiser and loop (``build_loop``), ``loop.fit()``, and ``finish``.

The first weights are those of the checkpoint of a resumed run, else of the model named by ``--from``, else fresh ones
of the preset. Settings are taken from the command line, else ``--config``, else the recipe, else what the data
suggests, else the machine; they are printed and saved in ``run.toml``, which ``--config`` reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from heedful import tasks
from heedful.data import Rows
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError
from heedful.kernels.onednn_linear import emulates_bfloat16
from heedful.kernels.plan import apply_training_plan
from heedful.layers.norm import BatchNorm
from heedful.models import Model
from heedful.models.base import device_of
from heedful.models.create import create
from heedful.pretrained import load, read_card
from heedful.pretrained.fill_model import make_contiguous
from heedful.settings import ResolvedSettings, RunSettings
from heedful.stack import set_drop_path
from heedful.tasks.run_data import divided, rule_of
from heedful.tasks.task import Encoded, Measured, Task
from heedful.training.averages import average_of
from heedful.training.ceiling import Ceiling, flops_of, most_flops
from heedful.training.checkpoint import Checkpoints
from heedful.training.clock import ReservedTime
from heedful.training.determinism import deterministic, fixed_workspace, threads_restored, use_threads
from heedful.training.engine import Alone, engine_of
from heedful.training.finish import finish
from heedful.training.guard import GradientLimits
from heedful.training.layer_rates import layer_rates
from heedful.training.loader import Loader
from heedful.training.log import Log
from heedful.training.loop import Loop
from heedful.training.loop_parts import Evaluation, Logging, Objective, Optimiser, Saving
from heedful.training.memory import within_memory
from heedful.training.muon import muon
from heedful.training.optimisation import adamw
from heedful.training.report import card_of, described, digest, write_trained_on
from heedful.training.reporters import check_reports, reporters
from heedful.training.resolve import asked_for, resolved, spread
from heedful.training.run_folder import (
    begin,
    begun,
    check_checkpoint,
    check_overwrite,
    check_unused,
    save_task_and_model,
    stored_weights,
    taken_up,
    told_anew,
)
from heedful.training.schedule import Limits, schedule
from heedful.training.time_limit import Plan, ending_seconds, fresh_model, plan_run
from heedful.training.validation import Validation
from heedful.util.locks import locked
from heedful.util.ranks import Ranks, joined, own_device

if TYPE_CHECKING:
    from heedful.training.record_attention import AttentionRecorder

SHORT_EPOCH = 250  # steps below which evaluations are so many steps apart: each predicts hundreds of examples
Say = Callable[[str], None]
Draw = Callable[[Path, Measured, Rows], object]
Audit = Callable[[Task, Rows, Rows, Encoded], Sequence[str]]


def train(
    settings: RunSettings,
    say: Say = print,
    quiet: bool = False,
    draw: Draw | None = None,
    watched: Callable[[Path], object] | None = None,
    began: float | None = None,
    audit: Audit | None = None,
) -> dict[str, Any]:
    """Trains a model for ``settings.task`` and writes its folder.

    Of several processes that ``torchrun`` started each trains on its share of every step. Rank 0 writes what the
    run begins with, while the others wait; it alone writes and prints. It locks the folder until the run has ended.

    Args:
        settings: the settings as given; None fields are resolved here.
        say: takes the lines that describe the run and its result.
        quiet: show no progress.
        draw: given the folder, the best evaluation and its rows at the end.
        watched: given the folder whenever the attention maps of ``--training.record-attention`` were written to it.
        began: the clock (``time.monotonic``) from which ``--max-minutes`` counts; now where it is None.
        audit: given the task, its training and validation rows and the encoded training examples, returns warnings
            about the data; they are printed before the first step.

    Returns:
        ``{"task", "model", "metrics", "seconds", "steps", "epochs", "stopped_because", "parameters", "trained",
        "settings"}``, the ``"verdict"`` (see :func:`heedful.training.report.judged`), and the task's details of the
        best evaluation (``"by_class"``, ...).

    Raises:
        HeedfulError: for anything in the data or settings that cannot be right, before anything is written; for a
            folder in which another process trains, or that holds a run which is neither resumed nor overwritten.
    """
    began = time.monotonic() if began is None else began
    with joined() as ranks, threads_restored(), ExitStack() as stack:
        if not ranks.first:
            say, quiet, draw, watched, audit = print_nothing, True, None, None, None
            ranks.follow()
            settings = replace(settings, resume=True, overwrite=False)  # as the first has begun it
        with ranks.waiting() if ranks.first else nullcontext():
            if ranks.first and not stack.enter_context(locked(Path(settings.out))):
                say(f"! the file system of {settings.out} has no locks; start no second run in that folder")
            check_unused(settings)
            run = prepare(settings, ranks, say, began=began, watched=watched, audit=audit)
        ranks.wait()  # each has read the data
        validation = Validation(run.task, run.model, run.valid, run.settings, run.watch)
        loop = build_loop(run, validation, ranks, quiet, say)
        with deterministic(run.settings.deterministic), within_memory(run.settings.training):
            outcome = loop.fit()
        return finish(run, loop, validation, outcome, say, draw)


def print_nothing(line: str) -> None:
    """Prints nothing: for all ranks but the first."""


# -------------------------------------------------------------------------------------------- settings, data and model


@dataclass(frozen=True, kw_only=True)
class Run:
    """Parts of a run before its first step.

    Attributes:
        settings: resolved; as the plan for ``--max-minutes`` has them.
        task: with what it learned from the data (tokenizer, label names).
        model: on its device.
        train: encoded training examples.
        valid: encoded validation examples.
        began: ``time.monotonic`` from which ``--max-minutes`` counts.
        ending: seconds of ``--max-minutes`` reserved for what follows the last evaluation.
        card: content of ``heedful.json``; without a digest of the data until the settings are fitted to the time.
        plan: of a new run with ``--max-minutes``.
        watch: records attention maps; on rank 0 with ``--training.record-attention``.
    """

    settings: ResolvedSettings
    task: Task
    model: Model
    train: Encoded
    valid: Encoded
    began: float
    ending: float
    card: dict[str, Any] = field(default_factory=lambda: {"data": {"sha256": ""}})
    plan: Plan | None = None
    watch: AttentionRecorder | None = None

    @property
    def out(self) -> Path:
        """The run's folder."""
        return Path(self.settings.out)


def prepare(
    given: RunSettings,
    ranks: Ranks,
    say: Say,
    *,
    began: float,
    watched: Callable[[Path], object] | None = None,
    audit: Audit | None = None,
) -> Run:
    """Returns a run as far as the first step; the same on each rank, but only the first writes its folder."""
    out, worked = Path(given.out), time.process_time()
    kind, given = _merged(given, ranks, say)
    same: Same = content_digest
    if given.resume:
        kind, same = kind.for_folder(out / "last"), rule_of(read_card(out / "last"))

    rows, valid_rows = divided(kind, given, settled=given.resume, same=same)
    kind = kind if given.resume else kind.for_rows(rows, given)
    device = device_of(own_device(given.device))
    settings = resolved(kind, rows, given, device, say)
    use_threads(settings.training.threads, say)

    task, model = _task_and_model(kind, rows, settings)
    task.before_training(model, settings)
    make_contiguous(model.to(device))
    train, valid = (task.encode(part, settings.data.max_length) for part in (rows, valid_rows))

    slowdown = (time.monotonic() - began) / max(0.1, time.process_time() - worked)
    ending = ending_seconds(settings, model, slowdown)
    run = Run(settings=settings, task=task, model=model, train=train, valid=valid, began=began, ending=ending)
    if not settings.resume and settings.max_minutes:
        run = _fitted(run, given, lambda other: resolved(kind, rows, other, device), ranks)
    for line in (
        *described(task, train, valid, run.model, run.settings, ranks.size, _notes(rows, valid_rows)),
        *(run.plan.lines() if run.plan is not None else ()),
        *(audit(task, rows, valid_rows, train) if audit is not None else ()),
    ):
        say(line)

    watch = _watch(run, watched) if run.settings.training.record_attention and ranks.first else None
    run = replace(run, card=card_of(task, train.rows, run.settings, rows.mapping, same), watch=watch)
    _begin_folder(run)
    return run


def _merged(given: RunSettings, ranks: Ranks, say: Say) -> tuple[type[Task], RunSettings]:
    """Returns the task's class, and the settings as given: on the command line, by the resumed run, by the recipe."""
    check_overwrite(given)
    if given.resume:
        given = taken_up(given, say, tidy=ranks.first)
    given = replace(given, seed=given.seed or 0)
    if given.deterministic:
        fixed_workspace()
    kind = tasks.chosen(given)
    check_reports(given.training.report or ())
    return kind, spread(asked_for(kind, given), ranks, say)


def _task_and_model(kind: type[Task], rows: Rows, settings: ResolvedSettings) -> tuple[Task, Model]:
    """Returns the task and the model: those of the resumed run, of ``--from``, or of the preset with fresh weights."""
    out = Path(settings.out)
    if settings.resume:
        check_checkpoint(out)
        return kind.load(out / "last"), load(out / "last", dtype="float32")
    if settings.start_from:
        task, model = kind.for_fine_tuning(settings.start_from, rows, settings)
        if settings.lora.rank is not None or model.adapter is not None:
            _adapt(model, settings)
        return task, model
    task = kind.prepare(rows, settings)
    return task, create(task.config(settings), seed=settings.seed)


def _adapt(model: Model, settings: ResolvedSettings) -> None:
    """Adds the adapter of ``--lora.rank``; of a model that has an adapter, lets what is fresh be trained as well."""
    from heedful.adapters import LoraConfig, add_adapter, fresh_head, train_whole

    if settings.lora.rank is None:
        train_whole(model, fresh_head(model))
    elif model.adapter is not None:
        raise HeedfulError(
            f"{settings.start_from} is an adapter already; leave --lora.rank out to go on with it, or start from its "
            "base"
        )
    else:
        add_adapter(model, LoraConfig(**settings.lora.given()), seed=settings.seed)
    if Path(model.source).is_relative_to(Path(settings.out).resolve()):
        raise HeedfulError(f"--out {settings.out} holds {model.source}, which the adapter needs; choose another --out")


def _fitted(run: Run, given: RunSettings, resolve: Callable[[RunSettings], ResolvedSettings], ranks: Ranks) -> Run:
    """Returns the run with its settings, and its model where that is smaller, fitted to ``--max-minutes``."""

    def untrained_loop(settings: ResolvedSettings, model: Model) -> Loop:
        return build_loop(replace(run, settings=settings, model=model), None, Ranks(), quiet=True)

    plan = plan_run(
        given,
        run.settings,
        run.task,
        run.model,
        run.valid,
        ends=run.began + 60 * (run.settings.max_minutes or 0.0) - run.ending,
        ranks=ranks,
        resolve=resolve,
        build_loop=untrained_loop,
    )
    if plan is None:
        return run
    smaller = plan.settings.model != run.settings.model
    model = fresh_model(run.task, plan.settings, run.model.device) if smaller else run.model
    return replace(run, settings=plan.settings, model=model, plan=plan)


def _notes(rows: Rows, valid: Rows) -> list[str]:
    """Returns notes on how the files were read; of validation only those that differ."""
    return [*rows.notes, *(f"validation: {note}" for note in valid.notes if note not in rows.notes)]


def _watch(run: Run, watched: Callable[[Path], object] | None) -> AttentionRecorder:
    from heedful.training.record_attention import AttentionRecorder

    return AttentionRecorder(run.task, run.model, run.settings.training.record_attention, run.out, watched)


def _begin_folder(run: Run) -> None:
    """Writes what a new run begins with; a resumed run reads it, whatever it was made from."""
    settings, out = run.settings, run.out
    if not settings.resume:
        begin(out, settings)
        save_task_and_model(run.model, run.task, out / "last", {**run.card, "steps": 0})
        write_trained_on(run.task, run.train.rows, settings)
    if run.watch is not None:
        run.watch.begin(fresh=not settings.resume)
    if not settings.resume:
        begun(out, settings)


# -------------------------------------------------------------------------------------------------- optimiser and loop


def build_loop(run: Run, validation: Validation | None, ranks: Ranks, quiet: bool, say: Say = print_nothing) -> Loop:
    """Returns the loop of a run, which has not begun: its kernels are applied to the model, its optimiser is new.

    Args:
        run: the parts.
        validation: evaluates; None: the run is not evaluated.
        ranks: the processes.
        quiet: show no progress.
        say: takes the lines of a run that is resumed.
    """
    settings, task, model = run.settings, run.task, run.model
    training, out = settings.training, run.out
    loader = _loader(run)
    dtype = torch.bfloat16 if training.precision == "bf16" else torch.float32
    if settings.model.drop_path:
        set_drop_path(model, settings.model.drop_path)
    flops, passes = flops_of(model), 2 if settings.model.r_drop else 1
    ceiling = Ceiling(lambda batch: passes * flops(batch), partial(most_flops, model.device, dtype))
    engine = engine_of(ranks, training.shard, training.precision == "bf16")
    apply_training_plan(
        model,
        training.kernels,
        whole=not training.shard,
        recompute=training.gradient_checkpointing,
    )
    objective = Objective(
        loss=engine.learner(model, lambda model, batch: task.objective(model, batch, training.label_smoothing)),
        count=task.count,
        unit=task.unit,
        divisible=task.additive_loss and not any(isinstance(part, BatchNorm) for part in model.modules()),
    )
    averaging = settings.averaging
    average = average_of(model, polynomial=averaging.polynomial, ema=averaging.ema, last=averaging.last)
    optimiser = _optimiser(model, settings, dtype)
    checkpoints = Checkpoints(out, training.keep or 1, speaks=ranks.first)
    if engine.needs_all:
        from heedful.training.sharded import ShardedCheckpoints  # a second that other runs need not wait for

        checkpoints = ShardedCheckpoints(out, ranks, lambda: loop.state(), training.keep or 1)
    loop = Loop(
        model=model,
        objective=objective,
        loader=loader,
        optimiser=optimiser,
        schedule=schedule(training.schedule, training.warmup, training.min_lr_ratio, training.decay_ratio),
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
        average=average,
        evaluation=None if validation is None else _evaluation(run, validation, engine, loader),
        saving=Saving(
            checkpoints=checkpoints,
            every=training.save_every,
            stored=lambda name: stored_weights(out / name, model.device),
            on_resume=partial(_apply_new_settings, settings=settings, ranks=ranks, say=say),
        ),
        logging=Logging(
            log=Log(
                out / "metrics.jsonl" if ranks.first else None,
                quiet=quiet,
                reporters=reporters(training.report, out, settings.to_dict()) if ranks.first else (),
            ),
            every=training.log_every,
            ceiling=ceiling if ranks.first else None,
        ),
        reserved=ReservedTime(
            beginning=time.monotonic() - run.began,
            evaluation=run.plan.evaluation_seconds if run.plan is not None else 0.0,
            ending=run.ending,
        ),
    )
    return loop


def _loader(run: Run) -> Loader:
    task, training, examples = run.task, run.settings.training, run.train.examples
    lengths = task.lengths(examples)
    return Loader(
        lengths,
        lambda indices, random: task.collate([examples[i] for i in indices], random),
        tokens=training.token_budget(int(lengths.max())),
        max_rows=training.batch_size,
        accumulate=training.accumulate,
        seed=run.settings.seed,
        digests={"training data": run.card["data"]["sha256"], "validation data": digest(run.valid.rows)},
    )


def _optimiser(model: Model, settings: ResolvedSettings, dtype: torch.dtype) -> Optimiser:
    """Returns AdamW or Muon; Muon orthogonalises in ``dtype`` where the machine computes fast in it."""
    product = torch.float32 if emulates_bfloat16(model.device) else dtype
    optimisers: Mapping[str, Callable[..., Optimiser]] = {"adamw": adamw, "muon": partial(muon, dtype=product)}
    training = settings.training
    return optimisers[training.optimiser](
        model,
        lr=training.lr,
        betas=training.betas,
        eps=training.eps,
        weight_decay=training.weight_decay,
        rates=layer_rates(model, settings.tuning.layer_decay),
    )


def _evaluation(run: Run, validation: Validation, engine: Alone, loader: Loader) -> Evaluation:
    """Returns when the run is evaluated, and what then happens: the best weights go to the run's folder."""
    training, every = run.settings.training, run.settings.training.evaluate_every
    if every is None and loader.steps_per_epoch < SHORT_EPOCH:
        every = SHORT_EPOCH

    def save_best(metrics: Mapping[str, float]) -> None:
        with engine.whole(run.model) as model:
            save_task_and_model(model, run.task, run.out, {**run.card, "metrics": dict(metrics)})
        validation.keep()

    return Evaluation(
        measure=validation.measure,
        every=every,
        metric=run.task.main_metric,
        margin=validation.margin,
        patience=training.patience or None,
        on_better=save_best,
        samples=lambda: validation.samples,
    )


def _apply_new_settings(loop: Loop, *, settings: ResolvedSettings, ranks: Ranks, say: Say) -> None:
    """Saves the settings of a resumed run. Where they are new, and the best weights were replaced after the checkpoint,
    the run may not come to those again: then the next weights that are evaluated are the best.
    """
    out, metrics = Path(settings.out), None
    if ranks.first:
        same = told_anew(out, settings)
        metrics = None if same else read_card(out).get("metrics", {})
    metrics = ranks.same(metrics)
    if metrics is not None and loop.forget_best(metrics):
        say("! the best weights so far were replaced after this checkpoint; those evaluated next are the best")
