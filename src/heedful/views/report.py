"""Scores by class as lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

from heedful.views.text import visible

MOST = 40  # rows
WIDEST = 40  # columns of a terminal that a label may take


def table(by_class: Sequence[Mapping[str, Any]]) -> list[str]:
    """Precision, recall and F1 (in percent) and support (examples) of each class, aligned, by support.

    Args:
        by_class: ``{"label", "precision", "recall", "f1", "support"}`` of each class. The 40 of most support are
            shown, and a last line says how many more there are.

    >>> print(*table([{"label": "spam", "precision": 50.0, "recall": 100.0, "f1": 66.7, "support": 3}]), sep="\\n")
    label  precision  recall     F1  support
    spam        50.0   100.0   66.7        3
    """
    rows = sorted(by_class, key=lambda row: -row["support"])[:MOST]
    labels = ["label", *(_cut(visible(str(row["label"]))) for row in rows)]
    wide = max(map(cell_len, labels))
    figures = ["precision  recall     F1  support"]
    figures += [f"{r['precision']:9.1f}  {r['recall']:6.1f}  {r['f1']:5.1f}  {r['support']:7,}" for r in rows]
    lines = [f"{set_cell_size(name, wide)}  {line}" for name, line in zip(labels, figures, strict=True)]
    left = len(by_class) - len(rows)
    return [*lines, f"and {left:,} more of {len(by_class):,}, of no more support"] if left else lines


def _cut(name: str) -> str:
    return name if cell_len(name) <= WIDEST else set_cell_size(name, WIDEST - 1).rstrip() + "…"
