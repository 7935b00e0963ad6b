"""Images resized, normalised and augmented: crop, flip, erase, mixup and RandAugment (Cubuk et al. 2020).

Batches are uint8 (B, C, H, W), C = 1 or 3, and are never changed in place. All randomness comes from the given
`numpy.random.Generator`: the same generator gives the same images.

torchvision's v2 transforms are not used for two reasons. They take no generator, so a batch could not be a function of
(seed, epoch, batch). On a CPU they take 1.5 to 20 times as long on batches of small images (RandAugment of 128 images
of 32 pixels: 28 ms with torchvision, 6 here); only a crop, flip and erase of 224 pixels is faster with it (3.7 ms, 9.7
here).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from PIL import Image

from heedful.errors import HeedfulError
from heedful.util.values import check

__all__ = ["erase", "flip", "mixup", "normalise", "pad_crop", "rand_augment", "resize"]

Resample = Literal["nearest", "bilinear", "bicubic", "lanczos"]
MAX_PIXELS = 50_000_000  # of a resized image: 150 MB in colour

# ------------------------------------------------------------------------------------------ resizing and normalisation


def resize(
    pixels: np.ndarray,
    size: int | tuple[int, int],
    how: Literal["stretch", "crop"] = "stretch",
    resample: Resample = "bilinear",
) -> np.ndarray:
    """Resizes an image (H, W, C); returns uint8 (height, width, C).

    `size` is the side of a square, or (height, width).

    - "stretch": the image is stretched to `size`, as by the published processors of ViT.
    - "crop": the largest centre crop with the proportions of `size` is resized, so nothing is distorted.

    The filters are Pillow's, antialiased if the image becomes smaller. Raises `HeedfulError` for a size below 1, and
    for a result of more than 50 million pixels, as from a thin strip whose shorter side grows.

    >>> resize(np.arange(8, dtype=np.uint8).reshape(2, 4, 1), 2, "crop")[..., 0].tolist()
    [[1, 2], [5, 6]]
    """
    down, across = (size, size) if isinstance(size, int) else size
    check("the size of an image", (down, across), tuple[int, int], least=1)
    height, width, channels = pixels.shape
    box = None
    if how == "crop":
        share = min(height / down, width / across)
        left, top = (width - share * across) / 2, (height - share * down) / 2
        box = (left, top, width - left, height - top)
    if down * across > MAX_PIXELS:
        raise HeedfulError(
            f"cannot resize an image of {width:,} × {height:,} pixels to {across:,} × {down:,}, more than "
            f"{MAX_PIXELS // 10**6} million pixels; crop the image"
        )
    if (height, width) == (down, across):
        return pixels.copy()
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    resized = image.resize((across, down), Image.Resampling[resample.upper()], box=box)
    return np.array(resized).reshape(down, across, channels)


def normalise(batch: np.ndarray, mean: Sequence[float], std: Sequence[float], factor: float = 1 / 255) -> np.ndarray:
    """Returns (factor · x − mean) / std for each channel, as float32 (B, C, H, W).

    Each step is rounded as in the published image processors, so the result equals theirs bit for bit.

    >>> normalise(np.array([[[[0, 255]]]], np.uint8), mean=[0.5], std=[0.5]).ravel()
    array([-1.,  1.], dtype=float32)
    """
    brightness = (np.arange(256) * factor).astype(np.float32)
    scaled = np.empty(batch.shape, np.float32)
    for channel, (middle, width) in enumerate(zip(mean, std, strict=True)):
        levels = (brightness - np.float32(middle)) / np.float32(width)
        np.take(levels, batch[:, channel], out=scaled[:, channel], mode="clip")
    return scaled


# -------------------------------------------------------------------------------------------------------- augmentation


def pad_crop(batch: np.ndarray, pixels: int, random: np.random.Generator) -> np.ndarray:
    """Shifts each image by a random number of pixels along each axis, uniform from −`pixels` to `pixels`.

    Uncovered pixels become black (0). This equals padding by `pixels` and random cropping (He et al. 2016, section
    4.2).
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
    """Mirrors each image, left to right, with probability 1/2."""
    return np.where((random.random(len(batch)) < 0.5)[:, None, None, None], batch[..., ::-1], batch)


