"""Readers of images and labels: folders, IDX, ``.npz``, tables and single files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from heedful.data import image_folder
from heedful.data.file_formats import EXTENSIONS as TABLES
from heedful.data.lazy_image import LazyImage
from heedful.data.rows import Kind, Row, Rows
from heedful.data.text_files import STDIN, display_name, extension, open_file
from heedful.errors import HeedfulError

if TYPE_CHECKING:
    import numpy as np  # and with it image_arrays.py: only where it is needed, `heedful --help` is not
from typing import Any

from heedful.data.tables import Table

SOURCES = (
    f"an image folder (LABEL/*{image_folder.EXTENSIONS[0]}, ...), two IDX files or the folder of MNIST's four, .npz, "
    f"or a table ({', '.join(TABLES)})"
)


class ImageColumns(NamedTuple):
    """Names of a task's image column and label column (None: labels are not read), and the maximum number of rows."""

    image: str
    label: str | None
    limit: int | None

    @property
    def columns(self) -> list[str]:
        """Names of the columns that are read."""
        return [self.image, *([self.label] if self.label else [])]

    def row(self, image: LazyImage, label: object, file: str, line: int) -> Row:
        """Returns a row with the image and, if labels are read, its label."""
        return Row({self.image: image} | ({self.label: label} if self.label else {}), file, line)


