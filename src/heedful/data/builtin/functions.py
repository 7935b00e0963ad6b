"""`functions`: the first line of a function's docstring and the source without it, for code search.

From the standard library and required packages, which are read and never imported.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from textwrap import dedent

from heedful.data.builtin.stdlib import PACKAGES, modules, no_source, parsed, sample_split, text_of
from heedful.errors import HeedfulError

SHARES = {"test": 0.1, "valid": 0.08}  # fractions of all functions; the rest is for training
LARGE = 0.04  # fraction of all functions; larger packages are for training, since they would fill a split
WORDS = range(4, 41)  # number of words of an informative first line
LINES = 2  # minimum lines of a body, without the docstring
Function = ast.FunctionDef | ast.AsyncFunctionDef


def rows(argument: str | None, split: str) -> list[dict[str, str]]:
    """Returns the functions of a split.

    A row has ``text``, the first line of the docstring, ``text_pair``, the source without the docstring, and ``name``,
    the dotted name ("json.decoder.JSONDecoder.decode"). A split has whole top-level modules and packages, drawn in the
    order of a hash of their names, so that similar functions are in one split. First lines and sources that occur
    several times are left out, and so are first lines of fewer than four words. Other versions of Python and the
    packages have other functions.

    Raises `HeedfulError` for an argument, and if Python was installed without its source.
    """
    if argument:
        raise HeedfulError(f"unknown argument {argument!r}, in builtin:functions/{argument}; write builtin:functions")
    found = _every()
    if not found:
        raise no_source()
    chosen = sample_split(Counter(_package(row["name"]) for row in found), split, SHARES, LARGE, 8)
    return [dict(row) for row in found if _package(row["name"]) in chosen]


def _package(name: str) -> str:
    return name.partition(".")[0]


@cache
def _every() -> list[dict[str, str]]:
    """Returns the functions of all splits, sorted by name."""
    every = (one for path, module in modules(PACKAGES) for one in _of(path, module))
    found = [{"text": text, "text_pair": source, "name": name} for text, source, name in every]
    found.sort(key=lambda row: row["name"])
    met = {side: Counter(row[side].casefold() for row in found) for side in ("text", "text_pair")}
    return [row for row in found if all(counts[row[side].casefold()] == 1 for side, counts in met.items())]


def _of(path: str, module: str) -> Iterator[tuple[str, str, str]]:
    """Yields (first line, source, name) of each function of a file."""
    text = text_of(path)
    lines = text.split("\n")
    for name, node in _below(parsed(text), module):
        first = (ast.get_docstring(node) or "").partition("\n")[0].strip()
        docstring, *body = node.body
        if len(first.split()) not in WORDS or not body:
            continue
        after, end = docstring.end_lineno or 0, node.end_lineno or 0
        if end - after >= LINES and docstring.lineno > node.lineno and body[0].lineno > after:
            source = "\n".join([*lines[node.lineno - 1 : docstring.lineno - 1], *lines[after:end]])
            yield first, dedent(source), name


def _below(node: ast.AST, name: str) -> Iterator[tuple[str, Function]]:
    """Yields (dotted name, node) of the functions and methods below a node."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, Function):
            yield f"{name}.{inner.name}", inner
        if isinstance(inner, Function | ast.ClassDef):
            yield from _below(inner, f"{name}.{inner.name}")
