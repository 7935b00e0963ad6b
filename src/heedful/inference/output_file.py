"""Output file of predictions: its format by file name, and a partial file from which a stopped call can continue.

Nothing here imports torch, so that the checks come before slow work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from heedful.data.prediction_inputs import CONLL
from heedful.errors import HeedfulError
from heedful.util.files import WINDOWS, move, read_json, write
from heedful.util.locks import lock_file
from heedful.util.values import to_json

JSON_LINES = (".jsonl", ".ndjson")
TABLES = (".json", ".csv", ".tsv", ".tab", ".parquet", ".xlsx")
UNSUPPORTED = (*TABLES, *CONLL, ".gz", ".xz", ".zst", ".zip", ".html", ".part")


def is_json(out: str | None, as_json: bool = False) -> bool:
    """Returns True if predictions are written as JSON.

    They always are in ``.jsonl`` and ``.ndjson``, and never in other files; without a file, ``as_json`` decides. Raises
    ``HeedfulError`` for a file name of an unsupported format.
    """
    if out is None:
        return as_json
    suffix = Path(out).suffix.lower()
    if suffix in UNSUPPORTED:
        raise HeedfulError(
            f"{out}: predictions cannot be written as {suffix}; name the file .jsonl (objects) or .txt (text)"
        )
    return suffix in JSON_LINES


def check_output(source: str, out: str | None, overwrite: bool) -> None:
    """Raises ``HeedfulError`` if predictions for the inputs ``source`` cannot be written to the file ``out``.

    This covers what can be known before writing. ``overwrite`` allows an existing file.
    """
    if out is None:
        if overwrite:
            raise HeedfulError("--overwrite has no effect without --out; add --out FILE, or leave --overwrite out")
        return
    is_json(out)
    path, folder = Path(out), Path(out).absolute().parent
    if path.is_dir():
        raise HeedfulError(f"--out {out} is a folder; name a file in it, .jsonl or .txt")
    if path.exists() and os.path.exists(source) and path.samefile(source):
        raise HeedfulError(f"--out {out} is the file of inputs; name another file")
    if path.exists() and not overwrite and not path.with_name(path.name + ".part").exists():
        raise HeedfulError(f"{out} exists; --overwrite replaces it")
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise HeedfulError(f"--out {out}: cannot write in {folder}; choose another folder")


def one_line(output: Any) -> str:
    r"""Returns an output on one line: a text with its line ends as ``\n`` and ``\r``, everything else as JSON.

    >>> print(one_line("two\nlines"), one_line(["a", "b"]))
    two\nlines ["a", "b"]
    """
    if not isinstance(output, str):
        return to_json(output)
    return output.replace("\n", r"\n").replace("\r", r"\r")


class PartialFile:
    """Output file that is written line by line and can be continued if a call is stopped, even within a line.

    Until it is complete there are two files: ``PATH.part``, to which whole lines are appended, and ``PATH.part.json``,
    which records the facts. A later call with the same facts continues after the last whole line. ``finish`` renames
    the file to ``PATH``.

    Args:
        path: path of the complete file.
        facts: the model, options and inputs that determine the lines, by names for messages.
        initial: values that the first call chooses and later calls reuse, such as a random seed.
        overwrite: start again, even if a file exists.

    Attributes:
        done: number of whole lines that earlier calls wrote.
        values: the first call's ``initial``.

    Raises:
        HeedfulError: the file exists, the partial file has other facts, or another call is writing the file.
    """

    def __init__(
        self, path: str | Path, facts: Mapping[str, Any], initial: Mapping[str, Any], *, overwrite: bool = False
    ) -> None:
        self.path = Path(path)
        self.part = self.path.with_name(self.path.name + ".part")
        self.record = self.path.with_name(self.path.name + ".part.json")
        recorded = self._recorded()
        continues = not overwrite and recorded is not None and recorded["facts"] == facts
        if not continues and not overwrite:
            self._check_free(facts, recorded)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = open(os.open(self.part, os.O_RDWR | os.O_CREAT, 0o666), "r+b")  # noqa: SIM115
        try:
            lock_file(self._file.fileno())
        except BlockingIOError:
            self._file.close()
            raise HeedfulError(f"{path} is being written by another call; wait for it, or name another file") from None
        except OSError:  # a file system without locks
            pass
        if continues and recorded is not None:
            self.done, self.values = self._whole_lines(), recorded["kept"]
        else:
            self._file.truncate(0)
            self.done, self.values = 0, dict(initial)
            write(self.record, json.dumps({"facts": dict(facts), "kept": self.values}))

    def _recorded(self) -> dict[str, Any] | None:
        """Returns the content of ``PATH.part.json``: facts and initial values; None without a valid file."""
        try:
            recorded = read_json(self.record, "start again with --overwrite")
        except HeedfulError:
            return None
        return recorded if isinstance(recorded, dict) and {"facts", "kept"} <= recorded.keys() else None

    def _check_free(self, facts: Mapping[str, Any], recorded: dict[str, Any] | None) -> None:
        if self.path.exists():
            raise HeedfulError(f"{self.path} exists; --overwrite replaces it")
        if self.part.exists() and self.part.stat().st_size:
            changed = [name for name, fact in facts.items() if recorded is None or recorded["facts"].get(name) != fact]
            origin = (
                f"was begun with different {' and '.join(changed)}" if recorded else "has no valid record (.part.json)"
            )
            raise HeedfulError(f"{self.part} {origin}; add --overwrite to start again")

    def _whole_lines(self) -> int:
        """Counts the whole lines and truncates the file after the last."""
        lines = end = position = 0
        self._file.seek(0)
        while chunk := self._file.read(1 << 20):
            if (last := chunk.rfind(b"\n")) >= 0:
                lines, end = lines + chunk.count(b"\n"), position + last + 1
            position += len(chunk)
        self._file.truncate(end)
        self._file.seek(end)
        return lines

    def add(self, lines: Sequence[str]) -> None:
        """Appends lines and syncs them to disk. Half of a surrogate pair is written as an escape, as in JSON."""
        self._file.write("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Renames the complete file to ``path``."""
        if WINDOWS:  # where an open file keeps its name; elsewhere the lock is held until it has the new one
            self._file.close()
        move(self.part, self.path)
        self.record.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        refused = isinstance(error, HeedfulError) and not os.fstat(self._file.fileno()).st_size
        self._file.close()
        if refused:  # before the first line: nothing to continue
            self.part.unlink(missing_ok=True)
            self.record.unlink(missing_ok=True)
