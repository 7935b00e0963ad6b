"""Image preprocessing: ``preprocessor_config.json``, as ``transformers`` reads and writes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful.errors import HeedfulError, nearest
from heedful.pretrained.configuration import home
from heedful.pretrained.folder import CONFIG, read_json, to_json
from heedful.util.files import write

if TYPE_CHECKING:
    import numpy as np

FILE = "preprocessor_config.json"
Resample = Literal["nearest", "lanczos", "bilinear", "bicubic"]
RESAMPLES: tuple[Resample, ...] = ("nearest", "lanczos", "bilinear", "bicubic")  # by Pillow's numbers, 0 to 3
REFUSED = ("do_pad", "do_thumbnail", "do_align_long_axis", "do_reduce_labels")  # steps of other processors, never taken
NOT_KEPT = ("feature_extractor_type", "auto_map", "default_to_square")  # of another class, or said anew by the size
FACTOR = 1 / 255
HIGHEST = 1e6  # of the values that a model is given

# The processors whose steps are ours, and what each takes for granted where a file does not say it. Those of BiT and
# CLIP read a size of one number as the shorter side's.
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_CLIP = {
    "size": 224,
    "default_to_square": False,
    "do_center_crop": True,
    "crop_size": 224,
    "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
PROCESSORS: Mapping[str, Mapping[str, Any]] = {
    "ViTImageProcessor": {"size": 224, "resample": 2, **_HALF},
    "DeiTImageProcessor": {"size": 256, "do_center_crop": True, "crop_size": 224, "resample": 3, **_HALF},
    "BitImageProcessor": _CLIP,
    "CLIPImageProcessor": _CLIP,
}
BY_MODEL = {
    "vit": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "ijepa": "ViTImageProcessor",
}  # where the file names none


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Preprocessing of pixels p, 0 to 255: resized to a square, then (factor · p − mean) / std per channel.

    >>> grey = Preprocessing(size=28, mean=(0.25,), std=(0.5,))
    >>> grey.shape, Preprocessing.from_dict(grey.to_dict()) == grey
    ((1, 28, 28), True)
    """

    size: int  # the length of the sides to which an image is resized
    sides: Literal["both", "shorter"] = "both"  # which sides that is; both: whatever the image's shape
    crop: int | None = None  # the side of the middle that is kept of it
    resample: Resample = "bilinear"
    factor: float = FACTOR
    mean: tuple[float, ...]  # a channel each, one or three
    std: tuple[float, ...]
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)  # the settings it was read from

    @property
    def channels(self) -> Literal[1, 3]:
        """1 grey, 3 colour."""
        return 1 if len(self.mean) == 1 else 3

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of what comes out."""
        return self.channels, self.crop or self.size, self.crop or self.size

    def sized(self, side: int) -> Preprocessing:
        """Returns the same for a model that sees ``side`` pixels; of what is cut off, the same share."""
        if self.crop is None:
            return replace(self, size=side)
        return replace(self, crop=side, size=round(side * self.size / self.crop))

    def fitted(self, pixels: np.ndarray) -> np.ndarray:
        """An image (H, W, C) as the model's (C, height, width), both uint8: resized by Pillow, the middle cut out.

        With the shorter side at ``size``, the longer is ⌊size · longer / shorter⌋; a middle that cannot be exact lies
        half a pixel to the upper left. Both as in the published processors.
        """
        from heedful.data.image_transforms import resize

        height, width, _ = pixels.shape
        target = (self.size, self.size)
        if self.sides == "shorter":
            short, long = sorted((height, width))
            longer = self.size * long // short
            target = (self.size, longer) if height <= width else (longer, self.size)
        pixels = resize(pixels, target, resample=self.resample)
        if self.crop is not None:
            top, left = ((side - self.crop) // 2 for side in target)
            pixels = pixels[top : top + self.crop, left : left + self.crop]
        return pixels.transpose(2, 0, 1)

    def normalised(self, batch: np.ndarray) -> np.ndarray:
        """Images (B, C, H, W) in uint8 as what the model sees, float32 of the same shape."""
        from heedful.data.image_transforms import normalise

        return normalise(batch, self.mean, self.std, self.factor)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings of a ``ViTImageProcessor``, which takes grey images too.

        Entries of ``source`` that we do not write are kept where they say the same preprocessing.
        """
        ours = self._settings()
        merged = {key: value for key, value in self.source.items() if key not in NOT_KEPT} | ours
        try:
            return merged if Preprocessing.from_dict(merged) == self else ours
        except HeedfulError:
            return ours

    def _settings(self) -> dict[str, Any]:
        rgb = {"do_convert_rgb": True} if len(self.mean) == 3 else {}
        crop = {} if self.crop is None else {"do_center_crop": True, "crop_size": _square(self.crop)}
        return {
            "image_processor_type": "ViTImageProcessor",
            **rgb,
            "do_resize": True,
            "size": _square(self.size) if self.sides == "both" else {"shortest_edge": self.size},
            "resample": RESAMPLES.index(self.resample),
            **crop,
            "do_rescale": True,
            "rescale_factor": self.factor,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], model_type: str | None = None) -> Preprocessing:
        """Of a processor's settings, absent ones as that processor has them; where none is named, as that of a
        ``model_type`` has them, ViT's by default. Raises ``HeedfulError`` for what we do not do.
        """
        source, given = dict(settings), {key: value for key, value in settings.items() if value is not None}
        settings = {**PROCESSORS[_processor(given, model_type)], **given}
        for key in settings:
            if key.startswith("do_") and not isinstance(settings[key], bool):
                raise HeedfulError(f"{key} is {settings[key]!r}; give true or false")
        wrong = next(
            (key for key in REFUSED if settings.get(key)), None if settings.get("do_resize", True) else "do_resize"
        )
        if wrong:
            raise HeedfulError(f"{wrong} is {settings[wrong]!r}; images are resized, cropped and normalised, no more")
        factor, resample = settings.get("rescale_factor", FACTOR), settings["resample"]
        if type(factor) not in (float, int) or not 0 < factor < math.inf:
            raise HeedfulError(f"rescale_factor is {factor!r}; give a number above 0, such as 1 / 255")
        if type(resample) is not int or not 0 <= resample < len(RESAMPLES):
            raise HeedfulError(f"resample is {resample!r}; give 0 (nearest), 1 (Lanczos), 2 (bilinear) or 3 (bicubic)")
        mean, std = (_numbers(key, settings[key]) for key in ("image_mean", "image_std"))
        if len(mean) != len(std) or min(std) <= 0:
            raise HeedfulError(f"image_mean is {list(mean)}, image_std {list(std)}; give one each for 1 or 3 channels")
        if not settings.get("do_normalize", True):
            mean, std = (0.0,) * len(mean), (1.0,) * len(std)
        size, sides = _size(settings)
        crop = _side("crop_size", settings.get("crop_size")) if settings.get("do_center_crop") else None
        if crop is not None and crop > size:
            raise HeedfulError(f"crop_size is {crop}, more than the size {size}; give at most that")
        if crop is None and sides == "shorter":
            raise HeedfulError(
                f"size is {settings['size']!r} without do_center_crop; only squares are supported: cut one"
            )
        factor = float(factor) if settings.get("do_rescale", True) else 1.0
        highest = max((255 * factor + abs(centre)) / spread for centre, spread in zip(mean, std, strict=True))
        if highest > HIGHEST:
            raise HeedfulError(
                f"image_mean {list(mean)}, image_std {list(std)} and the rescale factor {factor} make values up to "
                f"{highest:.3g} of pixels; give those of the model's training"
            )
        return cls(
            size=size,
            sides=sides,
            crop=crop,
            resample=RESAMPLES[resample],
            factor=factor,
            mean=mean,
            std=std,
            source=source,
        )


