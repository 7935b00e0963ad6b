"""`stdlib`: the source of Python's own standard library, as it is installed, a module a document."""

from __future__ import annotations

import os
import sysconfig
import tokenize
from collections.abc import Iterator
from hashlib import blake2b

from heedful.data.files import below
from heedful.errors import HeedfulError

# What is no library (tests, demonstrations, an editor, what was installed besides), and what was written by programs.
FOLDERS = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages", "encodings"}
FOLDERS |= {"pydoc_data", "__phello__"}
BEGINNINGS = ("_sysconfigdata", "config-", "__hello__")
SHARES = {"test": 0.05, "valid": 0.05}  # of all bytes; the rest is for training
LARGE = 0.01  # of all bytes: so large a module is for training too, or a part would be little else


def rows(argument: str | None, part: str) -> list[dict[str, str]]:
    """The modules of one part, "train", "valid" or "test": ``text``, the source, and ``module``, its dotted name.

    Modules are drawn in the order of a hash of their texts, whole, until a part has its share of all bytes; the largest
    are all for training, and those with equal texts count as one. Another Python has other modules, and so other parts.
    A folder's modules stand before those of the folders in it.

    Raises `HeedfulError` for an argument, which this set has none of, and where Python came without its source.
    """
    if argument:
        raise HeedfulError(f"unknown argument {argument!r}, in builtin:stdlib/{argument}; write builtin:stdlib")
    modules = dict(_modules())
    if not modules:
        folder = sysconfig.get_path("stdlib")
        raise HeedfulError(
            f"no source in {folder}; install Python with its standard library, or give texts of your own"
        )
    chosen = _drawn(modules, part)
    return [{"text": text, "module": name} for text, name in modules.items() if text in chosen]


def _drawn(texts: dict[str, str], part: str) -> set[str]:
    """The texts of a part."""
    sizes = {text: len(text.encode()) for text in texts}
    total = sum(sizes.values())
    small = (text for text, size in sizes.items() if size < LARGE * total)
    order = iter(sorted(small, key=lambda text: blake2b(text.encode(), digest_size=16).digest()))
    drawn = {"train": set(texts)}
    for name, share in SHARES.items():
        drawn[name], size = set(), 0
        while size < share * total:
            text = next(order)
            drawn[name].add(text)
            size += sizes[text]
        drawn["train"] -= drawn[name]
    return drawn[part]


def _modules() -> Iterator[tuple[str, str]]:
    """(source, dotted name) of each module."""
    library = sysconfig.get_path("stdlib")
    for path in below(library, FOLDERS):
        names = os.path.relpath(path, library).removesuffix(".py").split(os.sep)
        if path.endswith(".py") and not names[0].startswith(BEGINNINGS):
            with tokenize.open(path) as file:  # which knows how a module says its encoding
                text = file.read()
            if text.strip():
                yield text, ".".join(names)
