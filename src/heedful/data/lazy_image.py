"""``LazyImage``: an image that is decoded on access."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from heedful.data.image_metadata import MAX_BLOCKS, ORIENTATION, without_metadata
from heedful.data.text_files import open_file
from heedful.errors import HeedfulError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

TIFF_WIDTH, TIFF_HEIGHT, TILE_WIDTH, TILE_LENGTH = 256, 257, 322, 323  # tags of a TIFF
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")  # not EPS and others, which Pillow gives to outside programs
MAX_PIXELS = 1 << 26  # 8,192 × 8,192; decoding takes up to 10 bytes a pixel, 670 MB
MAX_SCANS = 100  # of a JPEG, whose cameras and libraries write 10; each passes over all pixels
GREY = ("1", "L", "LA", "I", "F")  # Pillow's modes with one channel; 16-bit modes begin with "I;16"


class ImageInfo(NamedTuple):
    """Properties of an image that are known without decoding it."""

    size: tuple[int, int]  # (width, height), upright
    colour: bool
    transparent: bool  # at least partly
    has_frames: bool  # several frames, as in an animation


@dataclass(frozen=True, slots=True, eq=False)
class LazyImage:
    """Image that is read and decoded on access, and not kept in memory.

    ``source`` is a path, encoded bytes or an array; ``name`` is the image's name in messages. Use ``LazyImage.of`` to
    create one. Two images are equal if their stored bytes, or their arrays, are equal.

    >>> import numpy as np
    >>> image = LazyImage.of(np.array([[0, 128, 255]], dtype=np.uint8), "a strip")
    >>> image.size, image.pixels().shape, image.pixels(channels=3)[0, 1].tolist()
    ((3, 1), (1, 3, 1), [128, 128, 128])
    """

    source: str | bytes | np.ndarray
    name: str

    @classmethod
    def of(cls, source: Any, name: str | None = None) -> LazyImage:
        """Creates an image from a path, encoded bytes (PNG, JPEG, ...), a PIL image or an array.

        Arrays are (H, W) or (H, W, C), C = 1, 2 (grey, alpha), 3 or 4 (colour, alpha), with whole numbers from 0 to 255
        or fractions from 0 to 1. ``name`` is for messages; by default the path. Raises ``HeedfulError`` for any other
        source.
        """
        import numpy as np
        from PIL import Image

        if isinstance(source, LazyImage):
            return source
        if isinstance(source, str | PathLike):
            return cls(fspath(source), name or fspath(source))
        if isinstance(source, bytes | bytearray | memoryview):
            return cls(bytes(source), name or "the bytes given")
        if isinstance(source, np.ndarray):
            return cls(_from_array(source, name or "the array given"), name or "the array given")
        if isinstance(source, Image.Image):
            name = name or str(getattr(source, "filename", "") or "the image given")
            with _one_line_errors(name):
                return cls(_to_array(_upright(source), name), name)
        raise HeedfulError(
            f"{type(source).__name__} {repr(source)[:40]!r} is not an image; give a path, the bytes of an "
            "image file, a PIL image or an array (H, W, C)"
        )

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels, rotated upright as EXIF says. Only the header of a file is decoded."""
        if not isinstance(self.source, str | bytes):
            return self.source.shape[1], self.source.shape[0]
        with self._image() as (image, orientation):
            width, height = _stored_size(image)
            is_turned = (_orientation(image) if orientation is None else orientation) >= 5
            return (height, width) if is_turned else (width, height)

    @property
    def decoded_pixels(self) -> int:
        """Number of pixels that decoding computes, from the header alone: of a TIFF, those of its whole tiles."""
        if not isinstance(self.source, str | bytes):
            return self.source.shape[0] * self.source.shape[1]
        with self._image() as (image, _):
            return _decoded_pixels(image)

    def header(self) -> ImageInfo:
        """Returns the properties of the image. Raises ``HeedfulError`` if the header of the file is unreadable."""
        if not isinstance(self.source, str | bytes):
            return ImageInfo(self.size, self.source.shape[2] > 1, transparent=False, has_frames=False)
        size = self.size
        with self._image() as (image, _):
            grey = image.mode in GREY or image.mode.startswith("I;16")
            return ImageInfo(size, not grey, image.has_transparency_data, bool(getattr(image, "is_animated", False)))

    def pixels(self, channels: Literal[1, 3] | None = None) -> np.ndarray:
        """Returns the pixels as a new uint8 array (H, W, C), upright.

        - ``channels``: 1 is grey, 3 red, green and blue; None is the image's own (1 for grey, 3 for all others). Colour
          becomes grey by ITU-R BT.601: 0.299 R + 0.587 G + 0.114 B; grey becomes colour by repetition.
        - EXIF's orientation is applied. Transparent pixels are put on white. Palettes, CMYK and other colour spaces
          become RGB. 16 bits are rounded to 8. Of several frames the first is used.

        Raises ``HeedfulError``, which names the file, if it is missing, empty, broken, truncated, not an image, or has
        more than 67 million pixels. A larger JPEG is decoded at a half, a quarter or an eighth of its size.
        """
        import numpy as np
        from PIL import Image

        if isinstance(self.source, str | bytes):
            with self._image() as (image, orientation):
                _check_size(image, self.name)
                pixels = _to_array(_upright(image, orientation), self.name)
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
        raise HeedfulError(f"{channels} is not a number of channels; give 1 (grey), 3 (colour) or None")

    def digest_bytes(self) -> bytes:
        """Returns the bytes that identify the image: those of the file, or the array's shape and values."""
        if isinstance(self.source, str):
            with open_file(self.source, pipes=False) as stream:
                return stream.read()
        if isinstance(self.source, bytes):
            return self.source
        return repr(self.source.shape).encode() + self.source.tobytes()

    @contextmanager
    def _image(self) -> Iterator[tuple[Image.Image, int | None]]:
        """Opens the image without its metadata; yields it and its orientation, None for a TIFF, which Pillow turns.

        Raises ``HeedfulError`` for errors in the block.
        """
        from PIL import Image

        content = self.digest_bytes()
        if not content:
            raise HeedfulError(f"the image file is empty, in {self.name}; copy or download it again")
        with _one_line_errors(self.name):
            content, orientation = without_metadata(content)
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if image.format == "JPEG":
                    _check_scans(content, self.name)
                yield image, orientation

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyImage) and self.digest_bytes() == other.digest_bytes()

    def __hash__(self) -> int:
        return hash(self.digest_bytes())

    def __repr__(self) -> str:
        return f"LazyImage({self.name!r})"


