"""A whole training run: files in, model folder out.

Weights begin in this order: the checkpoint of a run taken up with ``resume``, else the model named by ``--from``, else
fresh ones of the preset. Settings are taken in this order: asked for, else the preset's, else what the data suggests;
they are printed and kept in ``run.toml``, which ``--config`` reads.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from heedful import tasks
from heedful.adapters import LoraConfig, add_adapter, fresh_head, train_whole
from heedful.data import Rows
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError
from heedful.kernels.onednn_linear import emulates_bfloat16
from heedful.kernels.plan import apply_training_plan
from heedful.layers.norm import BatchNorm
from heedful.metrics.intervals import standard_error
from heedful.models import Model
from heedful.models.base import device_of
from heedful.models.create import create
from heedful.pretrained import load, read_card, save
from heedful.pretrained.fill_model import pack
from heedful.settings import ResolvedSettings, RunSettings
from heedful.stack import set_drop_path
from heedful.tasks.run_data import divided, rule_of
from heedful.tasks.task import Encoded, LoggedSample, Measured, Task
from heedful.training.averages import average_of
from heedful.training.ceiling import Ceiling, flops_of, most_flops
from heedful.training.checkpoint import Checkpoints
from heedful.training.determinism import deterministic, fixed_workspace, threads_restored, use_threads
from heedful.training.engine import engine_of
from heedful.training.layer_rates import layer_rates
from heedful.training.loader import Loader
from heedful.training.log import Log
from heedful.training.loop import Loop, Optimiser, Outcome
from heedful.training.memory import within_memory
from heedful.training.muon import muon
from heedful.training.optimisation import adamw
from heedful.training.range_test import range_test
from heedful.training.report import (
    card_of,
    described,
    digest,
    ended,
    judged,
    too_short,
    trained_parameters,
    write_trained_on,
)
from heedful.training.reporters import check_reports, reporters
from heedful.training.resolve import asked_for, resolved, spread
from heedful.training.run_folder import (
    begin,
    begun,
    check_checkpoint,
    check_overwrite,
    check_unused,
    link_equal_weights,
    taken_up,
    told_anew,
)
from heedful.training.schedule import Limits, schedule
from heedful.training.time_limit import ANSWERED, Plan, Speed, fitted, half_batch, part, sizes, units
from heedful.training.watch import Watch
from heedful.util.locks import locked
from heedful.util.ranks import Ranks, joined, own_device

WORTHWHILE = 2**20  # bytes of a checkpoint above which weights that the folder stores are left out of it
FEWEST = 8  # validation examples of an evaluation, however little time is left
CLOSING, MOST_SLOWDOWN = 3.0, 10.0  # seconds of work at the end of a run, and how often as long it may take
WRITTEN, BYTES_A_SECOND = 3, 1e8  # copies of the weights that are written at the end of a run, and how fast
TRIAL_STEPS = 30  # steps at most by which a run's speed is measured
TOO_LONG = 3  # times the seconds for measuring that the first step may take before it is the only one
TRIAL_EXAMPLES = (1, 8, 64)  # validation examples by which the speed of an evaluation is measured, as time allows
Draw = Callable[[Path, Measured, Rows], object]
Audit = Callable[[Task, Rows, Rows, Encoded], Sequence[str]]


def train(
    settings: RunSettings,
    say: Callable[[str], None] = print,
    quiet: bool = False,
    draw: Draw | None = None,
    watched: Callable[[Path], object] | None = None,
    began: float | None = None,
    audit: Audit | None = None,
) -> dict[str, Any]:
    """Train a model for ``settings.task`` and write its folder.

    Of several processes that ``torchrun`` started each learns from its share of every step. The first makes what the
    run begins with, while the others wait; it alone writes and speaks. It locks the folder until the run has ended.

    Args:
        settings: what was asked for; None fields are chosen here.
        say: takes the lines that tell what was chosen and what came of it.
        quiet: show no progress.
        draw: given the folder, the best evaluation and the rows it was made on, when all is done.
        watched: given the folder whenever the maps of ``--training.watch`` were kept in it.
        began: the clock (``time.monotonic``) from which ``--max-minutes`` counts; now where it is None.
        audit: given the task, its training and validation rows and the encoded training examples, the lines that warn
            of the data; they are said before the first step.

    Returns:
        ``{"task", "model", "metrics", "seconds", "steps", "epochs", "stopped_because", "parameters", "trained",
        "settings"}``, the ``"verdict"`` (see :func:`heedful.training.report.judged`), and what the task tells of the
        best evaluation besides (``"by_class"``, ...).

    Raises:
        HeedfulError: for anything in the data or settings that cannot be right, before anything is written; for a
            folder in which another process trains, or that holds a run which is neither resumed nor overwritten.
    """
    began = time.monotonic() if began is None else began
    with joined() as ranks, threads_restored(), ExitStack() as stack:
        if not ranks.first:
            say, quiet, draw, watched, audit = _nothing, True, None, None, None
            ranks.follow()
            settings = replace(settings, resume=True, overwrite=False)  # as the first has begun it
        with ranks.waiting() if ranks.first else nullcontext():
            if ranks.first and not stack.enter_context(locked(Path(settings.out))):
                say(f"! the file system of {settings.out} has no locks; start no second run in that folder")
            check_unused(settings)
            run = _begun(settings, ranks, say, watched, began, audit)
        ranks.wait()  # each has read the data
        return _learned(run, ranks, say, quiet, draw)


class _Begun(NamedTuple):
    """Parts of a run before its first step."""

    settings: ResolvedSettings
    task: Task
    model: Model
    learned: Encoded
    held: Encoded
    watch: Watch | None
    card: dict[str, Any]
    began: float = 0.0  # on the clock that --max-minutes counts
    ending: float = 0.0  # seconds of it reserved for what follows the last evaluation
    plan: Plan | None = None  # of a new run with --max-minutes


def _begun(
    given: RunSettings,
    ranks: Ranks,
    say: Callable[[str], None],
    watched: Callable[[Path], object] | None,
    began: float,
    audit: Audit | None = None,
) -> _Begun:
    """Read, made and written as far as the first step: the same on each rank, but that the first alone writes."""
    out, computed = Path(given.out), time.process_time()
    check_overwrite(given)
    if given.resume:
        given = taken_up(given, say, tidy=ranks.first)
    given = replace(given, seed=given.seed or 0)
    if given.deterministic:
        fixed_workspace()
    kind = tasks.chosen(given)
    check_reports(given.training.report or ())
    given = spread(asked_for(kind, given), ranks, say)
    same: Same = content_digest
    if given.resume:
        kind, same = kind.for_folder(out / "last"), rule_of(read_card(out / "last"))
    rows, valid = divided(kind, given, settled=given.resume, same=same)
    kind = kind if given.resume else kind.for_rows(rows, given)
    device = device_of(own_device(given.device))
    settings = resolved(kind, rows, given, device, say)
    use_threads(settings.training.threads, say)

    if settings.resume:
        check_checkpoint(out)
        task, model = kind.load(out / "last"), load(out / "last", dtype="float32")
    elif settings.start_from:
        task, model = kind.for_fine_tuning(settings.start_from, rows, settings)
        _adapt(model, settings)
        _keep_base(model, out)
    else:
        task = kind.prepare(rows, settings)
        model = create(task.config(settings), seed=settings.seed)
    task.before_training(model, settings)
    pack(model.to(device))
    learned, held = (task.encode(source, settings.data.max_length) for source in (rows, valid))
    ending = _ending(settings, model, (time.monotonic() - began) / max(0.1, time.process_time() - computed))
    plan = None
    if not settings.resume and settings.max_minutes and _plannable(settings):
        begun_so_far = _Begun(settings, task, model, learned, held, None, {"data": {"sha256": ""}}, began, ending)
        plan = _planned(begun_so_far, given, lambda other: resolved(kind, rows, other, device), device, ranks)
    if plan is not None:
        if plan.settings.model != settings.model:
            model = _fresh(task, plan.settings, device)
        settings = plan.settings
    for line in (
        *described(task, learned, held, model, settings, ranks.size, _notes(rows, valid)),
        *(plan.lines() if plan is not None else ()),
        *(audit(task, rows, valid, learned) if audit is not None else ()),
    ):
        say(line)

    inputs = settings.training.watch
    watch = Watch(task, model, inputs, out, watched) if inputs and ranks.first else None
    card = card_of(task, learned.rows, settings, rows.mapping, same)
    if not settings.resume:
        begin(out, settings)
        # a resumed run begins with it, whatever it was made from
        _save(model, task, out / "last", {**card, "steps": 0})
        write_trained_on(task, learned.rows, settings)
    if watch is not None:
        watch.begin(fresh=not settings.resume)
    if not settings.resume:
        begun(out, settings)
    return _Begun(settings, task, model, learned, held, watch, card, began, ending, plan)


def _learned(run: _Begun, ranks: Ranks, say: Callable[[str], None], quiet: bool, draw: Draw | None) -> dict[str, Any]:
    """The run from its first step to its end, and what came of it."""
    settings, task, model, held, watch, card = run.settings, run.task, run.model, run.held, run.watch, run.card
    out = Path(settings.out)
    validation = _Validation(task, model, held, settings, watch)
    loop = _loop(run, validation, ranks, quiet)
    validation.step = lambda: loop.step

    def keep(metrics: Mapping[str, float]) -> None:
        with loop.engine.whole(model) as whole:
            _save(whole, task, out, {**card, "metrics": dict(metrics)})
        validation.best, validation.best_part = validation.last, validation.part

    loop.on_better = keep
    if settings.resume:
        loop.on_taken_up = partial(_go_on, loop, settings, ranks, say)
    with deterministic(settings.deterministic), within_memory(settings.training):
        outcome = loop.fit()
    _finish(loop, task, out, {**card, "steps": outcome.steps})
    if ranks.first and validation.best is None and outcome.best is not None:
        validation.best = validation.of(out)  # they were kept before the run was taken up
    if draw is not None and validation.best is not None:
        draw(out, validation.best, validation.best_part.rows)

    best = outcome.best or {"step": outcome.steps, "metrics": {}}
    why = ended(outcome, settings.training.planned_steps)
    say(f"{why}; the best weights are those of step {best['step']:,}{_chance(outcome, task)}")
    if (warning := too_short(outcome, settings)) is not None:
        say(warning)
    for line in _kept(loop, settings, outcome) if ranks.first else ():
        say(line)
    judgement = (
        judged(task, settings, run.learned.rows, validation.best_part, validation.best, outcome) if ranks.first else {}
    )
    if judgement:
        say(f"verdict: {judgement['verdict']['text']}")
    return {
        "task": task.name,
        "model": str(out),
        "metrics": best["metrics"],
        "seconds": round(outcome.seconds, 3),
        "steps": outcome.steps,
        "epochs": round(outcome.epochs, 4),
        "tokens": outcome.tokens,
        "best_step": best["step"],
        "stopped_because": outcome.stopped_because,
        "parameters": model.count(),
        "trained": trained_parameters(model),
        "settings": settings.to_dict(),
        **judgement,
        **(validation.best.details if validation.best is not None else {}),
    }


def _kept(loop: Loop, settings: ResolvedSettings, outcome: Outcome) -> list[str]:
    """Keep the checkpoint of a run that a limit ended, without what its folder stores; remove that of one that patience
    ended, unless --training.keep says otherwise. Lines for people, where something was removed.
    """
    out, keep, checkpoints = Path(settings.out), settings.training.keep, loop.checkpoints
    assert checkpoints is not None
    link_equal_weights(out)
    if outcome.stopped_because == "already done":
        return []
    if keep == 0 or (keep is None and outcome.met == "patience"):
        size = checkpoints.size()
        checkpoints.clear()
        why = "--training.keep 0" if keep == 0 else "no gain any more; --training.keep 1 keeps it"
        return [f"freed      {size / 1e6:,.0f} MB: the checkpoint was removed ({why})"] if size else []
    if (keep or 1) == 1 and not loop.engine.needs_all and checkpoints.size() > WORTHWHILE:
        with suppress(HeedfulError):  # a full disk: the whole checkpoint stays
            loop.reduce_checkpoint()
    return []


def _chance(outcome: Outcome, task: Task) -> str:
    """Explains why the saved weights are not those of the highest metric; "" where they are."""
    if outcome.best is None or outcome.highest in (None, outcome.best["step"]):
        return ""
    name = task.main_metric.replace("_", " ")
    return f", whose {name} is that of step {outcome.highest:,} within chance, and the loss lower"


def _notes(rows: Rows, valid: Rows) -> list[str]:
    """Returns notes on how the files were read; of validation only those that differ."""
    return [*rows.notes, *(f"validation: {note}" for note in valid.notes if note not in rows.notes)]


def tried(settings: RunSettings, quiet: bool = False) -> dict[str, Any]:
    """The learning-rate range test of a run (see :mod:`heedful.training.range_test`), which leaves nothing behind.

    Returns:
        ``{"task", "rates", "losses", "lowest", "steepest", "suggested", "lines"}``, the last for people.
    """
    if settings.resume:
        raise HeedfulError("--find-lr looks at a run's beginning, and --resume goes on with one; give one of them")
    if settings.training.report:
        raise HeedfulError("--find-lr leaves no log to report; leave --training.report out")
    with joined() as ranks, threads_restored(), TemporaryDirectory() as folder:
        if ranks.size > 1:
            raise HeedfulError("--find-lr is a matter of one process; leave torchrun out")
        made = replace(settings, out=str(Path(folder, "tried")), overwrite=False)
        run = _begun(made, ranks, _nothing, None, time.monotonic())
        loop = _loop(run, _Validation(run.task, run.model, run.held, run.settings), ranks, quiet=True)
        with deterministic(run.settings.deterministic), within_memory(run.settings.training):
            found = range_test(loop, quiet)
    return {"task": run.task.name, **vars(found), "lines": found.lines()}


def _nothing(line: str) -> None:
    """Prints nothing: for all ranks but the first."""


# ------------------------------------------------------------------------------------------------------------- learning


def _adapt(model: Model, settings: ResolvedSettings) -> None:
    """Put the adapter that is asked for on the model; of one that is there already, train what is fresh as well."""
    if settings.lora.rank is None:
        if model.adapter is not None:
            train_whole(model, fresh_head(model))
        return
    if model.adapter is not None:
        raise HeedfulError(
            f"{settings.start_from} is an adapter already; "
            "leave --lora.rank out to go on with it, or start from its base"
        )
    add_adapter(model, LoraConfig(**settings.lora.given()), seed=settings.seed)


def _keep_base(model: Model, out: Path) -> None:
    """Refuse to write an adapter over the model that it stands on."""
    if model.adapter is not None and Path(model.source).is_relative_to(out.resolve()):
        raise HeedfulError(f"--out {out} holds {model.source}, which the adapter needs; choose another --out")


def _go_on(loop: Loop, settings: ResolvedSettings, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The settings hold from now on. Where they are others and the best weights have been replaced since the checkpoint
    was written, the run may not come to those again, and the next it has are the best.
    """
    out, told = Path(settings.out), None
    if ranks.first:
        same = told_anew(out, settings)
        told = None if same else read_card(out).get("metrics", {})
    kept = ranks.same(told)
    if kept is not None and loop.forget_best(kept):
        say("! the best weights so far were replaced after this checkpoint; those evaluated next are the best")


