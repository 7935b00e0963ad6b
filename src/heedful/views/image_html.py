"""An image as a vision Transformer sees it, to explore: a page (HTML)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.views import raster
from heedful.views.blocks import Plan, kept, membership, plan
from heedful.views.page import asset, page
from heedful.views.parts import data, piece, stored
from heedful.views.text import escaped, visible
from heedful.views.weights import SLACK

Array = np.ndarray[Any, np.dtype[Any]]

MOST = 4_800_000  # bytes of image and weights in a page, which itself stays under 5 MB
STORED = 512  # pixels a side of the image as it is stored
CLASSES = 10  # that are told


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageMaps:
    """Attention among the patches of one image: N = prefix tokens + rows × columns patches, in this order.

    Args:
        pixels: uint8 (H, W, C), as the model saw them (resized, not normalised).
        grid: (rows, columns) of patches.
        prefix: names of the tokens before the patches, such as ("[class]",); none where a model has none.
        layers: numbers of the L layers in the model.
        heads: numbers of the H heads.
        weights: (L, H, N, N), after the softmax; row i is what token i looks at.
        rollout: (rows, columns), not negative: how much of each patch reaches the class token through all layers, or
            without one the mean of the patches.
        classes: names of the likeliest classes with their probabilities, best first.
        gradient: (rows, columns), signed: gradient × input of each patch for the first class; None where not asked.
        note: what was left out, in a sentence.

    Raises:
        HeedfulError: shapes that do not fit, or weights that are not in [0, 1].
    """

    pixels: Array
    grid: tuple[int, int]
    prefix: Sequence[str]
    layers: Sequence[int]
    heads: Sequence[int]
    weights: Array
    rollout: Array
    classes: Sequence[tuple[str, float]] = ()
    gradient: Array | None = None
    note: str = ""

    def __post_init__(self) -> None:
        raster.checked(self.pixels)
        rows, columns = self.grid
        tokens = len(self.prefix) + rows * columns
        want = (len(self.layers), len(self.heads), tokens, tokens)
        if rows < 1 or columns < 1 or 0 in want or np.shape(self.weights) != want:
            raise HeedfulError(
                f"weights of shape {np.shape(self.weights)} do not fit {len(self.prefix)} prefix tokens and"
                f" {rows} × {columns} patches; give (layers, heads, tokens, tokens) = {want}"
            )
        if not (np.min(self.weights) >= 0 and np.max(self.weights) <= 1 + SLACK):
            raise HeedfulError("an attention weight is not in 0..1; give the weights after the softmax")
        for name, values in (("rollout", self.rollout), ("gradient", self.gradient)):
            if values is not None and (np.shape(values) != (rows, columns) or not np.isfinite(values).all()):
                raise HeedfulError(f"{name} of shape {np.shape(values)}; give finite ({rows}, {columns}), one a patch")
        if np.min(self.rollout) < 0:
            raise HeedfulError(f"the rollout has a negative value, {np.min(self.rollout):g}; give shares of attention")


def image_page(image: ImageMaps, *, title: str, most: int = MOST) -> str:
    """A self-contained HTML page of an image, its patches and what they look at, to be opened from disk.

    On the left the image: a patch, or a token before the patches such as the class token, that is pointed at, clicked
    or moved to with the arrow keys fades the patches it does not look at, in the chosen layer, by one head or the mean
    of heads. On the right the same weights as a heat map; below, every layer and head at a glance. Rollout (Abnar and
    Zuidema 2020) and gradient × input take the weights' place where they are chosen. The address keeps the view:
    ``page.html#token=0&layer=11&head=3`` (layer and head by number; tokens counted from 0, those before the patches
    first; ``token=patches`` is the mean over all patches).

    Args:
        image: what to show. Weights are kept in 8 bits of their row's largest.
        title: the heading.
        most: bytes of data the page may hold. Above it what single heads give from patches is kept in 4 bits, then left
            out, then patches are joined to blocks of 2 × 2, 4 × 4, ...; the page says so.

    >>> pixels, weights = np.zeros((32, 32, 3), np.uint8), np.full((1, 1, 5, 5), 0.2)
    >>> image = ImageMaps(pixels=pixels, grid=(2, 2), prefix=["[class]"], layers=[0], heads=[0], weights=weights,
    ...                   rollout=np.full((2, 2), 0.2))
    >>> "what it looks at" in image_page(image, title="A black image")
    True
    """
    room = most - len(source := raster.embedded(image.pixels, STORED))
    chosen = plan(len(image.layers), len(image.heads), len(image.prefix), image.grid, room)
    facts, told = _facts(image, chosen), chosen.told(len(image.heads))
    rows, columns = image.grid
    high, wide = image.pixels.shape[:2]
    tokens = "".join(_chip(i, escaped(name)) for i, name in enumerate(image.prefix))
    looks = 'class="crisp" ' if raster.crisp(image.pixels) else ""
    body = f"""<p class="quiet">{wide} × {high} pixels, {rows} × {columns} patches: click one, or a token, to see
