"""Images in figures: embedded, scaled down, with crisp pixels if they are few."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heedful.errors import HeedfulError
from heedful.views.text import escaped

Pixels = NDArray[np.uint8]

FEW = 64  # pixels a side up to which an image is stored without loss and scaled up as squares
STYLE = ".crisp{image-rendering:pixelated}"


def as_uint8(pixels: Any, what: str = "an image") -> Pixels:
    """Returns ``pixels`` as a uint8 array (H, W, C), C = 1 (grey) or 3 (colour).

    Raises ``HeedfulError`` for another shape or type; ``what`` names the image in the message.
    """
    array = np.asarray(pixels)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] not in (1, 3) or not array.size:
        raise HeedfulError(f"{what} has shape {array.shape} and type {array.dtype}; give uint8 pixels (H, W, 1 or 3)")
    return array


def crisp(pixels: Pixels) -> bool:
    """Returns True if an image has so few pixels that each should be visible."""
    return max(pixels.shape[:2]) <= FEW


def embedded(pixels: Pixels, most: int) -> str:
    """Returns a ``data:`` address that holds an image.

    A small image is stored as PNG. A larger image is scaled down to sides of at most ``most`` pixels, and stored as PNG
    or JPEG, whichever is smaller.
    """
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    if not crisp(pixels):
        image.thumbnail((most, most), Image.Resampling.LANCZOS)
    files = [("png", _stored(image, "PNG", optimize=crisp(pixels)))]
    if not crisp(pixels):
        files.append(("jpeg", _stored(image, "JPEG", quality=88, optimize=True)))
    kind, data = min(files, key=lambda file: len(file[1]))
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _stored(image: Any, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def image(pixels: Pixels, at: tuple[float, float], size: tuple[float, float], most: int, name: str) -> str:
    """Returns the SVG part of an image at the point ``at`` (x, y), of ``size`` (width, height).

    ``name`` is its accessible name; ``most`` is the maximum side of the stored image in pixels.
    """
    (x, y), (wide, high) = at, size
    kind = ' class="crisp"' if crisp(pixels) else ""
    return (
        f'<image{kind} x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" preserveAspectRatio="none"'
        f' href="{embedded(pixels, most)}"><title>{escaped(name)}</title></image>'
    )
