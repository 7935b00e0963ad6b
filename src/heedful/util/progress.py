"""How far a long work is, for a person: a bar on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

EVERY = 30.0  # seconds between two plain lines


class Progress:
    """Shows on standard error how many inputs are answered, how fast, and how long the rest will take.

    Args:
        total: how many there are; None: nobody knows.
        done: how many of them were answered by an earlier call.
        quiet: show nothing.
        unit: the inputs' name.
        stream: where to show; None: standard error.
    """

    def __init__(
        self,
        total: int | None,
        done: int = 0,
        *,
        quiet: bool = False,
        unit: str = "inputs",
        stream: IO[str] | None = None,
    ) -> None:
        self.total, self.before, self.quiet, self.unit = total, done, quiet, unit
        self.stream = sys.stderr if stream is None else stream
        self.began = self.told = time.monotonic()
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        if not self.quiet and self.stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[shown]}"))
            self._bar = Progress(*columns, console=Console(file=self.stream), transient=True)
            self._bar.start()
            self._bar.add_task("answering", total=self.total, completed=self.before, shown="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def tick(self, done: int) -> None:
        """So many are answered now."""
        if self.quiet:
            return
        shown = self._shown(done)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, description=f"{done:,}", shown=shown)
        elif time.monotonic() - self.told >= EVERY:
            self.told = time.monotonic()
            of = "" if self.total is None else f" of {self.total:,}"
            self.note(f"{done:,}{of} {self.unit}  {shown}")

    def _shown(self, done: int) -> str:
        rate = (done - self.before) / max(time.monotonic() - self.began, 1e-9)
        left = None if self.total is None or not rate else (self.total - done) / rate
        figure = f"{rate:,.3g}" if rate < 100 else f"{rate:,.0f}"
        return f"{figure} {self.unit}/s{remaining(left)}"

    def note(self, text: str) -> None:
        """A line for a person."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, file=self.stream, flush=True)


def remaining(seconds: float | None) -> str:
    """``"  3:20 left"``, and nothing where it is not known."""
    if seconds is None:
        return ""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"  {hours}:{minutes:02}:{rest:02} left" if hours else f"  {minutes}:{rest:02} left"
