"""Images of tasks: their size and channels, inferred from the data, their preprocessing and augmentation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from heedful.config import ModelConfig, PatchConfig, patches_of
from heedful.data import LazyImage, Row
from heedful.data.image_arrays import channel_moments
from heedful.data.image_transforms import erase, flip, pad_crop, rand_augment
from heedful.errors import HeedfulError, plural
from heedful.models import Model
from heedful.pretrained import load
from heedful.pretrained.preprocessing import Preprocessing, read_preprocessing
from heedful.settings import ImageSettings, ModelSettings

SMALL = 64  # pixels up to which images of one size keep it
SIZE_SAMPLE = 200  # images from which sizes and channels are inferred
MOMENTS_SAMPLE = 1000  # images from which mean and deviation are computed


def side_of(rows: Sequence[Row]) -> int | None:
    """Returns the side in pixels at which images are read, if all are small and have one size; None for other images.

    A size that no patch size divides is rounded up to a multiple of 4.
    """
    sizes = {row.values["image"].size for row in rows[:SIZE_SAMPLE]}
    side = max(max(size) for size in sizes)
    if len(sizes) > 1 or side > SMALL:
        return None
    return side if patch_of(side) else -(-side // 4) * 4


def channels_of(rows: Sequence[Row]) -> Literal[1, 3]:
    """Returns 1 if all images are grey, else 3."""
    return 3 if any(row.values["image"].pixels().shape[2] == 3 for row in rows[:SIZE_SAMPLE]) else 1


def patch_of(side: int, patches_per_side: float | None = None) -> int | None:
    """Returns the patch size for images of ``side`` pixels; None if no suitable size divides the side.

    There are about ``patches_per_side`` patches along a side, and at most twice as many. The default is four, two if
    the side is short. Large images have patches of 8 or 16 pixels.
    """
    count = patches_per_side or max(2.0, min(4.0, side / 4), min(8.0, side / 8), side / 16)
    divisors = [patch for patch in range(1, side) if side % patch == 0 and 2 <= side // patch <= 2 * count]
    return min(divisors, key=lambda patch: abs(math.log(side / patch / count)), default=None)


def preprocessing_for(rows: Sequence[Row], settings: ImageSettings) -> Preprocessing:
    """Returns the preprocessing of a new model: the size and channels of the settings, and the mean and standard
    deviation of each channel over at most 1,000 images.
    """
    side, channels = settings.size or SMALL, settings.channels or 3
    plain = Preprocessing(size=side, mean=(0.0,) * channels, std=(1.0,) * channels)
    sample = rows[:: -(-len(rows) // MOMENTS_SAMPLE)]
    mean, std = channel_moments(plain.fitted(row.values["image"].pixels(channels)) for row in sample)
    mean, std = mean.round(6), std.round(6)
    std[std < 1e-3] = 1.0  # a constant channel
    return Preprocessing(size=side, mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def load_for_images(folder: Path, image: ImageSettings) -> tuple[Preprocessing, Model]:
    """Returns preprocessing and model of a folder for fine-tuning; the image size is that of the settings, if they set
    one.

    Raises ``HeedfulError`` if the settings have another number of channels.
    """
    preprocessing = read_preprocessing(folder)
    if image.channels not in (None, preprocessing.channels):
        channels = f"the model in {folder} takes images with {plural(preprocessing.channels, 'channel')}"
        raise HeedfulError(f"--image.channels is {image.channels}, but {channels}; leave the option out")
    if image.size in (None, preprocessing.shape[1]):
        return preprocessing, load(folder, dtype="float32")
    return preprocessing.sized(image.size), load(folder, dtype="float32", image_size=image.size)


def patches_with_settings(patches: PatchConfig, preprocessing: Preprocessing, model: ModelSettings) -> PatchConfig:
    """Returns the patches of a preset with the changes in the settings, for images as the preprocessing makes them.

    Raises ``HeedfulError`` if the patch size does not divide the sides of the images.
    """
    channels, height, width = preprocessing.shape
    prefix = patches.prefix
    if model.class_token is not None and model.class_token != (prefix != "none"):
        prefix = "class" if model.class_token else "none"
    try:
        return replace(
            patches,
            image_size=(height, width),
            patch_size=model.patch_size or patches.patch_size,
            channels=channels,
            prefix=prefix,
        )
    except HeedfulError as error:
        raise HeedfulError(f"{str(error).partition(';')[0]}; change --image.size or --model.patch-size") from None


class DecodedImages(Sequence[Any]):
    """Sequence of images as the model takes them, decoded on access, so that only a batch is in memory."""

    def __init__(self, images: Sequence[LazyImage], preprocessing: Preprocessing) -> None:
        self.images, self.preprocessing = images, preprocessing

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        return self.preprocessing.fitted(self.images[index].pixels(self.preprocessing.channels))


def normalised_images(
    pixels: np.ndarray, preprocessing: Preprocessing, settings: ImageSettings, random: np.random.Generator | None
) -> np.ndarray:
    """Returns normalised images (B, C, H, W), float32, of images in uint8.

    In training, ``random`` is given: images are shifted, mirrored, changed by RandAugment and erased at random first,
    in this order, as the settings say.
    """
    if random is None:
        return preprocessing.normalised(pixels)
    pixels = pad_crop(pixels, settings.crop_padding or 0, random)
    if settings.flip:
        pixels = flip(pixels, random)
    pixels = rand_augment(pixels, settings.rand_augment or 0, random)
    return preprocessing.normalised(erase(pixels, settings.random_erasing or 0.0, random))


def check_image_size(config: ModelConfig, preprocessing: Preprocessing) -> PatchConfig:
    """Returns the patches of a model of images; raises ``HeedfulError`` if the preprocessing makes another size."""
    patches = patches_of(config)
    assert patches is not None  # the task has checked the family
    shape = (patches.channels, *patches.image_size)
    if shape != preprocessing.shape:
        raise HeedfulError(
            f"the model takes images of {shape_text(shape)}, but its preprocessor_config.json produces "
            f"{shape_text(preprocessing.shape)}; correct that file"
        )
    return patches


def shape_text(shape: tuple[int, ...]) -> str:
    """Returns the shape (channels, height, width) of an image for people: ``28 × 28, grey``."""
    channels, height, width = shape
    return f"{height} × {width}, {'grey' if channels == 1 else 'colour'}"
