"""The sources of Python's library and of installed packages: found and parsed, and never imported."""

from __future__ import annotations

import ast
import os
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from importlib.util import find_spec

from heedful.data.sets.stdlib import FOLDERS
from heedful.data.text_files import below

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
        for path in below(folder, FOLDERS | BESIDE) if folder else ():
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
