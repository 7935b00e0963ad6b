"""Reports of a run: its lines before and after training, and the metadata of its folder."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import subprocess
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heedful import __version__
from heedful.data import LazyImage, Row, Rows
from heedful.data.split import Same, content_digest
from heedful.data.texts_on_disk import any_on_disk, row_size
from heedful.errors import HeedfulError, plural
from heedful.evaluation.trained_on import TrainedOn
from heedful.metrics.verdict import MORE, MOST, Rival, Verdict, improving, select_examples, verdict
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.pretrained.folder import HEEDFUL_JSON, find, indented_json
from heedful.pretrained.model_card import update_model_card
from heedful.settings import AUTO, ResolvedSettings, RunSettings
from heedful.tasks.baselines import KERNEL_IMAGES, LABELLED, evenly_spaced
from heedful.tasks.known_models import is_out_of_reach
from heedful.tasks.run_data import equality_entry, has_validation_data
from heedful.tasks.tagging import WORDS
from heedful.tasks.task import Baseline, Encoded, Measured, Task
from heedful.training.loop_parts import Outcome
from heedful.training.run_folder import SETTINGS
from heedful.util.files import write

NAMES = {"adamw": "AdamW", "muon": "Muon and AdamW"}
PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "scikit-learn")  # on which results may depend
SHORT = 0.7  # share of the planned steps below which a run that ran out of time warns
ROWS, CHARACTERS = 20_000, 2_000_000  # maximum training data of a verdict's baseline
# How long such a baseline takes on one core of an AMD EPYC, beyond the 2.3 s of a small one: 57 classes of 2 million
# characters 6.6 s, numbers for 4,000 texts of 1.3 million 4.5 s, the most tagged words and the most images 2.1 s each,
# other texts up to 2 s.
LABELS_A_SECOND, NUMBERS_A_SECOND = 1.7e7, 3e5  # characters, those of labels once for each label
TAGS_SECONDS, IMAGES_SECONDS, TEXTS_SECONDS = 2.1, 2.1, 2.0


def opening_lines(
    task: Task,
    train: Encoded,
    valid: Encoded,
    model: Model,
    device: torch.device,
    settings: ResolvedSettings,
    processes: int = 1,
    notes: Sequence[str] = (),
) -> list[str]:
    """Returns the first lines of a run: data, ``notes`` on how it was read, model, training, processes and folder."""
    rows, t = train.rows, settings.training
    optimiser = NAMES.get(t.optimiser, t.optimiser)
    means = task.lengths(train.examples).mean(axis=0)
    left_out = f", {rows.skipped:,} empty or unreadable rows skipped" if rows.skipped else ""
    limits = [f"{name[4:]} {v:g}" for name, v in vars(settings).items() if name.startswith("max_") and v is not None]
    origin = f"from {settings.start_from}" if settings.start_from else settings.preset
    fresh = f", {', '.join(model.fresh)} with fresh weights" if model.fresh else ""
    trained = f", {model.num_parameters(trainable_only=True):,} of them trained" if model.adapter is not None else ""
    batch = plural(t.batch_tokens, "token") if t.batch_tokens else plural(t.batch_size or 0)
    weights = "each with a shard of the weights" if t.shard else "each with all of the weights"
    kind, case = settings.tokenizer.kind, ", in lower case" if settings.tokenizer.lowercase else ""
    columns = ", ".join(shown_columns(rows))
    made = f", of a new {kind} vocabulary{case}" if kind and not settings.start_from else ""
    return [
        f"data       {plural(len(rows))} ({columns}){left_out}; {len(valid.rows):,} for validation",
        *(f"columns    {note}" for note in notes),
        *_unlabelled_lines(rows.unlabelled),
        f"           {task.row_line(rows[0])}",
        f"tokens     {' + '.join(f'{mean:.1f}' for mean in means)} an example{made}",
        *(f"{name:<11}{examples.note}" for name, examples in (("", train), ("validation", valid)) if examples.note),
        f"model      {f'the checkpoint in {settings.out}' if settings.resume else origin}, "
        f"{model.num_parameters() / 1e6:.1f} M parameters{trained}{fresh}, {t.precision}, on {device}",
        *(f"           {note}" for note in task.model_notes),
        f"training   {optimiser}, lr {t.lr:g} {t.schedule}, warm-up {t.warmup}, {batch} a step"
        f"{f' × {t.accumulate}' if t.accumulate != 1 else ''}, until {' or '.join(limits) or 'patience'}",
        *([f"processes  {processes}, {weights}"] if processes > 1 else []),
        f"out        {settings.out} (all settings: run.toml)",
    ]


def shown_columns(rows: Rows) -> list[str]:
    """Returns the names of the columns that were read; of columns without names what each number stands for."""
    names = {number: name for name, number in rows.mapping.items()}
    return [f"{names[name]} in column {name}" if name.isdecimal() and name in names else name for name in rows.columns]


def _unlabelled_lines(rows: Rows | None) -> list[str]:
    """Returns the lines on the texts without labels: their number, use, and what was left out of them."""
    if rows is None:
        return []
    blank = f", {rows.skipped:,} blank ones skipped" if rows.skipped else ""
    return [
        f"unlabelled {plural(len(rows), 'text')}{blank}: two members begin with vectors of their words",
        *(f"           {note}" for note in rows.notes),
    ]


def end_reason(outcome: Outcome, planned_steps: int | None = None) -> str:
    """Returns a text for people: why a run ended, and after how many steps and seconds.

    ``planned_steps`` is the number of steps that were planned for --max-minutes, if any.
    """
    planned = planned_steps is not None and outcome.steps >= planned_steps
    reasons = {
        "max_steps": "all steps are done",
        "max_epochs": "all epochs are done",
        "max_minutes": "all planned steps are done" if planned else "the time of --max-minutes is over",
        "patience": "no more gain",
        "callback": "a callback stopped the run",
        "already done": f"this run had already ended, by {_flag(outcome.met)},",
    }
    return f"{reasons[outcome.stopped_because]} after {plural(outcome.steps, 'step')} and {outcome.seconds:,.0f} s"


def within_chance(outcome: Outcome, task: Task) -> str:
    """Returns a text that explains why the saved weights are not those of the highest metric; "" if they are."""
    if outcome.best is None or outcome.highest in (None, outcome.best["step"]):
        return ""
    name = task.main_metric.replace("_", " ")
    return (
        f"; their {name} is within a standard error of the highest (step {outcome.highest:,}), and their loss is lower"
    )


def too_short(outcome: Outcome, settings: ResolvedSettings) -> str | None:
    """Returns a warning if --max-minutes ended a run long before its planned steps, or in its warm-up; else None."""
    steps, planned = outcome.steps, settings.training.last_planned_steps or 0
    warmup = settings.training.warmup
    if outcome.stopped_because != "max_minutes" or (planned and steps >= planned):  # the plan has warned
        return None
    if steps >= max(SHORT * planned, warmup + 1):
        return None
    where = f"inside the warm-up of {warmup:,} steps" if steps <= warmup else f"after {steps / planned:.0%} of the plan"
    why = "the machine was slower than measured at the start; " if planned > steps else ""
    return f"! the time ended {where}: {why}continue with --resume and a larger --max-minutes"


def save_verdict(
    task: Task, settings: ResolvedSettings, train: Rows, valid: Encoded, measured: Measured | None, outcome: Outcome
) -> dict[str, Any]:
    """Compares the saved weights with a baseline on the validation rows.

    Writes the verdict to ``heedful.json`` and the model card.

    The baseline is fitted to at most 20,000 training rows, of two million characters in total. If the baseline fails,
    there is a verdict without a baseline.

    Returns:
        ``{"verdict": ...}`` with the fields of a :class:`heedful.metrics.verdict.Verdict`, and ``"remedy"``: what to do
        if the model is not better than the baseline, else None; and ``"baseline"``, ``{"name", "metrics"}`` of the
        simple method. ``{}`` if nothing was measured.
    """
    scored = None if measured is None else measured.window_scores or measured.example_scores
    if measured is None or scored is None:
        return {}
    out = Path(settings.out)
    still_improving = outcome.met != "patience" and improving(_losses(out / "metrics.jsonl"))
    has_blocks, rows = measured.window_scores is not None, valid.rows
    has_labels = any(kind in ("label", "tags") for kind in task.columns.values())
    expected = [task.input_and_target(row)[1] for row in rows[: len(measured.outputs)]]
    if not has_blocks:
        rows = Rows(rows[: len(scored)])
        if len(rows) > MOST and not task.ranks_rows:
            indices = np.linspace(0, len(rows) - 1, MOST).astype(np.int64)
            rows, scored = Rows(rows[int(index)] for index in indices), select_examples(scored, indices)
    sample = _sample(train)
    guess = _scored(lambda: task.guess(valid.examples, rows, sample))
    baseline = _scored(lambda: task.quick_baseline(valid.examples, rows, sample))
    judgement = verdict(
        scored,
        task.main_metric,
        guess=_rival(guess),
        baseline=_rival(baseline),
        outputs=measured.outputs,
        expected=expected,
        classes=has_labels,
        improving=still_improving,
        more=_more_examples(settings),
    )
    start = _start(task, train, settings)
    inside, here = (remedy(judgement, one, outcome.met, start) for one in (replace(settings, out=""), settings))
    stored = {"verdict": {**judgement.as_dict(), "remedy": inside}}  # without the folder's path, so that it can move
    write(out / HEEDFUL_JSON, indented_json({**read_card(out), **stored}))
    update_model_card(out)
    entry = {"verdict": {**judgement.as_dict(), "remedy": here}}
    return {**entry, **_baseline_entry(baseline, guess, task.main_metric)}


def _more_examples(settings: RunSettings) -> str:
    """Returns how people get more validation examples: by ``--data.valid-fraction`` if they are a part of --train."""
    try:
        given = has_validation_data(settings)
    except HeedfulError:  # a data set of the Hub may be out of reach by now
        given = True
    return MORE if given else "hold back more: --data.valid-fraction"


def _baseline_entry(baseline: Baseline | None, guess: Baseline | None, metric: str) -> dict[str, Any]:
    """Returns ``{"baseline": {"name", "metrics"}}`` for the last table: the baseline or, without one, the guess.

    A guess has only the metric that chose the weights. Returns {} without both.
    """
    if baseline is None and guess is not None:
        baseline = Baseline(guess.name, {name: value for name, value in guess.metrics.items() if name == metric})
    return {} if baseline is None else {"baseline": baseline.as_dict()}


def write_trained_on(task: Task, rows: Rows, settings: RunSettings) -> None:
    """Writes hashes of the training rows to the run's folder, for the check of later evaluation data.

    If the run starts from another model, the hashes in that model's folder are added.
    """
    trained_on = TrainedOn.of(task, rows)
    before = TrainedOn.read(find(settings.start_from)) if settings.start_from else None
    if before is not None:
        trained_on = TrainedOn(max(trained_on.k, before.k), trained_on.hashes).joined(before.hashes)
    trained_on.write(Path(settings.out))


def _scored(score: Callable[[], Baseline | None]) -> Baseline | None:
    """Returns a baseline; None if it fails, so that its error does not end a finished run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return score()
        except Exception:
            return None


