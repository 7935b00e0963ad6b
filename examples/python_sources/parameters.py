"""`parameters`: questions on function parameters, answered by spans of installed packages' docstrings.

Docstrings are read from the installed sources, which are never run or imported. Docstrings in the styles of NumPy,
Google and Sphinx describe each parameter in a fixed form: the description is the answer. A parser finds it without a
model; a model has to learn to find it.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

from heedful.data import Span
from heedful.data.text_files import files_below
from python_sources.sources import home, parsed, text_of

PACKAGES = ("babel", "cyclopts", "huggingface_hub", "numpy", "PIL", "rich", "sacrebleu", "torch")
FOLDERS = {
    "tests",
    "test",
    "testing",
    "_vendor",
    "__pycache__",
}  # that are left out: tests, and copies of other packages
TORCH = (
    "nn",
    "optim",
    "distributions",
    "utils/data",
    "amp",
)  # the folders of torch that are read; it has thousands of files
SHARES = {"test": 10, "valid": 10, "train": 80}  # percentages of the names of functions
MOST = 4  # maximum questions about a function
LONGEST = 1200  # maximum characters of a context
ANSWER = range(8, 201)  # characters of an answer
OTHERS = 3  # with unanswered questions, every third function has no unanswered question
FORMS = (
    "What does `{parameter}` of `{function}` do?",
    "What is the parameter `{parameter}` of `{function}` for?",
    "What is `{parameter}` in `{function}`?",
    "What does the argument `{parameter}` of `{function}` mean?",
    "In `{function}`, what is `{parameter}`?",
    "What should I pass to `{function}` as `{parameter}`?",
)

_SECTION = re.compile(r"^(Other )?Parameters\n-{3,}[ ]*\n", re.MULTILINE)
_HEADING = re.compile(r"^\S.*\n-{3,}[ ]*$", re.MULTILINE)
_NUMPY = re.compile(r"^(\*{0,2}\w+(?:, *\*{0,2}\w+)*)(?: ?:.*)?\n(?=[ ]+\S)", re.MULTILINE)
_ARGS = re.compile(r"^([ ]*)(?:Args|Arguments|Parameters):[ ]*\n", re.MULTILINE)
_GOOGLE = r"^{indent}(\*{{0,2}}\w+)[ ]?(?:\(.*\))?[ ]?:(?=\s)"
_SPHINX = re.compile(r"^[ ]*:param (?:[\w.\[\], |]+ )?(\*{0,2}\w+):(?=\s)", re.MULTILINE)
_FIELD = re.compile(r"^[ ]*(?::\w|\.\. )", re.MULTILINE)
_END = re.compile(
    r"(?<!e\.g)(?<!i\.e)(?<!etc)(?<!vs)[.!?:;](?=\s+[A-Z`\"'(*\[{]|\s*\Z)|\n[ ]*(?:\n|[-*+] |\d+[.)] |\.\. )"
)


class Described(NamedTuple):
    """Function or class with a docstring that describes its parameters.

    Attributes:
        name: dotted name of the function or class.
        text: its docstring, up to the end of the parameters.
        parameters: parameter → span of its description in ``text``.
    """

    name: str
    text: str
    parameters: dict[str, Span]


def rows(split: str, unanswered: bool = False) -> list[dict[str, Any]]:
    """Returns the rows of a split: ``question``, ``context``, ``answers`` (one `Span`) and ``function`` (its name).

    The context is a docstring up to the end of its parameters, of at most 1,200 characters. The answer is the first
    sentence of the description of a parameter. A hash of the function's name, in lower case, determines the split.
    Answers of the test split are in no other split, and those of the validation split are not in training. A docstring
    has at most four questions; a question has one of six wordings. Other versions of the packages have other
    docstrings.

    With `unanswered`, a quarter of the questions have no answer: they are about a parameter of another function, which
    the docstring does not contain.
    """
    splits = list(SHARES)
    known = {row["answers"][0].text for other in splits[: splits.index(split)] for row in _answered(other)}
    rows = [row for row in _answered(split) if row["answers"][0].text not in known]
    if unanswered:
        functions = [function for function in _all_functions() if part_of(function.name) == split]
        names = sorted({name for function in functions for name in function.parameters})
        chosen = (function for index, function in enumerate(functions) if index % OTHERS)
        rows += [row for function in chosen if (row := _unanswered(function, names))]
    return sorted(rows, key=lambda row: _hash(row["question"], row["context"]))


def part_of(name: str) -> str:
    """Returns the split ("train", "valid" or "test") of a function, determined by a hash of its name."""
    percentile = _hash(name.rpartition(".")[2].casefold()) % 100
    for split, share in SHARES.items():
        if percentile < share:
            return split
        percentile -= share
    raise AssertionError("the percentages of the splits do not add up to 100")


def _answered(split: str) -> Iterator[dict[str, Any]]:
    for function in _all_functions():
        if part_of(function.name) != split:
            continue
        hashes = {name: _hash(function.name, name) for name in function.parameters}
        for name in sorted(hashes, key=hashes.__getitem__)[:MOST]:
            yield _row(function, name, (function.parameters[name],))


def _unanswered(function: Described, names: list[str]) -> dict[str, Any] | None:
    """Returns a question about one of ``names`` that the docstring does not contain; None if eight draws find none."""
    for draw in range(8):
        name = names[_hash(function.name, function.text, str(draw)) % len(names)]
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", function.text):
            return _row(function, name, ())
    return None


def _row(function: Described, name: str, answers: tuple[Span, ...]) -> dict[str, Any]:
    form = FORMS[_hash(function.text, name) % len(FORMS)]
    question = form.format(parameter=name, function=function.name)
    return {"question": question, "context": function.text, "answers": answers, "function": function.name}


def _hash(*parts: str) -> int:
    return int.from_bytes(blake2b("\0".join(parts).encode(), digest_size=8).digest())


# ---------------------------------------------------------------------------------------------------------- docstrings


@cache
def _all_functions() -> list[Described]:
    """Returns the functions whose docstring describes at least two parameters; each docstring occurs once."""
    functions: dict[str, Described] = {}  # by docstring
    for path in _files():
        source = text_of(path)
        if ":param" in source or "Args:" in source or "Parameters\n" in source:
            for name, text in _docstrings(parsed(source)):
                function = described(name, text)
                if function is not None:
                    functions.setdefault(function.text, function)
    return list(functions.values())


def _files() -> Iterator[str]:
    for package in PACKAGES:
        folder = home(package)
        if folder is None:  # not installed
            continue
        for part in TORCH if package == "torch" else ("",):
            yield from (path for path in files_below(os.path.join(folder, part), FOLDERS) if path.endswith(".py"))


def _docstrings(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, str]]:
    """Yields (name, docstring) of each function and class that is not private; ``__init__`` is named as its class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = owner if node.name == "__init__" and owner else f"{owner}.{node.name}".strip(".")
            text = ast.get_docstring(node)
            if text and not name.rpartition(".")[2].startswith("_"):
                yield name, text
            if isinstance(node, ast.ClassDef):
                yield from _docstrings(node, name)
        elif isinstance(node, ast.If | ast.Try):
            yield from _docstrings(node, owner)


