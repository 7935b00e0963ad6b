"""Image patches as a grid and as a row of tokens, and feature maps, as SVG."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.errors import HeedfulError
from heedful.views import raster
from heedful.views.svg import EDGE, document, label, width_for
from heedful.views.text import shortened, visible, width

MAX_PATCHES = 4096  # patches that can be told apart
STORED = 512  # pixels a side of a stored image
TOP = 78
WIDE = 620  # pixels of the grid
PIECE, GAP = 36, 4  # pixels of a patch in the strip, and of the space to the next
SLOTS = 24  # patches in a row of the strip
MAP = 176  # pixels a side of a feature map
ACROSS = 5  # feature maps side by side

STYLE = (
    raster.STYLE
    + """
.plate{fill:#fbfaf7;fill-opacity:.86}.number{font-size:11px;font-weight:600;font-variant-numeric:tabular-nums}
.class{fill:#3a3fb0}.on{fill:#fff;font-size:12px;font-weight:600}.end{font-size:12px;font-variant-numeric:tabular-nums}
.name{font-weight:600}.small{font-size:11px;font-variant-numeric:tabular-nums;fill:#6b665e}
@media(prefers-color-scheme:dark){.plate{fill:#16171b}.class{fill:#ffc35c}.on{fill:#16171b}.small{fill:#a09c94}}
"""
)
# Colours from low to high, each lighter than the one before, so that the order is visible in grey.
RAMP = ((23, 21, 48), (44, 42, 128), (103, 52, 142), (178, 62, 104), (232, 110, 68), (255, 181, 82), (255, 243, 205))


def patch_grid_svg(pixels: Any, patch: int, title: str) -> str:
    """Returns an image as a grid of the patches that become tokens, with gaps and some numbers.

    Patches are numbered from 1, row by row, like their tokens (0 is the class token).

    Args:
        pixels: uint8 (H, W, C); an image with a side of more than 512 pixels is stored scaled down.
        patch: side of a patch in pixels; H and W are multiples of it.
        title: the heading.

    Raises:
        HeedfulError: pixels of another shape, a patch that does not divide them, or over 4,096 patches.

    >>> patch_grid_svg(np.zeros((32, 48, 3), np.uint8), 16, "black").count('class="patch"')
    6
    """
    array, rows, columns = _cut(pixels, patch)
    step = max(6.0, min(96.0, WIDE / max(rows, columns)))
    side = step - max(1.0, min(5.0, 0.1 * step))
    whole, name = _whole(array, patch)
    spots = [(c, r) for r in range(rows) for c in range(columns)]
    parts = [label(_counted(array, patch), EDGE, 57, "quiet"), whole]
    parts += [_piece(name, c, r, EDGE + c * step, TOP + r * step, side) for c, r in spots]
    if side >= 26:
        numbered = {0, 1, 2, columns - 1, columns, rows * columns - 1} & set(range(rows * columns))
        parts += [_number(i + 1, EDGE + i % columns * step, TOP + i // columns * step) for i in sorted(numbered)]
    size = max(EDGE * 2 + columns * step, width_for(_counted(array, patch), 13)), TOP + rows * step + EDGE
    return document(size, title, f"An image cut into its patches: {_counted(array, patch)}", STYLE, parts)


def strip_svg(pixels: Any, patch: int, title: str) -> str:
    """Returns the tokens of an image: a box for the class token, then all patches, row by row.

    Long rows are wrapped; each line begins with the number of its first token. The arguments and errors are those
    of ``patch_grid_svg``.
    """
    array, rows, columns = _cut(pixels, patch)
    whole, name = _whole(array, patch)
    step, left = PIECE + GAP, EDGE + 34
    note = f"{rows * columns + 1:,} tokens: [class], then {rows * columns:,} patches of {patch} × {patch}, row by row"
    parts = [label(note, EDGE, 57, "quiet"), whole]
    box = f'x="{left}" y="{TOP}" width="{2 * step - GAP}" height="{PIECE}" rx="4"'
    parts.append(f'<rect class="class" {box}/>')
    parts.append(label("[class]", left + step - GAP / 2, TOP + PIECE / 2 + 4, "on", "middle"))
    for i in range(rows * columns):
        line, slot = divmod(i + 2, SLOTS)  # the class token has two slots
        x, y = left + slot * step, TOP + line * (step + 4)
        if slot == 0:
            parts.append(label(f"{i + 1:,}", left - 8, y + PIECE / 2 + 4, "small", "end"))
        parts.append(_piece(name, i % columns, i // columns, x, y, PIECE))
    parts.append(label("0", left - 8, TOP + PIECE / 2 + 4, "small", "end"))
    lines = -(-(rows * columns + 2) // SLOTS)
    slots = min(SLOTS, rows * columns + 2)
    size = max(left + slots * step + EDGE, width_for(note, 13)), TOP + lines * (step + 4) + EDGE - 8
    return document(size, title, f"{note}. {_counted(array, patch)}", STYLE, parts)


def feature_maps_svg(maps: Any, names: Sequence[str], title: str) -> str:
    """Returns feature maps as heat maps side by side, each from its lowest value (dark) to its highest (light).

    Args:
        maps: (N, h, w), finite.
        names: names of the N maps, such as "filter 12".
        title: the heading.

    Raises:
        HeedfulError: another shape, values that are not finite, or another number of names.
    """
    array = _maps(maps)
    if len(names) != len(array):
        raise HeedfulError(f"{len(names)} names for {len(array)} feature maps; give one name per map")
    high, wide = (MAP * side / max(array.shape[1:]) for side in array.shape[1:])
    column, row = max(wide, 110.0) + 22, high + 84
    note = f"{array.shape[1]} × {array.shape[2]} values each; dark is a map's lowest value, light its highest"
    scale = coloured(np.linspace(0, 1, 64)[None])
    parts, ranges = [label(note, EDGE, 57, "quiet")], []
    for index, (values, name) in enumerate(zip(array, names, strict=True)):
        x, y = EDGE + index % ACROSS * column, TOP + 14 + index // ACROSS * row
        low, top = float(values.min()), float(values.max())
        name = visible(name)
        ranges.append(f"{name}: {low:.3g} to {top:.3g}")
        parts.append(label(shortened(name, column - 22, 13, bold=True), x, y - 8, "name"))
        shares = (values - low) / (top - low) if top > low else np.full_like(values, 0.5)
        parts.append(raster.image(coloured(shares), (x, y), (wide, high), STORED, ranges[-1]))
        parts.append(raster.image(scale, (x, y + high + 8), (column - 22, 7), STORED, "dark to light"))
        parts.append(label(f"{low:.3g}".replace("-", "−"), x, y + high + 30, "end"))
        parts.append(label(f"{top:.3g}".replace("-", "−"), x + column - 22, y + high + 30, "end", "end"))
    across = min(ACROSS, len(array))
    size = max(2 * EDGE + across * column - 22, width_for(note, 13)), TOP + 14 + row * -(-len(array) // ACROSS) - 24
    return document(size, title, "; ".join(ranges), STYLE, parts)


def coloured(shares: NDArray[np.floating[Any]]) -> raster.Pixels:
    """Returns values (h, w) in [0, 1] as colours (h, w, 3), from dark blue to light yellow.

    >>> coloured(np.array([[0.0, 1.0]])).tolist()
    [[[23, 21, 48], [255, 243, 205]]]
    """
    stops = np.linspace(0, 1, len(RAMP))
    channels = [np.interp(shares, stops, channel) for channel in zip(*RAMP, strict=True)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


def _maps(maps: Any) -> NDArray[np.float64]:
    array = np.asarray(maps.detach().cpu().double() if hasattr(maps, "detach") else maps, dtype=np.float64)
    if array.ndim != 3 or not array.size:
        raise HeedfulError(f"feature maps have shape {array.shape}; give N maps of one height h and width w: (N, h, w)")
    if not np.isfinite(array).all():
        raise HeedfulError("a feature map has a value that is not finite; give finite values")
    return array


def _cut(pixels: Any, patch: int) -> tuple[raster.Pixels, int, int]:
    """Returns the pixels, and the numbers of rows and columns of patches."""
    array = raster.as_uint8(pixels)
    high, wide = array.shape[:2]
    if patch < 1 or high % patch or wide % patch:
        raise HeedfulError(f"{wide} × {high} pixels cannot be cut into patches of {patch} × {patch}; resize the image")
    if (high // patch) * (wide // patch) > MAX_PATCHES:
        raise HeedfulError(
            f"{high // patch * (wide // patch):,} patches are too many for a figure; give at most {MAX_PATCHES:,}"
        )
    return array, high // patch, wide // patch


def _counted(pixels: raster.Pixels, patch: int) -> str:
    high, wide, channels = pixels.shape
    rows, columns = high // patch, wide // patch
    return (
        f"{wide} × {high} pixels at {patch}: {columns} × {rows} = {rows * columns:,} patches"
        f" of {patch} × {patch} × {channels} = {patch * patch * channels:,} numbers"
    )


def _whole(pixels: raster.Pixels, patch: int) -> tuple[str, str]:
    """Returns the definition of the image for ``_piece``, in units of a patch, and its id.

    The id is a hash of the image, so that several figures can be on one page.
    """
    high, wide = pixels.shape[:2]
    name = "image-" + hashlib.blake2b(pixels.tobytes(), digest_size=6).hexdigest()
    kind = ' class="crisp"' if raster.crisp(pixels) else ""
    size = f'width="{wide // patch}" height="{high // patch}" preserveAspectRatio="none"'
    return f'<defs><image id="{name}"{kind} {size} href="{raster.embedded(pixels, STORED)}"/></defs>', name


def _piece(name: str, column: int, row: int, x: float, y: float, side: float) -> str:
    """Returns one patch of the image with the id ``name``, with its upper left corner at (x, y)."""
    box = f'x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}"'
    return f'<svg class="patch" {box} viewBox="{column} {row} 1 1"><use href="#{name}"/></svg>'


def _number(number: int, x: float, y: float) -> str:
    wide = 8 + width(f"{number:,}", 11, bold=True)
    plate = f'<rect class="plate" x="{x + 2:.1f}" y="{y + 2:.1f}" width="{wide:.1f}" height="15" rx="3"/>'
    return plate + label(f"{number:,}", x + 2 + wide / 2, y + 13.5, "number", "middle")
