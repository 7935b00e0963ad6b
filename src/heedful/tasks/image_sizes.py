"""What images suggest by their number and sizes: a preset, the pixels of a side, channels, the patch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from heedful.data import Row


class Size(NamedTuple):
    """What a number of images suggests."""

    preset: str
    side: int  # pixels, of images that are larger than SMALL or of several sizes
    epochs: int
    batch_size: int


SMALLEST = "vit-micro"
# below so many images: this
SIZES: tuple[tuple[float, Size], ...] = (
    (10_000, Size(SMALLEST, 64, 100, 64)),
    (200_000, Size(SMALLEST, 64, 30, 64)),
    (float("inf"), Size("deit-ti", 224, 30, 128)),
)
SMALL = 64  # pixels: images of one size up to it stay as they are
LOOKED_AT = 200  # images that tell sizes and channels


def size_of(images: int) -> Size:
    """What a number of images suggests."""
    return next(size for most, size in SIZES if images < most)


def side_of(rows: Sequence[Row]) -> int | None:
    """The longer side of images that are small and of one size; where no patch divides it, the next multiple of 4."""
    sizes = {row.values["image"].size for row in rows[:LOOKED_AT]}
    side = max(max(size) for size in sizes)
    if len(sizes) > 1 or side > SMALL:
        return None
    return side if patch_of(side) else -(-side // 4) * 4


def channels_of(rows: Sequence[Row]) -> Literal[1, 3]:
    """Grey where all are grey."""
    return 3 if any(row.values["image"].pixels().shape[2] == 3 for row in rows[:LOOKED_AT]) else 1


def patch_of(side: int) -> int | None:
    """The patch that cuts a side evenly into about four, a short one into two, a long one into patches of 8 or 16."""
    wanted = max(2.0, min(4.0, side / 4), min(8.0, side / 8), side / 16)
    even = [patch for patch in range(1, side) if side % patch == 0 and 2 <= side // patch <= 2 * wanted]
    return min(even, key=lambda patch: abs(math.log(side / patch / wanted)), default=None)
