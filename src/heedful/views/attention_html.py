"""HTML page of attention maps, and the compression of weights to fit the page."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from heedful.errors import HeedfulError, lookup
from heedful.views.attention_data import (
    Array,
    AttentionMaps,
    block_edges,
    block_means,
    most_informative_layer,
    word_starts,
)
from heedful.views.page import asset, data, page, piece, size
from heedful.views.text import direction, visible

View = Literal["heads", "model", "matrix"]
SCRIPTS = ("parts", "attention_heads", "attention_matrix", "attention_overview", "attention_model", "attention")
FINE = 500_000  # largest number of weights that are stored in 16 bits each; more are stored in 8
SIDE = 1024  # pieces a side of a window; longer texts are slow to lay out
BLOCKS = 64  # blocks a side of an overview
OVERVIEWS = 600_000  # blocks in the overviews of all heads together
FAR = 16  # a window of more than this many times the room is cut before it is compressed
LIMIT = 4_800_000  # bytes of a page: it opens at once, and can be sent by mail

HEADS = """<section class="heads" data-view="heads" aria-label="heads: lines between the pieces">
<div class="pair"><canvas aria-hidden="true"></canvas><div class="scroller"><div class="sides">
<div class="side"><h2></h2><div class="words" data-side="key" role="group"></div></div>
<div class="side"><h2></h2><div class="words" data-side="query" role="group"></div></div>
</div></div></div>
</section>"""
MODEL = """<section class="model sheet" data-view="model" aria-label="model: every layer and head">
<h2>every layer and head</h2><div class="scroll"><table></table></div><p class="quiet small"></p>
</section>"""
MATRIX = """<section class="matrix" data-view="matrix" aria-label="matrix: the weights as a heat map">
<h2>queries down, keys across, weights in %</h2>
<div class="scroll"><canvas tabindex="0" role="application" aria-roledescription="heat map"
aria-label="Weights as a heat map: the arrow keys go from cell to cell, the line at the top describes each cell.">
</canvas></div>
<p class="legend quiet" aria-hidden="true"></p>
<div class="overview" hidden><h2></h2>
<div class="scroll"><canvas tabindex="0" role="application" aria-roledescription="overview"
aria-label="Overview of the whole text in blocks: the arrow keys go from block to block, Enter says how to show it.">
</canvas></div><p class="show quiet" role="status"></p></div>
</section>"""
SECTIONS = {"heads": HEADS, "model": MODEL, "matrix": MATRIX}


def attention_page(
    maps: AttentionMaps | Sequence[AttentionMaps], *, title: str, view: View = "heads", limit: int = LIMIT
) -> str:
    """Returns a self-contained HTML page of attention weights.

    It has three sections: *heads*, the pieces with a line from each to the pieces that it attends to, as thick as the
    weight (short texts as two rows, longer ones as two columns); *model*, a small map of every layer and head to choose
    from; *matrix*, the chosen map as a heat map. Of several maps (encoder, decoder, cross) one is shown at a time. The
    page opens with the head average of the ``most_informative_layer``, or at its address:
    ``page.html#group=cross-attention&layer=1&head=2&token=3`` (layer and head by their numbers; ``token`` a query and
    ``key`` a key, counted from 0 over the whole text; ``view`` the first section).

    Args:
        maps: the maps. A window of a long text is shown with its overview.
        title: the heading.
        view: the section to show first.
        limit: maximum bytes of the page. Weights are stored in 16 bits, or in 8 if there are many. If they still do not
            fit, the page shows a window of the text with an overview of the whole, and says so.

    Raises:
        HeedfulError: no maps, an unknown view, or a limit below one weight for each head.
    """
    groups = [maps] if isinstance(maps, AttentionMaps) else list(maps)
    if not groups:
        raise HeedfulError("nothing to draw: no attention maps; give at least one")
    lookup(SECTIONS, view, "view")
    facts = [_facts(group) for group in groups]
    room = limit - size(_page(facts, title, view))
    for number in sorted(range(len(groups)), key=lambda i: groups[i].weights.size):  # small groups leave room to others
        before, waiting = size(data(facts)), sum("weights" not in group for group in facts)
        fit, bits, weights = window_maps(groups[number], room // waiting)
        facts[number] = _facts(fit) | {"layer": most_informative_layer(fit.weights), "bits": bits, "weights": weights}
        room -= size(data(facts)) - before
    return _page(facts, title, view)


def _page(facts: list[dict[str, Any]], title: str, view: View) -> str:
    """Returns the page with the section ``view`` first."""
    order = [view, *(name for name in SECTIONS if name != view)]
    sections = "\n".join(SECTIONS[name] for name in order)
    body = f"""<div class="bar">
