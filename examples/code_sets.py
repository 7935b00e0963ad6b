"""Writes a data set made of Python's own source: for summaries, answers, tags or vectors without a download.

    python examples/code_sets.py NAME [FOLDER]

NAME is docstrings (summarization: the detail of a docstring and its first line), parameters (question-answering: what a
parameter of a function does) or parameters-unanswered, code-roles (token-classification: the role of each name in a
function), or functions (feature-extraction: a function's first line and its source). The sources are those of the
installed Python and packages, which are read and never imported. FOLDER is NAME by default. One core, a quarter of a
minute. To expect, with other numbers for other versions:

    docstrings/train.jsonl: 4,284 rows
    docstrings/valid.jsonl: 301 rows
    docstrings/test.jsonl: 399 rows

Then, for example:

    heedful train summarization --train docstrings/train.jsonl --valid docstrings/valid.jsonl --out first-lines
    heedful evaluate first-lines --data docstrings/test.jsonl --baseline
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from python_sources import code_roles, docstrings, functions, parameters

SETS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "docstrings": docstrings.rows,
    "parameters": parameters.rows,
    "parameters-unanswered": partial(parameters.rows, unanswered=True),
    "code-roles": code_roles.rows,
    "functions": functions.rows,
}


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON has it: spans as in SQuAD's files."""
    if "answers" not in row:
        return row
    spans = row["answers"]
    return {**row, "answers": {"text": [span.text for span in spans], "answer_start": [span.start for span in spans]}}


def main(name: str, folder: Path) -> None:
    """Write the three parts of a set."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "valid", "test"):
        rows = SETS[name](part)
        file = folder / f"{part}.jsonl"
        file.write_text("".join(json.dumps(plain(row)) + "\n" for row in rows), encoding="utf-8")
        print(f"{file}: {len(rows):,} rows")


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in SETS:
        main(sys.argv[1], Path(sys.argv[2] if sys.argv[2:] else sys.argv[1]))
    else:
        sys.exit(f"give the name of a set: {', '.join(SETS)}")
