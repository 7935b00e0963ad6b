"""HTML page of an image, its patches and their attention, and the reduction of weights to fit it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.views import raster
from heedful.views.attention_data import check_range
from heedful.views.page import asset, base64_numbers, data, page, piece, scaled
from heedful.views.text import escaped, visible

Array = np.ndarray[Any, np.dtype[Any]]

MAX_PAGE_BYTES = 4_800_000  # bytes of image and weights in a page of under 5 MB
STORED = 512  # pixels a side of the stored image
CLASSES = 10  # classes that are shown


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageMaps:
    """Attention among the N tokens of one image: first the prefix tokens, then rows × columns patches.

    Args:
        pixels: uint8 (H, W, C), resized as for the model, not normalised.
        grid: (rows, columns) of patches.
        prefix: names of the tokens before the patches, such as ("[class]",).
        layers: numbers of the L layers in the model.
        heads: numbers of the H heads in the model.
        weights: (L, H, N, N), after the softmax; row i has the weights of query i.
        rollout: (rows, columns), not negative: the share of each patch that reaches the class token through all layers,
            or without a class token the mean of the patches.
        classes: names of the likeliest classes with their probabilities, best first.
        gradient: (rows, columns), signed: gradient × input of each patch for the first class, or None.
        note: a sentence for the page, such as what was left out.

    Raises:
        HeedfulError: shapes that do not fit, or weights outside [0, 1].
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
        raster.as_uint8(self.pixels)
        rows, columns = self.grid
        tokens = len(self.prefix) + rows * columns
        expected = (len(self.layers), len(self.heads), tokens, tokens)
        if rows < 1 or columns < 1 or 0 in expected or np.shape(self.weights) != expected:
            raise HeedfulError(
                f"weights of shape {np.shape(self.weights)} do not fit {len(self.prefix)} prefix tokens and"
                f" {rows} × {columns} patches; give (layers, heads, tokens, tokens) = {expected}"
            )
        check_range(self.weights)
        for name, values in (("rollout", self.rollout), ("gradient", self.gradient)):
            if values is not None and (np.shape(values) != (rows, columns) or not np.isfinite(values).all()):
                raise HeedfulError(
                    f"{name} of shape {np.shape(values)}; give finite numbers of shape ({rows}, {columns}), one per "
                    "patch"
                )
        if np.min(self.rollout) < 0:
            raise HeedfulError(f"the rollout has a negative value, {np.min(self.rollout):g}; give numbers of 0 or more")


def image_page(image: ImageMaps, *, title: str, max_bytes: int = MAX_PAGE_BYTES) -> str:
    """Returns a self-contained HTML page of an image, its patches and their attention.

    Point at a patch or a token before the patches (such as the class token), click it, or move to it with the arrow
    keys: the image fades the patches to which the token does not attend, in the chosen layer, by one head or the mean
    of heads. A heat map shows the same weights, and a table every layer and head. Rollout (Abnar and Zuidema 2020) and
    gradient × input can replace the weights. The address keeps the view: ``page.html#token=0&layer=11&head=3`` (layer
    and head by number; tokens counted from 0, those before the patches first; ``token=patches`` is the mean over all
    patches).

    Args:
        image: the image with its maps. Weights are stored in 8 bits, relative to their row's largest.
        title: the heading.
        max_bytes: maximum bytes of data. If more are needed, single heads' weights from patches are stored in 4 bits,
            then left out, then patches are joined to blocks of 2 × 2, 4 × 4, ... The page says so.

    >>> pixels, weights = np.zeros((32, 32, 3), np.uint8), np.full((1, 1, 5, 5), 0.2)
    >>> image = ImageMaps(pixels=pixels, grid=(2, 2), prefix=["[class]"], layers=[0], heads=[0], weights=weights,
    ...                   rollout=np.full((2, 2), 0.2))
    >>> "what it attends to" in image_page(image, title="A black image")
    True
    """
    room = max_bytes - len(source := raster.embedded(image.pixels, STORED))
    chosen = plan(len(image.layers), len(image.heads), len(image.prefix), image.grid, room)
    body = _body(image, source, chosen.note(len(image.heads))) + data(_facts(image, chosen))
    style, script = (asset(f"parts.{kind}") + asset(f"image.{kind}") for kind in ("css", "js"))
    return page(title, body, style, script, images=True)


def _body(image: ImageMaps, source: str, notes: str) -> str:
    rows, columns = image.grid
    high, wide = image.pixels.shape[:2]
    tokens = "".join(_chip(i, escaped(name)) for i, name in enumerate(image.prefix))
    image_class = 'class="crisp" ' if raster.crisp(image.pixels) else ""
    return f"""<p class="quiet">{wide} × {high} pixels, {rows} × {columns} patches: click one, or a token, to see
what it attends to, <span class="where"></span>.</p>
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
<img {image_class}alt="the image" src="{source}"><canvas aria-hidden="true"></canvas></div></figure>
<figure><figcaption class="scale"></figcaption>
<canvas class="heat" role="img" aria-label="The weights as a heat map; the line below names the strongest patches.">
</canvas></figure>
<section class="says" aria-label="predicted classes"{"" if image.classes else " hidden"}>
<h2>predicted classes</h2><ol class="bars classes"></ol></section>
</div>
<p class="status" role="status"></p>
<noscript><p>Weights are drawn by this page's own script, which your browser does not run.</p></noscript>
<section class="sheet"><h2>every layer and head, each to its own scale: <span class="who"></span></h2>
<div class="scroll"><table></table></div></section>
<div class="tip" hidden></div>
<footer>
<p><kbd>Tab</kbd> to the image, arrow keys from patch to patch, <kbd>c</kbd> the first token, <kbd>l</kbd> next layer,
<kbd>h</kbd> next head (with Shift the one before), <kbd>s</kbd> what is shown, <kbd>Esc</kbd> back to the start.
The address keeps the view.</p>
<p>{escaped(notes)} Rollout multiplies the mean over heads of all layers, residual streams included: it only shows
where information may come from. {escaped(image.note) if image.note else ""}</p>
</footer>
"""


