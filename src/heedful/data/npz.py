"""NumPy's `.npz` files of images and labels, under the names that are in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from heedful.data.text_files import opened
from heedful.errors import HeedfulError, nearest

# Part → the names of its images and labels: Keras's, then MedMNIST's.
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
WHOLE = (("images", "labels"), ("x", "y"), ("X", "y"))  # of a file without parts
CLASSES = "classes"  # the names of the labels 0, 1, ...


class Arrays(NamedTuple):
    """What a file holds of one part; `labels` is None where none are wanted, `keys` are the names in the file."""

    images: np.ndarray
    labels: np.ndarray | None
    classes: np.ndarray | None
    keys: tuple[str, ...]


def parts(path: str) -> tuple[str, ...]:
    """Of "train", "valid" and "test" those whose images the file holds."""
    keys = _keys(path)
    return tuple(part for part, pairs in NAMES.items() if any(images in keys for images, _ in pairs))


def read(path: str, part: str | None, names: Sequence[str] | None, labelled: bool) -> Arrays:
    """The arrays of a part (None: of a file without parts), or those that `names` names: (images, labels).

    Nothing is unpickled. Raises `HeedfulError`, naming the file, where it is broken or holds no such arrays.
    """
    keys = _keys(path)
    if names is not None:
        chosen = tuple(names)
    else:
        pairs = WHOLE if part is None else NAMES[part]
        chosen = next((pair for pair in pairs if pair[0] in keys), pairs[0])[: 1 + labelled]
    missing = next((key for key in chosen if key not in keys), None)
    if missing is not None:
        hint = nearest(missing, keys) if names else ""  # of a name that nobody wrote none is a misspelling
        hint = hint if hint.startswith("did you mean") else "say which to use: --data.columns IMAGES,LABELS"
        raise HeedfulError(f"no array {missing!r} among {', '.join(map(repr, keys[:12]))}, in {path}; {hint}")
    with _npz(path) as file:
        classes = file[CLASSES] if labelled and CLASSES in keys else None
        return Arrays(file[chosen[0]], file[chosen[1]] if labelled else None, classes, chosen)


def _keys(path: str) -> list[str]:
    with _npz(path) as file:
        return list(file)


@contextmanager
def _npz(path: str) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays, each read when it is asked for; what breaks meanwhile is said in one line."""
    try:
        with opened(path) as stream, np.load(stream, allow_pickle=False) as file:
            yield file
    except HeedfulError:
        raise
    except Exception as error:  # of zip files, of NumPy's own format, and of an .npy that is named .npz
        reason = " ".join(str(error).split()) or type(error).__name__
        remedy = "save numbers or strings" if "pickle" in reason else "save it anew with numpy.savez"
        raise HeedfulError(f"{path} cannot be read as .npz ({reason}); {remedy}") from error
