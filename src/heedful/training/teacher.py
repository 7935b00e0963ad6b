"""The teacher of a run: trained first, in a folder of the run's own, where the task suggests one.

Then the run's own model learns from it (``heedful.tasks.distillation``). If it is clearly more than ``MARGIN`` points
below its teacher on the validation rows, the run folder gets the teacher's model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from heedful.data import Rows
from heedful.errors import HeedfulError
from heedful.models import Ensemble
from heedful.models.base import device_of
from heedful.pretrained import load, read_card
from heedful.pretrained.folder import is_ensemble
from heedful.settings import RunSettings
from heedful.tasks import chosen
from heedful.tasks.distillation import TEACHER_FOLDER
from heedful.tasks.task import Measured, Task
from heedful.training.loop_parts import Outcome
from heedful.training.resolve import resolved
from heedful.training.run_folder import SETTINGS, UNFINISHED_SETTINGS, create_run_folder, save_task_and_model
from heedful.training.validation import Validation

if TYPE_CHECKING:
    from heedful.training.run import Run

MARGIN = 1.0  # points of accuracy
SHARE_OF_TIME = 0.4  # of --max-minutes for the teacher
Say = Callable[[str], None]


class TimeTooShort(HeedfulError):
    """``--max-minutes`` is no epoch of the teacher's members."""


class Judged(NamedTuple):
    """The task and the validation of the model that a run folder holds, its metrics, and a line on the choice."""

    task: Task
    validation: Validation
    best: dict[str, Any]
    line: str | None


def with_teacher(
    kind: type[Task], rows: Rows, given: RunSettings, train: Callable[..., dict[str, Any]], say: Say, **options: Any
) -> RunSettings:
    """Returns the settings of a run with its teacher, which is trained now if the task suggests one.

    The run's folder is created first, so that a run that is killed now can be resumed: a teacher that has begun to
    train goes on. ``train`` trains a run, with ``options``.

    If the time of ``--max-minutes`` is too short for a teacher, the settings say to train one model.
    """
    first = kind.teacher_settings(rows, given)
    if first is None:
        return given
    out, folder, device = Path(given.out), Path(first.out), device_of(given.device)
    for own, settings in ((kind, first), (chosen(given), replace(given, teacher=first.out))):
        resolved(own, rows, settings, device)  # raises before anything is written
    create_run_folder(out, given)
    if given.overwrite:
        given = replace(given, overwrite=False)
        create_run_folder(out, given)  # a restart then keeps the teacher
    members = first.model.members
    minutes = given.max_minutes and SHARE_OF_TIME * given.max_minutes
    first = replace(first, overwrite=False, resume=(folder / SETTINGS).is_file(), max_minutes=minutes)
    say(
        f"teacher    first an ensemble of {members} classifiers, about a third of the time; then one model that learns "
        "from it, which transformers opens"
    )
    say("           (the ensemble is kept if the one model is clearly worse on the validation rows)")
    say(f"           (--model.members {members} trains the ensemble alone, --model.members 1 one model alone)")
    try:
        train(first, say, is_teacher=True, **options)
    except HeedfulError as error:
        if not isinstance(error, TimeTooShort):
            if not (folder / SETTINGS).is_file():
                (out / UNFINISHED_SETTINGS).unlink()
            raise
        say(f"time       {given.max_minutes:g} min are too short for a teacher: one model is trained")
        return replace(given, model=replace(given.model, members=1))
    metric = kind.main_metric
    value = read_card(folder).get("metrics", {}).get(metric)
    measured = "" if value is None else f"{metric.replace('_', ' ')} {value:.1f} on the validation rows; "
    say(f"teacher    {measured}now the one model")
    return replace(given, teacher=str(folder))


def judged(run: Run, validation: Validation, outcome: Outcome, writes: bool = True) -> Judged:
    """Returns what the run folder holds: the run's model, or the teacher that the run has trained, which is then
    written there.

    The teacher is kept if the model's accuracy on the validation rows is more than ``MARGIN`` points below the
    teacher's, by more than the standard error of this difference, and where an earlier call kept it and this one found
    no better model. ``writes`` is False on ranks above 0, which judge nothing.
    """
    best = outcome.best or {"step": outcome.steps, "metrics": {}}
    own, folder = Judged(run.task, validation, best, None), run.out / TEACHER_FOLDER
    if writes and validation.best is None and not isinstance(run.model, Ensemble) and is_ensemble(run.out):
        judge, metrics = _measured(run, run.out, validation.judged_examples.rows, best["step"])
        line = f"the ensemble is kept, since no evaluation was better; the one model is in {run.out / 'last'}"
        return Judged(judge.task, judge, {**best, "metrics": metrics}, line)
    if not writes or run.settings.teacher is None or not folder.is_dir() or validation.best is None:
        return own
    judge, metrics = _measured(run, folder, validation.best_examples.rows, best["step"])
    expected = [judge.task.input_and_target(row)[1] for row in validation.best_examples.rows]
    ours, theirs = (_right(of.best, expected) for of in (validation, judge))
    rows = f"{len(expected):,} validation rows"
    figures = f"accuracy {100 * ours.mean():.1f}, its teacher {100 * theirs.mean():.1f} on {rows}"
    behind = 100 * (theirs - ours)
    if behind.mean() - behind.std() / len(behind) ** 0.5 <= MARGIN:
        return own._replace(line=f"one model has {figures}; the ensemble is in {folder}")
    save_task_and_model(judge.model, judge.task, run.out, {**run.card, "metrics": metrics})
    for path in run.out.glob("tokenizer*"):  # each member has its own
        path.unlink()
    line = f"! one model has {figures}: the ensemble is kept; the one model is in {run.out / 'last'}"
    return Judged(judge.task, judge, {**best, "metrics": metrics}, line)


def _measured(run: Run, folder: Path, rows: Rows, step: int) -> tuple[Validation, dict[str, float]]:
    """Returns the validation of the ensemble in ``folder`` on ``rows``, of the best weights, and its metrics."""
    kind: Any = type(run.task)
    task, model = kind.for_folder(folder).load(folder), load(folder, dtype="float32").to(run.device).eval()
    judge = Validation(task, model, task.encode(rows, run.settings.data.max_length), run.settings)
    metrics = judge.measure(step)
    judge.mark_best()
    return judge, metrics


def _right(measured: Measured | None, expected: Sequence[Any]) -> np.ndarray:
    """Returns 1 for each row whose output is the expected one, else 0."""
    assert measured is not None
    return np.array([a == b for a, b in zip(measured.outputs, expected, strict=True)], dtype=float)
