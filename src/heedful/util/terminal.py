"""Standard input in batches of lines, and printing as text or JSON."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, TextIO

from heedful.errors import HeedfulError
from heedful.util.values import to_json

STDIN_BATCH = 64  # lines of one list: enough for a batch, few enough for a prompt output


def lines(stream: BufferedReader) -> Iterator[list[str]]:
    """Yields the lines of a stream in lists of at most 64, as soon as they arrive."""
    rest, number = b"", 0
    while True:
        chunk = stream.read1(1 << 16)  # what has arrived; waits only for the first byte
        *lines, rest = (rest + chunk).split(b"\n")
        if not chunk and rest:
            lines = [rest]
        for start in range(0, len(lines), STDIN_BATCH):
            texts: list[str] = []
            for line in lines[start : start + STDIN_BATCH]:
                number += 1
                try:
                    texts.append(line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r"))
                except UnicodeDecodeError as error:
                    yield texts
                    byte = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
                    raise HeedfulError(
                        f"standard input:{number}: {byte} is not UTF-8; convert the text first"
                    ) from error
            yield texts
        if not chunk:
            return


def program() -> str:
    """Returns the command that runs this program: its name if it is on PATH, else its path."""
    script = Path(sys.argv[0])
    if script.name != "heedful" or shutil.which("heedful"):
        return "heedful"
    return shlex.quote(os.path.relpath(script))


def say_to(quiet_output: bool) -> Callable[[str], None]:
    """Returns a function that prints a line to standard output, or with ``quiet_output`` to standard error.

    Lines that cannot be written are dropped without an error.
    """
    return partial(_say, sys.stderr if quiet_output else sys.stdout)


def say_nothing(line: str) -> None:
    """Drops a line."""


def _say(stream: TextIO, line: str) -> None:
    with suppress(OSError):
        print(line, file=stream, flush=True)


def print_list(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Prints rows as a table, or as JSON."""
    if as_json:
        print(to_json(rows))
        return
    lines = [list(rows[0]), *([f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
