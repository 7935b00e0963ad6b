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
    """Result of a demo: what is printed about the trained model, and the files that were drawn."""

    headline: str  # one line with the main metric
    lines: Sequence[str]  # details below it
    baseline: Mapping[str, float]  # metric of a simple method
    examples: Sequence[Mapping[str, Any]]  # {"input", "output"}, chosen before the predictions
    files: Mapping[str, Path] = field(default_factory=dict)  # figures and pages besides the curve


@dataclass(frozen=True)
class Demo:
    """One demo: its data and settings, and how to report on its model."""

    title: str  # one line
    settings: RunSettings  # ``train`` is a built-in set, ``out`` the default folder
    describe: Callable[[Pipeline, Measured, Rows, Path], DemoReport]
    metric: str  # of the curve's lower panel
    example_input: str  # for ``heedful predict``; {folder} is the run's
    own_data: str  # example of ``--train`` with own data


def show(demo: Demo, out: str | None, say: Callable[[str], None], quiet: bool) -> dict[str, Any]:
    """Trains and scores a demo's model, and prints and draws the results; returns what ``heedful.demos.demo`` does."""
    began = time.monotonic()
    folder = Path(out or demo.settings.out)
    if out is not None and contents(folder):
        raise HeedfulError(f"--out {folder} is not empty; name a new folder")
    kind = tasks.get(demo.settings.task)
    rows = read(list(demo.settings.train), kind.columns, split="test")
    say(f"{demo.title}\n{plural(len(rows))} held out for the test.\n")
    train(
        replace(demo.settings, out=str(folder), overwrite=folder.exists()), say=say, quiet=quiet, audit=start_warnings
    )

    pipe = pipeline(demo.settings.task, folder)
    pipe.model.eval()
    encoded = pipe.task.encode(rows)
    measured = pipe.task.measure(pipe.model, encoded.examples, encoded.rows)
    report = demo.describe(pipe, measured, rows, folder)
    curve = draw_run(folder, f"valid_{demo.metric}")
    pictures = {path.stem: path for path in [*draw_report(folder, measured, encoded.rows), *([curve] if curve else [])]}
    files = {name: path.as_posix() for name, path in {**report.files, **pictures}.items()}
    seconds, path = time.monotonic() - began, folder.as_posix()
    for line in ("", report.headline, *report.lines):
        say(line)
    say(f"\nIn {path} after {seconds:.0f} s: the model, and {', '.join(Path(file).name for file in files.values())}")
    command = program()
    say("Next:")
    say(f"  {command} predict {path} {demo.example_input.format(folder=path)}")
    say(f"  {command} train {demo.settings.task} --train {demo.own_data} --out runs/mine")
    page = next((file for file in files.values() if file.endswith(".html")), None)
    if page and not quiet and sys.stdout.isatty() and (os.environ.get("DISPLAY") or sys.platform in OPENS):
        webbrowser.open(Path(page).absolute().as_uri())
    return {
        "task": demo.settings.task,
        "model": path,
        "headline": report.headline,
        "metrics": measured.metrics,
        **measured.details,
        "baseline": dict(report.baseline),
        "examples": [dict(example) for example in report.examples],
        "seconds": round(seconds, 1),
        "files": files,
    }


OPENS = ("darwin", "win32")