def _chip(token: int | str, name: str) -> str:
    return f'<button type="button" data-token="{token}"><bdi>{name}</bdi><i></i></button>'


def _facts(image: ImageMaps, chosen: PagePlan) -> dict[str, Any]:
    prefix, block = len(image.prefix), chosen.block
    members = membership(prefix, image.grid, block)[prefix:, prefix:]
    maps = {"rollout": image.rollout, "gradient": image.gradient}
    sums = {
        name: None if values is None else base64_numbers(np.ravel(values) @ members, "<f4")
        for name, values in maps.items()
    }
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
    """Returns the limits of blocks along a side of ``count`` patches, as shares of the side."""
    return [*(start / count for start in range(0, count, block)), 1.0]


@dataclass(frozen=True, kw_only=True)
class PagePlan:
    """Reduction of attention weights (L, H, N, N) that lets them fit a page.

    The mean of heads and the rows of prefix tokens are always kept.
    """

    block: int = 1  # patches a side of a block
    bits: int = 8  # of single heads' weights from patches; 0 leaves them out

    def size(self, layers: int, heads: int, prefix: int, grid: tuple[int, int]) -> int:
        """Returns the number of bytes that the weights need in a page, in base64."""
        patches = math.prod(-(-side // self.block) for side in grid)
        tokens = prefix + patches
        exact = layers * (tokens + 1 + heads * (prefix + 1)) * (tokens + 4)
        alone = layers * heads * patches * (tokens * self.bits // 8 + 4) if self.bits else 0
        return 4 * (exact + alone) // 3

    def note(self, heads: int) -> str:
        """Returns sentences on the precision of the weights and on what is left out."""
        notes = ["Weights are kept in 8 bits: within 0.2 % of the largest in their row."]
        if self.bits == 4:
            notes.append("Weights of single heads from patches have 4 bits, within 7 %, to keep this page small.")
        if self.bits == 0 and heads > 1:
            notes.append(f"To keep this page small, weights from patches are kept as the mean of {heads} heads only.")
        if self.block > 1:
            notes.append(f"Also, {self.block} × {self.block} patches are drawn as one, with the sum of their weights.")
        return " ".join(notes)


def plan(layers: int, heads: int, prefix: int, grid: tuple[int, int], max_bytes: int) -> PagePlan:
    """Returns the smallest reduction of weights that fits ``max_bytes`` bytes, or the largest reduction if none does.

    >>> plan(12, 12, 1, (14, 14), 4_700_000)
    PagePlan(block=1, bits=4)
    """
    block = 1
    while True:
        for bits in (8, 4, 0) if heads > 1 else (0,):
            reduction = PagePlan(block=block, bits=bits)
            if reduction.size(layers, heads, prefix, grid) <= max_bytes:
                return reduction
        if block >= max(grid):
            return reduction
        block *= 2


def pooled_weights(weights: Array, prefix: int, grid: tuple[int, int], block: int) -> Array:
    """Returns weights (..., N, N) for blocks of patches: the *sum* over a block's keys, the *mean* over its queries.

    >>> pooled_weights(np.array([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]), 1, (1, 2), 2)
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    if block == 1:
        return weights
    members = membership(prefix, grid, block).astype(weights.dtype)
    means: Array = (members / members.sum(0)).T @ (weights @ members)
    return means


def membership(prefix: int, grid: tuple[int, int], block: int) -> Array:
    """Returns a matrix (N, blocks) that is 1 where a token belongs to a block, else 0.

    Each token before the patches is a block of its own.
    """
    rows, columns = (np.arange(side) // block for side in grid)
    patches = (rows[:, None] * (columns[-1] + 1) + columns).ravel() + prefix
    return np.eye(int(patches[-1]) + 1)[np.concatenate([np.arange(prefix), patches])]


def kept(weights: Array, prefix: int, grid: tuple[int, int], chosen: PagePlan) -> dict[str, Any]:
    """Returns the weights (L, H, N, N) as a page stores them, coded by ``views.page.scaled``.

    ``mean`` is the mean of heads, with a last row for the mean over patches (L, N + 1, N). ``tokens`` are single heads'
    rows of the tokens before the patches, and that last row (L, H, P + 1, N). ``heads`` are their rows of patches
    (L, H, N − P, N), or None if the plan leaves them out.
    """
    weights = pooled_weights(weights, prefix, grid, chosen.block)
    patches = weights[..., prefix:, :]
    last = patches.mean(axis=-2, keepdims=True)
    return {
        "mean": scaled(np.concatenate([weights, last], axis=-2).mean(axis=1)),
        "tokens": scaled(np.concatenate([weights[..., :prefix, :], last], axis=-2)),
        "heads": scaled(patches, chosen.bits) if chosen.bits else None,
    }
