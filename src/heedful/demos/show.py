"""The steps of every demo: train, score held-out examples, print and draw the results."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heedful import tasks
from heedful.audit.audit import start_warnings
from heedful.data import Rows, read
from heedful.errors import HeedfulError, plural
from heedful.inference.pipeline import Pipeline, pipeline
from heedful.settings import RunSettings
from heedful.tasks.task import Measured
from heedful.training.run import train
from heedful.util.locks import contents
from heedful.util.terminal import program
from heedful.views.run_figures import draw_report, draw_run


@dataclass(frozen=True)
class DemoReport:
    """Report of a demo on its model."""

    headline: str  # one line with the figure
    lines: Sequence[str]  # what a person reads below it
    baseline: Mapping[str, float]  # the figure of something simple
    examples: Sequence[Mapping[str, Any]]  # {"input", "output"}, chosen without looking at the answers
    files: Mapping[str, Path] = field(default_factory=dict)  # pictures and pages besides the curve


@dataclass(frozen=True)
class Demo:
    """One demo: what it learns from, how, and how it tells of it."""

    title: str  # what learns what, in one line
    settings: RunSettings  # its ``train`` is a built-in set, its ``out`` the default folder
    tell: Callable[[Pipeline, Measured, Rows, Path], DemoReport]
    metric: str  # of the curve's lower panel
    ask: str  # what to ask ``heedful predict``; {folder} is the run's
    mine: str  # what to give ``heedful train TASK`` for one's own data


def show(demo: Demo, out: str | None, say: Callable[[str], None], quiet: bool) -> dict[str, Any]:
    """Trains, scores, prints and draws; see ``heedful.demos.demo``."""
    began = time.monotonic()
    folder = Path(out or demo.settings.out)
    if out is not None and contents(folder):
        raise HeedfulError(f"--out {folder} is not empty; name a new folder")
    kind = tasks.get(demo.settings.task)
    rows = read(list(demo.settings.train), kind.columns, split="test")
    say(f"{demo.title}\n{plural(len(rows))} kept for the end.\n")
    train(
        replace(demo.settings, out=str(folder), overwrite=folder.exists()), say=say, quiet=quiet, audit=start_warnings
    )

    pipe = pipeline(demo.settings.task, folder)
    pipe.model.eval()
    encoded = pipe.task.encode(rows)
    measured = pipe.task.measure(pipe.model, encoded.examples, encoded.rows)
    told = demo.tell(pipe, measured, rows, folder)
    curve = draw_run(folder, f"valid_{demo.metric}")
    pictures = {path.stem: path for path in [*draw_report(folder, measured, encoded.rows), *([curve] if curve else [])]}
    files = {name: path.as_posix() for name, path in {**told.files, **pictures}.items()}
    seconds, where = time.monotonic() - began, folder.as_posix()
    for line in ("", told.headline, *told.lines):
        say(line)
    say(f"\nIn {where} after {seconds:.0f} s: the model, and {', '.join(Path(file).name for file in files.values())}")
    me = program()
    say("Next:")
    say(f"  {me} predict {where} {demo.ask.format(folder=where)}")
    say(f"  {me} train {demo.settings.task} --train {demo.mine} --out runs/mine")
    page = next((file for file in files.values() if file.endswith(".html")), None)
    if page and not quiet and sys.stdout.isatty() and (os.environ.get("DISPLAY") or sys.platform in OPENS):
        webbrowser.open(Path(page).absolute().as_uri())
    return {
        "task": demo.settings.task,
        "model": where,
        "headline": told.headline,
        "metrics": measured.metrics,
        **measured.details,
        "baseline": dict(told.baseline),
        "examples": [dict(example) for example in told.examples],
        "seconds": round(seconds, 1),
        "files": files,
    }


OPENS = ("darwin", "win32")