class _Validation:
    """Measures the model as it stands, and watches it; ``best`` is the evaluation of the weights that were kept."""

    step: Callable[[], int]  # which the loop is at

    def __init__(
        self, task: Task, model: Model, held: Encoded, settings: ResolvedSettings, watch: Watch | None = None
    ) -> None:
        self.task, self.model, self.watch = task, model, watch
        self.max_length = settings.data.max_length
        share = (settings.training.evaluate_examples or math.inf) / units(task, held)
        self.held = part(task, held, share, self.max_length)
        self.part = self.best_part = self.held  # the examples of the last evaluation, and of the best
        self.last: Measured | None = None
        self.said: list[LoggedSample] = []
        self.best: Measured | None = None

    def __call__(self, share: float = 1.0) -> dict[str, float]:
        held = part(self.task, self.held, max(share, FEWEST / units(self.task, self.held)), self.max_length)
        self.part = held
        self.last = self.task.measure(self.model, held.examples, held.rows, most=ANSWERED)
        self.said = self.task.logged_samples(self.model, held.rows, self.last)
        metrics = {name: value for name, value in self.last.metrics.items() if isinstance(value, float)}
        if self.watch is not None:
            self.watch.look(self.step(), metrics)
        return metrics

    def margin(self) -> float:
        """The standard error of the metric that decides, as measured last; 0 where the examples' own are not known."""
        scored = self.last.each if self.last is not None else None
        return 0.0 if scored is None else standard_error(scored, self.task.main_metric)

    @torch.no_grad()
    def of(self, folder: Path) -> Measured:
        """The evaluation of the weights that lie in ``folder``."""
        model = load(folder, dtype="float32").to(self.model.device)
        pack(model)
        self.best_part = self.held
        return self.task.measure(model.eval(), self.held.examples, self.held.rows, most=ANSWERED)