def erase(batch: np.ndarray, chance: float, random: np.random.Generator) -> np.ndarray:
    """Random erasing: with probability `chance` replaces a rectangle of an image by noise.

    The rectangle's area is 2 to 40 % of the image's, and its height 0.3 to 1/0.3 times its width. Both are drawn
    uniformly, and drawn again if the rectangle does not fit; after ten draws the image is unchanged. The position of
    the rectangle and its values from 0 to 255 are uniform too. Zhong et al. 2020, "Random Erasing Data Augmentation",
    algorithm 1.
    """
    if chance == 0:
        return batch
    count, channels, height, width = batch.shape
    erased = batch.copy()
    for index in np.flatnonzero(random.random(count) < chance):
        area, aspect = random.uniform(0.02, 0.4, 10) * height * width, random.uniform(0.3, 1 / 0.3, 10)
        sides = np.sqrt([area * aspect, area / aspect]).round().astype(int).T
        for down, across in sides[(sides <= (height, width)).all(1)][:1]:
            top, left = random.integers(0, (height - down + 1, width - across + 1))
            noise = random.integers(0, 256, (channels, down, across), dtype=np.uint8)
            erased[index, :, top : top + down, left : left + across] = noise
    return erased


def mixup(
    pixels: np.ndarray, targets: np.ndarray, alpha: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Mixup: blends images and their targets in pairs, x̃ᵢ = λᵢ xᵢ + (1 − λᵢ) xⱼ, ỹᵢ likewise, λᵢ ~ Beta(α, α).

    j is a random permutation of the batch; each pair has its own λ. `pixels` are float (B, C, H, W), `targets` float
    (B, classes) with a distribution over classes in each row; `alpha` = 0 blends nothing. Zhang et al. 2018, "mixup:
    Beyond Empirical Risk Minimization", equation 1.

    >>> images, targets = np.zeros((2, 1, 1, 1), np.float32), np.eye(2, dtype=np.float32)
    >>> blended, weights = mixup(images, targets, 0.2, np.random.default_rng(0))
    >>> weights.sum(axis=1)
    array([1., 1.], dtype=float32)
    """
    if alpha == 0:
        return pixels, targets
    weights = random.beta(alpha, alpha, len(pixels)).astype(np.float32)
    others = random.permutation(len(pixels))
    return _interpolate(pixels[others], pixels, weights), _interpolate(targets[others], targets, weights)


def _interpolate(start: np.ndarray, end: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns start + weight (end − start), with a weight for each row."""
    return start + weights.reshape(-1, *[1] * (start.ndim - 1)) * (end - start)


MAX_MAGNITUDE = 30  # maximum magnitude


def rand_augment(batch: np.ndarray, operations: int, random: np.random.Generator, magnitude: float = 9.0) -> np.ndarray:
    """RandAugment: applies `operations` random operations to each image, drawn uniformly, one after the other.

    All have the same `magnitude` m, 0 to 30; with s = m / 30 the operations are:

    - none; autocontrast; equalize;
    - brightness, contrast, sharpness and (of colour images) saturation times 1 ± 0.9 s;
    - posterize to 8 − 4 s bits; solarize: invert pixels brighter than 255 (1 − s);
    - rotate by ± 30 s degrees, shear by ± 0.3 s, translate by ± 0.45 s of a side, along x or y.

    Signs are random too. Pixels from outside the image are black (0). Cubuk et al. 2020, "RandAugment"; the ranges are
    those of AutoAugment.

    Args:
        batch: uint8 (B, C, H, W), C = 1 or 3; it is not changed.
        operations: number of operations for each image.
        random: source of all randomness.
        magnitude: strength; the default 9 is the paper's for ImageNet.

    Returns:
        The augmented images, uint8 (B, C, H, W).

    Raises:
        HeedfulError: the magnitude is out of range.
    """
    check("the magnitude", magnitude, float, least=0, most=MAX_MAGNITUDE)
    functions = [function for name, function in OPERATIONS.items() if name != "saturation" or batch.shape[1] == 3]
    batch = batch.copy()
    for _ in range(operations):
        drawn = random.integers(0, len(functions), len(batch))
        strength = random.choice((-1.0, 1.0), len(batch)) * (magnitude / MAX_MAGNITUDE)
        for number in np.unique(drawn):
            rows = np.flatnonzero(drawn == number)
            batch[rows] = functions[number](batch[rows], strength[rows])
    return batch


# ------------------------------------------------------- tone: (n, C, H, W) and strengths (n) → changed (n, C, H, W)


def _blend(base: np.ndarray, batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Returns base + (1 + 0.9 strength) (x − base), rounded, clipped to 0 to 255."""
    factor = (1 + 0.9 * strength).astype(np.float32)[:, None, None, None]
    return np.clip(np.rint(base + factor * (batch - base)), 0, 255).astype(np.uint8)


def _brightness(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return _blend(np.zeros(1, np.float32), batch, strength)


def _contrast(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Blends each image with its mean brightness."""
    return _blend(np.rint(_grey(batch).mean(axis=(1, 2, 3), keepdims=True)), batch, strength)


def _saturation(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Blends each image with its grey version."""
    return _blend(_grey(batch), batch, strength)


def _sharpness(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Blends each image with a smoothed image: (sum of 3 × 3 pixels + 4 × the middle one) / 13; the border stays."""
    smooth = batch.astype(np.float32)
    height, width = batch.shape[2:]
    total = 4 * smooth[:, :, 1:-1, 1:-1]
    for down in range(3):
        for right in range(3):
            total += batch[:, :, down : height - 2 + down, right : width - 2 + right]
    smooth[:, :, 1:-1, 1:-1] = np.rint(total / 13)
    return _blend(smooth, batch, strength)


def _grey(batch: np.ndarray) -> np.ndarray:
    """Returns the brightness (n, 1, H, W) by ITU-R BT.601."""
    if batch.shape[1] == 1:
        return batch.astype(np.float32)
    weights = np.array([0.299, 0.587, 0.114], np.float32)[:, None, None]
    return np.rint((batch * weights).sum(axis=1, keepdims=True))


def _autocontrast(batch: np.ndarray, _: np.ndarray) -> np.ndarray:
    """Stretches each channel to 0 to 255."""
    low, high = (limit(axis=(2, 3), keepdims=True).astype(np.float32) for limit in (batch.min, batch.max))
    stretched = np.rint((batch - low) * (255 / np.maximum(high - low, 1)))
    return np.where(high > low, stretched, batch).astype(np.uint8)


def _equalize(batch: np.ndarray, _: np.ndarray) -> np.ndarray:
    """Equalises each channel's histogram, as far as whole levels allow."""
    planes = batch.reshape(len(batch) * batch.shape[1], -1)
    at = planes + 256 * np.arange(len(planes))[:, None]
    counts = np.bincount(at.ravel(), minlength=256 * len(planes)).reshape(-1, 256)
    brightest = counts[np.arange(len(planes)), planes.max(axis=1)]
    step = ((planes.shape[1] - brightest) // 255)[:, None]
    below = counts.cumsum(axis=1) - counts
    levels = np.minimum((step // 2 + below) // np.maximum(step, 1), 255)
    levels = np.where(step > 0, levels, np.arange(256)).astype(np.uint8)
    return levels.ravel()[at].reshape(batch.shape)


def _posterize(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    dropped = np.rint(4 * np.abs(strength)).astype(np.uint8)[:, None, None, None]
    return batch >> dropped << dropped


def _solarize(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return np.where(batch > 255 * (1 - np.abs(strength))[:, None, None, None], 255 - batch, batch)


# ----------------------------------------------------------------------------------------------------------- geometry


def _rotate(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    angle = np.deg2rad(30 * strength)
    return _affine(batch, [[np.cos(a), -np.sin(a), 0, np.sin(a), np.cos(a), 0] for a in angle])


def _shear_x(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return _affine(batch, [[1, 0.3 * s, 0, 0, 1, 0] for s in strength])


def _shear_y(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return _affine(batch, [[1, 0, 0, 0.3 * s, 1, 0] for s in strength])


def _translate_x(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return _affine(batch, [[1, 0, 0.45 * s * batch.shape[3], 0, 1, 0] for s in strength])


def _translate_y(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return _affine(batch, [[1, 0, 0, 0, 1, 0.45 * s * batch.shape[2]] for s in strength])


def _affine(batch: np.ndarray, maps: list[list[float]]) -> np.ndarray:
    """Samples each pixel (x, y), from the middle, at (a x + b y + c, d x + e y + f), bilinearly."""
    channels, height, width = batch.shape[1:]
    channels_last = np.array(batch.transpose(0, 2, 3, 1), order="C")
    x, y = width / 2, height / 2  # Pillow counts from the corner
    for pixels, (a, b, c, d, e, f) in zip(channels_last, maps, strict=True):
        image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
        corner = (a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y)
        moved = image.transform(image.size, Image.Transform.AFFINE, corner, Image.Resampling.BILINEAR)
        pixels[:] = np.asarray(moved).reshape(pixels.shape)
    return channels_last.transpose(0, 3, 1, 2)


OPERATIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "none": lambda batch, _: batch,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "brightness": _brightness,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "saturation": _saturation,
    "posterize": _posterize,
    "solarize": _solarize,
    "rotate": _rotate,
    "shear-x": _shear_x,
    "shear-y": _shear_y,
    "translate-x": _translate_x,
    "translate-y": _translate_y,
}
