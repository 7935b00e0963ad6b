"""Attention of one text, or between two: a page to explore (HTML) and a picture (SVG)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from heedful.errors import HeedfulError, chosen
from heedful.views.attention_picture import draw
from heedful.views.map_data import Maps
from heedful.views.packing import SIDE, fitted, overviewed
from heedful.views.page import asset, page
from heedful.views.parts import data, piece, size
from heedful.views.text import direction, visible
from heedful.views.weights import clearest, starts

__all__ = ["attention_page", "attention_svg"]

View = Literal["heads", "model", "matrix"]
SCRIPTS = ("parts", "attention_heads", "attention_matrix", "attention_overview", "attention_model", "attention")
LIMIT = 4_800_000  # bytes of a page: it opens at once, and under 5 MB it may be sent as a letter
MOST = 120  # pieces a side of a picture: beyond, nobody reads them

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
aria-label="Weights as a heat map: the arrow keys go from cell to cell, the line at the top says each."></canvas></div>
<p class="legend quiet" aria-hidden="true"></p>
<div class="overview" hidden><h2></h2>
<div class="scroll"><canvas tabindex="0" role="application" aria-roledescription="overview"
aria-label="Overview of the whole in blocks: the arrow keys go from block to block, Enter says how to show one.">
</canvas></div><p class="show quiet" role="status"></p></div>
</section>"""
SECTIONS = {"heads": HEADS, "model": MODEL, "matrix": MATRIX}


def attention_page(maps: Maps | Sequence[Maps], *, title: str, view: View = "heads", limit: int = LIMIT) -> str:
    """A self-contained HTML page of attention weights, to be opened from disk.

    It has three sections, of which ``view`` comes first: *heads*, the pieces with a line from each to what it looks at,
    as thick as the weight (short texts as two rows, longer ones as two columns); *model*, a small map of every layer
    and head to choose from; *matrix*, the chosen one as a heat map. Of several maps (encoder, decoder, cross) one is
    shown at a time. It opens at the head average of the ``clearest`` layer, or as the address says:
    ``page.html#group=cross-attention&layer=1&head=2&token=3`` (layer and head by their numbers; ``token`` a query and
    ``key`` a key, counted from 0 over the whole text; ``view`` the section that comes first).

    Args:
        maps: what is drawn. A window of a long text stands over its overview.
        title: the heading.
        view: the section that is seen first.
        limit: the most bytes of the page. Weights are kept in 16 bits, many in 8; where they still do not fit, a window
            of the text is shown under an overview of the whole. The page says all of it.

    Raises:
        HeedfulError: no maps, an unknown view, or a limit that not even one weight of each head fits.
    """
    groups = [maps] if isinstance(maps, Maps) else list(maps)
    if not groups:
        raise HeedfulError("nothing to draw: no attention maps; give at least one")
    chosen(SECTIONS, view, "view")
    order = [view, *(name for name in SECTIONS if name != view)]
    sections = "\n".join(SECTIONS[name] for name in order)
    body = f"""<div class="bar">
<div class="tools">
<label>attention <select class="group"></select></label>
<label>layer <select class="layer"></select></label>
<label>head <select class="head"></select></label>
<span class="knobs" role="group" aria-label="seen first"></span>
</div>
<p class="told" role="status"></p>
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

    def whole(facts: Any) -> str:
        inside = asset("parts.css") + asset("attention.css"), "".join(asset(f"{name}.js") for name in SCRIPTS)
        return page(title, body + data({"view": view, "groups": facts}), *inside)

    facts = [_facts(group) for group in groups]
    room = limit - size(whole(facts))
    for number in sorted(range(len(groups)), key=lambda i: groups[i].weights.size):  # what the small leave, others take
        before, waiting = size(data(facts)), sum("weights" not in each for each in facts)
        fit, bits, weights = fitted(groups[number], room // waiting)
        facts[number] = _facts(fit) | {"layer": clearest(fit.weights), "bits": bits, "weights": weights}
        room -= size(data(facts)) - before
    return whole(facts)


def _facts(maps: Maps) -> dict[str, Any]:
    """All that the page holds of one group but its weights."""
    (first, end), (left, right) = maps.rows, maps.columns
    end, right = min(end, first + SIDE), min(right, left + SIDE)
    sides = {
        name: {
            "pieces": [piece(text.lstrip(" ")) for text in pieces[low:high]],
            "starts": [int(start) for start in starts(pieces[low:high])],
            "window": (low, high),
            "count": len(pieces),
            "way": direction(list(pieces[low:high])),
        }
        for name, pieces, low, high in (("query", maps.queries, first, end), ("key", maps.keys, left, right))
    }
    return {
        "name": visible(maps.name),
        "same": maps.same,
        "layers": maps.layers,
        "heads": maps.heads,
        **sides,
        "overview": overviewed(maps),
        "note": visible(maps.note) if maps.note else "",
    }


def attention_svg(
    maps: Maps, *, title: str, layer: int | None = None, head: int | Literal["mean"] = "mean", note: str | None = None
) -> str:
    """A picture of one attention pattern for a README or a paper: lines between two columns of pieces, and a heat map.

    The keys run down on the left; a line goes from each key to each query that looks at it, as thick as the weight
    (none below 5 %). The queries are at the same time the rows of the heat map, whose columns are the keys and whose
    cells hold the weight in % (from 5 % on). Of a window, the window alone is drawn, and a line beneath says so.

    Args:
        maps: where the pattern is.
        title: the heading, and the picture's accessible name.
        layer: a layer's number; the ``clearest`` by default.
        head: a head's number, or "mean", the mean over the heads.
        note: the line under the heading; by default it names what is drawn.

    Raises:
        HeedfulError: a layer or head that is not there, or over 120 pieces a side.
    """
    layer = maps.layers[clearest(maps.weights)] if layer is None else layer
    weights = maps.map(layer, None if head == "mean" else head)
    if max(weights.shape) > MOST:
        raise HeedfulError(
            f"a picture of {weights.shape[1]} keys and {weights.shape[0]} queries cannot be read; draw a page instead,"
            f" or at most {MOST} a side"
        )
    if note is None:
        which = f"head {head}" if head != "mean" else f"mean of {len(maps.heads)} heads"
        note = f"{maps.name}, layer {layer}, {which}. {maps.note}".strip()
    queries, keys = maps.queries[slice(*maps.rows)], maps.keys[slice(*maps.columns)]
    return draw([visible(word) for word in keys], [visible(word) for word in queries], np.asarray(weights), title, note)
