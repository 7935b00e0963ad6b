"""Figures of images and texts: values of patches over an image, values of pieces in a text, patch filters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heedful.errors import HeedfulError
from heedful.views import raster
from heedful.views.figures.cells import array, checked_names, figure, formatted, plain, scale
from heedful.views.svg import ink, label, titled
from heedful.views.text import shortened, visible, width

PIECES, FILTERS = 1000, 256
STORED = 512  # pixels a side of a stored image
WORD, ACROSS = 104.0, 9  # pixels a side of a word's image, and images in a row

FRAMES = ".peak{fill:none;stroke:#fff;stroke-width:2}.edge{fill:none;stroke:#0b0b10;stroke-width:4}"
PIECE = """
.token{font-size:16px}.under{stroke:#b3461f;stroke-width:2.5}
@media(prefers-color-scheme:dark){.under{stroke:#ff8f6b}}
"""


def overlay(pixels: Any, values: Any, title: str = "", *, note: str = "") -> str:
    """Returns an image, and beside it the same image, in which patches with larger values are brighter.

    The pixels of a patch with the value v are multiplied by 0.12 + 0.88 v / max v. If a value is negative, all are
    counted from the lowest. The three largest values are framed, and listed in the note.

    Args:
        pixels: uint8 (H, W, 1 or 3).
        values: (rows, columns), a number for each patch.
        title: the heading.
        note: a line below the title.

    Raises:
        HeedfulError: other shapes, or values that are not finite.
    """
    image, numbers = raster.as_uint8(pixels), array(values, "RC", "values of patches")
    shares = _shares(numbers)
    high, wide = (300.0 * side / max(image.shape[:2]) for side in image.shape[:2])
    step = wide / shares.shape[1], high / shares.shape[0]
    left = wide + 20
    parts = [raster.image(image, (0, 0), (wide, high), STORED, "the image")]
    parts.append(
        raster.image(_brightened(image, shares), (left, 0), (wide, high), STORED, "the image, brightened by the values")
    )
    best = [divmod(int(i), shares.shape[1]) for i in np.argsort(-shares, axis=None, kind="stable")[:3]]
    for r, c in best:
        box = f'x="{left + c * step[0]:.1f}" y="{r * step[1]:.1f}" width="{step[0]:.1f}" height="{step[1]:.1f}"'
        parts.append(f'<rect class="edge" {box}/><rect class="peak" {box}/>')
    framed = ", ".join(f"{formatted(numbers[r, c], 3)} (row {r + 1}, column {c + 1})" for r, c in best)
    notes = [note, f"{shares.shape[0]} × {shares.shape[1]} patches; the brighter, the larger; framed: {framed}"]
    return figure(
        title, notes, (left + wide, high), parts, "An image brightened by a number per patch", raster.STYLE + FRAMES
    )


def _shares(values: np.ndarray) -> np.ndarray:
    """Returns the values as shares of the largest; if one is negative, all are counted from the lowest."""
    low = min(0.0, float(values.min()))
    return (values - low) / ((float(values.max()) - low) or 1.0)


def _brightened(image: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Returns the image with the pixels of each patch multiplied by 0.12 + 0.88 of its share, (rows, columns)."""
    rows, columns = (np.arange(size) * n // size for size, n in zip(image.shape[:2], shares.shape, strict=True))
    return np.rint(image * (0.12 + 0.88 * shares[rows][:, columns, None])).astype(np.uint8)


def bright_images(pixels: Any, values: Any, names: Sequence[str], title: str = "", *, note: str = "") -> str:
    """Returns the same image for each of M names, such as words, each as in ``overlay`` by the name's own values.

    Args:
        pixels: uint8 (H, W, 1 or 3).
        values: (M, rows, columns), a number for each name and patch.
        names: the M names.
        title: the heading.
        note: a line below the title.

    Raises:
        HeedfulError: other shapes, values that are not finite, or over 256 names.
    """
    image, numbers = raster.as_uint8(pixels), array(values, "MRC", "values of patches")
    shown = checked_names(names, len(numbers), "values")
    if len(shown) > FILTERS:
        raise HeedfulError(f"{len(shown):,} words in one figure are not readable; draw at most {FILTERS}")
    high, wide = (WORD * side / max(image.shape[:2]) for side in image.shape[:2])
    across, parts, best = min(ACROSS, len(shown)), [], []
    for i, (name, own) in enumerate(zip(shown, numbers, strict=True)):
        x, y = i % across * (wide + 12), i // across * (high + 34)
        bright = _brightened(image, _shares(own))
        parts.append(raster.image(bright, (x, y), (wide, high), STORED, f"the image, brightened for {name}"))
        parts.append(label(shortened(name, wide, 14), x + wide / 2, y + high + 18, "token", "middle"))
        row, column = divmod(int(own.argmax()), own.shape[1])
        best.append(f"{name}: row {row + 1}, column {column + 1}")
    size = across * (wide + 12) - 12, -(-len(shown) // across) * (high + 34) - 8
    grid = f"{numbers.shape[1]} × {numbers.shape[2]} patches; the brighter, the larger the weight of the word"
    described = f"Strongest patches: {'; '.join(best)}"
    return figure(title, [note, grid], size, parts, described, raster.STYLE + ".token{font-size:14px}")


def saliency(pieces: Sequence[str], values: Any, title: str = "", *, note: str = "") -> str:
    """Returns a text with a value for each piece: the number below it, and its share of the largest as shade.

    A negative value has another colour and is underlined, so that it differs in grey too.

    Args:
        pieces: T pieces; a leading space marks the start of a word.
        values: (T,), finite, such as gradient × input.
        title: the heading.
        note: a line below the title.

    Raises:
        HeedfulError: lengths that do not fit, values that are not finite, or over 1,000 pieces.
    """
    numbers = array(values, "T", "values")
    names = checked_names(pieces, len(numbers), "values")
    if len(names) > PIECES:
        raise HeedfulError(f"{len(names):,} pieces in one figure are not readable; draw at most {PIECES:,}")
    peak = float(np.abs(numbers).max()) or 1.0
    parts, x, y, right = [], 0.0, 0.0, 0.0
    for piece, name, value in zip(pieces, names, numbers, strict=True):
        name, text = shortened(name, 300, 16), formatted(value)
        wide = max(width(name, 16), width(text, 11)) + 10
        space = 7.0 if piece[:1].isspace() else 2.0
        if x and x + space + wide > 720:
            x, y = 0.0, y + 52
        x += space if x else 0.0
        share, kind = abs(value) / peak, "minus" if value < 0 else "cell"
        box = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="26" rx="3"'
        part = f'<rect class="chip" {box}/><rect class="{kind}" {box} fill-opacity="{share:.2f}"/>'
        if value < 0:
            part += f'<path class="under" d="M{x:.1f} {y + 27.5:.1f}h{wide:.1f}"/>'
        part += label(name, x + wide / 2, y + 18.5, "token" + ink(share, value < 0), "middle")
        parts.append(
            titled(f"{visible(piece)}: {value:.6g}", part + label(text, x + wide / 2, y + 40, "small", "middle"))
        )
        x += wide
        right = max(right, x)
    parts += scale("0", plain(peak), 0, y + 58)
    if (numbers < 0).any():
        parts += scale("0", plain(-peak) + ", underlined", 190 + width(plain(peak), 11), y + 58, "minus")
    most = np.argsort(-np.abs(numbers), kind="stable")[:5]
    largest = "Largest values: " + "; ".join(f"{names[i]} {formatted(numbers[i], 3)}" for i in most)
    return figure(title, [note], (max(right, 460), y + 72), parts, largest, PIECE)


def filters(images: Any, title: str = "", *, names: Sequence[str] | None = None, note: str = "") -> str:
    """Returns patch filters as small images, each from its own lowest value (dark) to its highest (light).

    Args:
        images: (N, h, w, C) with C = 1 or 3, finite; such as the principal components of a patch projection
            (Dosovitskiy et al. 2021, figure 7).
        title: the heading.
        names: names of the N filters; their numbers from 1 by default.
        note: a line below the title.

    Raises:
        HeedfulError: another shape, values that are not finite, or over 256 filters.
    """
    values = array(images, "NhwC", "filters")
    if values.shape[3] not in (1, 3) or len(values) > FILTERS:
        raise HeedfulError(
            f"cannot draw filters of shape {values.shape}; give at most {FILTERS} filters with 1 or 3 channels"
        )
    filter_names = checked_names(range(1, len(values) + 1) if names is None else names, len(values), "filters")
    across = next((n for n in (4, 7, 8, 10, 12, 14) if n * n >= len(values)), 16)
    side = min(84.0, 700 / across - 8)
    high, wide = (side * n / max(values.shape[1:3]) for n in values.shape[1:3])
    parts = []
    for i, weights in enumerate(values):
        x, y = i % across * (side + 8), i // across * (high + 22)
        low, top = float(weights.min()), float(weights.max())
        grey = np.rint(255 * (weights - low) / (top - low)) if top > low else np.full_like(weights, 128)
        name = shortened(filter_names[i], side, 11)
        described = f"{filter_names[i]}: {formatted(low, 3)} to {formatted(top, 3)}"
        parts.append(raster.image(grey.astype(np.uint8), (x, y + 14), (wide, high), 64, described))
        parts.append(label(name, x + wide / 2, y + 10, "small", "middle"))
    scaled = "each from its own lowest value (dark) to its highest (light)"
    size = min(len(values), across) * (side + 8) - 8, -(-len(values) // across) * (high + 22)
    return figure(title, [note, scaled], size, parts, f"{len(values)} filters", raster.STYLE)
