"""`LazyImage`: an image that is decoded on access."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from heedful.data.text_files import open_file
from heedful.errors import HeedfulError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

ORIENTATION = 0x0112  # the tag of EXIF that says how the camera was held
# Decoding takes up to 10 bytes a pixel, 670 MB of so many: four times those of an image of 4,096 × 4,096 pixels.
LARGEST = 1 << 26
GREY = ("1", "L", "LA", "I", "F")  # Pillow's modes of one channel; those of 16 bits begin with "I;16"


class ImageInfo(NamedTuple):
    """Properties of an image that are known without decoding it."""

    size: tuple[int, int]  # (width, height), upright
    colour: bool
    transparent: bool  # in a part, or whole
    moving: bool  # of several frames


@dataclass(frozen=True, slots=True, eq=False)
class LazyImage:
    """An image: `source` (a path, encoded bytes, or an array) and the `name` by which messages call it.

    Make it with `LazyImage.of`; nothing is read before `size`, `pixels` or `digest_bytes` is asked for, and nothing is
    kept. Two pictures are equal when their stored bytes, or their arrays, are.

    >>> import numpy as np
    >>> picture = LazyImage.of(np.array([[0, 128, 255]], dtype=np.uint8), "a strip")
    >>> picture.size, picture.pixels().shape, picture.pixels(channels=3)[0, 1].tolist()
    ((3, 1), (1, 3, 1), [128, 128, 128])
    """

    source: str | bytes | np.ndarray
    name: str

    @classmethod
    def of(cls, thing: Any, name: str | None = None) -> LazyImage:
        """The picture of a path, of encoded bytes (PNG, JPEG, ...), of a PIL image, or of an array.

        Arrays are (H, W) or (H, W, C), C = 1, 2 (grey, alpha), 3 or 4 (colour, alpha), with values as `as_uint8` takes
        them. `name` is for messages; by default the path. Raises `HeedfulError` for anything else.
        """
        import numpy as np
        from PIL import Image

        if isinstance(thing, LazyImage):
            return thing
        if isinstance(thing, str | PathLike):
            return cls(fspath(thing), name or fspath(thing))
        if isinstance(thing, bytes | bytearray | memoryview):
            return cls(bytes(thing), name or "the bytes given")
        if isinstance(thing, np.ndarray):
            return cls(_from_array(thing, name or "the array given"), name or "the array given")
        if isinstance(thing, Image.Image):
            name = name or str(getattr(thing, "filename", "") or "the image given")
            with _one_line_errors(name):
                return cls(_to_array(_upright(thing), name), name)
        raise HeedfulError(
            f"{type(thing).__name__} {repr(thing)[:40]!r} where an image is wanted; give a path, the bytes of an image "
            "file, a PIL image or an array (H, W, C)"
        )

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels, as seen: after EXIF's orientation. Of files only the head is decoded."""
        if not isinstance(self.source, str | bytes):
            return self.source.shape[1], self.source.shape[0]
        with self._image() as image:
            if image.format == "TIFF":
                image.load()  # which turns it upright, other than any other format
            width, height = image.size
            return (height, width) if _orientation(image) >= 5 else (width, height)

    def head(self) -> ImageInfo:
        """The size and the kind of the image; raises as `pixels` does for what has no head that can be read."""
        if not isinstance(self.source, str | bytes):
            return ImageInfo(self.size, self.source.shape[2] > 1, transparent=False, moving=False)
        size = self.size
        with self._image() as image:
            grey = image.mode in GREY or image.mode.startswith("I;16")
            return ImageInfo(size, not grey, image.has_transparency_data, bool(getattr(image, "is_animated", False)))

    def pixels(self, channels: Literal[1, 3] | None = None) -> np.ndarray:
        """The pixels as a new uint8 array (H, W, C), upright.

        - `channels`: 1 is grey, 3 red, green and blue; None as the image is (grey stays 1, everything else is 3).
          Colour becomes grey by ITU-R BT.601: 0.299 R + 0.587 G + 0.114 B; grey becomes colour by repetition.
        - EXIF's orientation is applied. What is transparent is laid on white. Palettes, CMYK and other colour spaces
          become RGB. Of 16 bits the upper 8 remain (rounded). Of several frames the first counts.

        Raises `HeedfulError`, in one line that names the file, for what is missing, empty, broken, cut off, no image,
        or of more than 67 million pixels. A JPEG of more is decoded at a half, a quarter or an eighth of its size.
        """
        import numpy as np
        from PIL import Image

        if isinstance(self.source, str | bytes):
            with self._image() as image:
                _check_size(image, self.name)
                pixels = _to_array(_upright(image), self.name)
        else:
            pixels = self.source
        match channels, pixels.shape[2]:
            case None, _:
                return pixels.copy()
            case 3, 1:
                return np.repeat(pixels, 3, axis=2)
            case 1, 3:
                return np.array(Image.fromarray(pixels).convert("L"))[..., None]
            case (1, 1) | (3, 3):
                return pixels.copy()
        raise HeedfulError(f"{channels} channels cannot be had of an image; give 1 (grey), 3 (colour) or None")

    def digest_bytes(self) -> bytes:
        """Returns the bytes that identify the image, for fingerprints: as stored, or the array's shape and values."""
        if isinstance(self.source, str):
            with open_file(self.source, pipes=False) as stream:
                return stream.read()
        if isinstance(self.source, bytes):
            return self.source
        return repr(self.source.shape).encode() + self.source.tobytes()

    @contextmanager
    def _image(self) -> Iterator[Image.Image]:
        """The image, its head read; whatever breaks in the block is said in one line."""
        from PIL import Image

        content = self.digest_bytes()
        if not content:
            raise HeedfulError(f"an empty file where an image is wanted, in {self.name}; copy or download it again")
        with _one_line_errors(self.name), Image.open(io.BytesIO(content)) as image:
            yield image

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyImage) and self.digest_bytes() == other.digest_bytes()

    def __hash__(self) -> int:
        return hash(self.digest_bytes())

    def __repr__(self) -> str:
        return f"LazyImage({self.name!r})"


