"""Cross-attention of one pair of sentences: a page to explore (HTML) and a picture (SVG)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from heedful.errors import HeedfulError
from heedful.views.page import asset, page
from heedful.views.picture import draw
from heedful.views.text import direction, escaped, visible
from heedful.views.weights import checked, clearest, fitted, merge_words, packed, starts

__all__ = ["attention_page", "attention_svg", "merge_words"]

LIMIT = 2_000_000  # weights a page holds, a byte each: about 2.7 MB of base64, which browsers open at once
MOST = 120  # words a side of a picture: beyond, nobody reads them


def attention_page(
    source: Sequence[str],
    target: Sequence[str],
    weights: Any,
    *,
    title: str,
    layers: Sequence[str] | None = None,
    heads: Sequence[str] | None = None,
    limit: int = LIMIT,
) -> str:
    """A self-contained HTML page of cross-attention, to be opened from disk.

    Above stand the two sentences with a line between words for each weight, as thick as the weight; a word that is
    pointed at, focused or chosen lights those of the other side by their weights. Below are the weights as a heat map,
    and all layers and heads as small ones to choose from. It opens at the head average of the ``clearest`` layer, or as
    the address says: ``page.html#layer=1&head=2&target=3`` (layer and head by name, words counted from 0).

    Args:
        source: the S source pieces or words (keys); a leading space marks the start of a word.
        target: the T target pieces or words (queries).
        weights: (L, H, T, S), after the softmax. They are kept in 8 bits, so within 0.2 percentage points.
        title: the heading.
        layers: names of the L layers; their numbers from 0 by default.
        heads: names of the H heads; their numbers from 0 by default.
        limit: the most weights the page may hold. Above it heads are averaged, then layers, then the sentences' ends
            are cut off, and the page says which.

    Raises:
        HeedfulError: an empty sentence, a shape that does not fit, or weights that are not in [0, 1].
    """
    array = checked(source, target, weights, "LHTS")
    names = {"layers": _names("layers", layers, array.shape[0]), "heads": _names("heads", heads, array.shape[1])}
    array, told = fitted(array, limit)
    if array.shape[0] < len(names["layers"]):
        names["layers"] = ["average"]
    if array.shape[1] < len(names["heads"]):
        names["heads"] = ["mean"]
    facts = {**names, "layer": clearest(array), "weights": packed(array)}
    rows, columns = array.shape[-2:]
    note = "Weights are kept in 8 bits: each is within 0.2 percentage points of the model's."
    many = " many" if max(rows, columns) > 24 else ""
    body = f"""<p class="quiet">Cross-attention, <span class="where"></span>:
the thicker a line, the more the word below attends to the word above.</p>
<section class="pair{many}" aria-label="the two sentences">
<canvas aria-hidden="true"></canvas>
{_words("source", source[:columns])}
{_words("target", target[:rows])}
</section>
<p class="told" role="status"></p>
<noscript><p>The lines and the map are drawn by this page's own script, which your browser does not run.</p></noscript>
<div class="below">
<section class="map"><h2>source words across, target words down, weights in %</h2>
<div class="scroll"><canvas role="img" aria-label="Heat map of the weights; the words above say them one by one.">
</canvas></div></section>
<section class="sheet"><h2>every layer and head</h2><div class="scroll"><table></table></div></section>
</div>
<div class="tip" hidden></div>
<footer>
<p><kbd>Tab</kbd> to a sentence, <kbd>←</kbd> <kbd>→</kbd> along it, <kbd>↑</kbd> <kbd>↓</kbd> to the strongest word of
the other, <kbd>l</kbd> next layer, <kbd>h</kbd> next head (with Shift the one before), <kbd>Esc</kbd> clears.
The address keeps the view.</p>
<p>{note} {escaped(told) if told else ""}</p>
</footer>
<script type="application/json" id="data">{_json(facts)}</script>"""
    return page(title, body, asset("attention.css"), asset("attention.js"))


def _names(what: str, given: Sequence[str] | None, count: int) -> list[str]:
    names = [visible(str(name)) for name in (range(count) if given is None else given)]
    if len(names) != count:
        raise HeedfulError(f"{len(names)} names for {count} {what}; give one each, or none")
    return names


def _words(side: str, pieces: Sequence[str]) -> str:
    """One sentence as buttons; the pieces of a word stand in one ``whole``, joined by ``inside`` and ``open``."""
    first = [*starts(pieces), True]
    parts = []
    for i, piece in enumerate(pieces):
        kinds = "word" + ("" if first[i] else " inside") + ("" if first[i + 1] else " open")
        button = f'<button type="button" class="{kinds}"><bdi>{escaped(piece)}</bdi><i></i></button>'
        parts.append(('<span class="whole">' if first[i] else "") + button + ("</span>" if first[i + 1] else ""))
    way = direction(list(pieces))
    return f'<div class="words" data-side="{side}" role="group" aria-label="{side}" dir="{way}">{"".join(parts)}</div>'


def _json(value: Any) -> str:
    """JSON that may stand in a script element: no ``<``, so neither ``</script>`` nor ``<!--``."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def attention_svg(source: Sequence[str], target: Sequence[str], weights: Any, *, title: str, note: str = "") -> str:
    """A picture of one attention pattern for a README or a paper: lines between two columns of words, and a heat map.

    The source runs down on the left; a line goes from each source word to each target word that attends to it, as
    thick as the weight (none below 5 %). The target words are at the same time the rows of the heat map, whose columns
    are the source words and whose cells hold the weight in % (from 5 % on).

    Args:
        source: the S source pieces or words (keys).
        target: the T target pieces or words (queries).
        weights: (T, S), after the softmax.
        title: the heading, and the picture's accessible name.
        note: a line beneath it, such as "layer 3, mean of 8 heads".

    Raises:
        HeedfulError: an empty sentence, a shape that does not fit, weights not in [0, 1], or over 120 words a side.
    """
    array = checked(source, target, weights, "TS")
    if max(array.shape) > MOST:
        raise HeedfulError(
            f"a picture of {len(source)} source and {len(target)} target words cannot be read; draw a page instead,"
            f" or at most {MOST} words a side"
        )
    return draw([visible(word) for word in source], [visible(word) for word in target], array, title, note)
