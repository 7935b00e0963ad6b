"""`stdlib`: the source of Python's standard library, a module a document; and sources of packages."""

from __future__ import annotations

import ast
import os
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from importlib.util import find_spec

from heedful.data.text_files import files_below
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
        raise no_source()
    chosen = sample_split({text: len(text.encode()) for text in modules}, part, SHARES, LARGE, 16)
    return [{"text": text, "module": name} for text, name in modules.items() if text in chosen]


def no_source() -> HeedfulError:
    """Returns the error for a Python that came without its source."""
    folder = sysconfig.get_path("stdlib")
    return HeedfulError(f"no source in {folder}; install Python with its standard library, or give texts of your own")


def sample_split(
    sizes: Mapping[str, int], part: str, shares: Mapping[str, float], large: float, digest: int
) -> set[str]:
    """What is in a part: each of the ``shares`` of all is filled in the order of a hash of ``digest`` bytes, none with
    what has ``large`` of all or more; the rest is "train".
    """
    total = sum(sizes.values())
    small = (name for name, size in sizes.items() if size < large * total)
    order = iter(sorted(small, key=lambda name: blake2b(name.encode(), digest_size=digest).digest()))
    found = {"train": set(sizes)}
    for name, share in shares.items():
        found[name], size = set(), 0
        while size < share * total:
            one = next(order)
            found[name].add(one)
            size += sizes[one]
        found["train"] -= found[name]
    return found[part]


def _modules() -> Iterator[tuple[str, str]]:
    """(source, dotted name) of each module."""
    library = sysconfig.get_path("stdlib")
    for path in files_below(library, FOLDERS):
        names = os.path.relpath(path, library).removesuffix(".py").split(os.sep)
        if path.endswith(".py") and not names[0].startswith(BEGINNINGS):
            with tokenize.open(path) as file:  # which knows how a module says its encoding
                text = file.read()
            if text.strip():
                yield text, ".".join(names)


PACKAGES = ("babel", "cyclopts", "huggingface_hub", "numpy", "PIL", "rich", "sacrebleu", "tokenizers", "torch.nn")
BESIDE = {"testing", "_vendor", "_inductor"}  # folders of packages that are no library of theirs


def home(package: str) -> str | None:
    """The folder of a package, whose parent alone may be imported to find it; None where it is not installed."""
    top, *inside = package.split(".")
    spec = find_spec(top)
    return None if spec is None or spec.origin is None else os.path.join(os.path.dirname(spec.origin), *inside)


def modules(packages: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(path, dotted name) of each module of the standard library and of the packages that are installed."""
    for package, folder in [("", sysconfig.get_path("stdlib")), *((name, home(name)) for name in packages)]:
        for path in files_below(folder, FOLDERS | BESIDE) if folder else ():
            if path.endswith(".py"):
                inside = os.path.relpath(path, folder).removesuffix(".py").removesuffix("__init__")
                yield path, ".".join(part for part in (package, *inside.split(os.sep)) if part)


def text_of(path: str) -> str:
    """A source file's text; "" where it is none: a template, or written in an encoding that it does not name."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError):
        return ""


def parsed(text: str) -> ast.Module:
    """A source, parsed; that of an empty module where it was written for another Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other people's escapes
        try:
            return ast.parse(text)
        except SyntaxError:
            return ast.parse("")
