"""Training runs in the folders to watch, read from their logs; an update reads only new lines."""

from __future__ import annotations

import os
import re
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from heedful.errors import HeedfulError
from heedful.metrics.registry import label_of, sign
from heedful.pretrained.folder import MEMBER_FILES
from heedful.settings import RunSettings, read_toml
from heedful.tasks import main_metrics
from heedful.util.files import parse_json
from heedful.views.text import visible

SETTINGS, LOG, LAST = "run.toml", "metrics.jsonl", "last/heedful.json"
CARD = "heedful.json"  # of the best weights; its verdict, written at the end of a run, is on them
MAX_POINTS = 500  # of a curve; beyond, neighbours are averaged
CHUNK = 1 << 22  # bytes read at a time
MAX_LINE = 1 << 24  # bytes of a line of the log
MAX_READ = 1 << 28  # new bytes of a log that are read; a run of a million lines has about as many
HIGHEST = 1e100  # larger numbers of a log are ignored
NUMBER = re.compile("[0-9]{1,9}")  # of a request; int() refuses thousands of digits
FOLDER = "the folder"  # key of the folder's own errors
MISSING = (FileNotFoundError, NotADirectoryError)
MAX_FOLDERS = 20_000  # that are searched for runs
NO_CURVES = ("step", "seconds", "epoch")  # axes, not curves
PAGES = (".html", ".svg", ".png")  # suffixes of a run's files that a browser shows
WEIGHTS = ("*.safetensors", f"{MEMBER_FILES}.safetensors")  # of a model and of an ensemble's members
MODEL_FOLDERS = (".", "last")  # of a run, the best weights before the last
QUIET = 60.0  # seconds without a line after which a run counts as stopped, unless its lines are further apart


@dataclass(frozen=True)
class SavedModel:
    """The folder of a model that a run has saved, and when its weights were written, in nanoseconds."""

    folder: Path
    time: int


