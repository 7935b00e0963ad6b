"""RandAugment: changes of tone and of place, drawn at random (Cubuk et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

from heedful.errors import HeedfulError

STRONGEST = 30  # the scale of the magnitude


def rand_augment(batch: np.ndarray, operations: int, random: np.random.Generator, magnitude: float = 9.0) -> np.ndarray:
    """Each image changed by `operations` operations one after the other, all alike likely.

    One `magnitude` m, 0 to 30, is for all; with s = m / 30 the operations are:

    - none; autocontrast; equalize;
    - brightness, contrast, sharpness and (of colour images) saturation times 1 ± 0.9 s;
    - posterize to 8 − 4 s bits; solarize: what is brighter than 255 (1 − s) is inverted;
    - rotate by ± 30 s degrees, shear by ± 0.3 s, translate by ± 0.45 s of a side, along x or y.

    Signs are drawn too. What comes in from outside is black (0). Cubuk et al. 2020, "RandAugment"; the ranges are those
    of AutoAugment.

    Args:
        batch: uint8 (B, C, H, W), C = 1 or 3; it is left as it is.
        operations: how many each image goes through.
        random: decides everything.
        magnitude: how strong; 9, the paper's for ImageNet.

    Raises:
        HeedfulError: a magnitude out of range.
    """
    if not 0 <= magnitude <= STRONGEST:
        raise HeedfulError(f"a magnitude of {magnitude} is out of range; give one from 0 to {STRONGEST}")
    changes = [change for name, change in CHANGES.items() if name != "saturation" or batch.shape[1] == 3]
    batch = batch.copy()
    for _ in range(operations):
        drawn = random.integers(0, len(changes), len(batch))
        strength = random.choice((-1.0, 1.0), len(batch)) * (magnitude / STRONGEST)
        for place in np.unique(drawn):
            rows = np.flatnonzero(drawn == place)
            batch[rows] = changes[place](batch[rows], strength[rows])
    return batch


# ---------------------------------------------------------------------- tone: (n, C, H, W) and strengths (n) → anew


def _blended(base: np.ndarray, batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """base + (1 + 0.9 strength) (x − base), rounded, within 0 to 255."""
    factor = (1 + 0.9 * strength).astype(np.float32)[:, None, None, None]
    return np.clip(np.rint(base + factor * (batch - base)), 0, 255).astype(np.uint8)


def _brightness(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return _blended(np.zeros(1, np.float32), batch, strength)


def _contrast(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """About the mean brightness."""
    return _blended(np.rint(_grey(batch).mean(axis=(1, 2, 3), keepdims=True)), batch, strength)


def _saturation(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """About the same image in grey."""
    return _blended(_grey(batch), batch, strength)


def _sharpness(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """About a smoothed image, (the sum of a pixel's 3 × 3 surroundings + 4 times itself) / 13; the rim stays."""
    smooth = batch.astype(np.float32)
    height, width = batch.shape[2:]
    total = 4 * smooth[:, :, 1:-1, 1:-1]
    for down in range(3):
        for right in range(3):
            total += batch[:, :, down : height - 2 + down, right : width - 2 + right]
    smooth[:, :, 1:-1, 1:-1] = np.rint(total / 13)
    return _blended(smooth, batch, strength)


def _grey(batch: np.ndarray) -> np.ndarray:
    """Brightness (n, 1, H, W) by ITU-R BT.601."""
    if batch.shape[1] == 1:
        return batch.astype(np.float32)
    weights = np.array([0.299, 0.587, 0.114], np.float32)[:, None, None]
    return np.rint((batch * weights).sum(axis=1, keepdims=True))


def _autocontrast(batch: np.ndarray, _: np.ndarray) -> np.ndarray:
    """Each channel stretched to 0 to 255."""
    low, high = (found(axis=(2, 3), keepdims=True).astype(np.float32) for found in (batch.min, batch.max))
    stretched = np.rint((batch - low) * (255 / np.maximum(high - low, 1)))
    return np.where(high > low, stretched, batch).astype(np.uint8)


def _equalize(batch: np.ndarray, _: np.ndarray) -> np.ndarray:
    """Each channel's histogram made as even as whole levels allow."""
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


# -------------------------------------------------------------------------------------------------------------- place


def _rotate(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    angle = np.deg2rad(30 * strength)
    return _moved(batch, [[np.cos(a), -np.sin(a), 0, np.sin(a), np.cos(a), 0] for a in angle])


def _shear_x(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return _moved(batch, [[1, 0.3 * s, 0, 0, 1, 0] for s in strength])


def _shear_y(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return _moved(batch, [[1, 0, 0, 0.3 * s, 1, 0] for s in strength])


def _translate_x(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return _moved(batch, [[1, 0, 0.45 * s * batch.shape[3], 0, 1, 0] for s in strength])


def _translate_y(batch: np.ndarray, strength: np.ndarray) -> np.ndarray:
    return _moved(batch, [[1, 0, 0, 0, 1, 0.45 * s * batch.shape[2]] for s in strength])


def _moved(batch: np.ndarray, maps: list[list[float]]) -> np.ndarray:
    """Each pixel (x, y), counted from the middle, taken from (a x + b y + c, d x + e y + f), between four linearly."""
    channels, height, width = batch.shape[1:]
    last = np.array(batch.transpose(0, 2, 3, 1), order="C")
    x, y = width / 2, height / 2  # Pillow counts from the corner
    for pixels, (a, b, c, d, e, f) in zip(last, maps, strict=True):
        image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
        corner = (a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y)
        moved = image.transform(image.size, Image.Transform.AFFINE, corner, Image.Resampling.BILINEAR)
        pixels[:] = np.asarray(moved).reshape(pixels.shape)
    return last.transpose(0, 3, 1, 2)


CHANGES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
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