def as_uint8(values: np.ndarray, name: str) -> np.ndarray:
    """Returns pixel values as uint8: whole numbers from 0 to 255 unchanged, fractions from 0 to 1 times 255, rounded.

    >>> import numpy as np
    >>> as_uint8(np.array([0.0, 0.5, 1.0]), "a row").tolist()
    [0, 128, 255]

    Raises ``HeedfulError``, naming ``name``, for any other values.
    """
    import numpy as np

    if values.dtype == np.uint8:
        return values
    if values.dtype.kind not in "buif":
        raise HeedfulError(f"the pixels have the type {values.dtype}, in {name}; save them as uint8")
    low, high = (values.min(), values.max()) if values.size else (0, 0)
    is_integer = values.dtype.kind != "f"
    if values.dtype.kind == "b" or (not is_integer and low >= 0 and high <= 1):
        return np.round(values * np.float32(255)).astype(np.uint8)
    if low >= 0 and high <= 255 and (is_integer or (values == np.round(values)).all()):
        return values.astype(np.uint8)
    raise HeedfulError(
        f"the pixels have values from {low:.6g} to {high:.6g}, in {name}; save them as whole numbers from 0 to 255, or "
        "as fractions from 0 to 1"
    )


def _from_array(array: np.ndarray, name: str) -> np.ndarray:
    from PIL import Image

    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 2, 3, 4)) or not array.size:
        raise HeedfulError(
            f"an array of shape {tuple(array.shape)} is not an image, in {name}; give (height, width) or "
            "(height, width, channels) with 1 to 4 channels"
        )
    array = as_uint8(array.reshape(*array.shape[:2], -1), name)
    return array if array.shape[2] in (1, 3) else _to_array(Image.fromarray(array), name)


@contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    """Raises Pillow's errors as ``HeedfulError``, and hides its warnings (about size and damaged EXIF)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except HeedfulError:
        raise
    except Exception as error:  # decoders raise any error for broken files: struct.error, IndexError, ...
        from PIL import Image, UnidentifiedImageError

        if isinstance(error, Image.DecompressionBombError):
            raise HeedfulError(f"the image is too large to decode ({error}), in {name}; make it smaller") from error
        if isinstance(error, UnidentifiedImageError):
            raise HeedfulError(
                f"the file is not an image of a known format, in {name}; save it as PNG, JPEG, WebP, BMP, GIF or TIFF"
            ) from error
        reason = " ".join(str(error).split()) or type(error).__name__
        raise HeedfulError(f"the image is broken ({reason}), in {name}; copy or download it again") from error


def _check_size(image: Image.Image, name: str) -> None:
    """Sets a large JPEG to a lower resolution. Raises ``HeedfulError`` for any other large image."""
    width, height = image.size
    if width * height > MAX_PIXELS and image.format == "JPEG":
        scale = (MAX_PIXELS / (width * height)) ** 0.5
        image.draft(None, (max(1, int(width * scale / 2)), max(1, int(height * scale / 2))))
    if _decoded_pixels(image) > MAX_PIXELS:
        raise HeedfulError(
            f"the image has {width:,} × {height:,} pixels or larger tiles, more than {MAX_PIXELS // 10**6} million, in "
            f"{name}; make it smaller"
        )


def _check_scans(content: bytes, name: str) -> None:
    """Raises ``HeedfulError`` for a JPEG with too many scans or segments, of which a small file can hold thousands."""
    scans, place = 0, 2
    for _ in range(MAX_BLOCKS):
        marker = _MARKER.search(content, place)
        if marker is None or marker[1] == b"\xd9":  # end of the image
            return
        scans += marker[1] == b"\xda"
        if scans > MAX_SCANS:
            break
        place = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])
    raise HeedfulError(f"the JPEG has more than {MAX_SCANS} scans or {MAX_BLOCKS:,} segments, in {name}; save it again")


# of a segment with a length; in the data of a scan, 0 and the restart markers (d0 to d7) follow ff
_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd7\xff])")


def _decoded_pixels(image: Image.Image) -> int:
    width, height = _stored_size(image)
    if image.format == "TIFF":  # its tiles are decoded whole, and may be larger than the image
        tile_width, tile_height = (_tiff_number(image, tag, 1) for tag in (TILE_WIDTH, TILE_LENGTH))
        width, height = -(-width // tile_width) * tile_width, -(-height // tile_height) * tile_height
    return width * height


def _stored_size(image: Image.Image) -> tuple[int, int]:
    """Returns (width, height) before EXIF's orientation, which Pillow's newer versions apply to a TIFF on opening."""
    if image.format != "TIFF":
        return image.size
    width, height = image.size
    return _tiff_number(image, TIFF_WIDTH, width), _tiff_number(image, TIFF_HEIGHT, height)


def _tiff_number(image: Any, tag: int, default: int) -> int:
    value = image.tag_v2.get(tag, default)
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"its TIFF tag {tag} is not a positive number")
    return value


def _orientation(image: Image.Image) -> int:
    """Returns EXIF's orientation, 1 to 8; 1 (upright) for a damaged EXIF block, as some cameras write."""
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # parsers raise any error too
        return 1


def _upright(image: Image.Image, orientation: int | None = None) -> Image.Image:
    """Returns an image turned as ``orientation`` says; None: as its metadata say."""
    from PIL.Image import Transpose

    transposes = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    image.load()  # first: this turns a TIFF and removes its orientation
    orientation = _orientation(image) if orientation is None else orientation
    return image.transpose(transposes[orientation]) if orientation in transposes else image


def _to_array(image: Image.Image, name: str) -> np.ndarray:
    """Converts any of Pillow's modes to uint8 (H, W, 1 or 3)."""
    import numpy as np
    from PIL import Image

    if not (image.width and image.height):
        raise ValueError(f"it has {image.width} × {image.height} pixels")
    if image.mode.startswith("I"):
        deep = np.asarray(image)
        if deep.min() < 0 or deep.max() > 65535:
            raise ValueError(f"it has values from {deep.min()} to {deep.max()}, more than 16 bits")
        return np.round(deep / 257).astype(np.uint8)[..., None]
    if image.mode == "F":
        return as_uint8(np.asarray(image), name)[..., None]
    is_grey = image.mode in GREY
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    array = np.array(image.convert("L" if is_grey else "RGB"))
    return array if array.ndim == 3 else array[..., None]
