"""Output formats of predictions, by file name. Nothing here imports torch: the check precedes slow work."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError
from heedful.util.values import to_json

OBJECTS = (".jsonl", ".ndjson")
OTHERS = (".json", ".csv", ".tsv", ".parquet", ".gz", ".xz", ".zst", ".zip", ".html", ".part")  # that are never written


def form_of(out: str | None, as_json: bool = False) -> bool:
    """True if predictions become JSON: always in ``.jsonl`` and ``.ndjson``, never in other files; shown, ``as_json``.

    Raises ``HeedfulError`` for a name that stands for a form that is not written.
    """
    if out is None:
        return as_json
    kind = Path(out).suffix.lower()
    if kind in OTHERS:
        raise HeedfulError(f"answers are not written as {kind}, for {out}; name it .jsonl (objects) or .txt (text)")
    return kind in OBJECTS


def check_files(source: str, out: str | None, overwrite: bool) -> None:
    """Raise where ``out`` cannot be what answers to ``source`` are written to, as far as can be told at once."""
    if out is None:
        if overwrite:
            raise HeedfulError("--overwrite replaces a file of answers; name it with --out, or leave this out")
        return
    form_of(out)
    path, folder = Path(out), Path(out).absolute().parent
    if path.is_dir():
        raise HeedfulError(f"--out {out} is a folder; name a file in it, .jsonl or .txt")
    if path.exists() and os.path.exists(source) and path.samefile(source):
        raise HeedfulError(f"--out {out} is the file of inputs; name another")
    if path.exists() and not overwrite and not path.with_name(path.name + ".part").exists():
        raise HeedfulError(f"{out} is there already; --overwrite replaces it")
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise HeedfulError(f"--out {out}: cannot write in {folder}; choose another folder")


def outlined(output: Any) -> str:
    r"""An output as one line of text: line ends inside a text become ``\n`` and ``\r``, all but texts JSON.

    >>> print(outlined("two\nlines"), outlined(["a", "b"]))
    two\nlines ["a", "b"]
    """
    if not isinstance(output, str):
        return to_json(output)
    return output.replace("\n", r"\n").replace("\r", r"\r")
