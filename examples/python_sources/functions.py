"""`functions`: the first line of a function's docstring and the source without it, for code search.

From the standard library and required packages, which are read and never imported.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from textwrap import dedent

from heedful.data.builtin.stdlib import no_source, sample_split
from python_sources.sources import PACKAGES, modules, parsed, text_of

SHARES = {"test": 0.1, "valid": 0.08}  # fractions of all functions; the rest is for training
LARGE = 0.04  # fraction of all functions; larger packages are for training, since they would fill a split
WORDS = range(4, 41)  # number of words of an informative first line
LINES = 2  # minimum lines of a body, without the docstring
Function = ast.FunctionDef | ast.AsyncFunctionDef


def rows(split: str) -> list[dict[str, str]]:
    """Returns the functions of a split.

    A row has ``text``, the first line of the docstring, ``text_pair``, the source without the docstring, and ``name``,
    the dotted name ("json.decoder.JSONDecoder.decode"). A top-level module or package is in one split as a whole, so
    that similar functions are in one split; a hash of its name determines which. First lines and sources that occur
    several times are left out, and so are first lines of fewer than four words. Other versions of Python and the
    packages have other functions.

    Raises `HeedfulError` if Python was installed without its source.
    """
    functions = _all_functions()
    if not functions:
        raise no_source()
    packages = sample_split(Counter(_package(row["name"]) for row in functions), split, SHARES, LARGE, 8)
    return [dict(row) for row in functions if _package(row["name"]) in packages]


def _package(name: str) -> str:
    return name.partition(".")[0]


@cache
def _all_functions() -> list[dict[str, str]]:
    """Returns the functions of all splits, sorted by name."""
    rows = [
        {"text": first_line, "text_pair": source, "name": name}
        for path, module in modules(PACKAGES)
        for first_line, source, name in _functions_of_file(path, module)
    ]
    rows.sort(key=lambda row: row["name"])
    counts = {column: Counter(row[column].casefold() for row in rows) for column in ("text", "text_pair")}
    return [row for row in rows if all(count[row[column].casefold()] == 1 for column, count in counts.items())]


def _functions_of_file(path: str, module: str) -> Iterator[tuple[str, str, str]]:
    """Yields (first line, source, name) of each function of a file."""
    text = text_of(path)
    lines = text.split("\n")
    for name, node in _functions_below(parsed(text), module):
        first = (ast.get_docstring(node) or "").partition("\n")[0].strip()
        docstring, *body = node.body
        if len(first.split()) not in WORDS or not body:
            continue
        after, end = docstring.end_lineno or 0, node.end_lineno or 0
        if end - after >= LINES and docstring.lineno > node.lineno and body[0].lineno > after:
            source = "\n".join([*lines[node.lineno - 1 : docstring.lineno - 1], *lines[after:end]])
            yield first, dedent(source), name


def _functions_below(node: ast.AST, name: str) -> Iterator[tuple[str, Function]]:
    """Yields (dotted name, node) of the functions and methods below a node."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, Function):
            yield f"{name}.{inner.name}", inner
        if isinstance(inner, Function | ast.ClassDef):
            yield from _functions_below(inner, f"{name}.{inner.name}")