# ----------------------------------------------------------------------------------------------------------- time limit


def _plannable(settings: ResolvedSettings) -> bool:
    """Returns True if the first steps can be measured: their number was not given, and the model is not sharded."""
    return settings.training.planned_steps is None and not settings.training.shard


def _planned(
    run: _Begun,
    asked: RunSettings,
    resolve_settings: Callable[[RunSettings], ResolvedSettings],
    device: torch.device,
    ranks: Ranks,
) -> Plan:
    """Fits the run to --max-minutes (:mod:`heedful.training.time_limit`)."""
    settings, task = run.settings, run.task
    ends = run.began + 60 * (settings.max_minutes or 0.0) - run.ending

    def candidates() -> Iterator[tuple[ResolvedSettings, tuple[str, ...]]]:
        yield settings, ()
        for shape in sizes(asked, settings, run.model.config):
            smaller = replace(asked, model=replace(asked.model, **shape))  # type: ignore[arg-type]  # dim and depth
            made = resolve_settings(smaller)
            yield made, tuple(f"model {name} {value}" for name, value in shape.items())

    return fitted(
        asked,
        candidates(),
        half_batch(asked, settings),
        lambda other: _Trial(run, other, device, ranks),
        lambda: ends - time.monotonic(),
        units(task, run.held),
    )


