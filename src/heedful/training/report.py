"""What a run says of itself: lines for a person before and after, and the card of its folder."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from heedful import __version__
from heedful.data import Picture, Rows
from heedful.errors import many
from heedful.models import Model
from heedful.settings import RunSettings
from heedful.tasks.task import Encoded, Task
from heedful.training.loop import Outcome

NAMES = {"adamw": "AdamW", "muon": "Muon and AdamW"}


def described(
    task: Task,
    learned: Encoded,
    held: Encoded,
    model: Model,
    settings: RunSettings,
    processes: int = 1,
    notes: Sequence[str] = (),
) -> list[str]:
    """The lines that open a run: its data, with ``notes`` on how it was read, its model, how it learns, where it
    writes.
    """
    rows, t = learned.rows, settings.training
    means = task.lengths(learned.examples).mean(axis=0)
    left_out = f", {rows.skipped:,} blank or unreadable ones left out" if rows.skipped else ""
    ends = [f"{name[4:]} {v:g}" for name, v in vars(settings).items() if name.startswith("max_") and v is not None]
    begins = f"from {settings.start_from}" if settings.start_from else settings.preset
    fresh = f", {', '.join(model.fresh)} drawn anew" if model.fresh else ""
    trained = f", {trained_parameters(model):,} of them trained" if model.adapter is not None else ""
    batch = many(t.batch_tokens, "token") if t.batch_tokens else many(t.batch_size or 0)
    shared = "each with a share of the weights" if t.shard else "each with all of the weights"
    return [
        f"data       {many(len(rows))} ({', '.join(rows.columns)}){left_out}; {len(held.rows):,} for validation",
        *(f"columns    {note}" for note in notes),
        f"           {task.sample(rows[0])}",
        f"tokens     {' + '.join(f'{mean:.1f}' for mean in means)} an example",
        *(f"{where:<11}{part.note}" for where, part in (("", learned), ("validation", held)) if part.note),
        f"model      {f'the checkpoint in {settings.out}' if settings.resume else begins}, "
        f"{model.count() / 1e6:.1f} M parameters{trained}{fresh}, {t.precision}, on {model.device}",
        f"training   {NAMES[str(t.optimiser)]}, lr {t.lr:g} {t.schedule}, warm-up {t.warmup}, {batch} a step"
        f"{f' × {t.accumulate}' if t.accumulate != 1 else ''}, until {' or '.join(ends) or 'patience'}",
        *([f"processes  {processes}, {shared}"] if processes > 1 else []),
        f"out        {settings.out} (all settings: run.toml)",
    ]


def ended(outcome: Outcome) -> str:
    """Why and when a run came to its end."""
    reasons = {
        "max_steps": "all steps are done",
        "max_epochs": "all epochs are done",
        "max_minutes": "the time is over",
        "patience": "no gain any more",
        "already done": f"this run was done already, by {_flag(outcome.met)},",
    }
    return f"{reasons[outcome.stopped_because]} after {many(outcome.steps, 'step')} and {outcome.seconds:,.0f} s"


def _flag(limit: str) -> str:
    return f"--{'training.' if limit == 'patience' else ''}{limit.replace('_', '-')}"


def trained_parameters(model: Model) -> int:
    """How many numbers are learned; fewer than all where the model is frozen under an adapter."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def card_of(task: Task, rows: Rows, settings: RunSettings, mapping: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What ``heedful.json`` says of the model; ``mapping`` is what the training data called the task's columns."""
    return {
        "task": task.name,
        "columns": dict(task.columns),
        "data": {
            "train": list(settings.train),
            **({"columns": dict(mapping)} if mapping else {}),
            "examples": len(rows),
            "sha256": digest(rows),
        },
        "versions": {"heedful": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "settings": settings.to_dict(),
        **task.facts(),
    }


def digest(rows: Rows) -> str:
    """SHA-256 of what the rows hold, in their order."""
    found = hashlib.sha256()
    for row in rows:
        for value in row.values.values():
            if isinstance(value, Picture):
                found.update(value.digest_bytes())
            else:
                found.update(_written(value).encode("utf-8", "surrogatepass"))
            found.update(b"\0")
    return found.hexdigest()


def _written(value: Any) -> str:
    """A value of a row as a text: itself, several labels or words with tabs between, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple) and all(isinstance(each, str) for each in value):
        return "\t".join(value)
    return json.dumps(value, ensure_ascii=False)
