"""Confusion matrix of a classifier, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.errors import HeedfulError
from heedful.views.svg import EDGE, document, ink, label, titled, width_for
from heedful.views.text import shortened, visible, width

Counts = NDArray[np.int64]

MAX_CLASSES = 30  # largest number of classes that are all shown; of more, the ``SHOWN`` most confused
SHOWN = 25
WIDEST = 150  # pixels of a class's name; a longer one is cut, and complete in its title
DIGITS = 11  # size of the counts, in pixels
SIDES = ((6, 64), (12, 44), (20, 34), (MAX_CLASSES, 30))  # largest number of classes: pixels of a cell's side
LEGEND = (0.01, 0.05, 0.2, 0.5, 1.0)
DESCRIBED = 8  # confusions in the description

STYLE = """
.chip{fill:#f0eee8}.right{fill:#3a3fb0}.wrong{fill:#b3461f}.own{fill:none;stroke:#3a3fb0;stroke-width:1.5}
.count,.score{font-size:11px;font-variant-numeric:tabular-nums}.deep{fill:#fff}.head{font-size:12px;fill:#6b665e}
@media(prefers-color-scheme:dark){.chip{fill:#22242b}.right{fill:#ffc35c}.wrong{fill:#ff8f6b}.own{stroke:#ffc35c}
.head{fill:#a09c94}.deep,.half{fill:#16171b}}
"""


def confusion_svg(labels: Sequence[str], counts: Sequence[Sequence[int]], title: str) -> str:
    """Returns the confusion matrix as SVG: a row for each true class, a column for each predicted class.

    A cell has its count, and a shade by the square root of its share of the row, so that rare confusions are visible.
    Correct predictions (the diagonal) are framed and have another colour. The class's recall is at the end of its row,
    its precision below its column, in percent, "–" if undefined. A count that is too long for its cell, and zero, is in
    the cell's title only. If there are more than 30 classes, the 25 most confused are shown, in the given order;
    shares, recall and precision take account of all classes.

    Args:
        labels: the C classes.
        counts: (C, C), rows are true classes, columns predicted classes.
        title: the heading.

    Raises:
        HeedfulError: no class, or counts that are not C × C whole numbers of at least 0.

    >>> "17 of 20 right (85.0 %)" in confusion_svg(["ham", "spam"], [[8, 2], [1, 9]], "mail")
    True
    """
    matrix = _checked(labels, counts)
    names = [visible(name) for name in labels]
    shown = most_confused(matrix) if len(names) > MAX_CLASSES else list(range(len(names)))
    total, right = int(matrix.sum()), int(matrix.trace())
    notes = [f"{right:,} of {total:,} right ({100 * right / max(1, total):.1f} %)"]
    if len(shown) < len(names):
        notes.append(f"{len(shown)} of {len(names)} classes, the most confused; shares and scores are of all classes")
    return _draw(names, matrix, shown, title, notes)


def _checked(labels: Sequence[str], counts: Any) -> Counts:
    size = len(labels)
    if not size:
        raise HeedfulError("no classes to draw; give at least one")
    rows = [np.asarray(row) for row in counts]
    if len(rows) != size or any(row.shape != (size,) for row in rows):
        lengths = " or ".join(map(str, sorted({row.size for row in rows}))) or "no"
        raise HeedfulError(f"{len(rows)} rows of {lengths} counts for {size} classes; give {size} × {size}")
    matrix = np.stack(rows)
    if matrix.dtype.kind not in "iu" or matrix.min() < 0:
        raise HeedfulError(
            f"counts have type {matrix.dtype}, smallest value {matrix.min()}; give whole numbers from 0 on"
        )
    return matrix.astype(np.int64)


def most_confused(matrix: Counts, most: int = SHOWN) -> list[int]:
    """Returns the indices, in order, of the ``most`` classes with the most frequent confusions.

    If fewer classes are confused, the most frequent classes are added.

    >>> most_confused(np.array([[9, 0, 1, 0], [0, 8, 0, 0], [3, 0, 7, 0], [0, 2, 0, 6]]), most=2)
    [0, 2]
    """
    wrong = matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    pairs = np.argsort(-wrong, axis=None, kind="stable")
    confused = [i for index in pairs[: np.count_nonzero(wrong)] for i in divmod(int(index), len(matrix))]
    frequent = np.argsort(-matrix.sum(1), kind="stable").tolist()
    return sorted(list(dict.fromkeys(confused + frequent))[:most])


def _draw(names: list[str], matrix: Counts, shown: list[int], title: str, notes: list[str]) -> str:
    true, predicted, right = matrix.sum(1), matrix.sum(0), matrix.diagonal()
    short = [shortened(names[i], WIDEST, 13) for i in shown]
    longest = max(len(f"{matrix[i, j]:,}") for i in shown for j in shown)
    side = max(next(side for most, side in SIDES if len(shown) <= most), min(52, 9 + 6.4 * longest))
    level = all(width(name, 13) <= side - 4 for name in short)  # column names fit without rotation

    left = EDGE + max(92.0, *(width(name, 13) for name in short)) + 10
    head = 57 + 19 * len(notes)
    top = head + (20 if level else 12 + 0.71 * max(width(name, 13) for name in short))
    end, bottom = left + side * len(shown), top + side * len(shown)
    parts = [label(note, EDGE, 57 + 19 * i, "quiet") for i, note in enumerate(notes)]
    parts.append(label("true ↓  predicted →", left - 10, top - 10, "head", "end"))
    parts.append(label("recall, %", end + 10, top - 10, "head"))
    for at, i in enumerate(shown):
        x, y = left + (at + 0.5) * side, top + (at + 0.5) * side
        rotation = "" if level else f' transform="rotate(-45 {x + 4:.1f} {top - 8:.1f})"'
        column = label(short[at], x if level else x + 4, top - 8, "name", "middle" if level else "start", rotation)
        row = label(short[at], left - 10, y + 4.5, "name", "end")
        parts += [part if short[at] == names[i] else titled(names[i], part) for part in (column, row)]
        parts.append(label(_percent(right[i], true[i]), end + 10, y + 4, "score"))
        parts.append(label(_percent(right[i], predicted[i]), x, bottom + 18, "score", "middle"))
        for across, j in enumerate(shown):
            count = f"{names[i]} → {names[j]}: {matrix[i, j]:,} of {true[i]:,}"
            cell = _cell(left + across * side, y - side / 2, side, int(matrix[i, j]), int(true[i]), i == j)
            parts.append(titled(count, cell) if matrix[i, j] else cell)
    parts.append(label("precision, %", left - 10, bottom + 18, "head", "end"))
    parts += _legend(left, bottom + 44)
    overhang = 0 if level else max((at + 0.5) * side + 0.71 * width(name, 13) + 8 for at, name in enumerate(short))
    size = max(
        end + 10 + width("recall, %", 12) + EDGE,
        left + overhang + EDGE,
        left + 390,
        *(width_for(note, 13) for note in notes),
    )
    return document((size, bottom + 44 + 30 + EDGE), title, _described(names, matrix, notes), STYLE, parts)


def _cell(x: float, y: float, side: float, count: int, row: int, own: bool) -> str:
    """Returns a cell: a box, the share of the row as its shade, the count, and a frame for correct predictions."""
    box = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{side - 2:.1f}" height="{side - 2:.1f}" rx="3"'
    shade = math.sqrt(count / row) if row else 0.0
    parts = [f'<rect class="chip" {box}/>']
    kind = "right" if own else "wrong"
    if count:
        parts.append(f'<rect class="{kind}" {box} fill-opacity="{shade:.2f}"/>')
    if own:
        parts.append(f'<rect class="own" {box}/>')
    if count and width(f"{count:,}", DIGITS) <= side - 3:
        parts.append(label(f"{count:,}", x + side / 2, y + side / 2 + 4, "count" + ink(shade, not own), "middle"))
    return "".join(parts)


def _legend(x: float, y: float) -> list[str]:
    """Returns the legend of the shades, for wrong and for right predictions."""
    parts = [label("share of the row", x, y + 11, "head")]
    x += width("share of the row", 12) + 12
    for share in LEGEND:
        for i, kind in enumerate(("wrong", "right")):
            box = f'x="{x:.1f}" y="{y + 8 * i:.1f}" width="40" height="8"'
            parts.append(
                f'<rect class="chip" {box}/><rect class="{kind}" {box} fill-opacity="{math.sqrt(share):.2f}"/>'
            )
        parts.append(label(f"{100 * share:.0f} %", x + 20, y + 30, "head", "middle"))
        x += 43
    parts.append(label("wrong", x + 6, y + 7, "count"))
    parts.append(label("right", x + 6, y + 18, "count"))
    return parts


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}".replace("100.0", "100") if whole else "–"


def _described(names: list[str], matrix: Counts, notes: list[str]) -> str:
    wrong = [(int(matrix[i, j]), i, j) for i, j in np.argwhere(matrix) if i != j]
    most = sorted(wrong, key=lambda confusion: -confusion[0])[:DESCRIBED]
    described = "; ".join(f"{names[i]} taken for {names[j]} {count:,} times" for count, i, j in most)
    return f"{'; '.join(notes)}. Most frequent confusions: {described or 'none'}"
