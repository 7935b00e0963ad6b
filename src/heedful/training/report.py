"""Reports of a run: its lines before and after training, and the metadata of its folder."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful import __version__
from heedful.data import LazyImage, Row, Rows
from heedful.data.split import Same, content_digest
from heedful.data.texts_on_disk import any_on_disk, row_size
from heedful.errors import many
from heedful.evaluation.trained_on import TrainedOn
from heedful.metrics.verdict import MOST, Rival, Verdict, chosen, improving, verdict
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.pretrained.folder import CARD, find, to_json
from heedful.settings import ResolvedSettings, RunSettings
from heedful.tasks.run_data import BY_CONTENT
from heedful.tasks.task import Baseline, Encoded, Measured, Task
from heedful.training.loop_parts import Outcome
from heedful.util.files import write

NAMES = {"adamw": "AdamW", "muon": "Muon and AdamW"}
SHORT = 0.7  # share of the planned steps below which a run that its time ended says so
ROWS, CHARACTERS = 20_000, 2_000_000  # of training that the simple method of a verdict learns from at most


def described(
    task: Task,
    learned: Encoded,
    held: Encoded,
    model: Model,
    settings: ResolvedSettings,
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
        f"           {task.row_line(rows[0])}",
        f"tokens     {' + '.join(f'{mean:.1f}' for mean in means)} an example",
        *(f"{where:<11}{part.note}" for where, part in (("", learned), ("validation", held)) if part.note),
        f"model      {f'the checkpoint in {settings.out}' if settings.resume else begins}, "
        f"{model.count() / 1e6:.1f} M parameters{trained}{fresh}, {t.precision}, on {model.device}",
        f"training   {NAMES[t.optimiser]}, lr {t.lr:g} {t.schedule}, warm-up {t.warmup}, {batch} a step"
        f"{f' × {t.accumulate}' if t.accumulate != 1 else ''}, until {' or '.join(ends) or 'patience'}",
        *([f"processes  {processes}, {shared}"] if processes > 1 else []),
        f"out        {settings.out} (all settings: run.toml)",
    ]


def ended(outcome: Outcome, planned_steps: int | None = None) -> str:
    """Why and when a run came to its end; ``planned_steps`` are those that --max-minutes was to have time for."""
    planned = planned_steps is not None and outcome.steps >= planned_steps
    reasons = {
        "max_steps": "all steps are done",
        "max_epochs": "all epochs are done",
        "max_minutes": "all planned steps are done" if planned else "the time is over",
        "patience": "no gain any more",
        "already done": f"this run was done already, by {_flag(outcome.met)},",
    }
    return f"{reasons[outcome.stopped_because]} after {many(outcome.steps, 'step')} and {outcome.seconds:,.0f} s"


def within_chance(outcome: Outcome, task: Task) -> str:
    """Explains why the saved weights are not those of the highest metric; "" where they are."""
    if outcome.best is None or outcome.highest in (None, outcome.best["step"]):
        return ""
    name = task.main_metric.replace("_", " ")
    return f", whose {name} is that of step {outcome.highest:,} within chance, and the loss lower"


def too_short(outcome: Outcome, settings: ResolvedSettings) -> str | None:
    """A warning where the clock ended a run long before its planned steps, or inside its warm-up; else None."""
    steps, planned = outcome.steps, settings.training.planned_steps or 0
    warmup = settings.training.warmup
    if outcome.stopped_because != "max_minutes" or (planned and steps >= planned):  # the plan has said so before
        return None
    if steps >= max(SHORT * planned, warmup + 1):
        return None
    where = f"inside the warm-up of {warmup:,} steps" if steps <= warmup else f"after {steps / planned:.0%} of its plan"
    why = "the machine became slower than it was measured; " if planned > steps else ""
    return f"! the time ended {where}: {why}go on with --resume and more --max-minutes"


def judged(
    task: Task, settings: ResolvedSettings, learned: Rows, held: Encoded, measured: Measured | None, outcome: Outcome
) -> dict[str, Any]:
    """Judges the weights that are kept, by what they predict of the validation rows, and writes it to ``heedful.json``.

    The simple method learns from at most 20,000 training rows of two million characters. Where it fails, the verdict is
    given without it.

    Returns:
        ``{"verdict": ...}`` as :class:`heedful.metrics.verdict.Verdict` has it, with ``"remedy"``: what to do where
        the model is not better than the baseline, else None. Empty where nothing was measured.
    """
    scored = None if measured is None else measured.window_scores or measured.example_scores
    if measured is None or scored is None:
        return {}
    out = Path(settings.out)
    still = outcome.met != "patience" and improving(_losses(out / "metrics.jsonl"))
    blocks, rows = measured.window_scores is not None, held.rows
    labelled = any(kind in ("label", "tags") for kind in task.columns.values())
    expected = [task.input_and_target(row)[1] for row in rows[: len(measured.outputs)]]
    if not blocks:
        rows = Rows(rows[: len(scored)])
        if len(rows) > MOST and not task.ranks_rows:
            places = np.linspace(0, len(rows) - 1, MOST).astype(np.int64)
            rows, scored = Rows(rows[int(place)] for place in places), chosen(scored, places)
    some = _some(learned)
    found = verdict(
        scored,
        task.main_metric,
        guess=_rival(lambda: task.guess(held.examples, rows, some)),
        baseline=_rival(lambda: task.quick_baseline(held.examples, rows, some)),
        outputs=measured.outputs,
        expected=expected,
        classes=labelled,
        improving=still,
    )
    told = {"verdict": {**found.as_dict(), "remedy": remedy(found, settings, outcome.met)}}
    write(out / CARD, to_json({**read_card(out), **told}))
    return told


def write_trained_on(task: Task, rows: Rows, settings: RunSettings) -> None:
    """Writes the hashes of the training rows to the run's folder, with those of the model that the run starts from."""
    found = TrainedOn.of(task, rows)
    before = TrainedOn.read(find(settings.start_from)) if settings.start_from else None
    if before is not None:
        found = TrainedOn(max(found.k, before.k), found.hashes).joined(before.hashes)
    found.write(Path(settings.out))


