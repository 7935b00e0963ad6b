"""The logit lens as a page (HTML): what a model would say after each layer, at each position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.views.page import MOST, asset, data, page, piece, size, stored
from heedful.views.text import escaped, visible

FEW = 3  # candidates of a cell that are kept when a page grows too large


@dataclass(frozen=True, kw_only=True)
class LensPredictions:
    """Logit lens: the final norm and head applied to the stream after each of L layers, at each of T positions.

    Args:
        pieces: the T pieces that were read.
        layers: names of the L rows, the first usually "embedding".
        top: (L, T) lists of the likeliest next pieces with their probabilities, best first.
        target: of each position the piece that really came next; "" where none did.
        note: what was left out, in a sentence.
        name: of what was read, such as "decoder".

    Raises:
        HeedfulError: nothing read, or lengths and probabilities that do not fit.
    """

    pieces: Sequence[str]
    layers: Sequence[str]
    top: Sequence[Sequence[Sequence[tuple[str, float]]]]
    target: Sequence[str]
    note: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        count = len(self.pieces)
        if not count or not self.layers:
            raise HeedfulError(f"nothing to show: {count} pieces and {len(self.layers)} layers; give one of each")
        if len(self.target) != count:
            raise HeedfulError(f"{len(self.target)} targets for {count} pieces; give one each, '' where none came")
        if len(self.top) != len(self.layers):
            raise HeedfulError(f"candidates of {len(self.top)} layers for {len(self.layers)} names; give one each")
        for name, row in zip(self.layers, self.top, strict=True):
            if len(row) != count:
                raise HeedfulError(f"candidates at {len(row)} positions in layer {name}, but {count} pieces were read")
            for cell in row:
                if not cell or not all(0 <= p <= 1.001 for _, p in cell):
                    raise HeedfulError(f"layer {name} has a position without candidates with probabilities in 0..1")


def lens_page(lens: LensPredictions, *, title: str, most: int = MOST) -> str:
    """Returns a self-contained HTML page of the logit lens (nostalgebraist, 2020), to be opened from disk.

    A table with a row a layer and a column a position. A cell holds the likeliest next piece after that layer, shaded
    by its probability, which it tells in %. The *final* piece of a position is the last layer's likeliest; the first
    layer from the top at which it is the likeliest is marked (``◆``), and where it is so again it stands in bold. Under
    the table stands what really came. A cell that is pointed at, focused or chosen tells its candidates and how the
    final piece, and the one that came, fare through the layers. Of many positions a window is shown, under an
    overview. ``page.html#layer=embedding&position=5`` opens at a cell (positions counted from 0).

    Args:
        lens: what to show. Probabilities are kept in 16 bits, so within 0.001 percentage points.
        title: the heading.
        most: bytes of data the page may hold. Above it candidates after the third of each cell are left out, then
            positions at the end, and the page says so.

    >>> cell = [(" cat", 0.75), (" dog", 0.25)]
    >>> lens = LensPredictions(pieces=[" the"], layers=["embedding", "1"], top=[[cell], [cell]], target=[""])
    >>> "cat" in lens_page(lens, title="A lens")
    True
    """
    facts, note = _fitted(lens, most)
    shown = len(facts["pieces"])
    about = f"What the {escaped(lens.name) if lens.name else 'model'}"
    notes = " ".join(escaped(line) for line in (note, lens.note) if line)
    body = f"""<p class="quiet">{about} would say, were each layer its last: its stream through the final norm
and the head. The stronger a cell's colour, the surer; <b>◆</b> where the piece that the last layer says is first the
likeliest.</p>
<p class="quiet summary"></p>
<section class="overview" aria-label="all positions" hidden>
<canvas tabindex="0" role="slider" aria-label="the first position of the table" aria-valuemin="1"></canvas>
<div class="tools"><button type="button" data-go="-1">◂ earlier</button><span class="range"></span>
<button type="button" data-go="1">later ▸</button></div>
</section>
<div class="scroll">
<table class="lens" role="grid" aria-label="the likeliest piece, layers down, positions across"></table></div>
<p class="told" role="status"></p>
<noscript><p>The table is filled by this page's own script, which your browser does not run.</p></noscript>
<div class="cards">
<section aria-label="candidates"><h2 class="where"></h2><ol class="bars candidates"></ol></section>
<section aria-label="through the layers"><h2 class="fate"></h2><ol class="bars through"></ol></section>
<section aria-label="the true piece, through the layers" class="other">
<h2 class="came"></h2><ol class="bars really"></ol></section>
</div>
<footer>
<p><kbd>Tab</kbd> to the table, <kbd>←</kbd> <kbd>→</kbd> <kbd>↑</kbd> <kbd>↓</kbd> through it, <kbd>Home</kbd>
<kbd>End</kbd> to the first and last position, <kbd>f</kbd> to the layer where the final piece first appears,
<kbd>Esc</kbd> clears. The address keeps the view.</p>
<p>Kept are the {facts["count"]} likeliest pieces of each of {len(facts["layers"])} × {shown:,} cells, probabilities
within 0.001 percentage points; ␣ is the space before a word. {notes}</p>
</footer>
{data(facts)}"""
    style, script = (asset(f"parts.{kind}") + asset(f"lens.{kind}") for kind in ("css", "js"))
    return page(title, body, style, script)


def _fitted(lens: LensPredictions, most: int) -> tuple[dict[str, Any], str]:
    """Returns the page's facts in at most ``most`` bytes, and what was left out for it."""
    positions, candidates = len(lens.pieces), max(len(cell) for row in lens.top for cell in row)
    notes = ""
    while True:
        facts = _facts(lens, positions, candidates)
        taken = size(data(facts))
        if taken <= most or (positions == 1 and candidates <= FEW):
            return facts, notes
        if candidates > FEW:
            candidates = FEW
        else:
            positions = max(1, min(positions - 1, int(0.97 * positions * most / taken)))
        notes = f"To keep this page small, only {candidates} candidates a cell"
        notes += (
            f" and the first {positions:,} of {len(lens.pieces):,} positions" if positions < len(lens.pieces) else ""
        )
        notes += " are kept."


def _facts(lens: LensPredictions, positions: int, candidates: int) -> dict[str, Any]:
    places: dict[str, int] = {}
    pieces = np.full((len(lens.layers), positions, candidates), -1, dtype=np.int64)
    shares = np.zeros(pieces.shape)
    for row, cells in enumerate(lens.top):
        for column, cell in enumerate(cells[:positions]):
            for rank, (name, share) in enumerate(cell[:candidates]):
                pieces[row, column, rank] = places.setdefault(name, len(places))
                shares[row, column, rank] = min(share, 1.0)
    came = [-1 if not name else places.setdefault(name, len(places)) for name in lens.target[:positions]]
    pieces[pieces < 0] = len(places)  # no candidate
    wide = len(places) > 0xFFFF
    return {
        "layers": [visible(str(name)) for name in lens.layers],
        "pieces": [piece(name) for name in lens.pieces[:positions]],
        "pool": [piece(name) for name in places],
        "came": came,
        "count": candidates,
        "wide": wide,
        "top": stored(pieces, "<u4" if wide else "<u2"),
        "shares": stored(np.rint(shares * 0xFFFF), "<u2"),
    }
