"""The command: see ``benchmarks.gpu``. Imports no torch, so that no GPU memory is taken beside the worker's."""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import ROWS, Row
from benchmarks.speed.machine import described

PART_MINUTES = 9.0  # at most, so that a part fits a machine that is lent for ten minutes
LEFT_GB = 0.1  # memory that a row may leave behind, such as a compiled model's
FORMAT = 1


class OutOfTime(Exception):
    """A row took too long; its worker has been ended."""


class Worker:
    """The measuring process (``benchmarks.gpu.worker``)."""

    def __init__(self, settings: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu.worker", json.dumps(settings)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.machine = self._line(120)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def _line(self, timeout: float) -> dict[str, Any]:
        try:
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            self.end()
            raise OutOfTime from None
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"the process ended: {self.process.wait()}"}
        return answer

    def measure(self, name: str, timeout: float) -> dict[str, Any]:
        """Returns the figures of a row, or ``{"error": why}``; raises ``OutOfTime``."""
        assert self.process.stdin is not None
        try:
            print(name, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return {"error": f"the process ended: {self.process.wait()}"}
        return self._line(timeout)

    def end(self) -> None:
        """Ends the process at once."""
        self.process.kill()
        self.process.wait()


class Results:
    """The JSON: replaced as a whole after each row, so that it is complete at any time."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.content: dict[str, Any] = {"format": FORMAT, "settings": settings, "machine": {}, "rows": {}}
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.get("format") != FORMAT or content["settings"] != settings:
                raise SystemExit(f"{path} has rows of other settings, {content.get('settings')}; take another --out")
            self.content = content

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Figures by the names of rows."""
        return self.content["rows"]  # type: ignore[no-any-return]

    def describe(self, machine: dict[str, Any]) -> None:
        """Adds the machine; raises ``SystemExit`` if it has no such device, or the file has rows of another."""
        if "error" in machine:
            raise SystemExit(f"nothing can be measured on this device: {machine['error']}")
        before = self.content["machine"]
        for key in ("device", "torch"):
            if before and before.get(key) != machine.get(key):
                raise SystemExit(f"{self.path} was measured on {before.get(key)}, not {machine.get(key)}")
        self.content["machine"] = {**described(), **machine}

    def add(self, row: Row, figures: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Adds a row with its shares of the ceilings, and writes the file."""
        now = datetime.now().isoformat(timespec="seconds")
        entry = {"part": row.part, **figures, **self._shares(row, figures), "row_seconds": seconds, "at": now}
        self.rows[row.name] = entry
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(self.content, file, indent=1, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)
        return entry

    def _shares(self, row: Row, figures: dict[str, Any]) -> dict[str, float]:
        """Returns the share of the measured bfloat16 product, or of the measured copy."""
        shares = {}
        for key, ceiling in (("tflops", "ceiling, bfloat16 product"), ("gb_per_second", "ceiling, copy")):
            if row.part and figures.get(key) and (best := self.rows.get(ceiling, {}).get(key)):
                shares[f"share_of_{ceiling.rpartition(' ')[2]}"] = figures[key] / best
        return shares


def run(parts: Sequence[int], minutes: float, names: Sequence[str], settings: dict[str, Any], results: Results) -> bool:
    """Measures what is missing, part by part; returns True if nothing is left."""
    deadline, worker = time.monotonic() + 60 * minutes, None
    try:
        for part in parts:
            end = min(deadline, time.monotonic() + 60 * PART_MINUTES)
            for row in (row for row in _chosen(names) if row.part in (0, part) and row.name not in results.rows):
                left = end - time.monotonic()
                if left <= 0:
                    break
                if worker is None:
                    worker = Worker(settings)
                    results.describe(worker.machine)
                worker = measured(row, worker, results, min(row.limit, end - time.monotonic()))
    except OutOfTime:
        print("no worker started within two minutes", file=sys.stderr)
    finally:
        if worker is not None:
            worker.end()
    return all(row.name in results.rows for row in _chosen(names) if row.part in (0, *parts))


def measured(row: Row, worker: Worker, results: Results, timeout: float) -> Worker | None:
    """Measures a row and adds it; returns the worker, or None if it has been ended.

    A row that is cut off by the end of its part, before its own limit, is not added: the next call measures it.
    """
    started = time.monotonic()
    try:
        figures = worker.measure(row.name, timeout)
    except OutOfTime:
        if timeout < row.limit:
            print(f"{row.name}: left for the next call", flush=True)
            return None
        figures = {"error": f"not ended within {row.limit:.0f} s"}
    left = figures.pop("left_gb", 0.0)
    print(line(row.name, results.add(row, figures, time.monotonic() - started)), flush=True)
    if "error" in figures or left > LEFT_GB:  # the next row begins on a clean device
        worker.end()
        return None
    return worker


def line(name: str, entry: dict[str, Any]) -> str:
    """Returns a row's figures as one line."""
    if "error" in entry:
        return f"{name:<46} {entry['error']}"
    left_out = ("part", "at", "row_seconds", "curve")
    values = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in entry.items())
    return f"{name:<46} " + "  ".join(value for value in values if value.partition(" ")[0] not in left_out)


def _chosen(names: Sequence[str]) -> Iterator[Row]:
    return (row for row in ROWS.values() if not names or any(row.name.startswith(name) for name in names))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes; 0 if all rows are there, 1 if some are left or failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Speed on one GPU.")
    parser.add_argument("--out", type=Path, required=True, help="the JSON to write and to continue")
    parser.add_argument("--minutes", type=float, default=25, help="of this call; a part takes at most 9")
    parser.add_argument("--part", type=int, choices=(1, 2, 3), help="only this part; all three without it")
    parser.add_argument("--rows", action="append", default=[], help="only rows that begin so; may be given again")
    parser.add_argument("--retry", action="store_true", help="measure rows again that failed")
    parser.add_argument("--text", type=Path, help="text of the character model, plain or .gz; else it is generated")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--short", action="store_true", help="tiny models, whose times mean nothing")
    given = parser.parse_args(arguments)
    if given.text is not None and not given.text.is_file():
        parser.error(f"--text: there is no file {given.text}")
    settings = {"device": given.device, "short": given.short}
    results = Results(given.out, settings)
    if given.retry:
        for name in [name for name, entry in results.rows.items() if "error" in entry]:
            del results.rows[name]
    parts = (given.part,) if given.part else (1, 2, 3)
    text = None if given.text is None else str(given.text.resolve())
    ended = run(parts, given.minutes, given.rows, {**settings, "text": text}, results)
    failed = [name for name, entry in results.rows.items() if "error" in entry]
    print(f"written: {given.out}" + ("" if ended else "; some rows are left: call again"))
    for name in failed:
        print(f"failed: {name}: {results.rows[name]['error']}", file=sys.stderr)
    return 0 if ended and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
