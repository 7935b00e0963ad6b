"""Training runs below some folders, read from their logs; only new lines are read each time."""

from __future__ import annotations

import os
import secrets
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from heedful.errors import HeedfulError
from heedful.metrics.registry import label_of, sign
from heedful.settings import RunSettings, read_toml
from heedful.tasks import main_metrics
from heedful.util.files import parse_json
from heedful.views.text import visible

SETTINGS, LOG, LAST = "run.toml", "metrics.jsonl", "last/heedful.json"
MOST = 500  # points of a curve: beyond, neighbours are averaged
CHUNK = 1 << 22  # bytes read at a time
LINE = 1 << 24  # bytes of a line of the log at most
HIGHEST = 1e100  # numbers of a log are below it
ALL = "the folder"
GONE = (FileNotFoundError, NotADirectoryError)
FOLDERS = 20_000  # that are looked into for runs
NO_CURVES = ("step", "seconds", "epoch")  # what a curve is drawn over
PAGES = (".html", ".svg", ".png")  # of a run's files, what a browser shows
QUIET = 60.0  # seconds without a line after which a run counts as stopped, unless its lines are further apart


class Curve:
    """A line of at most ``MOST`` points, however many are added: when there are more, neighbours become their mean.

    >>> curve = Curve(most=4)
    >>> for step in range(6):
    ...     curve.add(step, 10.0 * step)
    >>> curve.points()
    [(0.5, 5.0), (2.5, 25.0), (4.5, 45.0)]
    """

    def __init__(self, most: int = MOST) -> None:
        self.most, self.size = most, 1  # each group is of so many points, but for the last
        self.groups: list[tuple[float, float, int]] = []  # Σ x, Σ y, how many

    def add(self, x: float, y: float) -> None:
        """A point behind the others."""
        if self.groups and self.groups[-1][2] < self.size:
            self.groups[-1] = _together(self.groups[-1], (x, y, 1))
            return
        if len(self.groups) == self.most:
            pairs = [self.groups[i : i + 2] for i in range(0, self.most, 2)]
            self.groups = [_together(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
            self.size *= 2
            self.add(x, y)
            return
        self.groups.append((x, y, 1))

    def copy(self) -> Curve:
        """One that goes its own way."""
        other = Curve(self.most)
        other.size, other.groups = self.size, self.groups[:]
        return other

    def points(self) -> list[tuple[float, float]]:
        """(x, y) of each group."""
        return [(x / count, y / count) for x, y, count in self.groups]


def _together(one: tuple[float, float, int], other: tuple[float, float, int]) -> tuple[float, float, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


class _Told:
    """Summary of the lines of a log read so far."""

    CURVES: Mapping[str, str] = {"loss": "training", "valid_loss": "validation", "lr": "rate"}  # others by their names
    CURVE_LIMIT = 40  # curves of one run at most

    def __init__(self, metrics: Sequence[str]) -> None:
        self.metrics = metrics  # of the task, of which the first that is told decides
        self.latest: dict[str, Any] = {}  # by name, the value told last
        self.curves = {name: Curve() for name in self.CURVES.values()}
        self.times = Curve()  # seconds by step
        self.best: dict[str, tuple[float, int]] = {}  # by metric: value and step
        self.between: deque[float] = deque(maxlen=5)  # seconds between two lines

    def and_(self, line: Mapping[str, Any] | None) -> _Told:
        """Returns the summary with one more line."""
        other = _Told(self.metrics)
        other.latest, other.best, other.between = dict(self.latest), dict(self.best), self.between.copy()
        other.curves = {name: curve.copy() for name, curve in self.curves.items()}
        other.times = self.times.copy()
        if line is not None:
            other.add(line)
        return other

    def add(self, line: Mapping[str, Any]) -> None:
        """One more line."""
        step = line["step"]
        numbers = {name: value for name, value in line.items() if _number(value)}
        if "seconds" in numbers and "seconds" in self.latest:
            self.between.append(max(0.0, numbers["seconds"] - self.latest["seconds"]))
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


def _number(value: Any) -> bool:
    """Returns whether a value is a number that sums and products of a curve stay finite with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < HIGHEST


class WatchedRun:
    """One run's folder. ``look`` reads what is new in it."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.began = 0.0
        self.revision = 0  # counts the looks that found something new
        self._settings: RunSettings | None = None
        self._settings_at = -1
        self._damage: dict[str, str] = {}  # by file: what of it cannot be read, and why
        self._begin(())

    def _begin(self, metrics: Sequence[str]) -> None:
        self._told = _Told(metrics)  # by all lines but the last, which may still change: an evaluation joins it
        self._line: dict[str, Any] | None = None  # the last one
        self._at = 0  # where it begins
        self._file = (-1, -1, -1)  # inode, size and time of what was read
        self._damage.pop(LOG, None)
        self._damaged_at = -1  # where the last damaged line begins

    def look(self) -> bool:
        """Reads what is new; whether anything is. ``OSError`` where the folder holds no run any more.

        Files that cannot be read, and lines that hold no step, make the run's state "unreadable"; what the others say
        is shown all the same.
        """
        before = dict(self._damage)
        try:
            new = self._look()
            self._damage.pop(ALL, None)
        except GONE:
            raise
        except Exception as error:  # whatever one folder holds, the page of all the others must stay
            new = False
            self._damage[ALL] = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return new or self._damage != before

    def _look(self) -> bool:
        facts = (self.path / SETTINGS).stat()
        if facts.st_mtime_ns != self._settings_at:
            self._settings_at, self.began = facts.st_mtime_ns, facts.st_mtime
            try:
                self._settings = read_toml(self.path / SETTINGS)
                self._damage.pop(SETTINGS, None)
            except HeedfulError as error:
                self._settings = None
                self._damage[SETTINGS] = str(error)
            self._begin(() if self._settings is None else main_metrics(self._settings.task))
        found = (self.path / LOG).stat()
        if not stat.S_ISREG(found.st_mode):  # opening a FIFO would wait for whoever writes into it
            raise HeedfulError(f"{self.path / LOG} is no regular file; remove it")
        file = found.st_ino, found.st_size, found.st_mtime_ns
        if file == self._file:
            return False
        with (self.path / LOG).open("rb") as log:
            log.seek(max(0, self._at - 1))
            if file[0] != self._file[0] or (self._at > 0 and log.read(1) != b"\n"):  # another file, or begun anew
                self._begin(self._told.metrics)
                log.seek(0)
            self._file = file
            self._read(log)
        self.revision += 1
        return True

    def _read(self, log: BinaryIO) -> None:
        """All whole lines from where the last one began; half a line at the end is left for the next time."""
        place, rest, self._line = self._at, b"", None
        if self._damaged_at >= self._at:  # it is read again
            self._damage.pop(LOG, None)
        while chunk := log.read(CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for text in lines:
                try:
                    line = _parsed(text)
                except HeedfulError as error:
                    line, self._damaged_at, self._damage[LOG] = None, place, f"{LOG}: {error}"
                if line is not None:
                    if self._line is not None:
                        self._told.add(self._line)
                    self._line, self._at = line, place
                place += len(text) + 1
            if len(rest) > LINE:
                self._damaged_at, self._damage[LOG] = (
                    place,
                    f"{LOG}: a line of more than {LINE:,} bytes; it is left out",
                )
                place, rest = place + len(rest), b""

    def told(self, now: float) -> dict[str, Any]:
        """Returns all that the page shows of it, but for its curves.

        A run is "unreadable" where its files are damaged, and "reason" says how. It is "done" where its last weights
        are younger than its last line, or a limit that it was begun with is reached; "running" where a line was written
        not long ago, as its lines go; else "stopped".
        """
        told, settings = self._told.and_(self._line), self._settings
        latest, age = told.latest, max(0.0, now - self._file[2] / 1e9)  # a clock may have been set back
        share = _share(settings, latest)
        fresh = age < max(QUIET, 4 * max(told.between, default=0.0))
        if _younger(self.path / LAST, self._file[2]):
            state, share = "done", 1.0
        elif fresh:
            state = "running"
        else:
            state = "done" if share is not None and share >= 1 else "stopped"
        left = None
        if state == "running" and share is not None and 0 < share <= 1 and "seconds" in latest:
            left = max(0.0, latest["seconds"] * (1 / share - 1) - age)
        if self._damage:
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
            "began": self.began,
            "task": None if settings is None else settings.task,
            "model": _model(settings),
            "state": state,
            "reason": visible("; ".join(self._damage.values())) if self._damage else None,
            "step": latest.get("step", 0),
            "share": None if share is None or share > 1 else share,
            "left": left,
            "seconds": latest.get("seconds"),
            "loss": latest.get("loss"),
            "best": _best(told),
            "unit": visible(unit.replace("_", " ")) if unit else "",
            "speed": speed,
            "ceiling": latest.get("share_of_ceiling"),
            "pages": self.pages(),
        }

    def curves(self) -> dict[str, list[list[float]]]:
        """The points of its curves, (step, value): training, validation, rate, every other number of its log by its
        name, and "seconds", the time by which a step was done.
        """
        told = self._told.and_(self._line)
        curves = told.curves | ({"seconds": told.times} if told.times.groups else {})
        return {
            visible(name): [[round(x, 1), float(f"{y:.5g}")] for x, y in curve.points()]
            for name, curve in curves.items()
        }

    def pages(self) -> list[str]:
        """Returns the names of its files that a browser shows: pages and pictures right in its folder, and no links."""
        try:
            with os.scandir(self.path) as entries:
                names = [one.name for one in entries if one.name.endswith(PAGES) and _plain(one)]
        except OSError:
            return []
        return sorted(name for name in names if not name.startswith("."))


def _plain(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


def _parsed(text: bytes) -> dict[str, Any] | None:
    """Returns a line of a log; None of a blank one. Raises ``HeedfulError`` for anything else."""
    if not text.strip():
        return None
    line = parse_json(text, "a line", "it is left out")
    if not isinstance(line, dict) or not _number(line.get("step")):
        raise HeedfulError("a line has no step; it is left out")
    return line


def _share(settings: RunSettings | None, latest: Mapping[str, Any]) -> float | None:
    """Returns a run's progress towards its nearest limit; above 1 if the limit was raised since."""
    if settings is None:
        return None
    planned = settings.training.planned_steps
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


def _best(told: _Told) -> dict[str, Any] | None:
    metric = next((metric for metric in told.metrics if metric in told.best), None)
    if metric is None:
        return None
    value, step = told.best[metric]
    return {"metric": visible(label_of(metric)), "value": value, "step": step}


class Runs:
    """All runs below some folders. May be asked by several threads.

    Args:
        folders: looked through with all their sub-folders, but for those of a run and hidden ones.

    Raises:
        HeedfulError: a folder is not there.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        for folder in folders:
            if not Path(folder).is_dir():
                what = "is a file" if Path(folder).exists() else "no such folder"
                raise HeedfulError(f"{folder}: {what}; name the folder of your runs: heedful watch FOLDER")
        self.folders = list(dict.fromkeys(folders))
        self.mark = secrets.token_hex(4)  # of this server: what a page knows of another is worth nothing
        self._lock = threading.Lock()
        self._runs: dict[Path, WatchedRun] = {}
        self._numbers: dict[Path, int] = {}  # each run keeps its own for good
        self._changed: dict[Path, int] = {}
        self._count = 0  # of changes
        self._next_search = 0.0

    def told(self, known: str = "") -> dict[str, Any]:
        """Returns all runs, youngest first, as JSON takes them.

        Args:
            known: the ``"known"`` of an earlier answer: only the curves of runs that have changed since are told.

        Returns:
            ``{"known", "now", "folders", "runs"}``; of each run ``{"id", "name", "began", "task", "model", "state",
            "reason", "step", "share", "left", "seconds", "loss", "best", "unit", "speed", "ceiling", "pages"}``, and
            where they are new ``"curves"``: ``{"training", "validation", "rate"}``, lists of (step, value).
        """
        mark, _, count = known.partition("-")
        since = int(count) if mark == self.mark and count.isdecimal() else -1
        now = time.time()
        with self._lock:
            self._search()
            told = []
            for path, run in list(self._runs.items()):
                try:
                    if run.look():
                        self._count += 1
                        self._changed[path] = self._count
                except OSError:  # gone
                    del self._runs[path]
                    self._next_search = 0.0
                    continue
                one = {"id": self._numbers[path], **run.told(now)}
                if self._changed[path] > since:
                    one["curves"] = run.curves()
                told.append(one)
            told.sort(key=lambda one: (-one["began"], one["name"]))
            return {"known": f"{self.mark}-{self._count}", "now": now, "folders": self.folders, "runs": told}

    def file(self, number: int, name: str) -> Path | None:
        """Returns the path of a run's page; None if there is no such run or page."""
        with self._lock:
            run = next((run for path, run in self._runs.items() if self._numbers[path] == number), None)
        return run.path / name if run is not None and name in run.pages() else None

    def _search(self) -> None:
        """Looks for runs, unless that was done just now: however many folders there are, a twentieth of the time."""
        began = time.monotonic()
        if began < self._next_search:
            return
        found: dict[Path, str] = {}
        for folder in self.folders:
            for path in runs_below(Path(folder)):
                found.setdefault(path.resolve(), str(path))
        for path in self._runs.keys() - found.keys():
            del self._runs[path]
        own = f"{self.folders[0].rstrip(os.sep)}{os.sep}" if len(self.folders) == 1 else ""
        for path, name in found.items():
            self._numbers.setdefault(path, len(self._numbers))
            if path not in self._runs:
                self._runs[path] = WatchedRun(path, name.removeprefix(own))
        ended = time.monotonic()
        self._next_search = ended + max(1.0, 20 * (ended - began))


def runs_below(folder: Path) -> Iterator[Path]:
    """Returns the folders that training has written a log in, ``folder`` among them. A run holds no other."""
    waiting, looked = [folder], 0
    while waiting and looked < FOLDERS:
        here, looked = waiting.pop(), looked + 1
        try:
            with os.scandir(here) as entries:
                known = {entry.name: entry for entry in entries}
                below = [one for one in known.values() if one.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        if SETTINGS in known and LOG in known:
            yield here
        else:
            waiting += [here / one.name for one in below if not one.name.startswith(".")]
