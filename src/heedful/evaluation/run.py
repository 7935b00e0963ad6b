"""A whole evaluation: a model folder, a file of examples, the task's metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from heedful.data import Rows, read
from heedful.data.builtin import SPLITS
from heedful.errors import HeedfulError, nearest
from heedful.tasks.pipeline import pipeline
from heedful.tasks.task import Measured


def evaluate(
    model: str,
    data: Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    decoding: Mapping[str, Any] | None = None,
    device: str | None = None,
    dtype: str | None = None,
    split: str | None = "test",
    say: Callable[[str], None] = print,
    draw: Callable[[Measured, Rows], object] | None = None,
) -> dict[str, Any]:
    """Answer every example of ``data`` with the model in the folder ``model``, and score the answers.

    Args:
        model: a model folder.
        data: a file, parallel files, a folder, or a built-in set; of a set with several parts, ``split`` is taken.
        columns: the columns' names in the file.
        decoding: how to search for answers, by ``generate``'s names.
        device: where to compute.
        dtype: of the weights, as ``heedful.pipeline`` takes it.
        split: "train", "valid" or "test".
        say: takes a line about what goes on.
        draw: given the scores and the rows they were made on.

    Returns:
        ``{"task", "model", "data", "examples", "metrics", "seconds", "decoding"}``, and what the task tells besides:
        ``"by_class"`` and ``"confusion"`` of a classifier, ``"by_format"`` where the rows of a translation name theirs.
    """
    if split is not None and split not in SPLITS:
        raise HeedfulError(f"unknown split {split!r}; {nearest(split, SPLITS)}")
    pipe = pipeline(None, model, device=device, dtype=dtype)
    options = pipe.checked(decoding or {})
    separator = pipe.card.get("settings", {}).get("data", {}).get("label_separator")
    rows = read(list(data), pipe.task.columns, names=columns, split=split, separator=separator)
    encoded = pipe.task.encode(rows)
    for line in _told(rows, encoded.note):
        say(line)
    began = time.monotonic()
    pipe.model.eval()
    measured = pipe.task.measure(pipe.model, encoded.examples, encoded.rows, **options)
    if draw is not None:
        draw(measured, encoded.rows)
    return {
        "task": pipe.task.name,
        "model": str(model),
        "data": list(data),
        "examples": len(encoded.rows),
        "metrics": measured.metrics,
        **measured.details,
        "seconds": round(time.monotonic() - began, 3),
        "decoding": options,
    }


def _told(rows: Rows, note: str) -> list[str]:
    skipped = f", {rows.skipped:,} blank or unreadable ones left out" if rows.skipped else ""
    return [f"{len(rows):,} examples{skipped}", *([note] if note else [])]