def described(name: str, text: str) -> Described | None:
    """Returns a function with the parameters that its docstring ``text`` describes.

    Returns None if the docstring describes fewer than two parameters or is too long.

    >>> add = described("f", "Add.\\n\\nArgs:\\n    x: the first number. Not NaN.\\n    y (int): the second number")
    >>> add.parameters
    {'x': Span(text='the first number', start=19), 'y': Span(text='the second number', start=59)}
    """
    for style in (_numpy, _google, _sphinx):
        entries = list(style(text))
        if entries:
            break
    end = max((stop for _, _, stop in entries), default=0)
    text = text[:end].rstrip()
    spans = {name: span for names, start, stop in entries for name in names if (span := _sentence(text, start, stop))}
    if len(spans) < 2 or len(text) > LONGEST:
        return None
    return Described(name, text, spans)


Entry = tuple[list[str], int, int]  # names of parameters, start and end of their description


def _numpy(text: str) -> Iterator[Entry]:
    for section in _SECTION.finditer(text):
        heading = _HEADING.search(text, section.end())
        stop = heading.start() if heading else len(text)
        yield from _between(_NUMPY.finditer(text, section.end(), stop), stop)


def _google(text: str) -> Iterator[Entry]:
    for section in _ARGS.finditer(text):
        first = re.compile(r"[ ]+(?=\S)").match(text, section.end())
        if first is None or len(first[0]) <= len(section[1]):
            continue
        after = re.compile(rf"^[ ]{{0,{len(first[0]) - 1}}}\S", re.MULTILINE).search(text, section.end())
        stop = after.start() if after else len(text)
        form = re.compile(_GOOGLE.format(indent=first[0]), re.MULTILINE)
        yield from _between(form.finditer(text, section.end(), stop), stop)


def _sphinx(text: str) -> Iterator[Entry]:
    for match in _SPHINX.finditer(text):
        other = _FIELD.search(text, match.end())
        yield [match[1].lstrip("*")], match.end(), other.start() if other else len(text)


def _between(matches: Iterable[re.Match[str]], stop: int) -> Iterator[Entry]:
    """Yields the entry of each match: its description ends where the next match begins, or at ``stop``."""
    headings = list(matches)
    ends = [match.start() for match in headings[1:]] + [stop]
    for match, end in zip(headings, ends, strict=False):
        yield [name.strip(" *") for name in match[1].split(",")], match.end(), end


def _sentence(text: str, start: int, stop: int) -> Span | None:
    """Returns the first sentence after ``start``, without its full stop; None if it is not suitable as an answer."""
    start += len(text[start:stop]) - len(text[start:stop].lstrip())
    end = _END.search(text, start, stop)
    piece = text[start : end.start() if end else stop].rstrip(" \n.")
    if len(piece) not in ANSWER or piece[0] in ".:-*`{(" or " " not in piece:
        return None
    return Span(piece, start)
