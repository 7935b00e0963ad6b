"""HTML page of the logit lens: the model's predictions after each layer, at each position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.views.page import MAX_PAGE_BYTES, asset, base64_numbers, data, page, piece, size
from heedful.views.text import escaped, visible

FEW = 3  # candidates of a cell in a page that is too large


@dataclass(frozen=True, kw_only=True)
class LensPredictions:
    """Predictions of the logit lens after L layers at T positions: final norm and head, applied to the stream.

    Args:
        pieces: the T pieces of the input.
        layers: names of the L rows, the first usually "embedding".
        top: (L, T) lists of the likeliest next pieces with their probabilities, best first.
        target: the true next piece at each position; "" if there is none.
        note: a sentence for the page, such as what was left out.
        name: name of the stack, such as "decoder".

    Raises:
        HeedfulError: no pieces, or lengths and probabilities that do not fit.
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
            raise HeedfulError(
                f"nothing to show: {count} pieces and {len(self.layers)} layers; give at least one of each"
            )
        if len(self.target) != count:
            raise HeedfulError(f"{len(self.target)} targets for {count} pieces; give one per piece, '' for none")
        if len(self.top) != len(self.layers):
            raise HeedfulError(
                f"there are candidates of {len(self.top)} layers, but {len(self.layers)} layer names; give one list of "
                "candidates per layer"
            )
        for name, row in zip(self.layers, self.top, strict=True):
            if len(row) != count:
                raise HeedfulError(
                    f"candidates at {len(row)} positions in layer {name}, but the text has {count} pieces; give one "
                    "list per piece"
                )
            for cell in row:
                if not cell or not all(0 <= p <= 1.001 for _, p in cell):
                    raise HeedfulError(
                        f"layer {name} has a position without candidates, or a probability that is not in 0..1; give "
                        "candidates after the softmax"
                    )


def lens_page(lens: LensPredictions, *, title: str, max_bytes: int = MAX_PAGE_BYTES) -> str:
    """Returns a self-contained HTML page of the logit lens (nostalgebraist, 2020).

    The table has a row for each layer and a column for each position. A cell has the likeliest next piece after that
    layer with its probability as shade and in %. The *final* piece of a position is the last layer's likeliest. The
    first layer that predicts it is marked (``◆``), later layers that predict it are bold. Below the table are the true
    next pieces. A chosen cell shows its candidates, and the probabilities of the final and the true piece in every
    layer. If there are many positions, a window is shown, with an overview. ``page.html#layer=embedding&position=5``
    opens at a cell (positions counted from 0).

    Args:
        lens: the predictions. Probabilities are stored in 16 bits, within 0.001 percentage points.
        title: the heading.
        max_bytes: maximum bytes of data. If more are needed, only three candidates of each cell are kept, then
            positions at the end are left out. The page says so.

    >>> cell = [(" cat", 0.75), (" dog", 0.25)]
    >>> lens = LensPredictions(pieces=[" the"], layers=["embedding", "1"], top=[[cell], [cell]], target=[""])
    >>> "cat" in lens_page(lens, title="A lens")
    True
    """
    facts, note = _fitted(lens, max_bytes)
    shown = len(facts["pieces"])
    predictor = escaped(lens.name) if lens.name else "model"
    notes = " ".join(escaped(line) for line in (note, lens.note) if line)
    body = f"""<p class="quiet">Predictions of the {predictor} after each layer: its stream through the final norm and
the head. The stronger a cell's colour, the higher the probability; <b>◆</b> marks the first layer that predicts the
last layer's piece.</p>
<p class="quiet summary"></p>
<section class="overview" aria-label="all positions" hidden>
<canvas tabindex="0" role="slider" aria-label="the first position of the table" aria-valuemin="1"></canvas>
<div class="tools"><button type="button" data-go="-1">◂ earlier</button><span class="range"></span>
<button type="button" data-go="1">later ▸</button></div>
</section>
<div class="scroll">
<table class="lens" role="grid" aria-label="the likeliest piece, layers down, positions across"></table></div>
<p class="status" role="status"></p>
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


def _fitted(lens: LensPredictions, max_bytes: int) -> tuple[dict[str, Any], str]:
    """Returns the page's data in at most ``max_bytes`` bytes, and a note on what was left out."""
    positions, candidates = len(lens.pieces), max(len(cell) for row in lens.top for cell in row)
    notes = ""
    while True:
        facts = _facts(lens, positions, candidates)
        needed = size(data(facts))
        if needed <= max_bytes or (positions == 1 and candidates <= FEW):
            return facts, notes
        if candidates > FEW:
            candidates = FEW
        else:
            positions = max(1, min(positions - 1, int(0.97 * positions * max_bytes / needed)))
        notes = f"To keep this page small, only {candidates} candidates per cell"
        notes += (
            f" and the first {positions:,} of {len(lens.pieces):,} positions" if positions < len(lens.pieces) else ""
        )
        notes += " are kept."


def _facts(lens: LensPredictions, positions: int, candidates: int) -> dict[str, Any]:
    pool: dict[str, int] = {}
    pieces = np.full((len(lens.layers), positions, candidates), -1, dtype=np.int64)
    shares = np.zeros(pieces.shape)
    for row, cells in enumerate(lens.top):
        for column, cell in enumerate(cells[:positions]):
            for rank, (name, share) in enumerate(cell[:candidates]):
                pieces[row, column, rank] = pool.setdefault(name, len(pool))
                shares[row, column, rank] = min(share, 1.0)
    targets = [-1 if not name else pool.setdefault(name, len(pool)) for name in lens.target[:positions]]
    pieces[pieces < 0] = len(pool)  # no candidate
    wide = len(pool) > 0xFFFF
    return {
        "layers": [visible(str(name)) for name in lens.layers],
        "pieces": [piece(name) for name in lens.pieces[:positions]],
        "pool": [piece(name) for name in pool],
        "came": targets,
        "count": candidates,
        "wide": wide,
        "top": base64_numbers(pieces, "<u4" if wide else "<u2"),
        "shares": base64_numbers(np.rint(shares * 0xFFFF), "<u2"),
    }
