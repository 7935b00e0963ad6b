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

from heedful.data.builtin.stdlib import no_source
from python_sources.sources import PACKAGES, modules, parsed, text_of

SHARES = {"test": 0.08, "valid": 0.06}  # fractions of all rows
SHORTEST, LONGEST = 3, 25  # words of a summary
LEAST = 12  # minimum words of a detail
RUN = 8  # consecutive words that details of one family have in common
WORD, HEADING = re.compile(r"\w+"), re.compile(r"-{3,}|={3,}|\w+:")
SHAPE = re.compile(r"""(\"{3}|'{3})\\?\n?[^\n]{6,}\n[ \t]*\n""")  # a line and an empty one
Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Docstring(NamedTuple):
    """Docstring of a function or class: its dotted name with arguments, its summary (first line) and the rest."""

    name: str
    summary: str
    detail: str


def rows(split: str) -> list[dict[str, str]]:
    """Returns the rows of a split: ``text`` (the name and the rest of the docstring), ``summary`` and ``name``.

    The docstrings are those of the installed Python and packages, so other versions give other rows. A summary is the
    first line of a docstring and has 3 to 25 words. After it come an empty line and at least 12 words, not counting
    doctest examples.

    Docstrings form a family if their summaries are equal, or if they have 8 consecutive words in common after the
    summary. All docstrings of a family are in one split: the training split if the family has 1 % of all rows or more,
    else the split that a hash of its summaries determines. So the same packages give the same splits.

    Raises `HeedfulError` if Python was installed without its source.
    """
    docstrings = _all_docstrings()
    if not docstrings:
        raise no_source()
    return [
        {"text": f"{docstring.name}\n\n{docstring.detail}", "summary": docstring.summary, "name": docstring.name}
        for docstring, docstring_split in zip(docstrings, _splits(), strict=True)
        if docstring_split == split
    ]


@cache
def _all_docstrings() -> list[Docstring]:
    """Returns the docstrings of all splits in the order of a hash; each pair of summary and detail occurs once."""
    docstrings: dict[tuple[str, str], Docstring] = {}
    for path, module in modules(PACKAGES):
        for docstring in _docstrings_of_file(path, module):
            docstrings.setdefault((docstring.summary, docstring.detail), docstring)
    return sorted(docstrings.values(), key=lambda docstring: _hash("\0".join(docstring)))


def _docstrings_of_file(path: str, module: str) -> Iterator[Docstring]:
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
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            names = [argument.arg for argument in arguments if argument.arg not in ("self", "cls")]
            yield f"{name}.{node.name}({', '.join(names)})", node


def _plain(detail: str) -> str:
    """Returns a detail without its examples, which are the paragraphs with a ``>>>`` prompt."""
    paragraphs = [paragraph.strip("\n") for paragraph in re.split(r"\n\s*\n", detail)]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph.strip() and ">>>" not in paragraph).strip()


@cache
def _splits() -> list[str]:
    """Returns the split of each of ``_all_docstrings()``."""
    docstrings = _all_docstrings()
    families = _families([(docstring.summary, docstring.detail) for docstring in docstrings])
    sizes: dict[int, int] = {}
    for family in families:
        sizes[family] = sizes.get(family, 0) + 1
    small = [family for family in sizes if sizes[family] < 0.01 * len(docstrings)]
    split_of_family: dict[int, str] = {}
    for split, share in SHARES.items():
        count = 0
        while small and count < share * len(docstrings):
            family = small.pop(0)  # the docstrings are in the order of a hash, and so are their families
            split_of_family[family] = split
            count += sizes[family]
    return [split_of_family.get(family, "train") for family in families]


def _families(texts: list[tuple[str, str]]) -> list[int]:
    """Returns, for each (summary, detail), the index of the first text of its family (by union-find)."""
    parents = list(range(len(texts)))

    def first_of_family(index: int) -> int:
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    first_index: dict[str, int] = {}  # summary or run of words: the first text that has it
    for index, (summary, detail) in enumerate(texts):
        words = WORD.findall(detail.lower())
        runs = (" ".join(words[start : start + RUN]) for start in range(max(1, len(words) - RUN + 1)))
        for key in (f"= {' '.join(WORD.findall(summary.lower()))}", *runs):
            other, this = first_of_family(first_index.setdefault(key, index)), first_of_family(index)
            parents[max(this, other)] = min(this, other)
    return [first_of_family(index) for index in range(len(texts))]


def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=16).digest()
