"""What a folder says of its images: ``preprocessor_config.json``, as ``transformers`` reads and writes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heedful.checkpoints.folder import read_json, to_json
from heedful.errors import HeedfulError
from heedful.files import write

FILE = "preprocessor_config.json"
Resample = Literal["nearest", "lanczos", "bilinear", "bicubic"]
RESAMPLES: tuple[Resample, ...] = ("nearest", "lanczos", "bilinear", "bicubic")  # by Pillow's numbers, 0 to 3
NEEDED = ("do_resize", "do_rescale", "do_normalize")  # steps that are always taken
REFUSED = ("do_pad", "do_thumbnail", "do_align_long_axis", "do_reduce_labels")  # steps of other processors, never taken


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How pixels p, 0 to 255, become what a model sees: a square, and (p / 255 − mean) / std by channel.

    >>> grey = Preprocessing(size=28, mean=(0.25,), std=(0.5,))
    >>> grey.shape, Preprocessing.from_dict(grey.to_dict()) == grey
    ((1, 28, 28), True)
    """

    size: int  # the side to which an image is resized, whatever its own sides
    crop: int | None = None  # the side of the middle that is kept of it
    resample: Resample = "bilinear"
    mean: tuple[float, ...]  # a channel each, one or three
    std: tuple[float, ...]

    @property
    def channels(self) -> Literal[1, 3]:
        """1 grey, 3 colour."""
        return 1 if len(self.mean) == 1 else 3

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of what comes out."""
        return self.channels, self.crop or self.size, self.crop or self.size

    def to_dict(self) -> dict[str, Any]:
        """The settings of a ``ViTImageProcessor``, which takes grey images too."""
        rgb = {"do_convert_rgb": True} if len(self.mean) == 3 else {}
        crop = {} if self.crop is None else {"do_center_crop": True, "crop_size": _square(self.crop)}
        return {
            "image_processor_type": "ViTImageProcessor",
            **rgb,
            "do_resize": True,
            "size": _square(self.size),
            "resample": RESAMPLES.index(self.resample),
            **crop,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Preprocessing:
        """Of a processor's settings, absent ones as ViT has them; raises ``HeedfulError`` for what we do not do."""
        wrong = [key for key in NEEDED if not said.get(key, True)] + [key for key in REFUSED if said.get(key)]
        if wrong:
            raise HeedfulError(f"{wrong[0]} is {said[wrong[0]]!r}; images are resized, cropped and normalised, no more")
        factor, resample = said.get("rescale_factor", 1 / 255), said.get("resample", 2)
        if not isinstance(factor, float) or not math.isclose(factor, 1 / 255, rel_tol=1e-6):
            raise HeedfulError(f"rescale_factor is {factor!r}; only 1 / 255 is supported")
        if type(resample) is not int or not 0 <= resample < len(RESAMPLES):
            raise HeedfulError(f"resample is {resample!r}; give 0 (nearest), 1 (Lanczos), 2 (bilinear) or 3 (bicubic)")
        half = [0.5, 0.5, 0.5]
        mean, std = (_numbers(key, said.get(key, half)) for key in ("image_mean", "image_std"))
        if len(mean) != len(std) or min(std) <= 0:
            raise HeedfulError(f"image_mean is {list(mean)}, image_std {list(std)}; give one each for 1 or 3 channels")
        size = _side("size", said.get("size", 224))
        crop = _side("crop_size", said.get("crop_size", 224)) if said.get("do_center_crop") else None
        if crop is not None and crop > size:
            raise HeedfulError(f"crop_size is {crop}, more than the size {size}; give at most that")
        return cls(size=size, crop=crop, resample=RESAMPLES[resample], mean=mean, std=std)


def read_preprocessing(folder: str | Path) -> Preprocessing:
    """What the folder says; raises ``HeedfulError`` where it says nothing, or something that we do not do."""
    path = Path(folder) / FILE
    if not path.exists():
        raise HeedfulError(f"{folder} has no {FILE}, which says how images are prepared; copy the model's own there")
    said = read_json(path)
    try:
        return Preprocessing.from_dict(said)
    except HeedfulError as error:
        raise HeedfulError(f"{path}: {error}") from None


def write_preprocessing(preprocessing: Preprocessing, folder: str | Path) -> None:
    """Write it into the folder."""
    write(Path(folder) / FILE, to_json(preprocessing.to_dict()).decode())


def _square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


def _side(key: str, value: Any) -> int:
    """The side of a square, which is told as a number or as height and width."""
    sides = {value.get("height"), value.get("width")} if isinstance(value, Mapping) else {value}
    side = sides.pop()
    if sides or type(side) is not int or side < 1:
        raise HeedfulError(f"{key} is {value!r}; only squares are supported, as a number or equal height and width")
    return side


def _numbers(key: str, value: Any) -> tuple[float, ...]:
    right = isinstance(value, list) and len(value) in (1, 3)
    if not right or not all(isinstance(number, int | float) and math.isfinite(number) for number in value):
        raise HeedfulError(f"{key} is {value!r}; give a list of numbers, one for each of 1 or 3 channels")
    return tuple(float(number) for number in value)
