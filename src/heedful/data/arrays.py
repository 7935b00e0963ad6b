"""Arrays of images and of labels, in the shapes and types in which they are stored, brought to one."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from heedful.data.pictures import as_uint8
from heedful.errors import HeedfulError

CHANNELS = (1, 3, 4)
COUNTED = 1 << 20  # pixels that are counted at a time


def stacked(images: np.ndarray, place: str) -> np.ndarray:
    """Images as uint8 (N, H, W, C), C = 1, 3 or 4: grey, colour, colour with alpha.

    Taken are (N, H, W); (N, H, W, C), told by a last size of 1, 3 or 4; else (N, C, H, W), told by the second. Values
    as `as_uint8` takes them. Raises `HeedfulError`, naming `place`, for other shapes and values, and for no pixels.
    """
    shape = images.shape
    if not images.size:
        raise HeedfulError(f"no pixels (shape {_by(shape)}), in {place}; give images")
    if len(shape) == 3:
        images = images[..., None]
    elif len(shape) == 4 and shape[3] not in CHANNELS and shape[1] in CHANNELS:
        images = images.transpose(0, 2, 3, 1)
    elif len(shape) != 4 or shape[3] not in CHANNELS:
        raise HeedfulError(
            f"an array of shape {_by(shape)} where images are wanted, in {place}; give number × height × width, or "
            "these and 1, 3 or 4 channels last (or second)"
        )
    return as_uint8(images, place)


def named(labels: np.ndarray, classes: np.ndarray | None, place: str) -> list[str]:
    """Labels (N) or (N, 1) as texts: texts as they are, whole numbers by their name in `classes`, else written out.

    Raises `HeedfulError`, naming `place`, for other shapes and types, and for a number that has no name.
    """
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1:
        raise HeedfulError(
            f"an array of shape {_by(labels.shape)} where labels are wanted, in {place}; give one an image"
        )
    if flat.dtype.kind == "S":
        return [text.decode("utf-8", "replace") for text in flat.tolist()]
    if flat.dtype.kind == "U":
        return flat.tolist()
    if flat.dtype.kind not in "bui":
        raise HeedfulError(f"labels of type {flat.dtype}, in {place}; give whole numbers or texts")
    numbers = flat.astype(np.int64).tolist()
    if classes is None:
        return [str(number) for number in numbers]
    names = named(classes, None, f"'classes' of {place}")
    outside = next((number for number in numbers if not 0 <= number < len(names)), None)
    if outside is not None:
        raise HeedfulError(
            f"label {outside} and only {len(names)} names of classes, in {place}; give every number a name"
        )
    return [names[number] for number in numbers]


def _by(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "()"


def moments(images: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (C,) of each channel, as fractions of 255, over all pixels of uint8 (C, H, W) images.

    The images are looked at one after the other. How often each of the 256 values occurs is counted, and the sums over
    these counts are exact whole numbers: var = (n Σ x² − (Σ x)²) / n².

    >>> mean, std = moments([np.array([[[0, 255]]], np.uint8), np.array([[[255, 0]]], np.uint8)])
    >>> mean.tolist(), std.tolist()
    ([0.5], [0.5])
    """
    counts: list[np.ndarray] = []
    for image in images:
        counts = counts or [np.zeros(256, np.int64) for _ in image]
        rows = max(1, COUNTED // image.shape[2])
        for count, channel in zip(counts, image, strict=True):
            for start in range(0, len(channel), rows):
                count += np.bincount(channel[start : start + rows].ravel(), minlength=256)
    found = [_moments([int(one) for one in count]) for count in counts]
    return np.array([mean for mean, _ in found]), np.array([std for _, std in found])


def _moments(count: list[int]) -> tuple[float, float]:
    number = sum(count)
    total = sum(value * times for value, times in enumerate(count))
    squares = sum(value * value * times for value, times in enumerate(count))
    return total / number / 255, ((number * squares - total * total) / number**2) ** 0.5 / 255
