"""Resumable output file: lines go to ``PATH.part``, which a later call continues and which is renamed when complete."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from heedful.errors import HeedfulError
from heedful.util.files import WINDOWS, move, read_json, write
from heedful.util.locks import lock_file


class Unfinished:
    """``PATH.part``, to which whole lines are added, and ``PATH.part.json``, which says what they were made of.

    A call that was stopped, even in the middle of a line, is gone on with after its last whole line, where the facts
    are still the same. ``finish`` gives the file its name.

    Args:
        path: the file that is to be there at the end.
        facts: what the lines depend on, by names that can be told to a person.
        fresh: what is to be kept for those who go on, where this call is the first.
        overwrite: begin anew, whatever is there.

    Attributes:
        done: whole lines that are there already.
        kept: ``fresh``, as the first call gave it.

    Raises:
        HeedfulError: where the file is there already, or a part of it that was made of something else; where another
            call is writing it.
    """

    def __init__(
        self, path: str | Path, facts: Mapping[str, Any], fresh: Mapping[str, Any], *, overwrite: bool = False
    ) -> None:
        self.path = Path(path)
        self.part = self.path.with_name(self.path.name + ".part")
        self.beside = self.path.with_name(self.path.name + ".part.json")
        told = self._told()
        goes_on = not overwrite and told is not None and told["facts"] == facts
        if not goes_on and not overwrite:
            self._check_free(facts, told)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = open(os.open(self.part, os.O_RDWR | os.O_CREAT, 0o666), "r+b")  # noqa: SIM115
        try:
            lock_file(self._file.fileno())
        except BlockingIOError:
            self._file.close()
            raise HeedfulError(f"{path} is being written by another call; wait for it, or name another file") from None
        except OSError:  # a file system without locks
            pass
        if goes_on and told is not None:
            self.done, self.kept = self._whole_lines(), told["kept"]
        else:
            self._file.truncate(0)
            self.done, self.kept = 0, dict(fresh)
            write(self.beside, json.dumps({"facts": dict(facts), "kept": self.kept}))

    def _told(self) -> dict[str, Any] | None:
        """Facts stored beside the partial file; None without valid ones."""
        try:
            told = read_json(self.beside, "begin anew with --overwrite")
        except HeedfulError:
            return None
        return told if isinstance(told, dict) and {"facts", "kept"} <= told.keys() else None

    def _check_free(self, facts: Mapping[str, Any], told: dict[str, Any] | None) -> None:
        if self.path.exists():
            raise HeedfulError(f"{self.path} is there already; --overwrite replaces it")
        if self.part.exists() and self.part.stat().st_size:
            other = [name for name, fact in facts.items() if told is None or told["facts"].get(name) != fact]
            made = f"was begun with other {' and '.join(other)}" if told else "does not say what it was made of"
            raise HeedfulError(f"{self.part} {made}; --overwrite starts anew")

    def _whole_lines(self) -> int:
        """Counts whole lines and truncates the file after the last."""
        lines = end = place = 0
        self._file.seek(0)
        while chunk := self._file.read(1 << 20):
            if (last := chunk.rfind(b"\n")) >= 0:
                lines, end = lines + chunk.count(b"\n"), place + last + 1
            place += len(chunk)
        self._file.truncate(end)
        self._file.seek(end)
        return lines

    def add(self, lines: Sequence[str]) -> None:
        """Write more lines, whole and for good; half of a character becomes its escape, as in JSON."""
        self._file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """All lines are there: give the file its name."""
        if WINDOWS:  # where an open file keeps its name; elsewhere the lock is held until it has the new one
            self._file.close()
        move(self.part, self.path)
        self.beside.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        refused = isinstance(error, HeedfulError) and not os.fstat(self._file.fileno()).st_size
        self._file.close()
        if refused:  # before the first line: there is nothing to go on after
            self.part.unlink(missing_ok=True)
            self.beside.unlink(missing_ok=True)