def read_images(
    sources: Sequence[str],
    columns: Mapping[str, Kind],
    names: Sequence[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    remembered: Mapping[str, str] | None = None,
) -> Rows:
    """Reads images: a row has an "image" (`LazyImage`) and, if `columns` has a label column, a "label".

    If `columns` has a column of texts instead, the source is a table, or a folder with one table: a row has an image
    and a text, and a list of texts gives a row each.

    - A folder with a sub-folder for each label and images at any depth: ``DIR/LABEL/**/*.png`` (.jpg, .jpeg, .webp,
      .bmp, .gif, .tif, .tiff). Sub-folders called train, val (valid, validation) and test are splits, each with folders
      of labels. Without a label column, all images below the folder are read.
    - Two IDX files, in the order of `columns`, compressed or not; or a folder with MNIST's four
      (``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-...``): splits train and test.
    - ``.npz``: x_train, y_train, x_val, y_val, x_test, y_test; train_images, train_labels, val_images, ...; images,
      labels; x, y; or the arrays in `names`. Images are (N, H, W), (N, H, W, C) if the last size is 1, 3 or 4, else
      (N, C, H, W) if the second is, with whole numbers from 0 to 255 or fractions from 0 to 1. Labels are numbers or
      texts (N) or (N, 1); ``classes`` has the names of numbers.
    - ``.parquet``: encoded bytes, or the Hub's {"bytes", "path"}; labels as texts or numbers, which are replaced by
      their names if the file has them (the Hub's ClassLabel).
    - ``.csv``, ``.tsv``, ``.jsonl``: paths of images, relative to the table's folder.
    - Image files, without a label column.

    `split` is one of `splits`; None is "train", or the first. A source without splits is read whole. With a `limit`,
    the labels of a folder take turns.

    `Rows.skipped` counts the files in a folder that are not images, and a table's rows with a blank cell. The line of a
    row is 1 in an image file, and counts from 1 in arrays.

    Raises `HeedfulError`, which names the file, for any other form. Image files are decoded on access, and a broken one
    raises then.
    """
    image = next(name for name, kind in columns.items() if kind == "image")
    if "texts" in columns.values():
        return _checked_rows(_described_images(sources, columns, names, limit, remembered), sources, columns)
    label = next((name for name, kind in columns.items() if kind == "label"), None)
    if len(columns) != 1 + (label is not None):
        raise HeedfulError(
            f"images cannot be read with the columns {', '.join(columns)}; use one image and one label column"
        )
    for source in sources:
        if source != STDIN and not os.path.exists(source):
            with open_file(source):  # raises, with a similar name
                pass
    rows = _read(sources, columns, ImageColumns(image, label, limit), names, split, remembered)
    return _checked_rows(rows, sources, columns)


def _checked_rows(rows: Rows, sources: Sequence[str], columns: Mapping[str, Kind]) -> Rows:
    """Returns the rows; raises ``HeedfulError`` if there are none."""
    if not rows:
        problem = f"only blank rows ({rows.skipped})" if rows.skipped else "no rows"
        raise HeedfulError(f"{problem} in {display_name(', '.join(sources))}; give a file with {' and '.join(columns)}")
    return rows


def _described_images(
    sources: Sequence[str],
    columns: Mapping[str, Kind],
    names: Sequence[str] | None,
    limit: int | None,
    remembered: Mapping[str, str] | None,
) -> Rows:
    """Returns a row for each text of each image in a table."""
    path = sources[0]
    if len(sources) == 1 and os.path.isdir(path):
        tables = [
            entry.path for entry in sorted(os.scandir(path), key=lambda e: e.name) if extension(entry.name) in TABLES
        ]
        if len(tables) != 1:
            found = f"{len(tables)} tables" if tables else "no table"
            raise HeedfulError(
                f"{found} in {path}; give the table ({', '.join(TABLES)}) with the images' paths, relative to its "
                "folder, and their texts"
            )
        path = tables[0]
    elif len(sources) > 1 or (extension(path) not in TABLES and path != STDIN):
        raise HeedfulError(
            f"{display_name(', '.join(sources))} cannot be read as {' and '.join(columns)}; give a table "
            f"({', '.join(TABLES)}) with the paths of the images, relative to its folder, and their texts"
        )
    table = _table_rows(path, columns, names, limit, remembered)
    text = next(name for name, kind in columns.items() if kind == "texts")
    rows = Rows(
        (Row({**row.values, text: one}, row.file, row.line) for row in table for one in row.values[text]),
        table.skipped,
        table.columns,
    )
    rows.blank = table.blank
    rows.inherit_from(table)
    del rows[limit if limit is not None else len(rows) :]
    return rows


def is_idx_folder(source: str) -> bool:
    """Returns True for a folder with MNIST's IDX files, which hold arrays in place of image files."""
    from heedful.data import image_arrays

    return os.path.isdir(source) and bool(image_arrays.mnist_files(source))


def image_splits(sources: Sequence[str]) -> tuple[str, ...]:
    """Returns the splits ("train", "valid", "test") of an image folder, ``.npz`` file or folder of IDX files.

    Other sources, and missing ones, have none: ().
    """
    if len(sources) == 1 and os.path.isdir(sources[0]):
        from heedful.data import image_arrays

        return tuple(image_arrays.mnist_files(sources[0]) or image_folder.split_folders(sources[0]))
    if len(sources) == 1 and extension(sources[0]) == ".npz" and os.path.isfile(sources[0]):
        from heedful.data import image_arrays

        return image_arrays.npz_splits(sources[0])
    return ()


def _read(
    sources: Sequence[str],
    columns: Mapping[str, Kind],
    requested: ImageColumns,
    names: Sequence[str] | None,
    split: str | None,
    remembered: Mapping[str, str] | None,
) -> Rows:
    file_columns = None if names is None else dict(zip(columns, names, strict=True))
    first, kind = sources[0], extension(sources[0])
    if len(sources) == 1 and kind == ".npz":
        return _npz(first, requested, file_columns, partial(_chosen_split, sources, split), remembered or {})
    if len(sources) == 1 and (kind in TABLES or first == STDIN):
        return _table_rows(first, columns, names, requested.limit, remembered)
    if names is not None:
        raise HeedfulError(f"{first} has no column names; leave --data.columns out")
    if len(sources) == 1 and os.path.isdir(first):
        return _folder(first, requested, _chosen_split(sources, split))
    if requested.label is None and all(source.lower().endswith(image_folder.EXTENSIONS) for source in sources):
        return Rows(
            [requested.row(LazyImage.of(path), None, path, 1) for path in sources[: requested.limit]],
            0,
            [requested.image],
        )
    if len(sources) != len(columns) or kind in (*TABLES, *image_folder.EXTENSIONS, ".npz"):
        given = f"{len(sources)} files ({', '.join(sources)})" if len(sources) > 1 else display_name(first)
        raise HeedfulError(f"{given} cannot be read as {' and '.join(columns)}; give {SOURCES}")
    if requested.label is None:
        _check_not_text(first)
    paths = dict(zip(columns, sources, strict=True))
    return _idx(paths[requested.image], paths[requested.label] if requested.label else None, requested)


def _check_not_text(path: str) -> None:
    """Raises ``HeedfulError`` for a text file given in place of images, such as a list of their paths."""
    with open_file(path) as stream:
        start = stream.read(256)
    if start.isascii() and b"\0" not in start and start.strip():
        raise HeedfulError(
            f"{display_name(path)} is a text, but images are needed; give an image, a folder of images, or a table "
            f"({', '.join(TABLES)}) with their paths"
        )


def _chosen_split(sources: Sequence[str], split: str | None) -> str | None:
    """Returns the split to read; None if there are no splits."""
    available = image_splits(sources)
    if split is not None and available and split not in available:
        hint = image_folder.split_hint(available, split, sources[0])
        raise HeedfulError(f"no split {split!r} in {sources[0]}; it has {' and '.join(available)}{hint}")
    return (split or available[0]) if available else None


def _folder(folder: str, requested: ImageColumns, split: str | None) -> Rows:
    from heedful.data import image_arrays

    if files := image_arrays.mnist_files(folder):
        images, labels = files[str(split)]
        return _idx(images, labels if requested.label else None, requested)
    folder = image_folder.split_folders(folder)[split] if split else folder
    if requested.label is None:
        paths, others = image_folder.all_images(folder)
        pairs = [(path, "") for path in paths[: requested.limit]]
    else:
        pairs, others = image_folder.labelled_images(folder, requested.limit)
    rows = Rows((requested.row(LazyImage.of(path), label, path, 1) for path, label in pairs), 0, requested.columns)
    for path in others:
        rows.skip(path)
    return rows


def _idx(images: str, labels: str | None, requested: ImageColumns) -> Rows:
    from heedful.data import image_arrays

    pixels = image_arrays.stack_images(image_arrays.read_idx(images), images)
    texts = None if labels is None else image_arrays.array_labels(image_arrays.read_idx(labels), None, labels)
    return _rows(pixels, texts, images, requested, [images] if labels is None else [images, labels])


def _npz(
    path: str,
    requested: ImageColumns,
    names: Mapping[str, str] | None,
    split: Callable[[], str | None],
    remembered: Mapping[str, str],
) -> Rows:
    from heedful.data import image_arrays

    if names is None and {remembered.get(column) for column in requested.columns} <= {*image_arrays.npz_keys(path)}:
        names = remembered
    keys = None if names is None else [names[column] for column in requested.columns]
    arrays = image_arrays.read_npz(path, split() if keys is None else None, keys, requested.label is not None)
    pixels = image_arrays.stack_images(arrays.images, f"{arrays.keys[0]!r} of {path}")
    texts = (
        None
        if arrays.labels is None
        else image_arrays.array_labels(arrays.labels, arrays.classes, f"{arrays.keys[1]!r} of {path}")
    )
    rows = _rows(pixels, texts, path, requested, arrays.keys)
    rows.mapping = {} if keys is None else dict(zip(requested.columns, keys, strict=True))
    return rows


def _rows(
    images: np.ndarray, labels: list[str] | None, file: str, requested: ImageColumns, names: Sequence[str]
) -> Rows:
    """Returns a row for each of (N, H, W, C) images; those with a blank label are skipped."""
    if labels is not None and len(labels) != len(images):
        raise HeedfulError(
            f"{len(images):,} images, but {len(labels):,} labels, in {' and '.join(dict.fromkeys((file, *names)))}; "
            "give one label for each image"
        )
    rows = Rows(columns=names)
    for line, (pixels, label) in enumerate(zip(images, labels or repeat("."), strict=False), 1):
        if len(rows) == requested.limit:
            break
        if label.strip():
            name = f"{file}:{line}"
            cell_image = LazyImage(pixels, name) if pixels.shape[2] in (1, 3) else LazyImage.of(pixels, name)
            rows.append(requested.row(cell_image, label, file, line))
        else:
            rows.skip(file, line)
    return rows


def _table_rows(
    path: str,
    columns: Mapping[str, Kind],
    names: Sequence[str] | None,
    limit: int | None,
    remembered: Mapping[str, str] | None = None,
) -> Rows:
    """Returns at most `limit` rows of a table; those with a blank cell are skipped and counted.

    Raises `HeedfulError` as `heedful.data.read`, and for a cell that is neither an image nor the path of a file.
    """
    table = Table(path, columns, names, remembered=remembered or {})
    rows = Rows()
    for line, cells in table:
        if not cells or any(cell == () or (isinstance(cell, str) and not cell.strip()) for cell in cells):
            rows.skip(path, line)
            continue
        values = {
            column: cell_image(cell, path, line) if columns[column] == "image" else cell
            for column, cell in zip(table.chosen_columns, cells, strict=True)
        }
        rows.append(Row(values, path, line))
        if len(rows) == limit:
            break
    table.annotate(rows)
    return rows


def cell_image(cell: Any, path: str, line: int) -> LazyImage:
    """Returns the image in a cell of a table: the bytes of an image file, or a path relative to the table's folder.

    Args:
        cell: bytes, a path, or a mapping with the key "bytes" or "path".
        path: the table.
        line: line or row number of the cell, for messages.

    Raises:
        HeedfulError: the cell is neither bytes nor a path, or the image file does not exist.
    """
    location = f"{display_name(path)}:{line}"
    if isinstance(cell, dict):  # the Hub's {"bytes", "path"}, one of which may be null
        cell = cell.get("bytes") or cell.get("path")
    if isinstance(cell, bytes):
        return LazyImage.of(cell, location)
    if not isinstance(cell, str):
        actual = "null" if cell is None else type(cell).__name__
        raise HeedfulError(
            f"the cell is {actual}, but an image is expected, in {location}; store the bytes of an image, or its path"
        )
    file = os.path.join("" if path == STDIN else os.path.dirname(path), cell)
    if not os.path.isfile(file):
        raise HeedfulError(f"there is no image {file}, in {location}; write paths relative to the table's folder")
    return LazyImage.of(file)
