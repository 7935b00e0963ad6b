"""Images brought to one size and scale, and changed at random while they are learned from.

Batches are uint8 (B, C, H, W), C = 1 or 3, and are never changed in place; all that is random is drawn from the
`numpy.random.Generator` given, so the same generator gives the same images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from PIL import Image

from heedful.data.rand_augment import rand_augment
from heedful.errors import HeedfulError

__all__ = ["erase", "fit", "flip", "mixup", "normalise", "pad_crop", "rand_augment"]

Resample = Literal["nearest", "bilinear", "bicubic", "lanczos"]
LARGEST = 50_000_000  # pixels of an image that was resized: 150 MB in colour

# ---------------------------------------------------------------------------------------------- to one size and scale


def fit(
    pixels: np.ndarray,
    size: int | tuple[int, int],
    how: Literal["stretch", "crop"] = "stretch",
    resample: Resample = "bilinear",
) -> np.ndarray:
    """An image (H, W, C) at `size`, the side of a square or (height, width): uint8 (height, width, C).

    - "stretch": resized whatever its shape, as the published processors of ViT do.
    - "crop": of the image as much is taken from the middle as has the wanted shape; nothing is distorted.

    Filters are Pillow's, antialiased where an image becomes smaller. Raises `HeedfulError` for a size below 1, and for
    one so large (a thin strip whose shorter side is to grow) that it might fill the memory.

    >>> fit(np.arange(8, dtype=np.uint8).reshape(2, 4, 1), 2, "crop")[..., 0].tolist()
    [[1, 2], [5, 6]]
    """
    down, across = (size, size) if isinstance(size, int) else size
    if min(down, across) < 1:
        raise HeedfulError(f"images cannot be made {min(down, across)} pixels wide; give a size of at least 1")
    height, width, channels = pixels.shape
    box = None
    if how == "crop":
        share = min(height / down, width / across)
        left, top = (width - share * across) / 2, (height - share * down) / 2
        box = (left, top, width - left, height - top)
    if down * across > LARGEST:
        raise HeedfulError(
            f"an image of {width:,} × {height:,} pixels would have to become {across:,} × {down:,}; cut it shorter"
        )
    if (height, width) == (down, across):
        return pixels.copy()
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    resized = image.resize((across, down), Image.Resampling[resample.upper()], box=box)
    return np.array(resized).reshape(down, across, channels)


def normalise(batch: np.ndarray, mean: Sequence[float], std: Sequence[float], factor: float = 1 / 255) -> np.ndarray:
    """(factor · x − mean) / std by channel, as float32 of the batch's shape (B, C, H, W).

    Rounded after each step, as the published processors round: theirs and ours are the same to the last bit.

    >>> normalise(np.array([[[[0, 255]]]], np.uint8), mean=[0.5], std=[0.5]).ravel()
    array([-1.,  1.], dtype=float32)
    """
    brightness = (np.arange(256) * factor).astype(np.float32)
    scaled = np.empty(batch.shape, np.float32)
    for channel, (middle, width) in enumerate(zip(mean, std, strict=True)):
        levels = (brightness - np.float32(middle)) / np.float32(width)
        np.take(levels, batch[:, channel], out=scaled[:, channel], mode="clip")
    return scaled


# --------------------------------------------------------------------------------------------------- changed at random


def pad_crop(batch: np.ndarray, pixels: int, random: np.random.Generator) -> np.ndarray:
    """Each image moved by −pixels to pixels in both directions, alike likely; what comes in from outside is black (0).

    This is padding by `pixels` and cropping at random, as in He et al. 2016, section 4.2.
    """
    if pixels == 0:
        return batch
    count, channels, height, width = batch.shape
    padded = np.zeros((count, channels, height + 2 * pixels, width + 2 * pixels), batch.dtype)
    padded[:, :, pixels : pixels + height, pixels : pixels + width] = batch
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    down, right = random.integers(0, 2 * pixels + 1, (2, count))
    return windows[np.arange(count), :, down, right]


def flip(batch: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Each image mirrored, left to right, with probability 1/2."""
    return np.where((random.random(len(batch)) < 0.5)[:, None, None, None], batch[..., ::-1], batch)


def erase(batch: np.ndarray, chance: float, random: np.random.Generator) -> np.ndarray:
    """Each image with probability `chance` with a rectangle of noise in it, so that no one place decides what it shows.

    The rectangle's area is 2 to 40 % of the image's, its height 0.3 to 1/0.3 times its width, both alike likely and
    drawn again until it fits (ten times at most; then the image stays as it is); its place, and each of its numbers
    from 0 to 255, are alike likely too. Zhong et al. 2020, "Random Erasing Data Augmentation", algorithm 1.
    """
    if chance == 0:
        return batch
    count, channels, height, width = batch.shape
    erased = batch.copy()
    for place in np.flatnonzero(random.random(count) < chance):
        area, aspect = random.uniform(0.02, 0.4, 10) * height * width, random.uniform(0.3, 1 / 0.3, 10)
        sides = np.sqrt([area * aspect, area / aspect]).round().astype(int).T
        for down, across in sides[(sides <= (height, width)).all(1)][:1]:
            top, left = random.integers(0, (height - down + 1, width - across + 1))
            noise = random.integers(0, 256, (channels, down, across), dtype=np.uint8)
            erased[place, :, top : top + down, left : left + across] = noise
    return erased


def mixup(
    pixels: np.ndarray, targets: np.ndarray, alpha: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Images and their targets blended in pairs: x̃ᵢ = λᵢ xᵢ + (1 − λᵢ) xⱼ, ỹᵢ likewise, λᵢ ~ Beta(α, α).

    j runs through a permutation of the batch; each pair has a λ of its own. `pixels` are float (B, C, H, W), `targets`
    float (B, classes), one row a distribution; α = 0 blends nothing. Zhang et al. 2018, "mixup: Beyond Empirical Risk
    Minimization", equation 1.

    >>> images, targets = np.zeros((2, 1, 1, 1), np.float32), np.eye(2, dtype=np.float32)
    >>> blended, weights = mixup(images, targets, 0.2, np.random.default_rng(0))
    >>> weights.sum(axis=1)
    array([1., 1.], dtype=float32)
    """
    if alpha == 0:
        return pixels, targets
    share = random.beta(alpha, alpha, len(pixels)).astype(np.float32)
    others = random.permutation(len(pixels))
    return _between(pixels[others], pixels, share), _between(targets[others], targets, share)


def _between(start: np.ndarray, end: np.ndarray, share: np.ndarray) -> np.ndarray:
    """start + share (end − start), a share for each row."""
    return start + share.reshape(-1, *[1] * (start.ndim - 1)) * (end - start)
