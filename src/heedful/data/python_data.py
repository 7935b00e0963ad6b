"""Python objects as data, written once to a table in a folder; all other code reads that table like a user's file.

A table on disk gives Python data what files have: a fingerprint, the same split when a run resumes, rows that messages
can name, and constant memory for any number of rows.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any

from heedful.data.lazy_image import LazyImage
from heedful.errors import HeedfulError, plural
from heedful.util.files import atomic_file

CHUNK = 10_000  # rows of a DataFrame that are converted at a time
PER_FOLDER = 1_000  # images in one folder
ACCEPTED = (
    "a path, a list of dicts, a DataFrame, a data set of the datasets package, or another iterable that yields a dict "
    "for each row"
)
VALIDATION = ("validation", "valid", "val", "dev")  # names of this split in a mapping of splits


def is_path(data: Any) -> bool:
    """Returns True for a path, or for a list or tuple of paths.

    >>> is_path("a.tsv"), is_path(["a.en", "a.fr"]), is_path([{"text": "a"}]), is_path([])
    (True, True, False, False)
    """
    many = data if isinstance(data, list | tuple) and data else [data]
    return all(isinstance(path, str | PathLike) for path in many)


def as_paths(data: Any) -> tuple[str, ...]:
    """Returns the path, or the list or tuple of paths, in ``data`` as a tuple of strings."""
    return tuple(map(os.fspath, data)) if isinstance(data, list | tuple) else (os.fspath(data),)


def mapped_split(data: Any, split: str) -> Any:
    """Returns the ``"train"`` or ``"valid"`` part of a mapping of splits, such as a ``DatasetDict``.

    Data without splits is returned unchanged for ``"train"``, and its ``"valid"`` part is None.
    """
    if not is_splits(data):
        return data if split == "train" else None
    names = ("train",) if split == "train" else VALIDATION
    name = next((name for name in names if name in data), None)
    if name is None and split == "train":
        raise HeedfulError(f"the data has no split 'train', only {', '.join(map(repr, data))}; pass one of its splits")
    return None if name is None else data[name]


def is_splits(data: Any) -> bool:
    """Returns True for a mapping of split names to tables."""
    known = ("train", "test", *VALIDATION)
    return isinstance(data, Mapping) and bool(data) and all(str(name) in known for name in data)


def records(data: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of Python data as mappings by column name.

    Args:
        data: a pandas or polars DataFrame, a ``Dataset`` or ``IterableDataset``, a mapping of columns to lists of
            values, or any iterable of mappings.

    Numbers that stand for class names (``ClassLabel`` of the datasets package) become these names.

    Raises ``HeedfulError`` for other objects, and for a row that is no mapping; it names the row, counted from 1.

    >>> list(records({"text": ["a", "b"], "label": [0, 1]}))
    [{'text': 'a', 'label': 0}, {'text': 'b', 'label': 1}]
    """
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # pandas
        for start in range(0, len(data), CHUNK):
            yield from data.iloc[start : start + CHUNK].to_dict("records")
        return
    if hasattr(data, "iter_rows") and hasattr(data, "columns"):  # polars
        yield from data.iter_rows(named=True)
        return
    if isinstance(data, Mapping):
        yield from _rows_of_columns(data)
        return
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise HeedfulError(f"data of type {type(data).__name__} cannot be read; give {ACCEPTED}")
    names = class_names(data)
    for number, row in enumerate(data, 1):
        if not isinstance(row, Mapping):
            raise HeedfulError(f"row {number} of the data is of type {type(row).__name__}, not a dict; give {ACCEPTED}")
        yield {name: _class_name(value, names.get(name)) for name, value in row.items()} if names else row