def _rival(score: Callable[[], Baseline | None]) -> Rival | None:
    """The simple method's scores; None where it has none, or fails: a finished run must not end with its error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = score()
        except Exception:
            return None
    return None if found is None or found.example_scores is None else Rival(found.name, found.example_scores)


def _some(rows: Rows) -> Rows:
    """At most 20,000 rows of two million characters, evenly chosen, in memory; a longer text is cut."""

    def length(row: Row) -> int:
        if any_on_disk([row]):
            return row_size(row)
        return sum(len(value) for value in row.values.values() if isinstance(value, str | tuple))

    looked = rows[:: max(1, len(rows) // 200)]
    mean = max(1, sum(map(length, looked)) / len(looked))
    most = max(1, int(min(ROWS, CHARACTERS / mean)))
    found, left = Rows(columns=rows.columns), CHARACTERS
    for row in rows[:: max(1, -(-len(rows) // most))]:
        values = {name: row.values[name] for name in row.values}
        if list(values) == ["text"]:
            values["text"] = values["text"][:left]
            left -= len(values["text"])
        if values.get("text") != "":
            found.append(Row(values, row.file, row.line))
    return found


def _losses(log: Path) -> list[tuple[int, float]]:
    """(step, validation loss) of a run's log; of fewer than two evaluations the training loss."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.is_file() else []
    for name in ("valid_loss", "loss"):
        found = [(line["step"], line[name]) for line in lines if isinstance(line.get(name), float)]
        if len(found) > 1:
            break
    return found


def remedy(found: Verdict, settings: RunSettings, met: str) -> str | None:
    """Returns the remedy for a model that is not better than the baseline; None where it is, or where that is unknown.

    ``met`` is the limit that ended the run.
    """
    if found.kind in ("better", "cannot tell"):
        return None
    limit = getattr(settings, met, None)
    if found.improving and limit is not None:
        return f"give it more time: the same command with --resume {_flag(met)} {3 * limit:g}"
    start = "" if settings.start_from else "start from a pretrained model (--from MODEL), or "
    files = shlex.join(settings.train)
    return f"{start}look at the examples, and give more: heedful audit {settings.task} --train {files}"


def _flag(limit: str) -> str:
    return f"--{'training.' if limit == 'patience' else ''}{limit.replace('_', '-')}"


def trained_parameters(model: Model) -> int:
    """Returns the number of trained parameters; fewer than all where the model is frozen under an adapter."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def card_of(
    task: Task, rows: Rows, settings: RunSettings, mapping: Mapping[str, str] | None = None, same: Same = content_digest
) -> dict[str, Any]:
    """Returns the content of ``heedful.json``; ``mapping`` holds the column names of the training data,"""
    return {
        "task": task.name,
        "columns": dict(task.columns),
        "data": {
            "train": list(settings.train),
            **({"columns": dict(mapping)} if mapping else {}),
            **({"same": BY_CONTENT} if same is content_digest else {}),
            "examples": len(rows),
            "sha256": digest(rows),
        },
        "versions": {"heedful": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "settings": settings.to_dict(),
        **task.card_entries(),
    }


def digest(rows: Rows) -> str:
    """SHA-256 of what the rows hold, in their order."""
    found = hashlib.sha256()
    for row in rows:
        for value in row.values.values():
            if isinstance(value, LazyImage):
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
