"""`docstrings`: the details of a Python docstring → its first line.

From the sources of the standard library and of required packages, which are read and never imported.
The detail often omits what the object is, so its name and arguments are put before it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from typing import NamedTuple

from heedful.data.builtin.stdlib import PACKAGES, modules, no_source, parsed, text_of
from heedful.errors import HeedfulError

SHARES = {"test": 0.08, "valid": 0.06}  # fractions of all rows
SHORTEST, LONGEST = 3, 25  # words of a summary
LEAST = 12  # minimum words of a detail
RUN = 8  # consecutive words that details of one family have in common
WORD, HEADING = re.compile(r"\w+"), re.compile(r"-{3,}|={3,}|\w+:")
SHAPE = re.compile(r"""(\"{3}|'{3})\\?\n?[^\n]{6,}\n[ \t]*\n""")  # a line and an empty one
Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Docstring(NamedTuple):
    """One definition: its dotted name with its arguments, and the two parts of its docstring."""

    name: str
    summary: str
    detail: str


def rows(argument: str | None, split: str) -> list[dict[str, str]]:
    """Returns the rows of a split: ``text`` (the name and the detail), ``summary`` and ``name``.

    A summary is the first line of a docstring, of 3 to 25 words, before an empty line and a detail of 12 words or more,
    without doctest examples. Docstrings with equal summaries, and those whose details have 8 consecutive words in
    common, are one family. A family is in one split; large ones (1 % of all rows) are for training. Splits are drawn in
    the order of a hash. Other versions of Python and the packages have other docstrings.

    Raises `HeedfulError` for an argument, and if Python was installed without its source.
    """
    if argument:
        raise HeedfulError(f"unknown argument {argument!r}, in builtin:docstrings/{argument}; write builtin:docstrings")
    found = _every()
    if not found:
        raise no_source()
    chosen = _parts()
    return [
        {"text": f"{one.name}\n\n{one.detail}", "summary": one.summary, "name": one.name}
        for index, one in enumerate(found)
        if chosen[index] == split
    ]


@cache
def _every() -> list[Docstring]:
    """Returns all docstrings, each pair of summary and detail once, in the order of a hash."""
    found: dict[tuple[str, str], Docstring] = {}
    for path, module in modules(PACKAGES):
        for one in _of(path, module):
            found.setdefault((one.summary, one.detail), one)
    return sorted(found.values(), key=lambda one: _hash("\0".join(one)))


def _of(path: str, module: str) -> Iterator[Docstring]:
    """Yields the docstrings of a file that have a summary and a detail."""
    source = text_of(path)
    if not SHAPE.search(source):  # parsing takes most of the time
        return
    for name, node in _defined(parsed(source), module):
        summary, _, detail = (ast.get_docstring(node) or "").partition("\n\n")
        detail = _plain(detail)
        if (
            "\n" not in summary
            and SHORTEST <= len(summary.split()) <= LONGEST
            and not HEADING.match(summary)
            and len(WORD.findall(detail)) >= LEAST
        ):
            yield Docstring(name, " ".join(summary.split()), detail)


def _defined(tree: ast.Module | Defined, name: str) -> Iterator[tuple[str, Defined]]:
    """Yields (dotted name with arguments, node) of functions and classes, also those in classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield f"{name}.{node.name}", node
            yield from _defined(node, f"{name}.{node.name}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            yield f"{name}.{node.name}({', '.join(one for one in names if one not in ('self', 'cls'))})", node


def _plain(detail: str) -> str:
    """Returns a detail without its examples, the paragraphs with a prompt."""
    paragraphs = [one.strip("\n") for one in re.split(r"\n\s*\n", detail)]
    return "\n\n".join(one for one in paragraphs if one.strip() and ">>>" not in one).strip()


@cache
def _parts() -> list[str]:
    """Returns the split of each docstring."""
    found = _every()
    family = _families([(one.summary, one.detail) for one in found])
    sizes: dict[int, int] = {}
    for number in family:
        sizes[number] = sizes.get(number, 0) + 1
    small = [number for number in sizes if sizes[number] < 0.01 * len(found)]
    of: dict[int, str] = {}
    for part, share in SHARES.items():
        count = 0
        while small and count < share * len(found):
            number = small.pop(0)  # the docstrings are in the order of a hash, and so are their families
            of[number] = part
            count += sizes[number]
    return [of.get(number, "train") for number in family]


def _families(texts: list[tuple[str, str]]) -> list[int]:
    """Returns for each (summary, detail) the index of the first one of its family (union-find)."""
    parent = list(range(len(texts)))

    def first(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    seen: dict[str | int, int] = {}
    for place, (summary, detail) in enumerate(texts):
        words = WORD.findall(detail.lower())
        runs = (" ".join(words[start : start + RUN]) for start in range(max(1, len(words) - RUN + 1)))
        for key in (f"= {' '.join(WORD.findall(summary.lower()))}", *runs):
            other = first(seen.setdefault(key, place))
            mine = first(place)
            parent[max(mine, other)] = min(mine, other)
    return [first(place) for place in range(len(texts))]


def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16).digest()
