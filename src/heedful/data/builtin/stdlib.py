"""`stdlib`: the source of Python's standard library, one module a document."""

from __future__ import annotations

import os
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping
from hashlib import blake2b

from heedful.data.text_files import files_below
from heedful.errors import HeedfulError

# Folders that are left out: tests, demonstrations, an editor, installed packages and generated files.
FOLDERS = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages", "encodings"}
FOLDERS |= {"pydoc_data", "__phello__"}
GENERATED = ("_sysconfigdata", "config-", "__hello__")
SHARES = {"test": 0.05, "valid": 0.05}  # fractions of all bytes; the rest is for training
LARGE = 0.01  # fraction of all bytes; larger modules are for training, since they would fill a split


def rows(argument: str | None, split: str) -> list[dict[str, str]]:
    """Returns the modules of a split: ``text``, the source, and ``module``, its dotted name.

    Whole modules are drawn in the order of a hash of their texts until a split has its fraction of all bytes. The
    largest modules are in the training split, and modules with equal texts count as one. Another version of Python has
    other modules, and so other splits. Rows are in the order of folders: a folder's modules come before those of its
    sub-folders.

    Raises `HeedfulError` for any `argument`, since the set takes none, and if Python was installed without its source.
    """
    if argument:
        raise HeedfulError(f"unknown argument {argument!r}, in builtin:stdlib/{argument}; write builtin:stdlib")
    modules = dict(_modules())
    if not modules:
        raise no_source()
    chosen = sample_split({text: len(text.encode()) for text in modules}, split, SHARES, LARGE, 16)
    return [{"text": text, "module": name} for text, name in modules.items() if text in chosen]


def no_source() -> HeedfulError:
    """Returns the error that is raised if Python was installed without its source."""
    folder = sysconfig.get_path("stdlib")
    return HeedfulError(
        f"no Python source in {folder}; install Python with the source of its library, or give your own data"
    )


def sample_split(
    sizes: Mapping[str, int], split: str, shares: Mapping[str, float], large: float, digest_size: int
) -> set[str]:
    """Returns the names of the items that are in a split.

    Items are drawn in the order of a hash of their names until a split has its fraction of the total size. All other
    items are in "train".

    Args:
        sizes: name → size of every item.
        split: the split to return.
        shares: split → its fraction of the total size, for all splits but "train".
        large: an item with this fraction of the total size or more is always in "train".
        digest_size: number of bytes of the hash.
    """
    total = sum(sizes.values())
    small = (name for name, size in sizes.items() if size < large * total)
    order = iter(sorted(small, key=lambda name: blake2b(name.encode(), digest_size=digest_size).digest()))
    splits = {"train": set(sizes)}
    for name, share in shares.items():
        splits[name], size = set(), 0
        while size < share * total:
            item = next(order)
            splits[name].add(item)
            size += sizes[item]
        splits["train"] -= splits[name]
    return splits[split]


def _modules() -> Iterator[tuple[str, str]]:
    """Yields (source, dotted name) of each module."""
    library = sysconfig.get_path("stdlib")
    for path in files_below(library, FOLDERS):
        names = os.path.relpath(path, library).removesuffix(".py").split(os.sep)
        if path.endswith(".py") and not names[0].startswith(GENERATED):
            with tokenize.open(path) as file:  # by the encoding that the module declares
                text = file.read()
            if text.strip():
                yield text, ".".join(names)
