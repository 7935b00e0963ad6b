"""Numbers in rows and columns: any matrix as a heat map, one number a head, and the logit lens."""

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
    count,
    down,
    figure,
    number,
    overhang,
    plain,
    rise,
    said,
    scale,
    shaded,
    widest,
)
from heedful.views.svg import ink, label, titled
from heedful.views.text import cut, visible, width

if TYPE_CHECKING:
    from heedful.views.lens_html import LensPredictions

CELLS = 40_000
NAMED = 60  # names a side; of more, some positions
POSITIONS, LAYERS = 40, 64  # of a lens


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
) -> str:
    """Any matrix as a heat map, with its numbers where they fit (up to 24 columns).

    Unsigned, the shade runs from the lowest value (or 0 where none is below it) to the highest. Signed, it is the share
    of the largest size, and a negative value is a smaller square of another colour, so that it is told apart in grey;
    where cells are smaller than 5 pixels the shade runs from lowest to highest after all, and the note says so.

    Args:
        values: (R, C), finite.
        rows: names of the R rows; their positions from 0 by default.
        columns: names of the C columns; their positions from 0 by default.
        title: the heading.
        signed: whether zero is the middle; by default where a value is below 0.
        note: a line beneath the title.
        row_label: what the rows are, such as "position".
        column_label: what the columns are.

    Raises:
        HeedfulError: another shape, values that are not finite, names that do not fit, or over 40,000 cells.

    >>> "−0.50" in heat([[1.0, -0.5]], ["a"], ["b", "c"], "t")
    True
    """
    numbers = array(values, "RC", "values")
    if numbers.size > CELLS:
        raise HeedfulError(
            f"{numbers.shape[0]:,} × {numbers.shape[1]:,} cells in one picture; draw a part, or block means"
            f" (heedful.views.attention_data.block_means), of at most {CELLS:,}"
        )
    down_names = count(range(len(numbers)) if rows is None else rows, numbers.shape[0], "rows")
    along_names = count(range(numbers.shape[1]) if columns is None else columns, numbers.shape[1], "columns")
    signed = bool(numbers.min() < 0) if signed is None else signed
    side = _side(numbers)
    notes = [note]
    if signed and side[0] < 5:
        signed = False
    if signed:
        peak = float(np.abs(numbers).max()) or 1.0
        shares, bounds = np.abs(numbers) / peak, (0.0, peak)
        notes.append("a negative value is a smaller square")
    else:
        low, high = min(0.0, float(numbers.min())), float(numbers.max())
        if numbers.min() < 0:
            low = float(numbers.min())
            notes.append("the shade runs from the lowest value to the highest")
        shares, bounds = (numbers - low) / ((high - low) or 1.0), (low, high)
    parts, size = _table(numbers, shares, signed, bounds, side, down_names, along_names, (row_label, column_label))
    described = (
        f"{numbers.shape[0]:,} rows, {numbers.shape[1]:,} columns, from {said(numbers.min(), 3)} to"
        f" {said(numbers.max(), 3)}"
    )
    return figure(title, notes, size, parts, described)


def grid(
    values: Any,
    title: str = "",
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    note: str = "",
) -> str:
    """One number a head as a heat map: a row a layer, a column a head, with the numbers.

    ``values`` is (L, H), such as the change in loss without each head; ``layers`` and ``heads`` are their numbers in
    the model, from 0 by default. Errors as of ``heat``.
    """
    numbers = array(values, "LH", "values")
    named = [
        [f"{what} {i}" for i in (range(size) if given is None else given)]
        if what == "layer"
        else list(given or range(size))
        for what, given, size in (("layer", layers, numbers.shape[0]), ("head", heads, numbers.shape[1]))
    ]
    return heat(numbers, named[0], named[1], title, note=note, column_label="head")