def as_uint8(values: np.ndarray, name: str) -> np.ndarray:
    """Brightness as uint8: whole numbers from 0 to 255 as they are, fractions from 0 to 1 times 255, rounded.

    >>> import numpy as np
    >>> as_uint8(np.array([0.0, 0.5, 1.0]), "a row").tolist()
    [0, 128, 255]

    Raises `HeedfulError`, naming `name`, for any other values.
    """
    import numpy as np

    if values.dtype == np.uint8:
        return values
    if values.dtype.kind not in "buif":
        raise HeedfulError(f"values of type {values.dtype} where pixels are wanted, in {name}; save them as uint8")
    low, high = (values.min(), values.max()) if values.size else (0, 0)
    whole = values.dtype.kind != "f"
    if values.dtype.kind == "b" or (not whole and low >= 0 and high <= 1):
        return np.round(values * np.float32(255)).astype(np.uint8)
    if low >= 0 and high <= 255 and (whole or (values == np.round(values)).all()):
        return values.astype(np.uint8)
    raise HeedfulError(
        f"pixels from {low:.6g} to {high:.6g}, in {name}; save them as whole numbers from 0 to 255, or as fractions "
        "from 0 to 1"
    )


def _from_array(array: np.ndarray, name: str) -> np.ndarray:
    from PIL import Image

    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 2, 3, 4)) or not array.size:
        raise HeedfulError(
            f"an array of shape {tuple(array.shape)} is no image, in {name}; give (height, width) or (height, width, "
            "channels) with 1 to 4 channels"
        )
    array = as_uint8(array.reshape(*array.shape[:2], -1), name)
    return array if array.shape[2] in (1, 3) else _to_array(Image.fromarray(array), name)


@contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    """Pillow's complaints in one line; its warnings (of size, of damaged EXIF) are not for people."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except HeedfulError:
        raise
    except Exception as error:  # broken files raise whatever the decoder stumbled on: struct.error, IndexError, ...
        from PIL import Image, UnidentifiedImageError

        if isinstance(error, Image.DecompressionBombError):
            raise HeedfulError(f"an image too large to be decoded ({error}), in {name}; make it smaller") from error
        if isinstance(error, UnidentifiedImageError):
            raise HeedfulError(
                f"no image of a known format, in {name}; give PNG, JPEG, WebP, BMP, GIF or TIFF"
            ) from error
        reason = " ".join(str(error).split()) or type(error).__name__
        raise HeedfulError(f"a broken image ({reason}), in {name}; copy or download it again") from error


def _check_size(image: Image.Image, name: str) -> None:
    """Has a large JPEG decoded at a lower resolution; raises ``HeedfulError`` for any other large image."""
    width, height = image.size
    if width * height > LARGEST and image.format == "JPEG":
        shrink = (LARGEST / (width * height)) ** 0.5
        image.draft(None, (max(1, int(width * shrink / 2)), max(1, int(height * shrink / 2))))
    if image.width * image.height > LARGEST:
        raise HeedfulError(
            f"an image of {width:,} × {height:,} pixels, more than {LARGEST // 10**6} million, in {name}; "
            "make it smaller"
        )


def _orientation(image: Image.Image) -> int:
    """EXIF's orientation, 1 to 8; 1 (upright) too where the block is damaged, which cameras and editors do."""
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # as above: whatever the parser stumbled on
        return 1


def _upright(image: Image.Image) -> Image.Image:
    from PIL.Image import Transpose

    turned = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    image.load()  # first: a TIFF is turned by this, and has no orientation any more
    orientation = _orientation(image)
    return image.transpose(turned[orientation]) if orientation in turned else image


def _to_array(image: Image.Image, name: str) -> np.ndarray:
    """Any of Pillow's modes as uint8 (H, W, 1 or 3)."""
    import numpy as np
    from PIL import Image

    if not (image.width and image.height):
        raise ValueError(f"{image.width} × {image.height} pixels")
    if image.mode.startswith("I"):
        deep = np.asarray(image)
        if deep.min() < 0 or deep.max() > 65535:
            raise ValueError(f"values from {deep.min()} to {deep.max()}, more than 16 bits")
        return np.round(deep / 257).astype(np.uint8)[..., None]
    if image.mode == "F":
        return as_uint8(np.asarray(image), name)[..., None]
    grey = image.mode in GREY
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    flat = np.array(image.convert("L" if grey else "RGB"))
    return flat if flat.ndim == 3 else flat[..., None]
