"""Readers of images and labels: folders, IDX, ``.npz``, tables and single files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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

FORMS = (
    f"an image folder (LABEL/*{image_folder.EXTENSIONS[0]}, ...), two IDX files or the folder of MNIST's four, .npz, "
    f"or a table ({', '.join(TABLES)})"
)


class ImageColumns(NamedTuple):
    """The task's names of the column of images and, where it has one, of labels; how many rows at most."""

    image: str
    label: str | None
    limit: int | None

    @property
    def columns(self) -> list[str]:
        """Both names, or the one."""
        return [self.image, *([self.label] if self.label else [])]

    def row(self, image: LazyImage, label: object, file: str, line: int) -> Row:
        """A row with what is wanted."""
        return Row({self.image: image} | ({self.label: label} if self.label else {}), file, line)


def read_rows(
    sources: Sequence[str],
    columns: Mapping[str, Kind],
    names: Sequence[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
    remembered: Mapping[str, str] | None = None,
) -> Rows:
    """The rows of images that `sources` hold: an "image" `LazyImage` and, where `columns` has one, a "label" each.

    - A folder with a sub-folder for each label, images at any depth below it: ``DIR/LABEL/**/*.png`` (.jpg, .jpeg,
      .webp, .bmp, .gif, .tif, .tiff). Where all sub-folders are called train, val (valid, validation) or test they are
      the folder's parts, each with its own folders of labels. Without a label column any images below the folder.
    - Two IDX files, in the order of `columns`, compressed or not; or a folder that has MNIST's four
      (``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-...``): parts train and test.
    - ``.npz``: x_train, y_train, x_val, y_val, x_test, y_test; train_images, train_labels, val_images, ...; images,
      labels; x, y; or the arrays that `names` names. Images are (N, H, W), (N, H, W, C) where the last size is 1, 3 or
      4, else (N, C, H, W) where the second is; values as `as_uint8` takes them. Labels are numbers or texts (N) or
      (N, 1); ``classes`` gives numbers their names.
    - ``.parquet``: encoded bytes, or {"bytes", "path"} as the Hub stores them; labels as texts or numbers, which become
      their names where the file says them (the Hub's ClassLabel).
    - ``.csv``, ``.tsv``, ``.jsonl``: the cell of an image is its path, from the table's folder.
    - Image files, where there is no label column.

    `split` chooses one of `splits`; None is the training part, or the first, where there are parts. A source without
    parts is read whole, whatever `split` says. Of a folder with a `limit` the labels take turns.

    `Rows.skipped` counts files in a folder that are no images by their names, and a table's rows with a blank cell.
    A row knows its file and line: 1 in a file of its own, from 1 on in arrays.

    Raises `HeedfulError`, in one line that names the file, for anything else. Image files are not decoded here, so one
    that is broken raises when its pixels are asked for.
    """
    image = next(name for name, kind in columns.items() if kind == "image")
    label = next((name for name, kind in columns.items() if kind == "label"), None)
    if len(columns) != 1 + (label is not None):
        raise HeedfulError(f"{', '.join(columns)} cannot be read with images; ask for one image and one label")
    for source in sources:
        if source != STDIN and not os.path.exists(source):
            with open_file(source):  # which says what is missing, and what has a like name
                pass
    rows = _read(sources, columns, ImageColumns(image, label, limit), names, split, remembered)
    if not rows:
        found = f"only blank rows ({rows.skipped})" if rows.skipped else "no rows"
        raise HeedfulError(f"{found} in {display_name(', '.join(sources))}; give a file with {' and '.join(columns)}")
    return rows


def splits(sources: Sequence[str]) -> tuple[str, ...]:
    """Of "train", "valid" and "test" those that `sources` has itself: one image folder, `.npz` or folder of IDX files.

    Anything else, what is missing included, has none: ().
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
    wanted: ImageColumns,
    names: Sequence[str] | None,
    split: str | None,
    remembered: Mapping[str, str] | None,
) -> Rows:
    called = None if names is None else dict(zip(columns, names, strict=True))
    first, kind = sources[0], extension(sources[0])
    if len(sources) == 1 and kind == ".npz":
        return _npz(first, wanted, called, None if names else _chosen_split(sources, split))
    if len(sources) == 1 and (kind in TABLES or first == STDIN):
        return _table_rows(first, columns, names, wanted.limit, remembered)
    if names is not None:
        raise HeedfulError(f"columns are named for {first}, which has no names of columns; leave --data.columns out")
    if len(sources) == 1 and os.path.isdir(first):
        return _folder(first, wanted, _chosen_split(sources, split))
    if wanted.label is None and all(source.lower().endswith(image_folder.EXTENSIONS) for source in sources):
        return Rows(
            [wanted.row(LazyImage.of(path), None, path, 1) for path in sources[: wanted.limit]], 0, [wanted.image]
        )
    if len(sources) != len(columns) or kind in (*TABLES, *image_folder.EXTENSIONS, ".npz"):
        found = f"{len(sources)} files ({', '.join(sources)})" if len(sources) > 1 else display_name(first)
        raise HeedfulError(f"{found} cannot be read as {' and '.join(columns)}; give {FORMS}")
    paths = dict(zip(columns, sources, strict=True))
    return _idx(paths[wanted.image], paths[wanted.label] if wanted.label else None, wanted)


def _chosen_split(sources: Sequence[str], split: str | None) -> str | None:
    """Which part to read; None where there are none."""
    there = splits(sources)
    if split is not None and there and split not in there:
        use = image_folder.split_hint(there, split, sources[0])
        raise HeedfulError(f"no split {split!r} in {sources[0]}; it has {' and '.join(there)}{use}")
    return (split or there[0]) if there else None


def _folder(folder: str, wanted: ImageColumns, part: str | None) -> Rows:
    from heedful.data import image_arrays

    if files := image_arrays.mnist_files(folder):
        images, labels = files[str(part)]
        return _idx(images, labels if wanted.label else None, wanted)
    folder = image_folder.split_folders(folder)[part] if part else folder
    if wanted.label is None:
        paths, others = image_folder.all_images(folder)
        found = [(path, "") for path in paths[: wanted.limit]]
    else:
        found, others = image_folder.labelled_images(folder, wanted.limit)
    rows = Rows((wanted.row(LazyImage.of(path), label, path, 1) for path, label in found), 0, wanted.columns)
    for path in others:
        rows.skip(path)
    return rows


def _idx(images: str, labels: str | None, wanted: ImageColumns) -> Rows:
    from heedful.data import image_arrays

    pictures = image_arrays.stack_images(image_arrays.read_idx(images), images)
    texts = None if labels is None else image_arrays.label_names(image_arrays.read_idx(labels), None, labels)
    return _rows(pictures, texts, images, wanted, [images] if labels is None else [images, labels])


def _npz(path: str, wanted: ImageColumns, names: Mapping[str, str] | None, part: str | None) -> Rows:
    from heedful.data import image_arrays

    keys = None if names is None else [names[column] for column in wanted.columns]
    held = image_arrays.read_npz(path, part, keys, wanted.label is not None)
    pictures = image_arrays.stack_images(held.images, f"{held.keys[0]!r} of {path}")
    texts = (
        None
        if held.labels is None
        else image_arrays.label_names(held.labels, held.classes, f"{held.keys[1]!r} of {path}")
    )
    return _rows(pictures, texts, path, wanted, held.keys)


def _rows(
    pictures: np.ndarray, labels: list[str] | None, file: str, wanted: ImageColumns, found: Sequence[str]
) -> Rows:
    """A row for each of (N, H, W, C) images; those with a blank label are left out."""
    if labels is not None and len(labels) != len(pictures):
        raise HeedfulError(
            f"{len(pictures):,} images and {len(labels):,} labels, in {' and '.join(dict.fromkeys((file, *found)))}; "
            "give one label an image"
        )
    rows = Rows(columns=found)
    for line, (pixels, label) in enumerate(zip(pictures, labels or repeat("."), strict=False), 1):
        if len(rows) == wanted.limit:
            break
        if label.strip():
            name = f"{file}:{line}"
            cell_image = LazyImage(pixels, name) if pixels.shape[2] in (1, 3) else LazyImage.of(pixels, name)
            rows.append(wanted.row(cell_image, label, file, line))
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
    """At most `limit` rows of a table; those with a blank cell are left out and counted.

    Raises `HeedfulError` as `heedful.data.read` does, and for a cell that is neither an image nor the path of a file.
    """
    table = Table(path, columns, names, remembered=remembered or {})
    rows = Rows()
    for line, cells in table:
        if not cells or any(isinstance(cell, str) and not cell.strip() for cell in cells):
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
    """Returns the image of a cell in this line of the table ``path``: an image, or the path of one from its folder."""
    place = f"{display_name(path)}:{line}"
    if isinstance(cell, dict):  # as the Hub stores them: {"bytes", "path"}, one of which may be null
        cell = cell.get("bytes") or cell.get("path")
    if isinstance(cell, bytes):
        return LazyImage.of(cell, place)
    if not isinstance(cell, str):
        found = "null" if cell is None else type(cell).__name__
        raise HeedfulError(
            f"{found} where an image is wanted, in {place}; store the bytes of an image file, or its path"
        )
    found = os.path.join("" if path == STDIN else os.path.dirname(path), cell)
    if not os.path.isfile(found):
        raise HeedfulError(f"no image {found}, in {place}; write paths as seen from the table's folder")
    return LazyImage.of(found)
