"""A whole training run: files in, model folder out.

Weights begin in this order: the checkpoint of a run taken up with ``resume``, else the model named by ``--from``, else
fresh ones of the preset. Settings are taken in this order: asked for, else the preset's, else what the data suggests;
they are printed and kept in ``run.toml``, which ``--config`` reads.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful import __version__, tasks
from heedful.checkpoints import load, save
from heedful.data import Rows, read, split
from heedful.data.batching import ordered
from heedful.errors import HeedfulError
from heedful.evaluation.run import scored
from heedful.files import write
from heedful.models import Model
from heedful.models.base import device_of
from heedful.models.create import create
from heedful.settings import DataSettings, RunSettings, TrainingSettings, read_toml, resolve, to_toml
from heedful.tasks.task import Task
from heedful.training.checkpoint import Checkpoints
from heedful.training.loader import Loader
from heedful.training.log import Log
from heedful.training.loop import Loop, Outcome
from heedful.training.optimisation import Average, adamw
from heedful.training.schedule import SCHEDULES, Limits

ANSWERED = 500  # validation examples answered at each evaluation; the loss is over all of them
OWN = ("run.toml", "heedful.json")  # either tells a folder that a run wrote


def train(settings: RunSettings, say: Callable[[str], None] = print, quiet: bool = False) -> dict[str, Any]:
    """Train a model for ``settings.task`` and write its folder.

    Args:
        settings: what was asked for; None fields are chosen here.
        say: takes the lines that tell what was chosen and what came of it.
        quiet: show no progress.

    Returns:
        ``{"task", "model", "metrics", "seconds", "steps", "epochs", "stopped_because", "parameters", "settings"}``.

    Raises:
        HeedfulError: for anything in the data or settings that cannot be right, before anything is written.
    """
    out = Path(settings.out)
    if settings.overwrite and out.is_dir() and any(out.iterdir()) and not any((out / own).is_file() for own in OWN):
        raise HeedfulError(f"--overwrite: {out} holds no run of heedful; empty it yourself, or choose another --out")
    if settings.resume:
        settings = resolve(settings, read_toml(out / "run.toml"))
    kind = tasks.get(settings.task)
    rows, valid = _data(kind, settings)
    fixed = [
        f"--{s.section}.{name}" for s in (settings.model, settings.tokenizer) for name, v in s.given().items() if v
    ]
    if settings.start_from and fixed:
        raise HeedfulError(f"--from goes on with a model as it is; leave out {', '.join(fixed)}")
    device = device_of(settings.device)
    settings = _settled(resolve(settings, kind.suggest(rows, settings)), device)

    begun = settings.resume or settings.start_from
    if settings.resume:
        task, model = kind.load(out / "last"), load(out / "last", dtype="float32")
    elif settings.start_from:
        task, model = kind.load(settings.start_from), load(settings.start_from, dtype="float32")
        task.check(model)
    else:
        task = kind.prepare(rows, settings)
        model = create(task.config(settings), seed=settings.seed)
    model.to(device)
    read_rows = len(rows) + len(valid)
    examples, rows = _encoded(task, rows, settings.data.max_length)
    valid_examples, valid = _encoded(task, valid, settings.data.max_length)
    if too_long := read_rows - len(rows) - len(valid):
        say(f"left out   {too_long:,} examples longer than {settings.data.max_length} tokens (--data.max-length)")
    for line in _described(task, rows, valid, examples, model, settings, bool(begun)):
        say(line)

    card = _card(task, rows, settings)
    if not settings.resume:
        _begin(out, settings)
        _save(model, task, out / "last", card)  # a resumed run begins with it, whatever it was made from
    loop = _loop(task, model, examples, _Validation(task, model, valid_examples, valid), settings, quiet)
    loop.on_better = lambda metrics: _save(model, task, out, {**card, "metrics": dict(metrics)})
    outcome = loop.fit()
    _finish(loop, task, out, card)

    best = outcome.best or {"step": outcome.steps, "metrics": {}}
    say(f"{_ended(outcome)}; the best weights are those of step {best['step']:,}")
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
        "settings": settings.to_dict(),
    }


# ------------------------------------------------------------------------------------------------------ data, settings


def _data(kind: type[Task], settings: RunSettings) -> tuple[Rows, Rows]:
    """Training and validation rows: from two files, the parts of a built-in set, or one file split by text."""
    take = partial(read, columns=kind.columns, names=settings.data.columns)
    rows = take(list(settings.train), split="train", limit=settings.data.limit)
    whole = settings.train[0].startswith("builtin:") and settings.train[0].count(":") == 1
    if settings.valid or whole:
        if settings.data.valid_fraction is not None:
            raise HeedfulError("--data.valid-fraction has no effect where validation data is given; leave it out")
        return rows, take(list(settings.valid or settings.train), split="valid")
    train_rows, valid_rows = split(rows, settings.data.valid_fraction, settings.seed, by=kind.columns[0])
    return Rows(train_rows, rows.skipped, rows.columns), Rows(valid_rows, 0, rows.columns)


def _settled(settings: RunSettings, device: torch.device) -> RunSettings:
    """With the choices that depend on the machine made; bf16 pays on a GPU, on a CPU only for wide models."""
    gains = device.type == "cuda" and torch.cuda.is_bf16_supported()
    machine = replace(
        settings,
        data=DataSettings(max_length=256),
        training=TrainingSettings(precision="bf16" if gains else "fp32"),
    )
    return resolve(settings, machine)


def _encoded(task: Task, rows: Rows, longest: int | None) -> tuple[list[Any], Rows]:
    """The examples of the rows that are not too long, and those rows."""
    examples = task.encode(rows)
    fits = (task.lengths(examples).max(axis=1) <= (longest or np.inf)).tolist()
    if not any(fits):
        raise HeedfulError(f"every example is longer than {longest} tokens; raise --data.max-length")
    kept = Rows((row for row, fit in zip(rows, fits, strict=True) if fit), rows.skipped, rows.columns)
    return [example for example, fit in zip(examples, fits, strict=True) if fit], kept


# ------------------------------------------------------------------------------------------------------------- learning


class _Validation:
    """Measures the model as it stands: the loss of all validation examples, the metrics of the first ``ANSWERED``."""

    def __init__(self, task: Task, model: Model, examples: Sequence[Any], rows: Rows) -> None:
        self.task, self.model, self.examples = task, model, examples
        self.rows = rows[:ANSWERED]
        self.lengths = task.lengths(examples)
        self.longest = int(self.lengths[:, -1].max() * 1.5) + 10  # a fresh model would babble on

    def __call__(self) -> dict[str, float]:
        total, count = 0.0, 0
        for batch in ordered(self.lengths, 4096):
            tensors = self.task.collate([self.examples[i] for i in batch])
            count += self.task.count(tensors)
            moved = {name: tensor.to(self.model.device) for name, tensor in tensors.items()}
            total += float(self.task.objective(self.model, moved))
        asked = [row.values[self.task.columns[0]] for row in self.rows]
        answers = self.task.answer(self.model, asked, max_new_tokens=self.longest)
        metrics = scored(self.task, [answer.output for answer in answers], self.rows)["metrics"]
        return {"loss": total / count} | {k: v for k, v in metrics.items() if isinstance(v, float)}


def _loop(
    task: Task, model: Model, examples: Sequence[Any], validation: _Validation, settings: RunSettings, quiet: bool
) -> Loop:
    training, out = settings.training, Path(settings.out)
    loader = Loader(
        task.lengths(examples),
        lambda indices: task.collate([examples[i] for i in indices]),
        tokens=_chosen(training.batch_tokens),
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
        loader=loader,
        optimiser=adamw(
            model,
            lr=_chosen(training.lr),
            betas=_chosen(training.betas),
            eps=_chosen(training.eps),
            weight_decay=_chosen(training.weight_decay),
        ),
        schedule=SCHEDULES[_chosen(training.schedule)](_chosen(training.warmup)),
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


def _card(task: Task, rows: Rows, settings: RunSettings) -> dict[str, Any]:
    """What ``heedful.json`` says of the model."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update("\0".join(row.values[column] for column in task.columns).encode("utf-8", "surrogatepass") + b"\n")
    return {
        "task": task.name,
        "data": {"train": list(settings.train), "examples": len(rows), "sha256": digest.hexdigest()},
        "versions": {"heedful": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "settings": settings.to_dict(),
    }


# -------------------------------------------------------------------------------------------------------- what is said


def _described(
    task: Task, rows: Rows, valid: Rows, examples: Sequence[Any], model: Model, settings: RunSettings, begun: bool
) -> list[str]:
    means = task.lengths(examples).mean(axis=0)
    left_out = f", {rows.skipped:,} blank ones left out" if rows.skipped else ""
    columns = ", ".join(rows.columns)
    shown = " → ".join(_short(rows[0].values[column]) for column in task.columns)
    ends = [f"{name[4:]} {v:g}" for name, v in vars(settings).items() if name.startswith("max_") and v is not None]
    begins = "from " + (settings.start_from or f"the checkpoint in {settings.out}") if begun else settings.preset
    t = settings.training
    return [
        f"data       {len(rows):,} examples ({columns}){left_out}; {len(valid):,} for validation",
        f"           {shown}",
        f"tokens     {' + '.join(f'{mean:.1f}' for mean in means)} an example; longest kept {settings.data.max_length}",
        f"model      {begins}, {model.count() / 1e6:.1f} M parameters, {t.precision}, on {model.device}",
        f"training   AdamW, lr {t.lr:g} {t.schedule}, warm-up {t.warmup}, {t.batch_tokens:,} tokens a step"
        f"{f' × {t.accumulate}' if t.accumulate != 1 else ''}, until {' or '.join(ends) or 'patience'}",
        f"out        {settings.out} (all settings: run.toml)",
    ]


def _short(text: str, most: int = 50) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _ended(outcome: Outcome) -> str:
    reasons = {
        "max_steps": "all steps are done",
        "max_epochs": "all epochs are done",
        "max_minutes": "the time is over",
        "patience": "no gain any more",
        "already done": "this run was done already",
    }
    return f"{reasons[outcome.stopped_because]} after {outcome.steps:,} steps and {outcome.seconds:,.0f} s"