class Curve:
    """Curve of at most ``max_points`` points: when more are added, neighbours are averaged.

    >>> curve = Curve(max_points=4)
    >>> for step in range(6):
    ...     curve.add(step, 10.0 * step)
    >>> curve.points()
    [(0.5, 5.0), (2.5, 25.0), (4.5, 45.0)]
    """

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self.max_points, self.size = max_points, 1  # size: points in each group but the last
        self.groups: list[tuple[float, float, int]] = []  # Σ x, Σ y, number of points

    def add(self, x: float, y: float) -> None:
        """Adds a point at the end."""
        if self.groups and self.groups[-1][2] < self.size:
            self.groups[-1] = _sum(self.groups[-1], (x, y, 1))
            return
        if len(self.groups) == self.max_points:
            pairs = [self.groups[i : i + 2] for i in range(0, self.max_points, 2)]
            self.groups = [_sum(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
            self.size *= 2
            self.add(x, y)
            return
        self.groups.append((x, y, 1))

    def copy(self) -> Curve:
        """Returns an independent copy of the curve."""
        other = Curve(self.max_points)
        other.size, other.groups = self.size, self.groups[:]
        return other

    def points(self) -> list[tuple[float, float]]:
        """Returns the mean (x, y) of each group."""
        return [(x / count, y / count) for x, y, count in self.groups]


def _sum(a: tuple[float, float, int], b: tuple[float, float, int]) -> tuple[float, float, int]:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


class _LogSummary:
    """Summary of the lines of a log read so far."""

    CURVES: Mapping[str, str] = {
        "loss": "training",
        "valid_loss": "validation",
        "lr": "rate",
    }  # others keep their names
    CURVE_LIMIT = 40  # curves of one run at most

    def __init__(self, metrics: Sequence[str]) -> None:
        self.metrics = metrics  # main metrics of the task; the first one in the log is shown
        self.latest: dict[str, Any] = {}  # last value by name
        self.curves = {name: Curve() for name in self.CURVES.values()}
        self.times = Curve()  # seconds by step
        self.best: dict[str, tuple[float, int]] = {}  # by metric: value and step
        self.intervals: deque[float] = deque(maxlen=5)  # seconds between two lines

    def with_line(self, line: Mapping[str, Any] | None) -> _LogSummary:
        """Returns a copy of this summary of a log, with one more line of the log."""
        other = _LogSummary(self.metrics)
        other.latest, other.best, other.intervals = dict(self.latest), dict(self.best), self.intervals.copy()
        other.curves = {name: curve.copy() for name, curve in self.curves.items()}
        other.times = self.times.copy()
        if line is not None:
            other.add(line)
        return other

    def add(self, line: Mapping[str, Any]) -> None:
        """Adds a line of the log: its step, metrics and times."""
        step = line["step"]
        numbers = {name: value for name, value in line.items() if _is_number(value)}
        if "seconds" in numbers and "seconds" in self.latest:
            self.intervals.append(max(0.0, numbers["seconds"] - self.latest["seconds"]))
        self.latest.update(numbers)
        if "seconds" in numbers:
            self.times.add(step, numbers["seconds"])
        for key, value in numbers.items():
            name = self.CURVES.get(key, key)
            if name not in self.curves and (key in NO_CURVES or len(self.curves) >= self.CURVE_LIMIT):
                continue
            self.curves.setdefault(name, Curve()).add(step, value)
        for metric in self.metrics:
            value = numbers.get(f"valid_{metric}")
            if value is None:
                continue
            if metric not in self.best or sign(metric) * value > sign(metric) * self.best[metric][0]:
                self.best[metric] = value, step


def _is_number(value: Any) -> bool:
    """Returns True for a number that is small enough for finite sums and products of a curve."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < HIGHEST


class WatchedRun:
    """A run folder; ``update`` reads the new lines of its log."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.started = 0.0  # seconds since 1970
        self.revision = 0  # number of updates that read something new
        self._settings: RunSettings | None = None
        self._settings_at = -1
        self._errors: dict[str, str] = {}  # why a file cannot be read, by file
        self._verdict: dict[str, Any] | None = None
        self._card = (-1, -1, -1)  # inode, size and time of the card that was read
        self._reset(())

    def _reset(self, metrics: Sequence[str]) -> None:
        self._summary = _LogSummary(metrics)  # without the last line, into which an evaluation may still be merged
        self._line: dict[str, Any] | None = None  # the last line
        self._at = 0  # its offset
        self._file = (-1, -1, -1)  # inode, size and time of the log that was read
        self._errors.pop(LOG, None)
        self._damaged_at = -1  # offset of the last damaged line

    def update(self) -> bool:
        """Reads new lines; returns True if something has changed. Raises ``OSError`` if the folder is gone.

        Files that cannot be read, and lines without a step, make the run's state "unreadable"; the rest is shown.
        """
        before = dict(self._errors)
        try:
            is_new = self._read_folder()
            self._errors.pop(FOLDER, None)
        except MISSING:
            raise
        except Exception as error:  # one folder must not break the page of all others
            is_new = False
            self._errors[FOLDER] = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return is_new or self._errors != before

    def _read_folder(self) -> bool:
        settings = (self.path / SETTINGS).stat()
        if settings.st_mtime_ns != self._settings_at:
            self._settings_at, self.started = settings.st_mtime_ns, settings.st_mtime
            try:
                self._settings = read_toml(self.path / SETTINGS)
                self._errors.pop(SETTINGS, None)
            except HeedfulError as error:
                self._settings = None
                self._errors[SETTINGS] = str(error)
            self._reset(() if self._settings is None else main_metrics(self._settings.task))
        status = (self.path / LOG).stat()
        if not stat.S_ISREG(status.st_mode):  # opening a FIFO would block until something writes into it
            raise HeedfulError(f"{self.path / LOG} is not a regular file; remove it")
        if status.st_size - self._at > MAX_READ:  # reading it would keep the page of all runs waiting
            raise HeedfulError(f"{LOG} has more than {MAX_READ:,} new bytes, which are no log of a run; remove it")
        file = status.st_ino, status.st_size, status.st_mtime_ns
        if file == self._file:
            return False
        with (self.path / LOG).open("rb") as log:
            log.seek(max(0, self._at - 1))
            if file[0] != self._file[0] or (self._at > 0 and log.read(1) != b"\n"):  # another file, or rewritten
                self._reset(self._summary.metrics)
                log.seek(0)
            self._file = file
            self._read(log)
        self.revision += 1
        return True

    def _read(self, log: BinaryIO) -> None:
        """Reads the complete new lines of the log; an incomplete line at the end is left for the next call."""
        offset, rest, self._line = self._at, b"", None
        if self._damaged_at >= self._at:  # it is read again
            self._errors.pop(LOG, None)
        while chunk := log.read(CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for text in lines:
                try:
                    line = _parsed(text)
                except HeedfulError as error:
                    line, self._damaged_at, self._errors[LOG] = None, offset, f"{LOG}: {error}"
                if line is not None:
                    if self._line is not None:
                        self._summary.add(self._line)
                    self._line, self._at = line, offset
                offset += len(text) + 1
            if len(rest) > MAX_LINE:
                self._damaged_at = offset
                self._errors[LOG] = f"{LOG}: a line of more than {MAX_LINE:,} bytes is left out"
                offset, rest = offset + len(rest), b""

    def as_dict(self, now: float) -> dict[str, Any]:
        """Returns the values that the page shows of the run, except its curves.

        Its "state" is "unreadable" if files are damaged, and "reason" says how; "done" if its last weights are newer
        than the last line of its log, or a limit in its settings is reached; "running" if the last line is recent,
        compared with the time between lines; else "stopped".
        """
        summary, settings = self._summary.with_line(self._line), self._settings
        latest, age = summary.latest, max(0.0, now - self._file[2] / 1e9)  # a clock may have been set back
        share = _share(settings, latest)
        is_recent = age < max(QUIET, 4 * max(summary.intervals, default=0.0))
        if _younger(self.path / LAST, self._file[2]):
            state, share = "done", 1.0
        elif is_recent:
            state = "running"
        else:
            state = "done" if share is not None and share >= 1 else "stopped"
        seconds_left = None
        if state == "running" and share is not None and 0 < share <= 1 and "seconds" in latest:
            seconds_left = max(0.0, latest["seconds"] * (1 / share - 1) - age)
        if self._errors:
            state = "unreadable"
        unit, speed = next(
            (
                (key.removesuffix("_per_second"), value)
                for key, value in latest.items()
                if key.endswith("_per_second") and value >= 0
            ),
            ("", None),
        )
        return {
            "name": visible(self.name),
            "started": self.started,
            "task": None if settings is None else settings.task,
            "model": _model(settings),
            "state": state,
            "reason": visible("; ".join(self._errors.values())) if self._errors else None,
            "step": latest.get("step", 0),
            "share": None if share is None or share > 1 else share,
            "seconds_left": seconds_left,
            "seconds": latest.get("seconds"),
            "loss": latest.get("loss"),
            "best": _best(summary),
            "verdict": self.verdict(),
            "unit": visible(unit.replace("_", " ")) if unit else "",
            "speed": speed,
            "ceiling": reached if 0 <= (reached := latest.get("share_of_ceiling", -1)) <= 1 else None,
            "pages": self.pages(),
            "saved": None if (model := self.saved_model()) is None else model.time // 1_000_000,
        }

    def verdict(self) -> dict[str, Any] | None:
        """Returns the verdict on the run's best weights: ``{"kind", "text", "useful"}``.

        Returns None before the end of the run, and for a run of an early version, which has none.
        """
        try:
            status = (self.path / CARD).stat()
            file = status.st_ino, status.st_size, status.st_mtime_ns
            if file != self._card:
                self._card, self._verdict = file, None
                if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_LINE:
                    self._verdict = _verdict((self.path / CARD).read_bytes())
        except (OSError, HeedfulError):
            self._verdict = None
        return self._verdict

    def curves(self) -> dict[str, list[list[float]]]:
        """Returns the points (step, value) of the run's curves.

        These are "training", "validation", "rate", every other number of its log by name, and "seconds", the time at
        which a step was done.
        """
        summary = self._summary.with_line(self._line)
        curves = summary.curves | ({"seconds": summary.times} if summary.times.groups else {})
        return {
            visible(name): [[round(x, 1), float(f"{y:.5g}")] for x, y in curve.points()]
            for name, curve in curves.items()
        }

    def pages(self) -> list[str]:
        """Returns the names of the run's pages and figures: regular files directly in its folder, no links."""
        try:
            with os.scandir(self.path) as entries:
                names = [e.name for e in entries if e.name.endswith(PAGES) and e.is_file(follow_symlinks=False)]
        except OSError:
            return []
        return sorted(name for name in names if not name.startswith("."))

    def saved_model(self) -> SavedModel | None:
        """Returns the model with the run's best weights or, if there is none, its last; None before the first."""
        for folder in (self.path / name for name in MODEL_FOLDERS):
            try:
                files = (path for name in WEIGHTS for path in folder.glob(name))
                times = [path.stat().st_mtime_ns for path in files]
            except OSError:
                continue
            if times:
                return SavedModel(folder, max(times))
        return None


def _parsed(text: bytes) -> dict[str, Any] | None:
    """Returns a line of a log as a dictionary; None for an empty line. Raises ``HeedfulError`` for anything else."""
    if not text.strip():
        return None
    line = parse_json(text, "a line", "it is left out")
    if not isinstance(line, dict) or not _is_number(line.get("step")):
        raise HeedfulError("a line has no step; it is left out")
    return line


def _verdict(card: bytes) -> dict[str, Any] | None:
    contents = parse_json(card, CARD, "its verdict is left out")
    verdict = contents.get("verdict") if isinstance(contents, dict) else None
    if not isinstance(verdict, dict) or not isinstance(verdict.get("text"), str):
        return None
    useful = verdict.get("useful") is not False
    return {"kind": visible(str(verdict.get("kind", ""))), "text": visible(verdict["text"]), "useful": useful}


def _share(settings: RunSettings | None, latest: Mapping[str, Any]) -> float | None:
    """Returns a run's progress towards its nearest limit; above 1 if the run is past the limit."""
    if settings is None:
        return None
    planned = settings.training.last_planned_steps
    done = (
        (latest.get("step", 0), settings.max_steps),
        (latest.get("step", 0), planned),
        (latest.get("epoch", 0), settings.max_epochs),
        (latest.get("seconds", 0) / 60, None if planned else settings.max_minutes),
    )
    return max((value / limit for value, limit in done if limit), default=None)


def _younger(path: Path, time_ns: int) -> bool:
    try:
        return path.stat().st_mtime_ns >= time_ns
    except OSError:
        return False


def _model(settings: RunSettings | None) -> str | None:
    if settings is None:
        return None
    if settings.start_from:
        return visible(f"from {Path(settings.start_from).name or settings.start_from}")
    return None if settings.preset is None else visible(settings.preset)


def _best(summary: _LogSummary) -> dict[str, Any] | None:
    metric = next((metric for metric in summary.metrics if metric in summary.best), None)
    if metric is None:
        return None
    value, step = summary.best[metric]
    return {"metric": visible(label_of(metric)), "value": value, "step": step}


class Runs:
    """All runs in the folders to watch; safe to use from several threads.

    Args:
        folders: searched with their sub-folders, except hidden ones and the sub-folders of a run.

    Raises:
        HeedfulError: a folder does not exist.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        for folder in folders:
            if not Path(folder).is_dir():
                problem = "is a file" if Path(folder).exists() else "no such folder"
                raise HeedfulError(f"{folder}: {problem}; name the folder of your runs: heedful watch FOLDER")
        self.folders = list(dict.fromkeys(folders))
        self.server_id = secrets.token_hex(4)  # so that a page's state from another server is ignored
        self._lock = threading.Lock()
        self._runs: dict[Path, WatchedRun] = {}
        self._numbers: dict[Path, int] = {}  # ids of the runs, which never change
        self._changed: dict[Path, int] = {}
        self._count = 0  # of changes
        self._next_search = 0.0

    def as_dict(self, known_version: str = "") -> dict[str, Any]:
        """Returns all runs, newest first, in plain values for JSON.

        Args:
            known_version: the ``"version"`` of an earlier response; runs that have not changed since then have
                no curves in the response.

        Returns:
            ``{"version", "now", "folders", "runs"}``; of each run ``{"id", "name", "started", "task", "model", "state",
            "reason", "step", "share", "seconds_left", "seconds", "loss", "best", "verdict", "unit", "speed", "ceiling",
            "pages", "saved"}`` ("verdict": that of the end of the run, ``{"kind", "text", "useful"}``, or None;
            "saved": when its model's weights were written, in milliseconds since 1970; None without a model) and, if it
            has changed, ``"curves"``: ``{"training", "validation", "rate"}``, lists of
            (step, value).
        """
        server_id, _, count = known_version.partition("-")
        since = int(count) if server_id == self.server_id and NUMBER.fullmatch(count) else -1
        now = time.time()
        with self._lock:
            self._search()
            entries = []
            for path, run in list(self._runs.items()):
                try:
                    if run.update():
                        self._count += 1
                        self._changed[path] = self._count
                except OSError:  # the run was removed
                    del self._runs[path]
                    self._next_search = 0.0
                    continue
                entry = {"id": self._numbers[path], **run.as_dict(now)}
                if self._changed[path] > since:
                    entry["curves"] = run.curves()
                entries.append(entry)
            entries.sort(key=lambda entry: (-entry["started"], entry["name"]))
            return {"version": f"{self.server_id}-{self._count}", "now": now, "folders": self.folders, "runs": entries}

    def file(self, number: int, name: str) -> Path | None:
        """Returns the path of a run's page; None if there is no such run or page."""
        run = self.run(number)
        return run.path / name if run is not None and name in run.pages() else None

    def run(self, number: int) -> WatchedRun | None:
        """Returns the run with this number; None if there is none."""
        with self._lock:
            return next((run for path, run in self._runs.items() if self._numbers[path] == number), None)

    def _search(self) -> None:
        """Searches for runs, at most once a second, and for at most a twentieth of the time."""
        started = time.monotonic()
        if started < self._next_search:
            return
        names: dict[Path, str] = {}
        for folder in self.folders:
            for path in runs_below(Path(folder)):
                names.setdefault(path.resolve(), str(path))
        for path in self._runs.keys() - names.keys():
            del self._runs[path]
        prefix = f"{self.folders[0].rstrip(os.sep)}{os.sep}" if len(self.folders) == 1 else ""
        for path, name in names.items():
            self._numbers.setdefault(path, len(self._numbers))
            if path not in self._runs:
                self._runs[path] = WatchedRun(path, name.removeprefix(prefix))
        ended = time.monotonic()
        self._next_search = ended + max(1.0, 20 * (ended - started))


def runs_below(folder: Path) -> Iterator[Path]:
    """Yields the run folders below ``folder``, or ``folder`` itself; a run folder is not searched for others."""
    waiting, count = [folder], 0
    while waiting and count < MAX_FOLDERS:
        present, count = waiting.pop(), count + 1
        try:
            with os.scandir(present) as scan:
                entries = {entry.name: entry for entry in scan}
                folders = [entry.name for entry in entries.values() if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        if SETTINGS in entries and LOG in entries:
            yield present
        else:
            waiting += [present / name for name in folders if not name.startswith(".")]
