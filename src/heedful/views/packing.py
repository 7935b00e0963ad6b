"""Attention maps made small enough for a page: fewer bits, deflated, and for long texts a window under an overview."""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import replace
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.views.map_data import Array, Maps, block_means, edges
from heedful.views.parts import data, piece, size

FINE = 500_000  # up to so many weights each takes 16 bits, beyond 8
SIDE = 1024  # pieces a side of a window: beyond, a page's text is slow to lay out
BLOCKS = 64  # a side of an overview
OVERVIEWS = 600_000  # blocks in the overviews of all heads together
FAR = 16  # deflating more than so many times the room is not worth the time: the window is cut at once


def packed(weights: Array) -> tuple[int, str]:
    """The bits a weight takes, and the weights of [0, 1] in the array's order, deflated, in base64.

    16 bits hold ``round(65535 w)``, within 0.0008 percentage points of ``w``. 8 bits hold ``round(255 √w)``: the error
    is at most 0.4 √w percentage points, so that the small weights of a long text are not all zero.
    """
    if weights.size <= FINE:
        return 16, _deflated(np.rint(weights * 65535).astype("<u2"))
    return 8, _deflated(np.rint(np.sqrt(weights) * 255).astype(np.uint8))


def _deflated(codes: Array) -> str:
    return base64.b64encode(zlib.compress(codes.tobytes(), 6)).decode("ascii")


def fitted(maps: Maps, room: int) -> tuple[Maps, int, str]:
    """``maps``, with a smaller window where its weights would take more than ``room`` bytes, its bits and the weights.

    Where a window of the whole is cut, an overview of the whole is made; ``note`` says what is left out.

    Raises:
        HeedfulError: there is no room for a single weight of each head.
    """
    tall, wide = maps.weights.shape[-2:]
    rows, columns = min(SIDE, tall), min(SIDE, wide)
    stack = len(maps.layers) * len(maps.heads)
    if stack * rows * columns > FAR * room:
        rows, columns = _smaller(rows, columns, FAR * room // stack)
    under = _under_overview(maps)
    left = room - (0 if under is maps else size(data(overviewed(under))))
    while True:
        whole = (rows, columns) == (tall, wide)
        bits, text = packed(maps.weights[..., :rows, :columns])
        if len(text) <= (room if whole else left):
            return maps if whole else _windowed(under, rows, columns), bits, text
        if rows == columns == 1 or left <= 0:
            raise HeedfulError(
                f"{len(maps.layers)} layers of {len(maps.heads)} heads do not fit a page; choose fewer layers or heads"
            )
        rows, columns = _smaller(rows, columns, int(rows * columns * 0.95 * left / len(text)))


def _smaller(rows: int, columns: int, area: int) -> tuple[int, int]:
    """A window of at most ``area`` weights: square where both sides are long, else the longer side is cut."""
    side = math.isqrt(max(1, area))
    if min(rows, columns) >= side:
        return side, side
    return (rows, max(1, area // rows)) if rows < columns else (max(1, area // columns), columns)


def _under_overview(maps: Maps) -> Maps:
    """``maps`` with an overview, where it has none and one can be made: where all weights are there."""
    if maps.overview is not None or not maps.whole:
        return maps
    blocks = min(BLOCKS, len(maps.queries)), min(BLOCKS, len(maps.keys))
    return replace(maps, overview=block_means(maps.weights, *blocks))


def _windowed(maps: Maps, rows: int, columns: int) -> Maps:
    """The first ``rows`` × ``columns`` weights of the window, and a note of it."""
    top, left = maps.rows[0], maps.columns[0]
    note = (
        f"To keep this page small, it shows queries {top}:{top + rows} of {len(maps.queries):,} and keys"
        f" {left}:{left + columns} of {len(maps.keys):,}; fewer layers or heads leave room for more."
    )
    return replace(
        maps,
        weights=maps.weights[..., :rows, :columns],
        rows=(top, top + rows),
        columns=(left, left + columns),
        note=f"{maps.note} {note}".strip(),
    )


def overviewed(maps: Maps) -> dict[str, Any] | None:
    """What a page holds of the overview: blocks' limits and first pieces, and their shares in 8 bits as in ``packed``.

    A block's *share* is what its queries give, in the mean, to all of its keys together: mean weight × number of keys.
    """
    if maps.overview is None:
        return None
    tall = edges(len(maps.queries), maps.overview.shape[-2])
    wide = edges(len(maps.keys), maps.overview.shape[-1])
    shares: Array = maps.overview * np.diff(wide)
    most = max(1, min(BLOCKS, math.isqrt(OVERVIEWS // (len(maps.layers) * len(maps.heads)))))
    shares, tall = _coarser(shares * np.diff(tall)[:, None], tall, most, axis=-2)  # sums over a block's queries ...
    shares = shares / np.diff(tall)[:, None]  # ... and their mean again
    shares, wide = _coarser(shares, wide, most, axis=-1)
    codes = np.rint(np.sqrt(shares.clip(0, 1)) * 255).astype(np.uint8)
    said = {
        f"{name}Said": [piece("".join(pieces[low : low + 8]).lstrip(" ")) for low in limits[:-1]]
        for name, pieces, limits in (("rows", maps.queries, tall), ("columns", maps.keys, wide))
    }
    return {"rows": tall, "columns": wide, "weights": _deflated(codes), **said}


def _coarser(sums: Array, limits: list[int], most: int, axis: int) -> tuple[Array, list[int]]:
    """Neighbouring blocks added up until there are at most ``most`` along ``axis``; and the new limits."""
    parts = len(limits) - 1
    if parts <= most:
        return sums, limits
    chosen = edges(parts, most)
    return np.add.reduceat(sums, chosen[:-1], axis=axis), [limits[i] for i in chosen]
