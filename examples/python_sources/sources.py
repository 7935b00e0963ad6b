"""Python files of the standard library and of installed packages, which are read and never imported."""

from __future__ import annotations

import ast
import os
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from importlib.util import find_spec

from heedful.data.builtin.stdlib import FOLDERS
from heedful.data.text_files import files_below

PACKAGES = ("babel", "cyclopts", "huggingface_hub", "numpy", "PIL", "rich", "sacrebleu", "tokenizers", "torch.nn")
PACKAGE_FOLDERS = {"testing", "_vendor", "_inductor"}  # of packages, left out too


def home(package: str) -> str | None:
    """Returns the folder of a package, or None if it is not installed. The package itself is not imported."""
    top, *inside = package.split(".")
    spec = find_spec(top)
    return None if spec is None or spec.origin is None else os.path.join(os.path.dirname(spec.origin), *inside)


def modules(packages: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields (path, dotted name) of each module of the standard library and of the installed ``packages``."""
    for package, folder in [("", sysconfig.get_path("stdlib")), *((name, home(name)) for name in packages)]:
        for path in files_below(folder, FOLDERS | PACKAGE_FOLDERS) if folder else ():
            if path.endswith(".py"):
                inside = os.path.relpath(path, folder).removesuffix(".py").removesuffix("__init__")
                yield path, ".".join(part for part in (package, *inside.split(os.sep)) if part)


def text_of(path: str) -> str:
    """Returns the text of a Python source file; "" if it is not valid in its declared encoding, as with templates."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError):
        return ""


def parsed(text: str) -> ast.Module:
    """Parses Python source. Returns an empty module if it has a syntax error, as source for other versions may have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in strings
        try:
            return ast.parse(text)
        except SyntaxError:
            return ast.parse("")
