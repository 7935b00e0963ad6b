"""A whole training run: files in, model folder out.

Weights begin in this order: the checkpoint of a run taken up with ``resume``, else the model named by ``--from``, else
fresh ones of the preset. Settings are taken in this order: asked for, else the preset's, else what the data suggests;
they are printed and kept in ``run.toml``, which ``--config`` reads.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from heedful import tasks
from heedful.adapters import LoraConfig, add_adapter, fresh_head, train_whole
from heedful.auditing.audit import warnings
from heedful.checkpoints import load, save
from heedful.checkpoints.fitting import pack
from heedful.data import Rows
from heedful.errors import HeedfulError
from heedful.files import write
from heedful.models import Model
from heedful.models.base import device_of
from heedful.models.create import create
from heedful.settings import RunSettings, read_toml, resolve, to_toml
from heedful.tasks.task import Encoded, Measured, Task
from heedful.training.checkpoint import Checkpoints
from heedful.training.choices import asked_for, check_same, settled, suggested_for
from heedful.training.loader import Loader
from heedful.training.log import Log
from heedful.training.loop import Loop, Optimiser
from heedful.training.muon import muon
from heedful.training.optimisation import Average, adamw
from heedful.training.report import card_of, described, ended, trained_parameters
from heedful.training.schedule import Limits, schedule
from heedful.training.sources import divided
from heedful.training.watch import Watch

ANSWERED = 500  # validation examples answered at each evaluation; the loss is over all of them
OWN = ("run.toml", "heedful.json")  # either tells a folder that a run wrote
OPTIMISERS: Mapping[str, Callable[..., Optimiser]] = {"adamw": adamw, "muon": muon}
Draw = Callable[[Path, Measured, Rows], object]


def train(
    settings: RunSettings,
    say: Callable[[str], None] = print,
    quiet: bool = False,
    draw: Draw | None = None,
    watched: Callable[[Path], object] | None = None,
) -> dict[str, Any]:
    """Train a model for ``settings.task`` and write its folder.

    Args:
        settings: what was asked for; None fields are chosen here.
        say: takes the lines that tell what was chosen and what came of it.
        quiet: show no progress.
        draw: given the folder, the best evaluation and the rows it was made on, when all is done.
        watched: given the folder whenever the maps of ``--training.watch`` were kept in it.

    Returns:
        ``{"task", "model", "metrics", "seconds", "steps", "epochs", "stopped_because", "parameters", "trained",
        "settings"}``, and what the task tells of the best evaluation besides (``"by_class"``, ...).

    Raises:
        HeedfulError: for anything in the data or settings that cannot be right, before anything is written.
    """
    out = Path(settings.out)
    if settings.overwrite and out.is_dir() and any(out.iterdir()) and not any((out / own).is_file() for own in OWN):
        raise HeedfulError(f"--overwrite: {out} holds no run of heedful; empty it yourself, or choose another --out")
    if settings.resume:
        begun = read_toml(out / "run.toml")
        check_same(settings, begun)
        settings = resolve(settings, begun)
    kind = tasks.get(settings.task)
    settings = asked_for(kind, settings)
    rows, valid = divided(kind, settings)
    device = device_of(settings.device)
    settings = settled(resolve(settings, suggested_for(kind, rows, settings)), device)

    if settings.resume:
        task, model = kind.load(out / "last"), load(out / "last", dtype="float32")
    elif settings.start_from:
        task, model = kind.start(settings.start_from, rows, settings)
        _adapt(model, settings)
        _keep_base(model, out)
    else:
        task = kind.prepare(rows, settings)
        model = create(task.config(settings), seed=settings.seed)
    task.ready(model, settings)
    pack(model.to(device))
    learned, held = (task.encode(part, settings.data.max_length) for part in (rows, valid))
    for line in (*described(task, learned, held, model, settings), *warnings(task, rows, valid, learned)):
        say(line)

    inputs = settings.training.watch
    watch = Watch(task, model, inputs, out, watched) if inputs else None
    card = card_of(task, learned.rows, settings)
    if not settings.resume:
        _begin(out, settings)
        _save(model, task, out / "last", card)  # a resumed run begins with it, whatever it was made from
    if watch is not None:
        watch.begin(fresh=not settings.resume)
    validation = _Validation(task, model, held, watch)
    loop = _loop(task, model, learned.examples, validation, settings, quiet)
    validation.step = lambda: loop.step

    def keep(metrics: Mapping[str, float]) -> None:
        _save(model, task, out, {**card, "metrics": dict(metrics)})
        validation.best = validation.last

    loop.on_better = keep
    outcome = loop.fit()
    _finish(loop, task, out, card)
    if draw is not None and validation.best is not None:
        draw(out, validation.best, held.rows)

    best = outcome.best or {"step": outcome.steps, "metrics": {}}
    say(f"{ended(outcome)}; the best weights are those of step {best['step']:,}")
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
        **(validation.best.details if validation.best is not None else {}),
    }


# ------------------------------------------------------------------------------------------------------------- learning


def _adapt(model: Model, settings: RunSettings) -> None:
    """Put the adapter that is asked for on the model; of one that is there already, train what is fresh as well."""
    asked = settings.lora
    if asked.rank is None:
        if model.adapter is not None:
            train_whole(model, fresh_head(model))
        return
    if model.adapter is not None:
        raise HeedfulError(
            f"{settings.start_from} is an adapter already; "
            "leave --lora.rank out to go on with it, or start from its base"
        )
    config = LoraConfig(
        rank=asked.rank,
        alpha=_chosen(asked.alpha),
        dropout=_chosen(asked.dropout),
        targets=_chosen(asked.targets),
    )
    add_adapter(model, config, seed=settings.seed)


def _keep_base(model: Model, out: Path) -> None:
    """Refuse to write an adapter over the model that it stands on."""
    if model.adapter is not None and Path(model.source).is_relative_to(out.resolve()):
        raise HeedfulError(f"--out {out} holds {model.source}, which the adapter needs; choose another --out")


class _Validation:
    """Measures the model as it stands, and watches it; ``best`` is the evaluation of the weights that were kept."""

    step: Callable[[], int]  # which the loop is at

    def __init__(self, task: Task, model: Model, held: Encoded, watch: Watch | None = None) -> None:
        self.task, self.model, self.held, self.watch = task, model, held, watch
        self.last: Measured | None = None
        self.best: Measured | None = None

    def __call__(self) -> dict[str, float]:
        self.last = self.task.measure(self.model, self.held.examples, self.held.rows, most=ANSWERED)
        metrics = {name: value for name, value in self.last.metrics.items() if isinstance(value, float)}
        if self.watch is not None:
            self.watch.look(self.step(), metrics)
        return metrics


def _loop(
    task: Task, model: Model, examples: Sequence[Any], validation: _Validation, settings: RunSettings, quiet: bool
) -> Loop:
    training, out = settings.training, Path(settings.out)
    lengths = task.lengths(examples)
    loader = Loader(
        lengths,
        lambda indices, random: task.collate([examples[i] for i in indices], random),
        tokens=training.batch_tokens or _chosen(training.batch_size) * int(lengths.max()),
        max_rows=training.batch_size,
        accumulate=_chosen(training.accumulate),
        seed=settings.seed,
    )
    every = training.evaluate_every
    if every is None and loader.steps_per_epoch < 250:
        every = 250  # an evaluation answers hundreds of examples: not after every few steps
    torch.manual_seed(settings.seed)  # dropout's
    return Loop(
        model=model,
        objective=lambda model, batch: task.objective(model, batch, training.label_smoothing or 0.0),  # type: ignore[arg-type]  # the model given above
        count=task.count,
        unit=task.unit,
        loader=loader,
        optimiser=OPTIMISERS[_chosen(training.optimiser)](
            model,
            lr=_chosen(training.lr),
            betas=_chosen(training.betas),
            eps=_chosen(training.eps),
            weight_decay=_chosen(training.weight_decay),
        ),
        schedule=schedule(_chosen(training.schedule), _chosen(training.warmup), training.floor),
        limits=Limits(max_steps=settings.max_steps, max_epochs=settings.max_epochs, max_minutes=settings.max_minutes),
        clip=training.clip or None,
        precision=_chosen(training.precision),
        evaluate=validation,
        evaluate_every=every,
        metric=task.decides,
        patience=training.patience or None,
        average=Average(model, share=training.average) if training.average else None,
        checkpoints=Checkpoints(out),
        save_every=training.save_every,
        log=Log(out / "metrics.jsonl", quiet=quiet),
        log_every=_chosen(training.log_every),
    )


def _chosen(value: Any) -> Any:
    assert value is not None, "the task suggests every setting of the loop"
    return value


# --------------------------------------------------------------------------------------------------------------- folder


def _begin(out: Path, settings: RunSettings) -> None:
    """Make the folder anew, and keep in it what a resumed run needs."""
    if settings.overwrite and out.exists():
        shutil.rmtree(out)
    write(out / "run.toml", to_toml(settings))


def _save(model: Model, task: Task, folder: Path, card: Mapping[str, Any]) -> None:
    save(model, folder, extra=card)
    task.save(folder)


def _finish(loop: Loop, task: Task, out: Path, card: Mapping[str, Any]) -> None:
    """Write the last weights and the averaged ones."""
    model: Model = loop.model  # type: ignore[assignment]  # the model that was given to it
    model.eval()
    _save(model, task, out / "last", card)
    if loop.average is not None:
        with loop.average.swapped():
            _save(model, task, out / "average", card)