class _Trial:
    """Measures the speed of a run on a model of its own; nothing of the run is changed."""

    def __init__(self, run: _Begun, settings: ResolvedSettings, device: torch.device, ranks: Ranks) -> None:
        same = settings.start_from is not None or settings.model == run.settings.model
        training = settings.training
        each = -(-training.accumulate // ranks.size)  # micro-batches of a step that one process passes
        quiet = replace(training, accumulate=each, report=(), watch=())
        self.ranks, self.accumulate = ranks, training.accumulate
        self.run = run._replace(
            settings=replace(settings, training=quiet),
            model=copy.deepcopy(run.model) if same else _fresh(run.task, settings, device),
        )
        self.device = device
        validation = _Validation(run.task, self.run.model, run.held, self.run.settings)
        self.loop = replace(
            _loop(self.run, validation, Ranks(), quiet=True),
            evaluate=None,
            patience=None,
            checkpoints=None,
            log=Log(quiet=True),
            log_every=1,
            spent=0.0,
            ending=0.0,
            ceiling=None,
        )

    def steps(self, seconds: float) -> Speed:
        """Speed of the optimisation steps; the first, which is slower, counts only where it takes far too long."""
        with self._apart():
            outcome = self._stepped(Limits(max_steps=1))
            left = max(seconds / 4, seconds - outcome.seconds, 1e-3)
            if outcome.seconds < TOO_LONG * seconds:
                outcome = self._stepped(Limits(max_steps=TRIAL_STEPS, max_minutes=left / 60))
        loader = self.loop.loader
        assert isinstance(loader, Loader)
        batches = loader.steps_per_epoch * loader.accumulate
        return Speed(outcome.seconds / outcome.steps, max(1, -(-batches // self.accumulate)))

    def evaluation(self, seconds: float) -> tuple[float, float]:
        """Seconds of reading a validation example and of answering one; nearly untrained models answer slowest."""
        run, model, most = self.run, self.run.model.eval(), units(self.run.task, self.run.held)
        began = time.monotonic()
        read = answer = 0.0
        with self._apart(), torch.no_grad():
            for count in sorted({min(most, examples) for examples in TRIAL_EXAMPLES}):
                some = part(run.task, run.held, count / most, run.settings.data.max_length)
                count = units(run.task, some)
                first = time.monotonic()
                run.task.measure(model, some.examples, some.rows, most=1)
                middle = time.monotonic()
                run.task.measure(model, some.examples, some.rows, most=count)
                last = time.monotonic()
                read = (middle - first) / count
                answer = max(0.0, (last - middle) - (middle - first)) / count
                if last - began > seconds / 4:
                    break
        return read, answer

    def _stepped(self, limits: Limits) -> Outcome:
        return replace(self.loop, limits=limits).fit()

    def _apart(self) -> AbstractContextManager[Any]:
        devices = [self.device] if self.device.type == "cuda" else []
        return torch.random.fork_rng(devices=devices)


def _fresh(task: Task, settings: ResolvedSettings, device: torch.device) -> Model:
    model = create(task.config(settings), seed=settings.seed)
    task.before_training(model, settings)
    pack(model.to(device))
    return model


def _ending(settings: ResolvedSettings, model: Model, slowdown: float) -> float:
    """Seconds of --max-minutes reserved for what follows the last evaluation: writing weights, the verdict, pictures.

    ``slowdown`` is the time of reading the data by that which the processor worked on it: other programs had the rest.
    """
    limit = 60 * (settings.max_minutes or 0.0)
    work = CLOSING * min(MOST_SLOWDOWN, max(1.0, slowdown))
    return min(0.15 * limit, work + 0.02 * limit + WRITTEN * 4 * model.count() / BYTES_A_SECOND)


def _loop(run: _Begun, validation: _Validation, ranks: Ranks, quiet: bool) -> Loop:
    settings, task, model, examples = run.settings, run.task, run.model, run.learned.examples
    training, out = settings.training, Path(settings.out)
    lengths = task.lengths(examples)
    loader = Loader(
        lengths,
        lambda indices, random: task.collate([examples[i] for i in indices], random),
        tokens=training.token_budget(int(lengths.max())),
        max_rows=training.batch_size,
        accumulate=training.accumulate,
        seed=settings.seed,
        digests={"training data": run.card["data"]["sha256"], "validation data": digest(run.held.rows)},
    )
    every = training.evaluate_every
    if every is None and loader.steps_per_epoch < 250:
        every = 250  # an evaluation answers hundreds of examples: not after every few steps
    if settings.model.drop_path:
        set_drop_path(model, settings.model.drop_path)
    dtype = torch.bfloat16 if training.precision == "bf16" else torch.float32
    flops, passes = flops_of(model), 2 if settings.model.r_drop else 1
    most = partial(most_flops, model.device, dtype)
    ceiling = Ceiling(lambda batch: passes * flops(batch), most) if ranks.first else None
    engine = engine_of(ranks, training.shard, training.precision == "bf16")
    apply_training_plan(
        model,
        training.kernels,
        whole=not training.shard,
        recompute=training.gradient_checkpointing,
    )
    objective = engine.learner(model, lambda model, batch: task.objective(model, batch, training.label_smoothing))
    averaging = settings.averaging
    average = average_of(model, share=averaging.share, decay=averaging.ema, last=averaging.last)
    product = torch.float32 if emulates_bfloat16(model.device) else dtype
    optimisers: Mapping[str, Callable[..., Optimiser]] = {"adamw": adamw, "muon": partial(muon, dtype=product)}
    optimiser = optimisers[training.optimiser](
        model,
        lr=training.lr,
        betas=training.betas,
        eps=training.eps,
        weight_decay=training.weight_decay,
        rates=layer_rates(model, settings.tuning.layer_decay),
    )
    checkpoints = Checkpoints(out, training.keep or 1, speaks=ranks.first)
    if engine.needs_all:
        from heedful.training.sharded import ShardedCheckpoints  # a second that other runs need not wait for

        checkpoints = ShardedCheckpoints(out, ranks, lambda: loop.state(), training.keep or 1)
    loop = Loop(
        model=model,
        objective=objective,
        count=task.count,
        unit=task.unit,
        loader=loader,
        optimiser=optimiser,
        schedule=schedule(training.schedule, training.warmup, training.floor, training.decay),
        limits=Limits(
            max_steps=settings.max_steps,
            max_epochs=settings.max_epochs,
            max_minutes=settings.max_minutes,
            planned_steps=training.planned_steps,
        ),
        clip=training.clip or None,
        skip_spikes=training.skip_spikes or None,
        precision=training.precision,
        evaluate=validation,
        evaluate_part=validation,
        samples=lambda: validation.said,
        evaluate_every=every,
        metric=task.main_metric,
        margin=validation.margin,
        patience=training.patience or None,
        seed=settings.seed,
        engine=engine,
        cut=task.additive_loss and not any(isinstance(part, BatchNorm) for part in model.modules()),
        average=average,
        checkpoints=checkpoints,
        stored=lambda name: _stored(out / name, model.device),
        save_every=training.save_every,
        log=Log(
            out / "metrics.jsonl" if ranks.first else None,
            quiet=quiet,
            reporters=reporters(training.report, out, settings.to_dict()) if ranks.first else (),
        ),
        log_every=training.log_every,
        spent=time.monotonic() - run.began,
        evaluating=run.plan.evaluation_seconds if run.plan is not None else 0.0,
        ending=run.ending,
        ceiling=ceiling,
    )
    return loop


# --------------------------------------------------------------------------------------------------------------- folder


def _save(model: Model | None, task: Task, folder: Path, card: Mapping[str, Any]) -> None:
    if model is not None:  # this is the rank that writes
        save(model, folder, extra=card)
        task.save(folder)


def _stored(folder: Path, device: torch.device) -> Mapping[str, torch.Tensor]:
    """The weights in a folder of the run, by the names that they have in training."""
    model = load(folder, dtype="float32").to(device)
    pack(model)
    return model.state_dict()


def _finish(loop: Loop, task: Task, out: Path, card: Mapping[str, Any]) -> None:
    """Write the last weights and the averaged ones."""
    loop.model.eval()
    with loop.engine.whole(loop.model) as model:
        _save(model, task, out / "last", card)
    if loop.average is not None:
        with loop.average.swapped(), loop.engine.whole(loop.model) as model:
            _save(model, task, out / "average", card)
