"""Heat maps: any matrix, one number for each head, and the logit lens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.views.figures.cells import (
    SIZE,
    Values,
    along,
    array,
    checked_names,
    down,
    figure,
    formatted,
    number,
    overhang,
    plain,
    rise,
    scale,
    shaded,
    widest,
)
from heedful.views.svg import ink, label, titled
from heedful.views.text import shortened, visible, width

if TYPE_CHECKING:
    from heedful.views.lens_html import LensPredictions

CELLS = 40_000
NAMED = 60  # names a side; of more, every n-th is written
POSITIONS, LAYERS = 40, 64  # largest lens


def heat(
    values: Any,
    rows: Sequence[Any] | None = None,
    columns: Sequence[Any] | None = None,
    title: str = "",
    *,
    signed: bool | None = None,
    note: str = "",
    row_label: str = "",
    column_label: str = "",
    texts: Sequence[Sequence[str]] | None = None,
) -> str:
    """Returns a matrix as a heat map, with its numbers if they fit (up to 24 columns), or with a text in each cell.

    Unsigned, the shade runs from the lowest value (or 0 if none is negative) to the highest. Signed, it is the share of
    the largest magnitude, and a negative value is a smaller square of another colour, so that it differs in grey too.
    With cells of less than 5 pixels the shade runs from lowest to highest in either case, and the note says so.

    Args:
        values: (R, C), finite.
        rows: names of the R rows; their positions from 0 by default.
        columns: names of the C columns; their positions from 0 by default.
        title: the heading.
        signed: True if zero is the middle of the shades; by default if a value is negative.
        note: a line below the title.
        row_label: what the rows are, such as "position".
        column_label: what the columns are.
        texts: (R, C) short texts, which the cells have in place of their numbers.

    Raises:
        HeedfulError: another shape, values that are not finite, names that do not fit, or over 40,000 cells.

    >>> "−0.50" in heat([[1.0, -0.5]], ["a"], ["b", "c"], "t")
    True
    """
    numbers = array(values, "RC", "values")
    if numbers.size > CELLS:
        raise HeedfulError(
            f"{numbers.shape[0]:,} × {numbers.shape[1]:,} cells do not fit one figure; draw a part, or block means"
            f" (heedful.views.attention_data.block_means), of at most {CELLS:,}"
        )
    row_names = checked_names(range(len(numbers)) if rows is None else rows, numbers.shape[0], "rows")
    column_names = checked_names(range(numbers.shape[1]) if columns is None else columns, numbers.shape[1], "columns")
    side = _side(numbers, texts)
    signed = (bool(numbers.min() < 0) if signed is None else signed) and side[0] >= 5
    shares, bounds, shading = _shares(numbers, signed)
    if texts is None and numbers.shape[1] <= 24 and len(numbers) <= NAMED:
        texts = [[formatted(v) for v in row] for row in numbers]
    labels = row_label, column_label
    parts, size = _table(numbers, shares, signed, bounds, side, row_names, column_names, labels, texts)
    described = (
        f"{numbers.shape[0]:,} rows, {numbers.shape[1]:,} columns, from {formatted(numbers.min(), 3)} to"
        f" {formatted(numbers.max(), 3)}"
    )
    return figure(title, [note, shading], size, parts, described)


def _shares(numbers: Values, signed: bool) -> tuple[Values, tuple[float, float], str]:
    """Returns the shades of a matrix in [0, 1], the values at their ends, and a note on them."""
    if signed:
        peak = float(np.abs(numbers).max()) or 1.0
        return np.abs(numbers) / peak, (0.0, peak), "a negative value is a smaller square"
    low, high = min(0.0, float(numbers.min())), float(numbers.max())
    note = "the shade runs from the lowest value to the highest" if low < 0 else ""
    return (numbers - low) / ((high - low) or 1.0), (low, high), note


def grid(
    values: Any,
    title: str = "",
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    note: str = "",
) -> str:
    """Returns a heat map with one number for each head: rows are layers, columns are heads.

    ``values`` is (L, H), such as the change in loss without each head; ``layers`` and ``heads`` are the numbers
    of rows and columns in the model, from 0 by default. Errors are those of ``heat``.
    """
    numbers = array(values, "LH", "values")
    layer_names = [f"layer {layer}" for layer in (range(numbers.shape[0]) if layers is None else layers)]
    head_names = list(heads or range(numbers.shape[1]))
    return heat(numbers, layer_names, head_names, title, note=note, column_label="head")


def _side(numbers: Values, texts: Sequence[Sequence[str]] | None) -> tuple[float, float]:
    """Returns width and height of a cell: wide enough for a text, or for numbers of up to 24 columns, else small."""
    rows, columns = numbers.shape
    if texts is not None:
        return max(28.0, *(width(text, 11) + 8 for row in texts for text in row)), 28.0
    if columns <= 24 and rows <= 60:
        wide = max(width(formatted(v), 11) for v in numbers.flat) + 8
        return max(34.0 if columns <= 12 else 28.0, wide), 28.0
    side = max(2, min(20, int(720 / max(rows, columns))))
    return float(side), float(side)


def _table(
    numbers: Values,
    shares: Values,
    signed: bool,
    bounds: tuple[float, float],
    side: tuple[float, float],
    rows: list[str],
    columns: list[str],
    labels: tuple[str, str],
    texts: Sequence[Sequence[str]] | None,
) -> tuple[list[str], tuple[float, float]]:
    (wide, high), (low, peak), (row_label, column_label) = side, bounds, labels
    some_rows, some_columns = _some(len(rows), high), _some(len(columns), wide)
    row_names, column_names = [rows[r] for r in some_rows], [columns[c] for c in some_columns]
    step = wide * (some_columns[1] - some_columns[0] if len(some_columns) > 1 else 1)
    left, top = widest(row_names) + 10, rise(column_names, step)
    left = max(left, width(row_label, 11) + 10)
    top += 16 if column_label else 0
    middles = [left + (c + 0.5) * wide for c in some_columns]
    parts = along(column_names, middles, top, step)
    parts += down(row_names, left - 8, [top + (r + 0.5) * high for r in some_rows])
    parts += [label(row_label, left - 8, top - 8, "small", "end")] if row_label else []
    parts += [label(column_label, left + len(columns) * wide / 2, 8, "small", "middle")] if column_label else []
    gap = 1.0 if min(side) >= 10 else 0.0
    plus = np.where(numbers >= 0, shares, 0) if signed else shares
    parts += shaded(plus, (left, top), side, gap=gap)
    if signed and (numbers < 0).any():
        minus = np.where(numbers < 0, shares, 0)
        parts += shaded(minus, (left, top), side, gap=gap, kind="minus", inset=0.12, chips=False)
    for r, row in enumerate(texts or ()):
        for c, text in enumerate(row):
            x, y = left + (c + 0.5) * wide, top + (r + 0.5) * high
            parts.append(number(text, shares[r, c], x, y, signed and numbers[r, c] < 0))
    bottom = top + len(rows) * high
    parts += scale(plain(low), plain(peak), left, bottom + 12)
    right = left + 120 + width(plain(low) + plain(peak), 11) + 30
    if signed and (numbers < 0).any():
        parts += scale("0", plain(-peak), right, bottom + 12, "minus")
        right += 150 + width(plain(-peak), 11)
    return parts, (max(left + len(columns) * wide, right, overhang(column_names, middles, step)), bottom + 26)


def _some(size: int, step: float) -> list[int]:
    """Returns the indices of the names to write, which are ``step`` pixels apart: all of ``size``, or every n-th."""
    n = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if n * step >= 15 and size / n <= NAMED)
    return list(range(0, size, n))


def lens(lens: LensPredictions, title: str = "") -> str:
    """Returns a figure of the logit lens (nostalgebraist, 2020): the likeliest next piece by layer and position.

    Layers go down, positions across.
    A cell has its piece, and the probability as shade and in %. ``◆`` marks the first layer that predicts the last
    layer's piece; the piece is bold in every such layer. The bottom line has the true next pieces.

    Raises:
        HeedfulError: over 40 positions or 64 layers.
    """
    layers, positions = len(lens.layers), len(lens.pieces)
    if positions > POSITIONS or layers > LAYERS:
        raise HeedfulError(
            f"a lens of {layers} layers × {positions} positions is not readable; choose at most {LAYERS} × {POSITIONS}"
            " (layers, queries), or write its page"
        )
    names = checked_names(lens.layers, layers, "layers")
    pieces = checked_names(lens.pieces, positions, "positions")
    best = [[cell[0] for cell in row] for row in lens.top]
    final = [piece for piece, _ in best[-1]]
    first = [next(n for n in range(layers) if best[n][t][0] == final[t]) for t in range(positions)]
    cells = max(width(visible(piece), 12, bold=True) for row in best for piece, _ in row)
    wide, high = max(44.0, min(86.0, cells + 24)), 34.0
    left = max(widest(names), width("came next", SIZE), width("read", SIZE)) + 10
    top = rise(pieces, wide)
    middles = [left + (t + 0.5) * wide for t in range(positions)]
    parts = along(pieces, middles, top, wide)
    parts.append(label("read", left - 8, top - 6, "small", "end"))
    parts += down(names, left - 8, [top + (n + 0.5) * high for n in range(layers)])
    shares = np.array([[p for _, p in row] for row in best], dtype=np.float64)
    parts += shaded(shares, (left, top), (wide, high), gap=2)
    for n, row in enumerate(lens.top):
        for t, candidates in enumerate(row):
            cell = _lens_cell(candidates, (middles[t], top + n * high), wide, final[t], n == first[t])
            described = "; ".join(f"{visible(piece)} {100 * p:.1f} %" for piece, p in candidates)
            parts.append(titled(f"{names[n]}, {pieces[t]}: {described}", cell))
    bottom = top + layers * high
    if any(lens.target):
        targets = [shortened(visible(piece), wide - 6, SIZE) if piece else "" for piece in lens.target]
        parts.append(label("came next", left - 8, bottom + 20, "small", "end"))
        parts += [
            label(piece, x, bottom + 20, "piece", "middle") for piece, x in zip(targets, middles, strict=True) if piece
        ]
        bottom += 28
    parts += scale("0", "probability 1", left, bottom + 12)
    predictor = f"the {visible(lens.name)}" if lens.name else "the model"
    notes = [
        f"likeliest next piece of {predictor} after each layer, with its probability; ◆ first layer that predicts the"
        " last layer's piece, bold in every such layer",
        lens.note,
    ]
    description = "; ".join(
        f"after {p}: {visible(f)} from {names[n]} on"
        if all(best[m][t][0] == f for m in range(n, layers))
        else f"after {p}: {visible(f)} first at {names[n]}"
        for t, (p, f, n) in enumerate(zip(pieces, final, first, strict=True))
    )
    size = max(left + positions * wide, overhang(pieces, middles, wide), left + 230), bottom + 26
    return figure(title, notes, size, parts, description, ".said{font-size:12px}")


def _lens_cell(
    candidates: Sequence[tuple[str, float]], at: tuple[float, float], wide: float, final: str, is_first: bool
) -> str:
    """Returns the likeliest piece and its probability; marked if it is the ``final`` piece for the first time."""
    (piece, p), (x, y) = candidates[0], at
    is_final = piece == final
    text = ("◆ " if is_first else "") + shortened(visible(piece), wide - (22 if is_first else 8), 12, bold=is_final)
    name = label(text, x, y + 15, "said" + (" name" if is_final else "") + ink(p), "middle")
    return name + label(f"{100 * p:.0f} %", x, y + 28, "number" + ink(p), "middle")
