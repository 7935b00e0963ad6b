"""`shapes`: drawn images of two coloured shapes, each with one right sentence: "a red circle above a blue square".

The sentence names the upper shape first, or the left one, so that an image has a single right text.
"""

from __future__ import annotations

import random
from hashlib import blake2b
from itertools import product
from typing import TYPE_CHECKING, Any

from heedful.data.lazy_image import LazyImage
from heedful.errors import HeedfulError

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

DRAWN = {"train": 6_000, "valid": 300, "test": 1_000}  # number of images
SIDE, SCALE = 32, 2  # pixels of a side, and how much larger an image is drawn before it is reduced
HELD_OUT = {0: "test", 1: "valid"}  # of eight buckets
COLOURS = {
    "red": (214, 40, 40),
    "green": (46, 160, 67),
    "blue": (40, 90, 220),
    "yellow": (245, 200, 30),
    "purple": (140, 60, 190),
    "black": (25, 25, 30),
}
SHAPES = ("circle", "square", "triangle", "cross")
RELATIONS = ("above", "left of")


def rows(argument: str | None, split: str, seed: int = 0) -> list[dict[str, Any]]:
    """Returns the rows of a split: ``image``, a `LazyImage` of shape (32, 32, 3), and ``text``, its sentence.

    There are 6 colours, 4 shapes and 2 relations. The sizes and places of the shapes vary, and the brightness of the
    background. A hash of the two coloured shapes determines the split: the test images combine shapes that training
    shows only with others. Each of the 24 coloured shapes is in the training rows.

    The same `seed` gives the same rows; the split of a combination does not depend on it.

    Raises `HeedfulError` for any `argument`, since the set takes none.
    """
    if argument:
        raise HeedfulError(f"unknown argument {argument!r}, in builtin:shapes/{argument}; write builtin:shapes")
    things = list(product(COLOURS, SHAPES))
    pairs = [pair for pair in product(things, things) if shape_split(*pair) == split]
    generator = random.Random(f"{split} {seed}")
    drawn = []
    for number in range(1, DRAWN[split] + 1):
        first, second = generator.choice(pairs)
        relation = generator.choice(RELATIONS)
        text = f"a {' '.join(first)} {relation} a {' '.join(second)}"
        image = LazyImage.of(_pixels(first, second, relation, generator), f"shapes {number}")
        drawn.append({"image": image, "text": text})
    return drawn


def shape_split(first: tuple[str, str], second: tuple[str, str]) -> str:
    """Returns the split of two coloured shapes, in any order: equal things are always in training."""
    if first == second:
        return "train"
    key = " ".join(sorted([" ".join(first), " ".join(second)]))
    return HELD_OUT.get(int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) % 8, "train")


def _pixels(first: tuple[str, str], second: tuple[str, str], relation: str, generator: random.Random) -> Any:
    """Returns the image (H, W, 3) of two shapes, the first above the second or left of it."""
    import numpy as np
    from PIL import Image, ImageDraw

    grey = generator.randint(215, 255)
    image = Image.new("RGB", (SIDE * SCALE, SIDE * SCALE), (grey, grey, grey))
    draw = ImageDraw.Draw(image)
    for (colour, shape), along in ((first, generator.uniform(7, 9)), (second, generator.uniform(23, 25))):
        across, radius = generator.uniform(10, 22), generator.uniform(4.5, 6.5)
        x, y = (across, along) if relation == "above" else (along, across)
        _draw(draw, shape, COLOURS[colour], x * SCALE, y * SCALE, radius * SCALE)
    return np.asarray(image.reduce(SCALE))


def _draw(draw: ImageDraw, shape: str, colour: tuple[int, int, int], x: float, y: float, radius: float) -> None:
    box = (x - radius, y - radius, x + radius, y + radius)
    match shape:
        case "circle":
            draw.ellipse(box, fill=colour)
        case "square":
            draw.rectangle((x - 0.85 * radius, y - 0.85 * radius, x + 0.85 * radius, y + 0.85 * radius), fill=colour)
        case "triangle":
            draw.polygon([(x, y - radius), (x - radius, y + 0.8 * radius), (x + radius, y + 0.8 * radius)], fill=colour)
        case _:
            draw.rectangle((x - radius, y - 0.3 * radius, x + radius, y + 0.3 * radius), fill=colour)
            draw.rectangle((x - 0.3 * radius, y - radius, x + 0.3 * radius, y + radius), fill=colour)
