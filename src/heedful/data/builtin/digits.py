"""`digits`: the 1,797 handwritten digits of 8 × 8 pixels that scikit-learn carries (UCI's "Optical Recognition")."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from heedful.data.lazy_image import LazyImage
from heedful.errors import HeedfulError

SHARES = {"test": 20, "valid": 10, "train": 70}  # in percent


def rows(argument: str | None, split: str) -> list[dict[str, Any]]:
    """Returns the rows of a split: ``image``, a `LazyImage` of shape (8, 8, 1), and ``label``, "0" to "9".

    Brightness 0 to 16 becomes 0 to 255 (× 255 / 16, rounded). A hash of the pixels determines the split, so that equal
    images are in one split. The train, valid and test splits have 1,260, 152 and 385 rows.

    Raises `HeedfulError` for any `argument`, since the set takes none, and if scikit-learn is not installed.
    """
    if argument:
        raise HeedfulError(f"unknown argument {argument!r}, in builtin:digits/{argument}; write builtin:digits")
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise HeedfulError("builtin:digits needs scikit-learn; pip install scikit-learn") from error
    loaded = load_digits()
    images = (loaded.images * (255 / 16)).round().astype("uint8")
    return [
        {"image": LazyImage.of(image, f"digit {number}"), "label": str(label)}
        for number, (image, label) in enumerate(zip(images, loaded.target, strict=True), 1)
        if digit_part(image.tobytes()) == split
    ]


def digit_part(pixels: bytes) -> str:
    """Returns the split ("train", "valid" or "test") of an image, determined by a hash of its pixels."""
    percentile = int.from_bytes(blake2b(pixels, digest_size=8).digest()) % 100
    for split, share in SHARES.items():
        if percentile < share:
            return split
        percentile -= share
    raise AssertionError("the percentages of the splits do not add up to 100")
