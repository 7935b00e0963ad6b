"""HTML page of a text about an image: for each word the image, bright where the decoder attended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.views import raster
from heedful.views.attention_data import check_range
from heedful.views.page import MAX_PAGE_BYTES, asset, data, page, scaled, size
from heedful.views.text import escaped

Array = np.ndarray[Any, np.dtype[Any]]
STORED = 512  # pixels a side of the stored image


@dataclass(frozen=True, kw_only=True, eq=False)
class WordMaps:
    """Attention of each of M words to the patches of an image.

    Args:
        pixels: uint8 (H, W, C), resized as for the model, not normalised.
        words: the M words, in order.
        grid: (rows, columns) of patches.
        layers: numbers of the L layers in the model.
        heads: numbers of the H heads in the model.
        weights: (L, H, M, rows, columns), after the softmax.
        note: a sentence for the page.

    Raises:
        HeedfulError: shapes that do not fit, or weights outside [0, 1].
    """

    pixels: Array
    words: Sequence[str]
    grid: tuple[int, int]
    layers: Sequence[int]
    heads: Sequence[int]
    weights: Array
    note: str = ""

    def __post_init__(self) -> None:
        raster.as_uint8(self.pixels)
        expected = (len(self.layers), len(self.heads), len(self.words), *self.grid)
        if 0 in expected or np.shape(self.weights) != expected:
            raise HeedfulError(
                f"weights of shape {np.shape(self.weights)} do not fit {len(self.words)} words and a grid of "
                f"{self.grid[0]} × {self.grid[1]} patches; give (layers, heads, words, rows, columns) = {expected}"
            )
        check_range(self.weights)


def words_page(maps: WordMaps, *, title: str, max_bytes: int = MAX_PAGE_BYTES) -> str:
    """Returns a self-contained HTML page: the text, and for each word the image, bright where the decoder attended when
    it wrote the word.

    Layer and head are chosen in two lists; by default it is the mean over all of them. Point at a word, or move to it
    with Tab, to read its strongest patch. The address keeps the view: ``page.html#layer=1&head=2&word=3``.

    Args:
        maps: the words with their weights, which are stored in 8 bits, relative to the largest of their word.
        title: the heading.
        max_bytes: maximum bytes of data. If more are needed, the page has only the mean over heads, and says so.

    >>> pixels, weights = np.zeros((8, 8, 3), np.uint8), np.full((1, 1, 2, 2, 2), 0.25)
    >>> maps = WordMaps(pixels=pixels, words=["a", "cat"], grid=(2, 2), layers=[0], heads=[0], weights=weights)
    >>> "a</b>" in words_page(maps, title="A black image")
    True
    """
    source = raster.embedded(maps.pixels, STORED)
    layers, heads, words = maps.weights.shape[:3]
    flat = np.asarray(maps.weights, np.float32).reshape(layers, heads, words, -1)
    flat = np.concatenate([flat.mean(1, keepdims=True), flat], 1)  # the mean over heads first
    flat = np.concatenate([flat.mean(0, keepdims=True), flat])  # and over layers
    note, shown = "Weights are kept in 8 bits: within 0.2 % of the largest of their word.", flat
    if 4 * flat.size // 3 + size(source) > max_bytes:
        shown, note = flat[:, :1], f"{note} To keep this page small, only the mean over {heads} heads is kept."
    facts = {
        "rows": maps.grid[0],
        "columns": maps.grid[1],
        "count": words,
        "layers": [str(layer) for layer in maps.layers],
        "heads": [str(head) for head in maps.heads] if shown is flat else [],
        "weights": scaled(shown),
    }
    body = _body(maps, source, note) + data(facts)
    style, script = (asset(f"parts.{kind}") + asset(f"words.{kind}") for kind in ("css", "js"))
    return page(title, body, style, script, images=True)


def _body(maps: WordMaps, source: str, note: str) -> str:
    crisp = 'class="crisp" ' if raster.crisp(maps.pixels) else ""
    high, wide = maps.pixels.shape[:2]
    first = f'src="{source}" '  # the script gives it to the other images
    cards = "".join(
        f'<figure tabindex="0" data-word="{i}"><div class="frame"><img {crisp}{"" if i else first}alt="">'
        f'<canvas role="img" aria-label="patches that {escaped(word)} attends to"></canvas></div>'
        f"<figcaption><b>{escaped(word)}</b></figcaption></figure>"
        for i, word in enumerate(maps.words)
    )
    return f"""<p class="quiet">The model's text about an image of {wide} × {high} pixels. Each word has the
image, bright where the decoder attended when it wrote the word.</p>
<div class="tools"><label>layer <select class="layer"></select></label>
<label>head <select class="head"></select></label></div>
<p class="status" role="status"></p>
<div class="words">{cards}</div>
<noscript><p>Weights are drawn by this page's own script, which your browser does not run.</p></noscript>
<footer><p><kbd>l</kbd> next layer, <kbd>h</kbd> next head (with Shift the one before). The address keeps the view.</p>
<p>{escaped(note)} Tokens that are no patches are left out. {escaped(maps.note)}</p></footer>
"""
