"""Image preprocessing: reads and writes ``preprocessor_config.json`` as ``transformers`` does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful.errors import HeedfulError, known_names
from heedful.pretrained.configuration import home
from heedful.pretrained.folder import CONFIG, indented_json, read_required_json
from heedful.util.files import write

if TYPE_CHECKING:
    import numpy as np

FILE = "preprocessor_config.json"
Resample = Literal["nearest", "lanczos", "bilinear", "bicubic"]
RESAMPLES: tuple[Resample, ...] = ("nearest", "lanczos", "bilinear", "bicubic")  # by Pillow's numbers, 0 to 3
REFUSED = ("do_pad", "do_thumbnail", "do_align_long_axis", "do_reduce_labels")  # unsupported steps
NOT_COPIED = ("feature_extractor_type", "auto_map", "default_to_square")  # of another class, or implied by size
FACTOR = 1 / 255
HIGHEST = 1e6  # largest value that may enter a model

# The supported processors with their defaults. Those of BiT and CLIP read a size of one number as the shorter side's.
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
BY_MODEL = {"deit": "DeiTImageProcessor"}  # by model type, if the file names none; of other types ViT's


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Image preprocessing: resizes pixels p (0 to 255) to a square, then computes (factor · p − mean) / std by channel.

    >>> grey = Preprocessing(size=28, mean=(0.25,), std=(0.5,))
    >>> grey.shape, Preprocessing.from_dict(grey.to_dict()) == grey
    ((1, 28, 28), True)
    """

    size: int  # pixels of a side after resizing
    sides: Literal["both", "shorter"] = "both"  # sides that have this size; "both" ignores the image's aspect ratio
    crop: int | None = None  # pixels of a side of the centre crop
    resample: Resample = "bilinear"
    factor: float = FACTOR
    mean: tuple[float, ...]  # by channel, one or three
    std: tuple[float, ...]
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)  # settings of the source

    @property
    def channels(self) -> Literal[1, 3]:
        """Number of channels: 1 for grey, 3 for colour."""
        return 1 if len(self.mean) == 1 else 3

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the result: (channels, height, width)."""
        return self.channels, self.crop or self.size, self.crop or self.size

    def sized(self, side: int) -> Preprocessing:
        """Returns this preprocessing for results of ``side`` pixels a side; a crop keeps its share of the image."""
        if self.crop is None:
            return replace(self, size=side)
        return replace(self, crop=side, size=round(side * self.size / self.crop))

    def fitted(self, pixels: np.ndarray) -> np.ndarray:
        """Returns an image (H, W, C) resized by Pillow and centre-cropped to (C, height, width), both uint8.

        If the shorter side becomes ``size``, the longer becomes ⌊size · longer / shorter⌋. A crop that cannot be
        centred exactly is half a pixel to the upper left. Both rules are those of the published processors.
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
        """Returns normalised images, float32, of images (B, C, H, W) in uint8."""
        from heedful.data.image_transforms import normalise

        return normalise(batch, self.mean, self.std, self.factor)

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings of a ``ViTImageProcessor`` that does this preprocessing; it supports grey images too.

        Other entries of the settings that were read are copied, unless they would change the preprocessing.
        """
        ours = self._settings()
        merged = {key: value for key, value in self.source.items() if key not in NOT_COPIED} | ours
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
        """Returns the preprocessing that the ``settings`` of an image processor describe.

        Absent settings have the processor's defaults. If the settings name no processor, it is that of ``model_type``,
        or ViT's.
        Raises ``HeedfulError`` for unsupported settings.
        """
        source, given = dict(settings), {key: value for key, value in settings.items() if value is not None}
        settings = {**PROCESSORS[_processor(given, model_type)], **given}
        for key in settings:
            if key.startswith("do_") and not isinstance(settings[key], bool):
                raise HeedfulError(f"{key} is {settings[key]!r}; give true or false")
        unsupported = next(
            (key for key in REFUSED if settings.get(key)), None if settings.get("do_resize", True) else "do_resize"
        )
        if unsupported:
            raise HeedfulError(
                f"{unsupported} is {settings[unsupported]!r}; only resizing, cropping and normalising are supported"
            )
        factor, resample = settings.get("rescale_factor", FACTOR), settings["resample"]
        if type(factor) not in (float, int) or not 0 < factor < math.inf:
            raise HeedfulError(f"rescale_factor is {factor!r}; give a number above 0, such as 1 / 255")
        if type(resample) is not int or not 0 <= resample < len(RESAMPLES):
            raise HeedfulError(f"resample is {resample!r}; give 0 (nearest), 1 (Lanczos), 2 (bilinear) or 3 (bicubic)")
        mean, std = (_numbers(key, settings[key]) for key in ("image_mean", "image_std"))
        if len(mean) != len(std) or min(std) <= 0:
            raise HeedfulError(
                f"image_mean is {list(mean)}, image_std {list(std)}; give 1 or 3 numbers for each, one per channel"
            )
        if not settings.get("do_normalize", True):
            mean, std = (0.0,) * len(mean), (1.0,) * len(std)
        size, sides = _size(settings)
        crop = _side("crop_size", settings.get("crop_size")) if settings.get("do_center_crop") else None
        if crop is not None and crop > size:
            raise HeedfulError(f"crop_size is {crop}, larger than size; give at most {size}")
        if crop is None and sides == "shorter":
            raise HeedfulError(
                f"size is {settings['size']!r} without do_center_crop; only square images are supported: set "
                "do_center_crop"
            )
        factor = float(factor) if settings.get("do_rescale", True) else 1.0
        highest = max((255 * factor + abs(centre)) / spread for centre, spread in zip(mean, std, strict=True))
        if highest > HIGHEST:
            raise HeedfulError(
                f"image_mean {list(mean)}, image_std {list(std)} and rescale_factor {factor} give values up to "
                f"{highest:.3g}; give the values that the model was trained with"
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
    """Returns the image preprocessing of a folder; raises ``HeedfulError`` if it is missing or unsupported."""
    path = home(Path(folder), FILE) / FILE
    if not path.exists():
        raise HeedfulError(f"{folder} has no {FILE} for the preprocessing of images; copy it from the original model")
    settings = read_required_json(path)
    model = path.with_name(CONFIG)
    try:
        return Preprocessing.from_dict(
            settings, read_required_json(model).get("model_type") if model.exists() else None
        )
    except HeedfulError as error:
        raise HeedfulError(f"{path}: {error}") from None


def write_preprocessing(preprocessing: Preprocessing, folder: str | Path) -> None:
    """Writes image preprocessing into a folder, as ``preprocessor_config.json``."""
    write(Path(folder) / FILE, indented_json(preprocessing.to_dict()).decode())


def _processor(settings: Mapping[str, Any], model_type: str | None) -> str:
    """Returns the processor's name: from the settings (older class names too), or else from the model type."""
    class_name = settings.get("image_processor_type") or settings.get("feature_extractor_type")
    if class_name is None:
        return BY_MODEL.get(str(model_type), "ViTImageProcessor")
    name = str(class_name).replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
    if name not in PROCESSORS:
        raise HeedfulError(f"the image processor {class_name!r} is not supported; {known_names(PROCESSORS)}")
    return name


def _square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}


def _size(settings: Mapping[str, Any]) -> tuple[int, Literal["both", "shorter"]]:
    """Returns the size in pixels, and the sides that are resized to it: both, or the shorter."""
    value = settings["size"]
    if isinstance(value, Mapping) and value.keys() == {"shortest_edge"}:
        return _side("size", value["shortest_edge"]), "shorter"
    is_shorter = not isinstance(value, Mapping) and not settings.get("default_to_square", True)
    return _side("size", value), "shorter" if is_shorter else "both"


def _side(key: str, value: Any) -> int:
    """Returns the side of a square, given as a number, a pair, or height and width."""
    pair = [value.get("height"), value.get("width")] if isinstance(value, Mapping) else value
    first, second = pair if isinstance(pair, list) and len(pair) == 2 else (pair, pair)
    if first != second or type(first) is not int or first < 1:
        raise HeedfulError(f"{key} is {value!r}; only squares are supported, as a number or equal height and width")
    return first


def _is_finite_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _numbers(key: str, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) not in (1, 3) or not all(map(_is_finite_number, value)):
        raise HeedfulError(f"{key} is {value!r}; give a list of numbers, one for each of 1 or 3 channels")
    return tuple(float(number) for number in value)