def _rival(baseline: Baseline | None) -> Rival | None:
    """Returns a baseline's scores; None if it has none."""
    return (
        None if baseline is None or baseline.example_scores is None else Rival(baseline.name, baseline.example_scores)
    )


def baseline_seconds(task: Task, rows: Rows, labels: int) -> float:
    """Returns the expected processor seconds that the baseline of a verdict takes more than one of few, short rows.

    They depend on what is predicted, on the training ``rows``, and on the number of ``labels`` that a model has.
    """
    kinds = [kind for kind in task.columns.values() if not kind.endswith("?")]
    length, count = _mean_length(rows), len(rows)
    if "image" in kinds:
        return IMAGES_SECONDS * min(1, count / KERNEL_IMAGES) ** 2
    if "tags" in kinds:
        return TAGS_SECONDS * min(1, length / 2 * count / WORDS)  # a row is measured in words and tags
    if "number" in kinds:
        return length * min(count, LABELLED) / NUMBERS_A_SECOND
    if "label" in kinds:
        return min(CHARACTERS, length * count) * labels / LABELS_A_SECOND
    return TEXTS_SECONDS if len(kinds) > 1 and not task.ranks_rows else 0.0


def _mean_length(rows: Rows) -> float:
    """Returns the mean number of characters of a row, at least 1, by at most some 200 of them."""

    def length(row: Row) -> int:
        if any_on_disk([row]):
            return row_size(row)
        return sum(len(value) for value in row.values.values() if isinstance(value, str | tuple))

    measured = rows[:: max(1, len(rows) // 200)]
    return max(1, sum(map(length, measured)) / max(1, len(measured)))


def _sample(rows: Rows) -> Rows:
    """Returns at most 20,000 rows, of two million characters in total, at equal distances and in memory; cuts longer
    texts.
    """
    max_rows = max(1, int(min(ROWS, CHARACTERS / _mean_length(rows))))
    sample, characters_left = Rows(columns=rows.columns), CHARACTERS
    for row in (rows[i] for i in evenly_spaced(len(rows), max_rows)):
        values = {name: row.values[name] for name in row.values}
        if list(values) == ["text"]:
            values["text"] = values["text"][:characters_left]
            characters_left -= len(values["text"])
        if values.get("text") != "":
            sample.append(Row(values, row.file, row.line))
    return sample


def _losses(log: Path) -> list[tuple[int, float]]:
    """Returns (step, loss) pairs of a run's log: validation losses, or training losses if there are fewer than two."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.is_file() else []
    for name in ("valid_loss", "loss"):
        losses = [(line["step"], line[name]) for line in lines if isinstance(line.get(name), float)]
        if len(losses) > 1:
            break
    return losses


def _start(task: Task, rows: Rows, settings: RunSettings) -> str | None:
    """Returns the pretrained model to advise; None after a run from one, and if the model is out of reach."""
    if settings.start_from or is_out_of_reach(type(task), rows, settings):
        return None
    return AUTO if task.known_models is not None else "MODEL"


def remedy(judgement: Verdict, settings: RunSettings, met: str, model: str | None = "MODEL") -> str | None:
    """Returns the remedy for a model that is not better than the baseline; None if it is better, or if that is unknown.

    ``met`` is the limit that ended the run, and ``model`` a pretrained model to start from, if one is to be advised.
    """
    if judgement.kind in ("better", "cannot tell"):
        return None
    limit = getattr(settings, met, None)
    config = f"{settings.task} --config {shlex.quote(str(Path(settings.out, SETTINGS)))}"
    if judgement.improving and limit is not None:
        longer = f"{3 * limit:g}" if isinstance(limit, float) else 3 * limit
        return f"train longer: heedful train {config} --resume {_flag(met)} {longer}"
    start = "" if model is None else f"start from a pretrained model (--from {model}), or "
    return f"{start}check the examples, and add more: heedful audit {config}"


def _flag(limit: str) -> str:
    return f"--{'training.' if limit == 'patience' else ''}{limit.replace('_', '-')}"


def card_of(
    task: Task, rows: Rows, settings: RunSettings, mapping: Mapping[str, str] | None = None, same: Same = content_digest
) -> dict[str, Any]:
    """Returns the content of ``heedful.json`` for a run; ``mapping`` has the names of the training data's columns."""
    return {
        "task": task.name,
        "columns": dict(task.columns),
        "data": {
            "train": list(settings.train),
            **({"columns": dict(mapping)} if mapping else {}),
            **equality_entry(same),
            "examples": len(rows),
            "sha256": digest(rows),
        },
        "versions": {
            "heedful": __version__,
            "python": platform.python_version(),
            **{package: version(package) for package in PACKAGES},
            **({"git": commit} if (commit := git_commit()) else {}),
        },
        "settings": settings.to_dict(),
        **task.card_entries(),
    }


def git_commit(folder: str | Path = ".") -> str:
    """Returns the git commit of the repository that holds a folder; "" without a repository.

    A "+" follows the commit if files differ from it. The command ``git`` gets at most two seconds.
    """
    try:
        commit, changed = (
            subprocess.run(
                ["git", "-C", str(folder), *command], capture_output=True, encoding="utf-8", check=True, timeout=2
            ).stdout.strip()
            for command in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return commit + ("+" if changed else "")


def digest(rows: Rows) -> str:
    """Returns the SHA-256 of the rows' values, in their order."""
    sha256 = hashlib.sha256()
    for row in rows:
        for value in row.values.values():
            if isinstance(value, LazyImage):
                sha256.update(value.digest_bytes())
            else:
                sha256.update(_as_text(value).encode("utf-8", "surrogatepass"))
            sha256.update(b"\0")
    return sha256.hexdigest()


def _as_text(value: Any) -> str:
    """Returns a value of a row as text: a string as it is, several joined by tabs, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return "\t".join(value)
    return json.dumps(value, ensure_ascii=False)
