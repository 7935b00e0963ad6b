"""Images made alike, as the published processors do, and changed at random, each change against Pillow's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from heedful.data.image_transforms import OPERATIONS, erase, flip, mixup, normalise, pad_crop, rand_augment, resize
from heedful.errors import HeedfulError
from tolerances import approx

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def generator() -> np.random.Generator:
    return np.random.default_rng(5)


def images(count: int, channels: int, height: int, width: int) -> np.ndarray:
    """Random levels, smooth ones, and a narrow range, so that tables of levels are seen as a whole."""
    drawn = np.random.default_rng(0)
    batch = drawn.integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    batch[1::3] = np.linspace(0, 255, height * width).reshape(height, width)
    batch[2::3] = batch[2::3] % 23 + 90
    return batch


# ---------------------------------------------------------------------------------------------- to one size and scale


@pytest.mark.parametrize(("height", "width"), [(37, 53), (53, 37), (8, 8), (24, 24), (300, 200)])
def test_fitted_and_normalised_as_the_published_processor_does(height: int, width: int) -> None:
    transformers = pytest.importorskip("transformers")
    processor = transformers.ViTImageProcessorPil(size={"height": 24, "width": 24}, image_mean=MEAN, image_std=STD)
    pixels = images(1, 3, height, width)[0].transpose(1, 2, 0)
    theirs = processor(pixels, input_data_format="channels_last", return_tensors="np")["pixel_values"]
    ours = normalise(resize(pixels, 24).transpose(2, 0, 1)[None], MEAN, STD)
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape == (1, 3, 24, 24)
    assert np.abs(ours - theirs).max() < 1e-5


def test_fitted_by_cropping() -> None:
    wide = np.zeros((10, 30, 1), np.uint8)
    wide[:, 10:20] = 200  # the middle square
    # a filter looks a little over the edge
    assert (resize(wide, 5, "crop")[:, 1:4] == 200).all()
    assert (resize(wide, 5, "crop")[:, [0, 4]] > 150).all()
    assert (resize(wide.transpose(1, 0, 2), 5, "crop")[1:4] == 200).all()
    assert (resize(wide, 5)[:, [0, 4]] < 50).all()
    pixels = images(1, 3, 40, 60)[0].transpose(1, 2, 0)
    resized = np.asarray(Image.fromarray(pixels).resize((24, 16), Image.Resampling.BICUBIC))[:, 4:20]
    assert np.abs(resize(pixels, 16, "crop", "bicubic").astype(int) - resized).max() <= 1


def test_an_image_of_the_right_size_stays() -> None:
    pixels = images(1, 3, 9, 9)[0].transpose(1, 2, 0)
    for how in ("stretch", "crop"):
        same = resize(pixels, 9, how)  # type: ignore[arg-type]
        assert np.array_equal(same, pixels)
        assert not np.shares_memory(same, pixels)
    assert resize(pixels[..., :1], 4).shape == (4, 4, 1)
    with pytest.raises(HeedfulError, match="size of an image must be at least 1, not 0"):
        resize(pixels, 0)


def test_normalised_by_hand() -> None:
    batch = np.array([0, 51, 255], np.uint8).reshape(1, 3, 1, 1)
    assert normalise(batch, (0.5, 0.2, 0.0), (0.5, 0.1, 2.0)).ravel() == approx([-1, 0, 0.5], "layer")


# ---------------------------------------------------------------------------------------------------- changed at random

CHANGED: dict[str, Callable[[np.ndarray, np.random.Generator], Any]] = {
    "pad_crop": lambda batch, random: pad_crop(batch, 3, random),
    "flip": flip,
    "erase": lambda batch, random: erase(batch, 0.5, random),
    "rand_augment": lambda batch, random: rand_augment(batch, 2, random),
    "mixup": lambda batch, random: np.concatenate(
        [part.ravel() for part in mixup(batch.astype(np.float32), np.eye(len(batch), dtype=np.float32), 0.4, random)]
    ),
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("channels", [1, 3])
def test_the_generator_decides_and_the_batch_stays(name: str, channels: int) -> None:
    batch = images(40, channels, 12, 10)
    kept = batch.copy()
    changed = CHANGED[name](batch, generator())
    assert np.array_equal(batch, kept)
    assert np.array_equal(changed, CHANGED[name](batch, generator()))
    assert not np.array_equal(changed, CHANGED[name](batch, np.random.default_rng(6)))
    if name != "mixup":
        assert (changed.shape, changed.dtype) == (batch.shape, np.uint8)


def test_pad_crop_moves_each_image_by_whole_pixels() -> None:
    batch = images(300, 3, 6, 7) // 2 + 1  # never 0
    moved = pad_crop(batch, 2, generator())
    wide = np.pad(batch, ((0, 0), (0, 0), (2, 2), (2, 2)))
    places = []
    for image, around in zip(moved, wide, strict=True):
        found = [(y, x) for y in range(5) for x in range(5) if np.array_equal(image, around[:, y : y + 6, x : x + 7])]
        assert len(found) == 1
        places.append(found[0])
    assert len(set(places)) == 25  # every place is drawn
    assert np.array_equal(pad_crop(batch, 0, generator()), batch)


def test_flip_mirrors_about_half() -> None:
    batch = images(400, 1, 3, 5)
    mirrored = (flip(batch, generator()) == batch[..., ::-1]).all(axis=(1, 2, 3))
    kept = (flip(batch, generator()) == batch).all(axis=(1, 2, 3))
    assert (mirrored ^ kept).all()
    assert 150 < mirrored.sum() < 250


def test_erase_fills_one_rectangle_of_the_share_that_is_asked_for() -> None:
    batch = np.zeros((2000, 1, 20, 30), np.uint8)
    erased = erase(batch, 0.25, generator())[:, 0]
    hit = np.flatnonzero(erased.any(axis=(1, 2)))
    assert 430 < len(hit) < 570
    shares, aspects, middles, noise = [], [], [], []
    for image in erased[hit]:
        rows, columns = image.any(axis=1).nonzero()[0], image.any(axis=0).nonzero()[0]
        inside = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        noise.append(inside.ravel())
        shares.append(inside.size / image.size)
        aspects.append(inside.shape[0] / inside.shape[1])
        middles.append((rows.mean() / 19, columns.mean() / 29))
    values = np.concatenate(noise)  # a rectangle without gaps, but for the zeros that noise has too
    assert np.bincount(values, minlength=256) == pytest.approx(len(values) / 256, rel=0.35)
    assert 0.015 < min(shares) < 0.04
    assert 0.36 < max(shares) < 0.43
    assert 0.2 < min(aspects) < 0.4
    assert 2.5 < max(aspects) < 4.2
    assert np.mean(middles, axis=0) == pytest.approx([0.5, 0.5], abs=0.03)
    assert (erase(batch, 1.0, generator()).any(axis=(1, 2, 3))).mean() > 0.97
    assert erase(batch, 0.0, generator()) is batch
    strip = np.zeros((3, 3, 1, 999), np.uint8)
    assert not erase(strip, 1.0, generator()).any()  # nothing fits into it


def test_mixup_blends_images_as_it_blends_targets() -> None:
    count = 2000
    pixels = np.eye(count, dtype=np.float32)[:, None, :, None]  # an image that says which it is
    blended, targets = mixup(pixels, np.eye(count, dtype=np.float32), 0.3, generator())
    assert np.array_equal(blended[:, 0, :, 0], targets)
    assert targets.dtype == np.float32
    assert np.abs(targets.sum(axis=1) - 1).max() < 1e-6
    assert (np.count_nonzero(targets, axis=1) <= 2).all()
    others = targets.copy()
    np.fill_diagonal(others, 0)
    assert len(set(others.argmax(axis=1))) > 0.95 * count  # each in one pair more: a permutation
    share = targets.diagonal()
    # Beta(α, α): mean 1/2, variance 1 / (4 (2 α + 1)) = 0.156
    assert share.mean() == pytest.approx(0.5, abs=0.03)
    assert share.var() == pytest.approx(0.25 / 1.6, abs=0.01)
    assert mixup(pixels, targets, 0, generator())[0] is pixels


def pillows(batch: np.ndarray, change: Callable[[Image.Image], Image.Image]) -> np.ndarray:
    """A change by Pillow, image by image."""
    made = []
    for image in batch:
        changed = change(
            Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))
        )
        made.append(np.asarray(changed).reshape(*image.shape[1:], len(image)).transpose(2, 0, 1))
    return np.stack(made)


def affine(image: Image.Image, *data: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)


HEIGHT, WIDTH = 22, 30
PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "none": lambda image, s: image,
    "autocontrast": lambda image, s: ImageOps.autocontrast(image),
    "equalize": lambda image, s: ImageOps.equalize(image),
    "brightness": lambda image, s: ImageEnhance.Brightness(image).enhance(1 + 0.9 * s),
    "contrast": lambda image, s: ImageEnhance.Contrast(image).enhance(1 + 0.9 * s),
    "sharpness": lambda image, s: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * s),
    "saturation": lambda image, s: ImageEnhance.Color(image).enhance(1 + 0.9 * s),
    "posterize": lambda image, s: ImageOps.posterize(image, 8 - round(4 * abs(s))),
    "solarize": lambda image, s: image.point(lambda level: 255 - level if level > 255 * (1 - abs(s)) else level),
    "rotate": lambda image, s: image.rotate(30 * s, Image.Resampling.BILINEAR),
    "shear-x": lambda image, s: affine(image, 1, 0.3 * s, -0.3 * s * HEIGHT / 2, 0, 1, 0),
    "shear-y": lambda image, s: affine(image, 1, 0, 0, 0.3 * s, 1, -0.3 * s * WIDTH / 2),
    "translate-x": lambda image, s: affine(image, 1, 0, 0.45 * s * WIDTH, 0, 1, 0),
    "translate-y": lambda image, s: affine(image, 1, 0, 0, 0, 1, 0.45 * s * HEIGHT),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_change_is_pillows(name: str, channels: int) -> None:
    batch = images(9, channels, HEIGHT, WIDTH)
    for strength in (-1, -0.3, 0, 0.1, 0.9):
        if name == "saturation" and channels == 1:
            continue
        ours = OPERATIONS[name](batch, np.full(len(batch), strength, dtype=float))
        theirs = pillows(batch, lambda image, s=strength: PILLOW[name](image, s))  # type: ignore[misc]
        # Pillow cuts fractions off where we round, of saturation twice: in the grey image and in the mixture
        assert np.abs(ours.astype(int) - theirs).max() <= (2 if name == "saturation" else 1), strength


def test_rand_augment_draws_every_change() -> None:
    batch = images(150, 3, 8, 8)
    once = rand_augment(batch, 1, generator(), magnitude=30)
    drawn = set()
    for before, after in zip(batch, once, strict=True):
        for name, change in OPERATIONS.items():
            for sign in (-1.0, 1.0):
                if np.array_equal(change(before[None], np.array([sign]))[0], after):
                    drawn.add(name)
                    break
    assert drawn == OPERATIONS.keys()
    assert np.array_equal(rand_augment(batch, 0, generator()), batch)
    twice = rand_augment(batch, 2, generator(), magnitude=30)
    assert (twice != once).any(axis=(1, 2, 3)).mean() > 0.5


def test_a_magnitude_of_nothing_leaves_place_and_brightness() -> None:
    """Autocontrast and equalize alone have no strength, and leave an image with every level once as it is."""
    batch = np.tile(np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16), (200, 1, 1, 1))
    assert np.array_equal(rand_augment(batch, 3, generator(), magnitude=0), batch)
    assert not np.array_equal(rand_augment(batch, 3, generator()), batch)
    with pytest.raises(HeedfulError, match="magnitude must be at most 30, not 31"):
        rand_augment(batch, 1, generator(), magnitude=31)
