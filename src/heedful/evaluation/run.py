"""A whole evaluation: a model folder, a file of examples, the task's metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from heedful.data import Row, read
from heedful.data.builtin import SPLITS
from heedful.errors import HeedfulError, nearest
from heedful.evaluation.metrics import exact_match
from heedful.tasks.pipeline import pipeline
from heedful.tasks.task import Task


def evaluate(
    model: str,
    data: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    decoding: Mapping[str, Any] | None = None,
    device: str | None = None,
    split: str | None = "test",
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Answer every example of ``data`` with the model in the folder ``model``, and score the answers.

    Args:
        model: a model folder.
        data: a file, parallel files, or a built-in set; of a set with several parts, ``split`` is taken.
        columns: the columns' names in the file.
        decoding: how to search for answers, by ``generate``'s names.
        device: where to compute.
        say: takes a line about what goes on.

    Returns:
        ``{"task", "model", "data", "examples", "metrics", "seconds", "decoding"}``, and where the rows name their
        ``format``, ``"by_format"`` with the exact match of each.
    """
    if split is not None and split not in SPLITS:
        raise HeedfulError(f"unknown split {split!r}; {nearest(split, SPLITS)}")
    pipe = pipeline(None, model, device=device)
    rows = read(list(data), pipe.task.columns, names=columns, split=split)
    say(f"{len(rows):,} examples" + (f", {rows.skipped:,} blank ones left out" if rows.skipped else ""))
    began = time.monotonic()
    answers = pipe.answers([row.values[pipe.task.columns[0]] for row in rows], **(decoding or {}))
    return {
        "task": pipe.task.name,
        "model": str(model),
        "data": list(data),
        "examples": len(rows),
        **scored(pipe.task, [answer.output for answer in answers], rows),
        "seconds": round(time.monotonic() - began, 3),
        "decoding": dict(decoding or {}),
    }


def scored(task: Task, outputs: Sequence[Any], rows: Sequence[Row]) -> dict[str, Any]:
    """The task's metrics; rows that say of themselves that no answer can be exact count by format only."""
    if not rows:
        raise HeedfulError("there is no example to score; check that the data is not empty")
    fair = [i for i, row in enumerate(rows) if row.values.get("exact") != "no"]
    result: dict[str, Any] = {"metrics": task.score([outputs[i] for i in fair], [rows[i] for i in fair])}
    if all("format" in row.values for row in rows):
        groups: dict[str, list[int]] = {}
        for i, row in enumerate(rows):
            groups.setdefault(row.values["format"], []).append(i)
        result["by_format"] = {
            name: {
                "exact_match": exact_match([outputs[i] for i in group], [rows[i].values["target"] for i in group]),
                "examples": len(group),
                "counted": all(rows[i].values.get("exact") != "no" for i in group),
            }
            for name, group in sorted(groups.items())
        }
    return result