def _side(numbers: Values) -> tuple[float, float]:
    """Width and height of a cell: enough for the numbers, up to 24 columns, else what 720 pixels give."""
    rows, columns = numbers.shape
    if columns <= 24 and rows <= 60:
        wide = max(width(said(v), 11) for v in numbers.flat) + 8
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
    what: tuple[str, str],
) -> tuple[list[str], tuple[float, float]]:
    (wide, high), (low, peak) = side, bounds
    few = [_few(len(names), step) for names, step in ((rows, high), (columns, wide))]
    named = [[names[i] for i in places] for names, places in zip((rows, columns), few, strict=True)]
    step = wide * (few[1][1] - few[1][0] if len(few[1]) > 1 else 1)
    left, top = widest(named[0]) + 10, rise(named[1], step)
    left = max(left, width(what[0], 11) + 10)
    top += 16 if what[1] else 0
    middles = [left + (c + 0.5) * wide for c in few[1]]
    parts = along(named[1], middles, top, step) + down(named[0], left - 8, [top + (r + 0.5) * high for r in few[0]])
    parts += [label(what[0], left - 8, top - 8, "small", "end")] if what[0] else []
    parts += [label(what[1], left + len(columns) * wide / 2, 8, "small", "middle")] if what[1] else []
    gap = 1.0 if min(side) >= 10 else 0.0
    plus = np.where(numbers >= 0, shares, 0) if signed else shares
    parts += shaded(plus, (left, top), side, gap=gap)
    if signed and (numbers < 0).any():
        minus = np.where(numbers < 0, shares, 0)
        parts += shaded(minus, (left, top), side, gap=gap, kind="minus", inset=0.12, chips=False)
    if len(columns) <= 24 and len(rows) <= NAMED:
        parts += [
            number(said(v), shares[r, c], left + (c + 0.5) * wide, top + (r + 0.5) * high, signed and v < 0)
            for r, row in enumerate(numbers)
            for c, v in enumerate(row)
        ]
    bottom = top + len(rows) * high
    parts += scale(plain(low), plain(peak), left, bottom + 12)
    right = left + 120 + width(plain(low) + plain(peak), 11) + 30
    if signed and (numbers < 0).any():
        parts += scale("0", plain(-peak), right, bottom + 12, "minus")
        right += 150 + width(plain(-peak), 11)
    return parts, (max(left + len(columns) * wide, right, overhang(named[1], middles, step)), bottom + 26)


def _few(size: int, step: float) -> list[int]:
    """Returns the indices of the names to write, ``step`` pixels apart: all of ``size``, or every n-th."""
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if n * step >= 15 and size / n <= NAMED)
    return list(range(0, size, every))


def lens(lens: LensPredictions, title: str = "") -> str:
    """Returns the logit lens (nostalgebraist, 2020): the likeliest next piece, layers down, positions across.

    A cell's shade is the piece's probability, which stands beneath it in %. ``◆`` marks the layer at which the piece
    that the last layer says is first the likeliest; where it is so again it stands in bold. The bottom line holds what
    really came.

    Raises:
        HeedfulError: over 40 positions or 64 layers.
    """
    layers, positions = len(lens.layers), len(lens.pieces)
    if positions > POSITIONS or layers > LAYERS:
        raise HeedfulError(
            f"a lens of {layers} layers × {positions} positions cannot be read; choose at most {LAYERS} × {POSITIONS}"
            " (layers, queries), or make its page"
        )
    names, pieces = count(lens.layers, layers, "layers"), count(lens.pieces, positions, "positions")
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
    for n, row in enumerate(best):
        for t, (piece, p) in enumerate(row):
            name, same = visible(piece), piece == final[t]
            short = ("◆ " if n == first[t] else "") + cut(name, wide - (22 if n == first[t] else 8), 12, bold=same)
            y = top + n * high
            text = label(short, middles[t], y + 15, "said" + (" name" if same else "") + ink(p), "middle")
            told = "; ".join(f"{visible(other)} {100 * q:.1f} %" for other, q in lens.top[n][t])
            below = label(f"{100 * p:.0f} %", middles[t], y + 28, "number" + ink(p), "middle")
            parts.append(titled(f"{names[n]}, {pieces[t]}: {told}", text + below))
    bottom = top + layers * high
    if any(lens.target):
        came = [cut(visible(piece), wide - 6, SIZE) if piece else "" for piece in lens.target]
        parts.append(label("came next", left - 8, bottom + 20, "small", "end"))
        parts += [
            label(piece, x, bottom + 20, "piece", "middle") for piece, x in zip(came, middles, strict=True) if piece
        ]
        bottom += 28
    parts += scale("0", "probability 1", left, bottom + 12)
    who = f"the {visible(lens.name)}" if lens.name else "the model"
    notes = [
        f"what {who} would say next, were each layer its last, with its probability; ◆ first layer that says what"
        " the last says, bold wherever it is said",
        lens.note,
    ]
    described = "; ".join(
        f"after {p}: {visible(f)} from {names[n]} on"
        if all(best[m][t][0] == f for m in range(n, layers))
        else f"after {p}: {visible(f)} first at {names[n]}"
        for t, (p, f, n) in enumerate(zip(pieces, final, first, strict=True))
    )
    size = max(left + positions * wide, overhang(pieces, middles, wide), left + 230), bottom + 26
    return figure(title, notes, size, parts, described, ".said{font-size:12px}")