<div class="tools">
<label>attention <select class="group"></select></label>
<label>layer <select class="layer"></select></label>
<label>head <select class="head"></select></label>
<span class="knobs" role="group" aria-label="seen first"></span>
</div>
<p class="status" role="status"></p>
</div>
<p class="quiet about"></p>
<noscript><p>The lines and maps are drawn by this page's own script, which your browser does not run.</p></noscript>
<div class="sections" aria-busy="true">
{sections}
</div>
<div class="tip" hidden></div>
<footer>
<p><kbd>Tab</kbd> to the pieces and the maps, arrow keys along a text, across to the strongest piece of the other side,
<kbd>l</kbd> next layer, <kbd>h</kbd> next head (with Shift the one before), <kbd>Esc</kbd> clears. The address keeps
the view.</p>
<p class="kept"></p>
</footer>
"""
    style, script = asset("parts.css") + asset("attention.css"), "".join(asset(f"{name}.js") for name in SCRIPTS)
    return page(title, body + data({"view": view, "groups": facts}), style, script)


def _facts(maps: AttentionMaps) -> dict[str, Any]:
    """Returns the page's data of one group of maps, without the weights."""
    (first, end), (left, right) = maps.rows, maps.columns
    end, right = min(end, first + SIDE), min(right, left + SIDE)
    sides = {
        name: {
            "pieces": [piece(text.lstrip(" ")) for text in pieces[low:high]],
            "starts": [int(start) for start in word_starts(pieces[low:high])],
            "window": (low, high),
            "count": len(pieces),
            "way": direction(list(pieces[low:high])),
        }
        for name, pieces, low, high in (("query", maps.queries, first, end), ("key", maps.keys, left, right))
    }
    return {
        "name": visible(maps.name),
        "same": maps.is_self_attention,
        "layers": maps.layers,
        "heads": maps.heads,
        **sides,
        "overview": overviewed(maps),
        "note": visible(maps.note) if maps.note else "",
    }


def compressed(weights: Array) -> tuple[int, str]:
    """Returns weights in [0, 1] for a page: the number of bits of a weight, and all weights, deflated, in base64.

    A code of 16 bits is ``round(65535 w)``, within 0.0008 percentage points of ``w``. A code of 8 bits is
    ``round(255 √w)``, within 0.4 √w percentage points, so that the small weights of a long text are not all zero.
    """
    if weights.size <= FINE:
        return 16, _deflated(np.rint(weights * 65535).astype("<u2"))
    return 8, _deflated(np.rint(np.sqrt(weights) * 255).astype(np.uint8))


def _deflated(codes: Array) -> str:
    return base64.b64encode(zlib.compress(codes.tobytes(), 6)).decode("ascii")


