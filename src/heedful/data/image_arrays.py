"""Images and labels in arrays: IDX files (MNIST), NumPy's ``.npz``, and arrays of any usual shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from heedful.data.lazy_image import as_uint8
from heedful.data.text_files import COMPRESSED, open_file
from heedful.errors import HeedfulError, nearest

CHANNELS = (1, 3, 4)
CHUNK = 1 << 20  # pixels counted at a time


def stack_images(images: np.ndarray, location: str) -> np.ndarray:
    """Returns an array of images as uint8 (N, H, W, C), C = 1 (grey), 3 (colour) or 4 (colour with alpha).

    Accepts the shapes (N, H, W); (N, H, W, C) if the last size is 1, 3 or 4; else (N, C, H, W) if the second size is.
    Values are whole numbers from 0 to 255, or fractions from 0 to 1. Raises `HeedfulError`, naming `location`, for
    other shapes and values, and for an empty array.
    """
    shape = images.shape
    if not images.size:
        raise HeedfulError(f"the array is empty (shape {_size_text(shape)}), in {location}; give images")
    if len(shape) == 3:
        images = images[..., None]
    elif len(shape) == 4 and shape[3] not in CHANNELS and shape[1] in CHANNELS:
        images = images.transpose(0, 2, 3, 1)
    elif len(shape) != 4 or shape[3] not in CHANNELS:
        raise HeedfulError(
            f"images are expected, but the array has the shape {_size_text(shape)}, in {location}; give number × "
            "height × width or, with 1, 3 or 4 channels, number × height × width × channels"
        )
    return as_uint8(images, location)


def array_labels(labels: np.ndarray, classes: np.ndarray | None, location: str) -> list[str]:
    """Returns an array of labels, (N) or (N, 1), as a list of texts.

    Texts are unchanged. Whole numbers are replaced by their names in `classes` (numbered from 0), or written out if it
    is None. Raises `HeedfulError`, naming `location`, for other shapes and types, and for a number that has no name.
    """
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1:
        raise HeedfulError(
            f"labels are expected, but the array has the shape {_size_text(labels.shape)}, in {location}; give one "
            "label for each image"
        )
    if flat.dtype.kind == "S":
        return [text.decode("utf-8", "replace") for text in flat.tolist()]
    if flat.dtype.kind == "U":
        return flat.tolist()
    if flat.dtype.kind not in "bui":
        raise HeedfulError(f"the labels have the type {flat.dtype}, in {location}; give whole numbers or texts")
    numbers = flat.astype(np.int64).tolist()
    if classes is None:
        return [str(number) for number in numbers]
    names = array_labels(classes, None, f"'classes' of {location}")
    outside = next((number for number in numbers if not 0 <= number < len(names)), None)
    if outside is not None:
        raise HeedfulError(
            f"there is a label {outside}, but only {len(names)} class names, in {location}; give every label a name"
        )
    return [names[number] for number in numbers]


def _size_text(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "()"


def channel_moments(images: Iterable[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and the standard deviation of each channel, two arrays (C,), with brightness 255 counted as 1.

    `images` are uint8 arrays (C, H, W), read one by one. The sums are exact, since they are computed from the counts of
    the 256 values: var = (n Σ x² − (Σ x)²) / n².

    >>> mean, std = channel_moments([np.array([[[0, 255]]], np.uint8), np.array([[[255, 0]]], np.uint8)])
    >>> mean.tolist(), std.tolist()
    ([0.5], [0.5])
    """
    counts: list[np.ndarray] = []
    for image in images:
        counts = counts or [np.zeros(256, np.int64) for _ in image]
        rows = max(1, CHUNK // image.shape[2])
        for count, channel in zip(counts, image, strict=True):
            for start in range(0, len(channel), rows):
                count += np.bincount(channel[start : start + rows].ravel(), minlength=256)
    moments = [_moments([int(number) for number in count]) for count in counts]
    return np.array([mean for mean, _ in moments]), np.array([std for _, std in moments])


def _moments(count: list[int]) -> tuple[float, float]:
    number = sum(count)
    total = sum(value * times for value, times in enumerate(count))
    squares = sum(value * value * times for value, times in enumerate(count))
    return total / number / 255, ((number * squares - total * total) / number**2) ** 0.5 / 255


MNIST_NAME = re.compile(r"(train|t10k|test)-(images|labels)[.-]idx\d-ubyte(\.gz|\.xz|\.zst)?")
PARTS = {"train": "train", "t10k": "test", "test": "test"}
UNSIGNED_BYTES = 8  # type code of images and labels
COMPRESSION = {b"\x1f\x8b": ".gz", b"\xfd7": ".xz", b"(\xb5": ".zst"}  # first bytes of compressed files


def mnist_files(folder: str) -> dict[str, tuple[str, str]]:
    """Returns the files of each split in a folder with MNIST's file names, as split → (path of images, path of labels).

    A split is included only if both its files are present.
    """
    files: dict[str, dict[str, str]] = {}
    for path in sorted(Path(folder).iterdir(), reverse=True):  # reversed: the plain file counts before its .gz
        if match := MNIST_NAME.fullmatch(path.name):
            files.setdefault(PARTS[match[1]], {})[match[2]] = str(path)
    pairs = {split: (pair["images"], pair["labels"]) for split, pair in files.items() if len(pair) == 2}
    return {split: pairs[split] for split in ("train", "test") if split in pairs}


def read_idx(path: str) -> np.ndarray:
    """Returns the array of unsigned bytes in an IDX file.

    The file is two zero bytes, the code of the type, the number of dimensions, their sizes (32 bits each, big-endian),
    then the values in C order. Raises `HeedfulError` if the header is invalid, if the values are not unsigned bytes, or
    if the length of the file does not match its header.
    """
    with open_file(path) as stream:
        content = stream.read()
    if len(content) < 4 or content[:2] != b"\0\0":
        problem = f"begins with 0x{content[:4].hex()}" if content else "is empty"
        compression = COMPRESSION.get(content[:2])
        remedy = (
            f"it is compressed, so name it {Path(path).name}{compression}"
            if compression and not path.endswith(COMPRESSED)
            else "give images and labels as MNIST ships them, an image folder, .npz or a table"
        )
        raise HeedfulError(f"{path} {problem} and is not an IDX file; {remedy}")
    if content[2] != UNSIGNED_BYTES:
        raise HeedfulError(
            f"the values have the IDX type 0x{content[2]:02x}, in {path}; store unsigned bytes (type 0x08)"
        )
    head = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:head], ">u4")) if len(content) >= head else ()
    count = prod(shape)
    if not shape or len(content) - head != count:
        sizes = f"{' × '.join(map(str, shape))} = {count:,}" if shape else f"{content[3]} dimensions"
        raise HeedfulError(
            f"the file has {max(0, len(content) - head):,} values, but its header says {sizes}, in {path}; copy or "
            "download it again"
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


# Split → the names of its images and labels: Keras's, then MedMNIST's.
NAMES = {
    "train": (("x_train", "y_train"), ("train_images", "train_labels")),
    "valid": (
        ("x_val", "y_val"),
        ("x_valid", "y_valid"),
        ("val_images", "val_labels"),
        ("valid_images", "valid_labels"),
    ),
    "test": (("x_test", "y_test"), ("test_images", "test_labels")),
}
WHOLE = (("images", "labels"), ("x", "y"), ("X", "y"))  # names in a file without splits
CLASSES = "classes"  # the names of the labels 0, 1, ...


class Arrays(NamedTuple):
    """Arrays of one split of an ``.npz`` file.

    Attributes:
        images: the images.
        labels: their labels; None if they were not requested.
        classes: names of the labels 0, 1, ...; None if the file has none or labels were not requested.
        keys: names of ``images`` and ``labels`` in the file.
    """

    images: np.ndarray
    labels: np.ndarray | None
    classes: np.ndarray | None
    keys: tuple[str, ...]


def npz_splits(path: str) -> tuple[str, ...]:
    """Returns the splits ("train", "valid", "test") of which an ``.npz`` file has images."""
    keys = npz_keys(path)
    return tuple(split for split, pairs in NAMES.items() if any(images in keys for images, _ in pairs))


def read_npz(path: str, split: str | None, names: Sequence[str] | None, with_labels: bool) -> Arrays:
    """Returns the images and labels of one split of an ``.npz`` file, or of a file without splits (`split` is None).

    `names` gives the arrays of images and labels, instead of the usual names. Labels are read only `with_labels`.
    Nothing is unpickled. Raises `HeedfulError` for a broken file and for missing arrays.
    """
    keys = npz_keys(path)
    if names is not None:
        chosen = tuple(names)
    else:
        pairs = WHOLE if split is None else NAMES[split]
        chosen = next((pair for pair in pairs if pair[0] in keys), pairs[0])[: 1 + with_labels]
    missing = next((key for key in chosen if key not in keys), None)
    if missing is not None:
        hint = nearest(missing, keys) if names else ""  # only a given name may be misspelled
        hint = hint if hint.startswith("did you mean") else "name the arrays: --data.columns IMAGES,LABELS"
        raise HeedfulError(f"no array {missing!r} among {', '.join(map(repr, keys[:12]))}, in {path}; {hint}")
    with _npz(path) as file:
        classes = file[CLASSES] if with_labels and CLASSES in keys else None
        return Arrays(file[chosen[0]], file[chosen[1]] if with_labels else None, classes, chosen)


def npz_keys(path: str) -> list[str]:
    """Returns the names of the arrays in an ``.npz`` file."""
    with _npz(path) as file:
        return list(file)


@contextmanager
def _npz(path: str) -> Iterator[Mapping[str, np.ndarray]]:
    """Opens the arrays of an ``.npz`` file, read on access. Raises ``HeedfulError`` for errors in the block."""
    try:
        with open_file(path) as stream, np.load(stream, allow_pickle=False) as file:
            yield file
    except HeedfulError:
        raise
    except Exception as error:  # of zip files, of NumPy's own format, and of an .npy that is named .npz
        reason = " ".join(str(error).split()) or type(error).__name__
        remedy = "save numbers or strings" if "pickle" in reason else "save it again with numpy.savez"
        raise HeedfulError(f"{path} cannot be read as .npz ({reason}); {remedy}") from error
