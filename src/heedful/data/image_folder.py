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
    """Returns the paths of the sub-folders called train, valid (val, validation) and test, by split.

    They are splits only if every sub-folder with images has such a name. Beside "car" and "bus", a folder "train" is a
    label.
    """
    if not os.path.isdir(folder):
        return {}
    filled = [name for name in subfolders(folder) if next(_images(os.path.join(folder, name)), None)]
    if not all(name.lower() in PARTS for name in filled):
        return {}
    folders = {PARTS[name.lower()]: os.path.join(folder, name) for name in filled}
    return {split: folders[split] for split in ("train", "valid", "test") if split in folders}


def split_hint(available: Sequence[str], split: str, source: str) -> str:
    """Returns the end of an error message that says what to do about a missing split; "" if there is no advice.

    Args:
        available: the splits that the data set has.
        split: the split that it lacks.
        source: the data set, as the user gave it.
    """
    if split == "train":
        command = f"heedful evaluate MODEL --data {source} --split {available[-1]}"
        return f" only: train on another data set, and score with {command}"
    return f" only: --split {available[0]}" if split == "test" and len(available) == 1 else ""


def labelled_images(folder: str, limit: int | None) -> tuple[list[tuple[str, str]], list[str]]:
    """Returns (path, label) of each image, and the paths of other files. The label is the name of the sub-folder.

    Images are in the order of their paths; with a `limit`, labels take turns, so that few images still show all labels.
    Folders inside the sub-folders are read too. Other files are those without an image's extension, and images outside
    of the sub-folders; hidden files are ignored. Raises `HeedfulError` if no image is in a sub-folder.
    """
    files = list(_files(folder))
    images = [path for path in files if _is_image(path)]
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in images:
        label, *rest = Path(path).relative_to(folder).parts
        if rest:
            groups[label].append((path, label))
    pairs = [pair for label in sorted(groups) for pair in groups[label]]
    if not pairs and images:
        raise HeedfulError(
            f"no image is in a sub-folder with the name of its label, in {folder}; move them, for example to "
            f"{os.path.join(folder, 'LABEL', Path(images[0]).name)}"
        )
    if not pairs:
        raise HeedfulError(f"no image in {folder}; give a folder with LABEL/*.png, LABEL/*.jpg, ...")
    labelled = {path for path, _ in pairs}
    others = [path for path in files if path not in labelled]
    if limit is not None:
        turns = chain.from_iterable(zip_longest(*(groups[label] for label in sorted(groups))))
        pairs = [pair for pair in turns if pair is not None][:limit]
    return pairs, others


def empty_label_folders(folder: str) -> list[str]:
    """Returns the names of the sub-folders that contain no image, sorted."""
    if not os.path.isdir(folder):
        return []
    paths = [os.path.join(folder, name) for name in subfolders(folder)]
    return [path for path in paths if next(_images(path), None) is None]


def all_images(folder: str) -> tuple[list[str], list[str]]:
    """Returns the sorted paths of all images below a folder, and the paths of other files."""
    files = list(_files(folder))
    images = [path for path in files if _is_image(path)]
    if not images:
        raise HeedfulError(f"no image in {folder}; give a folder with *.png, *.jpg, ...")
    return images, [path for path in files if not _is_image(path)]


def _images(folder: str) -> Iterator[str]:
    return filter(_is_image, _files(folder))


def _is_image(path: str) -> bool:
    """Returns True for a regular file with an image's extension."""
    return path.lower().endswith(EXTENSIONS) and os.path.isfile(path)


def _files(folder: str) -> Iterator[str]:
    """Yields the files below a folder, sorted by name, without hidden files and folders."""
    visited = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        visited.add(os.path.realpath(parent))  # links may form a circle
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(parent, name)) not in visited
        )
        yield from (os.path.join(parent, name) for name in sorted(names) if not name.startswith("."))