def window_maps(maps: AttentionMaps, byte_budget: int) -> tuple[AttentionMaps, int, str]:
    """Returns attention maps with a window that fits a page, the bits of a weight, and the compressed weights.

    The window is smaller than that of ``maps`` if the weights would exceed ``byte_budget`` bytes.

    A window that is cut from the whole text gets an overview of the text. ``note`` says what is left out.

    Raises:
        HeedfulError: there is no room for a single weight of each head.
    """
    query_count, key_count = maps.weights.shape[-2:]
    rows, columns = min(SIDE, query_count), min(SIDE, key_count)
    maps_count = len(maps.layers) * len(maps.heads)
    if maps_count * rows * columns > FAR * byte_budget:
        rows, columns = _smaller(rows, columns, FAR * byte_budget // maps_count)
    with_overview = _with_overview(maps)
    remaining_bytes = byte_budget - (0 if with_overview is maps else size(data(overviewed(with_overview))))
    while True:
        is_whole_window = (rows, columns) == (query_count, key_count)
        bits, text = compressed(maps.weights[..., :rows, :columns])
        if len(text) <= (byte_budget if is_whole_window else remaining_bytes):
            return maps if is_whole_window else _windowed(with_overview, rows, columns), bits, text
        if rows == columns == 1 or remaining_bytes <= 0:
            raise HeedfulError(
                f"{len(maps.layers)} layers of {len(maps.heads)} heads do not fit a page; choose fewer layers or heads"
            )
        rows, columns = _smaller(rows, columns, int(rows * columns * 0.95 * remaining_bytes / len(text)))


def _smaller(rows: int, columns: int, area: int) -> tuple[int, int]:
    """Returns the size of a window of at most ``area`` weights: square, or with only the longer side cut."""
    side = math.isqrt(max(1, area))
    if min(rows, columns) >= side:
        return side, side
    return (rows, max(1, area // rows)) if rows < columns else (max(1, area // columns), columns)


def _with_overview(maps: AttentionMaps) -> AttentionMaps:
    """Returns ``maps`` with an overview, if they have none and hold the whole text."""
    if maps.overview is not None or not maps.is_whole_text:
        return maps
    blocks = min(BLOCKS, len(maps.queries)), min(BLOCKS, len(maps.keys))
    return replace(maps, overview=block_means(maps.weights, *blocks))


def _windowed(maps: AttentionMaps, rows: int, columns: int) -> AttentionMaps:
    """Returns ``maps`` with the first ``rows`` × ``columns`` weights of the window, and a note."""
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


def overviewed(maps: AttentionMaps) -> dict[str, Any] | None:
    """Returns the overview of a long text for the page: limits, first pieces and shares of blocks; None without one.

    Shares are stored in 8 bits, as ``compressed`` stores weights.

    A block's *share* is the weight of its queries on all of its keys together: mean weight × number of keys.
    """
    if maps.overview is None:
        return None
    row_edges = block_edges(len(maps.queries), maps.overview.shape[-2])
    column_edges = block_edges(len(maps.keys), maps.overview.shape[-1])
    shares: Array = maps.overview * np.diff(column_edges)
    max_blocks = max(1, min(BLOCKS, math.isqrt(OVERVIEWS // (len(maps.layers) * len(maps.heads)))))
    shares, row_edges = _coarser(
        shares * np.diff(row_edges)[:, None], row_edges, max_blocks, axis=-2
    )  # sums over a block's queries ...
    shares = shares / np.diff(row_edges)[:, None]  # ... and their mean again
    shares, column_edges = _coarser(shares, column_edges, max_blocks, axis=-1)
    codes = np.rint(np.sqrt(shares.clip(0, 1)) * 255).astype(np.uint8)
    first_pieces = {
        f"{name}Said": [piece("".join(pieces[low : low + 8]).lstrip(" ")) for low in limits[:-1]]
        for name, pieces, limits in (("rows", maps.queries, row_edges), ("columns", maps.keys, column_edges))
    }
    return {"rows": row_edges, "columns": column_edges, "weights": _deflated(codes), **first_pieces}


def _coarser(sums: Array, limits: list[int], max_blocks: int, axis: int) -> tuple[Array, list[int]]:
    """Returns sums over neighbouring blocks, at most ``max_blocks`` along ``axis``, and the new limits."""
    parts = len(limits) - 1
    if parts <= max_blocks:
        return sums, limits
    lookup = block_edges(parts, max_blocks)
    return np.add.reduceat(sums, lookup[:-1], axis=axis), [limits[i] for i in lookup]