def _rows_of_columns(columns: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of a mapping from column names to lists of equal length."""
    for name, values in columns.items():
        if isinstance(values, str | bytes) or (not isinstance(values, Sequence) and not hasattr(values, "__len__")):
            raise HeedfulError(
                f"column {name!r} of the data is not a list but {type(values).__name__}; give {ACCEPTED}"
            )
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{name!r} has {plural(count, 'value')}" for name, count in lengths.items())
        raise HeedfulError(f"the columns of the data have different lengths ({described}); make them equal")
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def class_names(data: Any) -> dict[str, Sequence[str]]:
    """Returns the class names of each column whose numbers stand for classes, from a data set's ``features``."""
    features = getattr(data, "features", None)
    if not isinstance(features, Mapping):
        return {}
    nested = {name: getattr(feature, "feature", feature) for name, feature in features.items()}  # of a list of classes
    names = {name: getattr(feature, "names", None) for name, feature in nested.items()}
    return {name: classes for name, classes in names.items() if isinstance(classes, list)}


def _class_name(value: Any, names: Sequence[str] | None) -> Any:
    if names is None or value is None:
        return value
    if isinstance(value, list | tuple):
        return [_class_name(item, names) for item in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None  # -1: not labelled


def write_table(data: Any, path: Path, *, image_paths: bool = False) -> int:
    """Writes Python data as JSON lines to ``path``, one object a row; returns the number of rows.

    Images (PIL images, arrays, encoded bytes) are written as files into a folder beside the table. The table has their
    paths, relative to its own folder. With ``image_paths``, texts that are paths of files, relative to the current
    folder, become absolute paths. The table is written to a temporary file and renamed, so it is never incomplete.

    Raises ``HeedfulError``, naming the row and the column, for objects that :func:`records` cannot read, for data
    without rows, and for a value that a table cannot hold.
    """
    images = _Images(path.with_suffix(".images"))
    rows, count = records(data), 0
    first = list(islice(rows, 1))  # raises for other objects before anything is written
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        for count, row in enumerate(chain(first, rows), 1):
            plain = {str(name): _plain(value, count, str(name), images) for name, value in row.items()}
            if image_paths:
                plain |= {
                    n: os.path.abspath(v) for n, v in plain.items() if type(row.get(n)) is str and os.path.isfile(v)
                }
            file.write(json.dumps(plain, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
        if not count:
            raise HeedfulError("the data has no rows; give at least two")
    return count


class _Images:
    """Writes images as files into numbered folders beside a table."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def write(self, image: LazyImage) -> str:
        """Writes an image, without loss; returns its path, relative to the table's folder."""
        folder = self.folder / f"{self.count // PER_FOLDER:04}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.count:07}.png"
        self.count += 1
        if isinstance(image.source, bytes):  # encoded: kept as it is
            path.write_bytes(image.source)
        else:
            from PIL import Image

            pixels = image.pixels()
            Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(path, compress_level=1)
        return path.relative_to(self.folder.parent).as_posix()


def _plain(value: Any, row: int, column: str, images: _Images) -> Any:
    """Returns a value of a row as JSON has it: text, number, list, mapping or None; images become paths."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None  # pandas has NaN for a missing text
    if isinstance(value, PathLike):
        return os.path.abspath(value)
    if isinstance(value, Mapping):
        if value.keys() == {"bytes", "path"}:  # an image of the Hub, not decoded
            encoded, path = value["bytes"], value["path"]
            return os.path.abspath(path) if encoded is None else images.write(_image(encoded, row, column))
        return {str(name): _plain(item, row, column, images) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, row, column, images) for item in value]
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu().numpy()
        if value.ndim == 3 and value.shape[0] in (1, 3, 4):
            value = value.transpose(1, 2, 0)  # (C, H, W), as PyTorch has images
    if hasattr(value, "__array__") and getattr(value, "ndim", 2) == 0 and hasattr(value, "item"):
        return _plain(value.item(), row, column, images)  # a NumPy number
    if hasattr(value, "__array__") and getattr(value, "ndim", 2) == 1:
        return [_plain(item, row, column, images) for item in value.tolist()]
    if isinstance(value, bytes | bytearray) or hasattr(value, "__array__") or hasattr(value, "getbands"):
        return images.write(_image(value, row, column))
    if hasattr(value, "isoformat"):  # a date
        return value.isoformat()
    if type(value).__name__ in ("NAType", "NaTType"):  # missing values of pandas
        return None
    raise HeedfulError(
        f"row {row} of the data: column {column!r} holds a value of type {type(value).__name__}; give a text, a "
        "number, a list, a dict or an image, or drop the column"
    )


def _image(value: Any, row: int, column: str) -> LazyImage:
    try:
        image = LazyImage.of(bytes(value) if isinstance(value, bytearray) else value, f"row {row}, column {column!r}")
        image.header()  # raises for bytes that are no image
        return image
    except HeedfulError as error:
        raise HeedfulError(f"row {row} of the data: column {column!r}: {error}") from None