what it looks at, <span class="where"></span>.</p>
<div class="tools">
<label>show <select class="show"><option value="attention">attention</option>
<option value="rollout">rollout of all layers</option>
{'<option value="gradient">gradient × input</option>' if image.gradient is not None else ""}
<option value="nothing">the image alone</option></select></label>
<label>layer <select class="layer"></select></label><label>head <select class="head"></select></label>
<span class="tokens" role="group" aria-label="tokens that are no patches">
{tokens}{_chip("patches", "every patch (mean)")}</span>
</div>
<div class="sight">
<figure><figcaption class="faded"></figcaption>
<div class="frame" tabindex="0" role="application" aria-roledescription="image with patches"
aria-label="{rows} rows and {columns} columns of patches; arrow keys move from patch to patch">
<img {looks}alt="the image" src="{source}"><canvas aria-hidden="true"></canvas></div></figure>
<figure><figcaption class="scale"></figcaption>
<canvas class="heat" role="img" aria-label="The same as a heat map; the line below tells the strongest patches.">
</canvas></figure>
<section class="says" aria-label="what it says"{"" if image.classes else " hidden"}>
<h2>what the model says</h2><ol class="bars classes"></ol></section>
</div>
<p class="told" role="status"></p>
<noscript><p>Weights are drawn by this page's own script, which your browser does not run.</p></noscript>
<section class="sheet"><h2>every layer and head, each to its own scale: <span class="who"></span></h2>
<div class="scroll"><table></table></div></section>
<div class="tip" hidden></div>
<footer>
<p><kbd>Tab</kbd> to the image, arrow keys from patch to patch, <kbd>c</kbd> the first token, <kbd>l</kbd> next layer,
<kbd>h</kbd> next head (with Shift the one before), <kbd>s</kbd> what is shown, <kbd>Esc</kbd> back to the start.
The address keeps the view.</p>
<p>{escaped(told)} Rollout joins the mean of heads of all layers with the residual streams: where information may
have come from, no more. {escaped(image.note) if image.note else ""}</p>
</footer>
{data(facts)}"""
    style, script = (asset(f"parts.{kind}") + asset(f"image.{kind}") for kind in ("css", "js"))
    return page(title, body, style, script, images=True)


def _chip(token: int | str, name: str) -> str:
    return f'<button type="button" data-token="{token}"><bdi>{name}</bdi><i></i></button>'


def _facts(image: ImageMaps, chosen: Plan) -> dict[str, Any]:
    prefix, block = len(image.prefix), chosen.block
    belongs = membership(prefix, image.grid, block)[prefix:, prefix:]
    maps = {"rollout": image.rollout, "gradient": image.gradient}
    sums = {name: None if one is None else stored(np.ravel(one) @ belongs, "<f4") for name, one in maps.items()}
    return {
        "rows": _limits(image.grid[0], block),
        "columns": _limits(image.grid[1], block),
        "size": [image.pixels.shape[1], image.pixels.shape[0]],
        "prefix": [visible(name) for name in image.prefix],
        "layers": [str(layer) for layer in image.layers],
        "numbers": [str(head) for head in image.heads],
        "classes": [[piece(name), float(share)] for name, share in image.classes[:CLASSES]],
        **sums,
        **kept(np.asarray(image.weights, np.float32), prefix, image.grid, chosen),
    }


def _limits(count: int, block: int) -> list[float]:
    """Where blocks begin and end along a side of ``count`` patches, as shares of it."""
    return [*(start / count for start in range(0, count, block)), 1.0]
