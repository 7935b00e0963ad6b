"""Log of a run: ``metrics.jsonl`` for programs, a progress bar or plain lines for people."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from heedful.data.cell_values import brief
from heedful.errors import HeedfulError
from heedful.training.checkpoint import write_errors
from heedful.training.reporters import Reporter
from heedful.util.files import atomic_file, check_regular, parse_json
from heedful.util.progress import Bar, remaining

RUN_LOG = logging.getLogger("heedful.training")  # the lines that a run shows, at level INFO, for handlers of the user's
REDRAW = 0.1  # seconds between two updates of the bar
QUIET = 10.0  # seconds of an evaluation without a bar between two lines
DROPPED = ("epoch", "lr", "speed")  # from a line that is too long, the least important first
SAMPLE = 60  # maximum characters of a sample


@dataclass
class LogWindow:
    """Totals of the steps since the last line of the log."""

    loss: float = 0.0  # sum
    tokens: int = 0  # predictions that the loss is summed over
    seconds: float = 0.0  # of steps, without evaluations and saving


class Log:
    """Log of a run: writes one line for each logged step to a file, and shows the run on standard error.

    A terminal shows one progress bar; any other output gets a plain line for each logged step.

    Args:
        path: the JSON lines file (``metrics.jsonl``); None: no file.
        quiet: show nothing.
        stream: where to show the run; None: standard error. Standard output is for results.
        reporters: reporters that send each line to other programs.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        quiet: bool = False,
        stream: Any = None,
        reporters: Sequence[Reporter] = (),
    ) -> None:
        self.reporters = reporters
        self.path = None if path is None else Path(path)
        self._bar = Bar(stream, quiet=quiet)
        self._file: IO[str] | None = None
        self._last: dict[str, Any] = {"step": 0}  # the last line of the file
        self._last_at = 0  # its offset
        self._drawn_at = 0.0  # time of the last update of the bar
        self._noted_at = 0.0  # time of the last plain line
        self._shown: Mapping[str, Any] = {}  # the last line that was shown

    def begin(self, step: int) -> None:
        """Opens the file to continue after ``step``: drops later lines and an incomplete last line; a ``step`` of 0
        empties the file.
        """
        for reporter in self.reporters:
            reporter.begin(step)
        if self.path is None:
            return
        lines: list[dict[str, Any]] = []
        check_regular(self.path, "remove it, or choose another --out")
        if self.path.exists():
            for text in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    line = parse_json(text, self.path, "")
                except HeedfulError:
                    break
                if not isinstance(line, dict) or not isinstance(line.get("step"), int | float) or line["step"] > step:
                    break
                lines.append(line)
        texts = [json.dumps(line) + "\n" for line in lines]
        with write_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(self.path) as file:
                file.write("".join(texts).encode())
            self._file = self.path.open("a", encoding="utf-8", newline="\n")
        self._last = lines[-1] if lines else {"step": 0}
        self._last_at = sum(map(len, texts[:-1]))  # json.dumps writes ASCII: characters are bytes

    def __enter__(self) -> Log:
        self._bar.__enter__()
        self._bar.update("step 0", "")
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__(None, None, None)
        for reporter in self.reporters:
            reporter.end()
        if self._file is not None:
            self._file.close()
            self._file = None

    def write(self, line: Mapping[str, Any], *, left: float | None = None) -> None:
        """Writes a line to the file, and shows it; a second line of the same step is merged into the first.

        Args:
            line: numbers by name, ``"step"`` among them; a number that is not finite is written as ``null``.
                ``"samples"`` are texts, of which the first is shown.
            left: seconds to the end of the run; shown, not written.
        """
        self._record(line)
        for reporter in self.reporters:
            reporter.write(line)
        self._shown = line
        text = f"step {line['step']:,}  {log_line(line)}{remaining(left)}"
        if self.path is not None:  # not of a trial, nor of another rank
            RUN_LOG.info(text)
        # The bar shows the latest numbers; an evaluation has a line that stays.
        if not self._bar.active or any(name.startswith("valid_") for name in line):
            self.note(text)
        for sample in line.get("samples", ())[:1]:
            self.note(f"           {brief(sample['input'], SAMPLE)} → {brief(sample['output'], SAMPLE)}")

    def _record(self, line: Mapping[str, Any]) -> None:
        if self._file is None or self.path is None:
            return
        values = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
        with write_errors(self.path):
            if values["step"] == self._last["step"]:
                values = {**self._last, **values}
                self._file.truncate(self._last_at)
            self._file.seek(0, os.SEEK_END)
            self._last, self._last_at = values, self._file.tell()
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()

    def tick(self, step: int, progress: float | None, left: float | None) -> None:
        """Updates the progress bar, at most ten times a second; to be called at every step."""
        if self._bar.active and time.monotonic() - self._drawn_at > REDRAW:
            self._draw(step, progress, left)

    def evaluating(self, step: int, done: int, total: int, left: float | None) -> None:
        """Shows the progress of an evaluation in the bar, or as a line every ten seconds."""
        now = time.monotonic()
        text = f"evaluating, {done:,} of {total:,} batches{remaining(left)}"
        if self._bar.active and now - self._drawn_at > REDRAW:
            self._drawn_at = now
            self._bar.update(f"step {step:,}", text)
        elif not self._bar.active and now - self._noted_at > QUIET:
            self.note(f"step {step:,}  {text}")

    def note(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        self._noted_at = time.monotonic()
        self._bar.note(text)

    def _draw(self, step: int, progress: float | None, left: float | None) -> None:
        self._drawn_at = time.monotonic()
        description, time_left = f"step {step:,}", remaining(left)
        text = log_line(self._shown, self._bar.room(description, time_left)) + time_left
        self._bar.update(description, text.strip(), total=None if progress is None else 1.0, completed=progress or 0.0)


def logged(say: Callable[[str], None]) -> Callable[[str], None]:
    """Returns ``say`` with the addition that each line goes to the logger ``heedful.training`` too."""

    def say_and_log(line: str) -> None:
        RUN_LOG.info(line)
        say(line)

    return say_and_log


def log_line(line: Mapping[str, Any], room: float = math.inf) -> str:
    """Returns the numbers of a line of the log as text for people.

    The least important numbers are left out if the text would have more than ``room`` characters.

    >>> line = {"epoch": 1.5, "loss": 2.5, "lr": 3e-4, "tokens_per_second": 12345.6, "valid_bleu": 31.25}
    >>> log_line(line)
    'epoch 1.50  loss 2.5000  lr 0.0003  12,346 tokens/s  valid_bleu 31.25'
    >>> log_line(line, 30)
    'loss 2.5000  valid_bleu 31.25'
    """
    formats = {
        "epoch": "epoch {:.2f}",
        "loss": "loss {:.4f}",
        "lr": "lr {:.3g}",
    }
    parts = {name: form.format(line[name]) for name, form in formats.items() if line.get(name) is not None}
    for name, value in line.items():
        if name.endswith("_per_second"):
            parts["speed"] = f"{value:,.0f} {name.removesuffix('_per_second').replace('_', ' ')}/s"
    parts |= {name: f"{name} {value:.4g}" for name, value in line.items() if name.startswith("valid_")}
    metrics = [name for name in parts if name.startswith("valid_")]
    for name in (*DROPPED, *reversed(metrics), "loss"):
        if len("  ".join(parts.values())) <= room:
            break
        parts.pop(name, None)
    return "  ".join(parts.values())