def read_preprocessing(folder: str | Path) -> Preprocessing:
    """Reads a folder's preprocessing; raises ``HeedfulError`` if it is missing or unsupported."""
    path = home(Path(folder), FILE) / FILE
    if not path.exists():
        raise HeedfulError(f"{folder} has no {FILE}, which says how images are prepared; copy the model's own there")
    settings = read_json(path)
    model = path.with_name(CONFIG)
    try:
        return Preprocessing.from_dict(settings, read_json(model).get("model_type") if model.exists() else None)
    except HeedfulError as error:
        raise HeedfulError(f"{path}: {error}") from None


def write_preprocessing(preprocessing: Preprocessing, folder: str | Path) -> None:
    """Writes it into the folder."""
    write(Path(folder) / FILE, to_json(preprocessing.to_dict()).decode())


def _processor(settings: Mapping[str, Any], model_type: str | None) -> str:
    """Returns the class that is meant: named, named as classes were called once, or that of the model."""
    named = settings.get("image_processor_type") or settings.get("feature_extractor_type")
    if named is None:
        return BY_MODEL.get(str(model_type), "ViTImageProcessor")
    name = str(named).replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    if name not in PROCESSORS:
        raise HeedfulError(f"the image processor {named!r} is not supported; {nearest(name, PROCESSORS)}")
    return name


def _square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


def _size(settings: Mapping[str, Any]) -> tuple[int, Literal["both", "shorter"]]:
    """Returns the length, and which sides have it."""
    value = settings["size"]
    if isinstance(value, Mapping) and value.keys() == {"shortest_edge"}:
        return _side("size", value["shortest_edge"]), "shorter"
    alone = not isinstance(value, Mapping) and not settings.get("default_to_square", True)
    return _side("size", value), "shorter" if alone else "both"


def _side(key: str, value: Any) -> int:
    """Returns the side of a square, which is told as a number or as height and width."""
    pair = [value.get("height"), value.get("width")] if isinstance(value, Mapping) else value
    first, second = pair if isinstance(pair, list) and len(pair) == 2 else (pair, pair)
    if first != second or type(first) is not int or first < 1:
        raise HeedfulError(f"{key} is {value!r}; only squares are supported, as a number or equal height and width")
    return first


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _numbers(key: str, value: Any) -> tuple[float, ...]:
    right = isinstance(value, list) and len(value) in (1, 3)
    if not right or not all(_real(number) for number in value):
        raise HeedfulError(f"{key} is {value!r}; give a list of numbers, one for each of 1 or 3 channels")
    return tuple(float(number) for number in value)
