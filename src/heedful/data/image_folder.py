"""Image folders: the name of a sub-folder is the label."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

from heedful.data.text_files import subfolders
from heedful.errors import HeedfulError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
PARTS = {"train": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}


def split_folders(folder: str) -> dict[str, str]:
    """Part → the path of its folder: of "train", "valid" (or "val", "validation") and "test" those that are there.

    They are parts only where every sub-folder with an image has such a name, so that among cars, buses and trains a
    folder named "train" is a label.
    """
    if not os.path.isdir(folder):
        return {}
    inner = subfolders(folder)
    filled = [name for name in inner if next(_images(os.path.join(folder, name)), None)]
    if not all(name.lower() in PARTS for name in filled):
        return {}
    found = {PARTS[name.lower()]: os.path.join(folder, name) for name in filled}
    return {part: found[part] for part in ("train", "valid", "test") if part in found}


def split_hint(available: Sequence[str], split: str, source: str) -> str:
    """Returns a hint on how to use the data set ``source`` of ``available``, none of which is the wanted ``split``."""
    if split == "train":
        return f" alone: train on others, and score with heedful evaluate MODEL --data {source} --split {available[-1]}"
    return f" alone: --split {available[0]}" if split == "test" and len(available) == 1 else ""


def labelled_images(folder: str, limit: int | None) -> tuple[list[tuple[str, str]], list[str]]:
    """((path, label) of each image, the paths of the files that are none): the label is the name of the folder's child.

    In the order of the paths; with a `limit`, labels take turns, so that few images still show them all. Deeper folders
    are read too. Hidden files are passed over, other files that are no image by their extension, and images that lie
    beside the folders of labels, are told. Raises `HeedfulError` where no image lies in a sub-folder.
    """
    files = list(_files(folder))
    images = [path for path in files if _is_image(path)]
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in images:
        label, *below = Path(path).relative_to(folder).parts
        if below:
            groups[label].append((path, label))
    found = [pair for label in sorted(groups) for pair in groups[label]]
    if not found and images:
        raise HeedfulError(
            f"images, but none in a sub-folder that names its label, in {folder}; put them as "
            f"{os.path.join(folder, 'LABEL', Path(images[0]).name)}"
        )
    if not found:
        raise HeedfulError(f"no image in {folder}; give a folder with LABEL/*.png, LABEL/*.jpg, ...")
    taken = {path for path, _ in found}
    others = [path for path in files if path not in taken]
    if limit is not None:
        turns = chain.from_iterable(zip_longest(*(groups[label] for label in sorted(groups))))
        found = [pair for pair in turns if pair is not None][:limit]
    return found, others


def empty_label_folders(folder: str) -> list[str]:
    """The sub-folders of a folder that would be labels, and in which no image lies, in the order of their names."""
    if not os.path.isdir(folder):
        return []
    inner = [os.path.join(folder, name) for name in subfolders(folder)]
    return [path for path in inner if next(_images(path), None) is None]


def all_images(folder: str) -> tuple[list[str], list[str]]:
    """(the paths of all images below a folder, in order; those of the other files)."""
    files = list(_files(folder))
    images = [path for path in files if _is_image(path)]
    if not images:
        raise HeedfulError(f"no image in {folder}; give a folder with *.png, *.jpg, ...")
    return images, [path for path in files if not _is_image(path)]


def _images(folder: str) -> Iterator[str]:
    return filter(_is_image, _files(folder))


def _is_image(path: str) -> bool:
    """Returns True if a file of a folder is an image by its name, and no pipe, socket, device or link to nowhere."""
    return path.lower().endswith(EXTENSIONS) and os.path.isfile(path)


def _files(folder: str) -> Iterator[str]:
    """The files below a folder that are not hidden, nor in a hidden folder, in the order of their names."""
    seen = set()
    for here, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(here))  # a link may lead back to where we come from
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(here, name)) not in seen
        )
        yield from (os.path.join(here, name) for name in sorted(names) if not name.startswith("."))
