"""The end of a run: last weights, verdict, checkpoint, result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.data import Rows
from heedful.errors import HeedfulError
from heedful.settings import ResolvedSettings
from heedful.tasks.task import Measured, Task
from heedful.training.loop import Loop
from heedful.training.loop_parts import Outcome
from heedful.training.pace import decision_texts
from heedful.training.report import end_reason, save_verdict, too_short, within_chance
from heedful.training.run_folder import link_equal_weights, save_task_and_model
from heedful.training.teacher import judged
from heedful.training.validation import Validation
from heedful.util.progress import duration

if TYPE_CHECKING:
    from heedful.training.run import Run

WORTHWHILE = 2**20  # bytes of a checkpoint above which it leaves out weights that the folder stores
EXAMPLES = 20  # rows among which an input for the command line is looked for
Say = Callable[[str], None]
Draw = Callable[[Path, Measured, Rows], object]


def finish(
    run: Run, loop: Loop, validation: Validation, outcome: Outcome, say: Say, draw: Draw | None
) -> dict[str, Any]:
    """Ends a run: writes the last weights and the verdict, prints a description, and returns the run's result."""
    settings, out, first = _final_settings(run, loop), run.out, loop.engine.ranks.is_first
    _save_last(run, loop, outcome)
    task, validation, best, choice = judged(run, validation, outcome, writes=first)
    if first and outcome.best is not None and not validation.is_judged:  # saved before a resume, or on fewer examples
        validation.measure_folder(out, outcome.best["step"])
    if draw is not None and validation.best is not None:
        draw(out, validation.best, validation.best_examples.rows)

    reason = end_reason(outcome, loop.limits.planned_steps)
    say(f"{reason}; the best weights are those of step {best['step']:,}{within_chance(outcome, task)}")
    if choice is not None:
        say(choice)
    if (warning := too_short(outcome, settings)) is not None:
        say(warning)
    for line in _settle_checkpoint(loop, settings, outcome) if first else ():
        say(line)
    judgement = (
        save_verdict(task, settings, run.train.rows, validation.best_examples, validation.best, outcome)
        if first and not run.is_teacher
        else {}
    )
    if judgement:
        say(f"verdict: {judgement['verdict']['text']}")
    account = loop.account()
    if settings.max_minutes is not None:
        parts = ", ".join(f"{duration(seconds)} {use}" for use, seconds in account.items())
        say(f"time: {duration(sum(account.values()))} of {duration(60 * settings.max_minutes)}: {parts}")
    rows = run.train.rows if validation.best is None else validation.best_examples.rows
    return {
        "task": task.name,
        "model": str(out),
        "metrics": best["metrics"],
        "seconds": round(outcome.seconds, 3),
        "time": {use.replace(" ", "_"): round(seconds, 3) for use, seconds in account.items()},
        "steps": outcome.steps,
        "epochs": round(outcome.epochs, 4),
        "tokens": outcome.tokens,
        "best_step": best["step"],
        "stopped_because": outcome.stopped_because,
        "parameters": run.model.num_parameters(),
        "trained": run.model.num_parameters(trainable_only=True),
        "settings": settings.to_dict(),
        "next": _next_command(task, rows, settings),
        **judgement,
        **(validation.best.details if validation.best is not None else {}),
    }


def _final_settings(run: Run, loop: Loop) -> ResolvedSettings:
    """Returns the run's settings with the changes of its planned steps."""
    if loop.pace is None:
        return run.settings
    training = replace(run.settings.training, replanned=decision_texts(loop.pace.changes))
    return replace(run.settings, training=training)


def _next_command(task: Task, rows: Rows, settings: ResolvedSettings) -> list[str]:
    """Returns the arguments of ``heedful`` that try the new model: on an input of ``rows``, or on a file of the run."""
    folder = settings.out
    if rows and task.is_conversation(rows[0]):
        return ["chat", folder]
    example = next((text for row in rows[:EXAMPLES] if (text := task.example_input(row)) is not None), None)
    return ["predict", folder, *(["--in", (settings.valid or settings.train)[0]] if example is None else [example])]


def _save_last(run: Run, loop: Loop, outcome: Outcome) -> None:
    """Writes the last weights and the averaged weights."""
    card = {**run.card, "steps": outcome.steps}
    loop.model.eval()
    with loop.engine.whole(loop.model) as model:
        save_task_and_model(model, run.task, run.out / "last", card)
    if loop.average is not None:
        with loop.average.swapped(), loop.engine.whole(loop.model) as model:
            save_task_and_model(model, run.task, run.out / "average", card)


def _settle_checkpoint(loop: Loop, settings: ResolvedSettings, outcome: Outcome) -> list[str]:
    """Removes the checkpoint, or makes it smaller; returns a line for the user if it was removed.

    If a limit ended the run, the checkpoint stays, without the weights that the run folder stores. If patience ended
    the run, the checkpoint is removed, unless --training.keep-checkpoints says otherwise.
    """
    out, keep = Path(settings.out), settings.training.keep_checkpoints
    assert loop.saving is not None
    checkpoints = loop.saving.checkpoints
    link_equal_weights(out)
    if outcome.stopped_because == "already done":
        return []
    if keep == 0 or (keep is None and outcome.met == "patience"):
        size = checkpoints.size()
        checkpoints.clear()
        why = "--training.keep-checkpoints 0" if keep == 0 else "no more gain; --training.keep-checkpoints 1 keeps it"
        return [f"freed      {size / 1e6:,.0f} MB: the checkpoint was removed ({why})"] if size else []
    if (keep or 1) == 1 and not loop.engine.needs_all and checkpoints.size() > WORTHWHILE:
        with suppress(HeedfulError):  # a full disk: the whole checkpoint stays
            loop.reduce_checkpoint()
    return []
