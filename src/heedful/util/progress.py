"""Progress on standard error: a bar on a terminal and in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from html import escape
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LINE_SECONDS = 30.0  # seconds between two plain lines
BAR_WIDTH = 24  # characters of the bar
NOTEBOOK_ROOM = 160  # characters beside the bar of a notebook
NOTEBOOK_SECONDS = 0.25  # seconds between two updates of the bar of a notebook


def in_notebook() -> bool:
    """Returns True if the program runs in a Jupyter notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class _NotebookBar:
    """A bar in a notebook's page, by IPython's own display: it needs no widgets and stays in no saved notebook."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html, self._drawn_at = HTML, 0.0
        self._fields: dict[str, Any] = {"description": "", "text": "", "completed": None, "total": None}
        self._handle: Any = display(HTML(""), display_id=True)

    def update(self, fields: Mapping[str, Any]) -> None:
        """Sets fields of the bar, such as ``completed``; draws it at most four times a second."""
        self._fields |= fields
        if time.monotonic() - self._drawn_at > NOTEBOOK_SECONDS:
            self.refresh()

    def refresh(self) -> None:
        """Draws the bar now."""
        self._drawn_at = time.monotonic()
        total, completed = self._fields["total"], self._fields["completed"] or 0
        share = f' value="{completed / total:.4f}"' if total else ""
        description, text = (escape(str(self._fields[name])) for name in ("description", "text"))
        self._handle.update(self._html(f"<code>{description} <progress{share}></progress> {text}</code>"))

    def stop(self) -> None:
        """Removes the bar."""
        self._handle.update(self._html(""))


class Bar:
    """Progress bar with a text before and after it, drawn on a terminal or in a notebook, and nowhere else.

    ``note`` prints a line wherever the program runs.

    Args:
        stream: the text stream; None: standard error.
        quiet: print nothing.
    """

    def __init__(self, stream: IO[str] | None = None, *, quiet: bool = False) -> None:
        self.stream, self.quiet = sys.stderr if stream is None else stream, quiet
        self._progress: RichProgress | None = None
        self._notebook: _NotebookBar | None = None

    @property
    def active(self) -> bool:
        """True while a bar is drawn."""
        return self._progress is not None or self._notebook is not None

    def __enter__(self) -> Self:
        if not self.quiet and in_notebook():
            self._notebook = _NotebookBar()
        elif not self.quiet and self.stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn
            from rich.table import Column

            columns = (
                TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                BarColumn(bar_width=BAR_WIDTH),
                TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            )
            self._progress = Progress(*columns, console=Console(file=self.stream), transient=True)
            self._progress.start()
            self._progress.add_task("", total=None, text="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        if self._notebook is not None:
            self._notebook.stop()
            self._notebook = None

    def update(self, description: str, text: str, **numbers: float | None) -> None:
        """Sets the texts before and after the bar, and its numbers ``completed`` and ``total`` if they are given."""
        fields: dict[str, Any] = {"description": description, "text": text, **numbers}
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], **fields)
        if self._notebook is not None:
            self._notebook.update(fields)

    def room(self, *texts: str) -> int:
        """Returns how many characters are free on the bar's line, if ``texts`` stand beside the bar."""
        if self._progress is None:
            return NOTEBOOK_ROOM
        return self._progress.console.width - BAR_WIDTH - sum(map(len, texts)) - 2  # spaces between the columns

    def refresh(self) -> None:
        """Draws the bar now."""
        if self._progress is not None:
            self._progress.refresh()
        if self._notebook is not None:
            self._notebook.refresh()

    def note(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self.quiet:
            return
        if self._progress is not None:
            self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)
        elif self._notebook is not None:
            print(text)  # a notebook shows standard error in red
        else:
            print(text, file=self.stream, flush=True)


class Progress:
    """Number of inputs done, their rate and the time left: a bar on a terminal, else a line every 30 seconds.

    Args:
        total: number of inputs; None: unknown.
        done: number of inputs finished by an earlier call.
        quiet: print nothing.
        unit: name of the inputs.
        stream: the text stream; None: standard error.
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
        self.total, self.done_before, self.unit = total, done, unit
        self.bar = Bar(stream, quiet=quiet)
        self.start_time = self.last_line_time = time.monotonic()

    def __enter__(self) -> Self:
        self.bar.__enter__()
        self.bar.update("predicting", "", total=self.total, completed=self.done_before)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bar.__exit__(kind, error, at)

    def tick(self, done: int) -> None:
        """Shows the progress when ``done`` inputs are finished."""
        text = self._rate(done)
        if self.bar.active:
            self.bar.update(f"{done:,}", text, completed=done)
        elif time.monotonic() - self.last_line_time >= LINE_SECONDS:
            self.last_line_time = time.monotonic()
            of = "" if self.total is None else f" of {self.total:,}"
            self.note(f"{done:,}{of} {self.unit}  {text}")

    def _rate(self, done: int) -> str:
        rate = (done - self.done_before) / max(time.monotonic() - self.start_time, 1e-9)
        left = None if self.total is None or not rate else (self.total - done) / rate
        number = f"{rate:,.3g}" if rate < 100 else f"{rate:,.0f}"
        return f"{number} {self.unit}/s{remaining(left)}"

    def note(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        self.bar.note(text)


def remaining(seconds: float | None) -> str:
    """Returns a duration as ``"  3:20 left"``; "" for None.

    >>> remaining(200), remaining(None)
    ('  3:20 left', '')
    """
    return "" if seconds is None else f"  {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Returns a duration as minutes and seconds, from an hour on with hours.

    >>> duration(200.4), duration(3661)
    ('3:20', '1:01:01')
    """
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
