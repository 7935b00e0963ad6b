"""`parameters`: questions on function parameters, answered by spans of installed packages' docstrings.

Docstrings are read from the installed sources and never run or imported. Those in the styles of NumPy, Google and
Sphinx say in a fixed form what each parameter does: that piece is the answer. Who knows the form needs no model; one
that learns has to find it by reading.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

from heedful.data.builtin.stdlib import home, parsed, text_of
from heedful.data.rows import Span
from heedful.data.text_files import files_below
from heedful.errors import HeedfulError

PACKAGES = ("babel", "cyclopts", "huggingface_hub", "numpy", "PIL", "rich", "sacrebleu", "torch")
FOLDERS = {"tests", "test", "testing", "_vendor", "__pycache__"}  # below them: what is not theirs, or not for people
TORCH = ("nn", "optim", "distributions", "utils/data", "amp")  # of torch's thousands of files these
SHARES = {"test": 10, "valid": 10, "train": 80}  # of the functions' names, in percent
MOST = 4  # questions about one function
LONGEST = 1200  # characters of a context
ANSWER = range(8, 201)  # characters of an answer
OTHERS = 3  # in "parameters/unanswered" as many questions have an answer as this to one
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
    """A function or class, its docstring up to the end of its parameters, and where each of them is described."""

    name: str
    text: str
    parameters: dict[str, Span]


def rows(argument: str | None, part: str) -> list[dict[str, Any]]:
    """The rows of one part, "train", "valid" or "test": ``question``, ``context``, ``answers`` (one `Span`), and the
    ``function`` that is asked about.

    The context is the docstring up to the end of its parameters, of at most 1,200 characters; the answer is the first
    sentence of the description of the parameter. Functions of one name, in whichever case, are in one part, which
    follows from a hash of it, and what answers in the test part answers in no other (nor what does in the valid part in
    training). Of each docstring at most four parameters are asked for, in six wordings. Other versions of the packages
    have other docstrings, and so other rows.

    With the argument "unanswered" a quarter of the questions have no answer: they ask for a parameter that another
    function has, and this docstring does not so much as name.

    Raises `HeedfulError` for another argument.
    """
    if argument not in (None, "unanswered"):
        raise HeedfulError(
            f"unknown argument {argument!r}, in builtin:parameters/{argument}; write builtin:parameters, or "
            "builtin:parameters/unanswered"
        )
    parts = list(SHARES)
    known = {row["answers"][0].text for other in parts[: parts.index(part)] for row in _answered(other)}
    found = [row for row in _answered(part) if row["answers"][0].text not in known]
    if argument:
        own = [one for one in _every() if part_of(one.name) == part]
        names = sorted({name for one in own for name in one.parameters})
        found += [row for place, one in enumerate(own) if place % OTHERS and (row := _unanswered(one, names))]
    return sorted(found, key=lambda row: _hash(row["question"], row["context"]))


def part_of(name: str) -> str:
    """The part that the functions of this name belong to."""
    place = _hash(name.rpartition(".")[2].casefold()) % 100
    for part, share in SHARES.items():
        if place < share:
            return part
        place -= share
    raise AssertionError("the shares are 100 %")


def _answered(part: str) -> Iterator[dict[str, Any]]:
    for one in (one for one in _every() if part_of(one.name) == part):
        for name in sorted(one.parameters, key=lambda name: _hash(one.name, name))[:MOST]:
            yield _row(one, name, (one.parameters[name],))


def _unanswered(one: Described, names: list[str]) -> dict[str, Any] | None:
    """A question for a parameter that the text does not name; drawn a few times, else None."""
    for turn in range(8):
        name = names[_hash(one.name, one.text, str(turn)) % len(names)]
        if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", one.text):
            return _row(one, name, ())
    return None


def _row(one: Described, name: str, answers: tuple[Span, ...]) -> dict[str, Any]:
    form = FORMS[_hash(one.text, name) % len(FORMS)]
    question = form.format(parameter=name, function=one.name)
    return {"question": question, "context": one.text, "answers": answers, "function": one.name}


def _hash(*parts: str) -> int:
    return int.from_bytes(blake2b("\0".join(parts).encode(), digest_size=8).digest())


# ---------------------------------------------------------------------------------------------------------- docstrings


@cache
def _every() -> list[Described]:
    """All functions whose docstring tells of two parameters or more, each text once."""
    found: dict[str, Described] = {}
    for path in _files():
        source = text_of(path)
        if ":param" in source or "Args:" in source or "Parameters\n" in source:
            for name, text in _docstrings(parsed(source)):
                one = described(name, text)
                if one is not None:
                    found.setdefault(one.text, one)
    return list(found.values())


def _files() -> Iterator[str]:
    for package in PACKAGES:
        folder = home(package)
        assert folder is not None, "heedful needs it"
        for part in TORCH if package == "torch" else ("",):
            yield from (path for path in files_below(os.path.join(folder, part), FOLDERS) if path.endswith(".py"))


def _docstrings(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, str]]:
    """(name, docstring) of each function and class but private ones; a constructor is called as its class."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own = owner if node.name == "__init__" and owner else f"{owner}.{node.name}".strip(".")
            text = ast.get_docstring(node)
            if text and not own.rpartition(".")[2].startswith("_"):
                yield own, text
            if isinstance(node, ast.ClassDef):
                yield from _docstrings(node, own)
        elif isinstance(node, ast.If | ast.Try):
            yield from _docstrings(node, owner)


def described(name: str, text: str) -> Described | None:
    """Returns the descriptions of a function's parameters in its docstring; None for fewer than two, or too long ones.

    >>> one = described("f", "Add.\\n\\nArgs:\\n    x: the first number. Not NaN.\\n    y (int): the second number")
    >>> one.parameters
    {'x': Span(text='the first number', start=19), 'y': Span(text='the second number', start=59)}
    """
    for style in (_numpy, _google, _sphinx):
        entries = list(style(text))
        if entries:
            break
    end = max((stop for _, _, stop in entries), default=0)
    text = text[:end].rstrip()
    told = {name: span for names, start, stop in entries for name in names if (span := _sentence(text, start, stop))}
    if len(told) < 2 or len(text) > LONGEST:
        return None
    return Described(name, text, told)


Entry = tuple[list[str], int, int]  # the names, and the description's place


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
    """Each description goes on to where the next begins."""
    found = list(matches)
    ends = [match.start() for match in found[1:]] + [stop]
    for match, end in zip(found, ends, strict=False):
        yield [name.strip(" *") for name in match[1].split(",")], match.end(), end


def _sentence(text: str, start: int, stop: int) -> Span | None:
    """The first sentence from `start` on, without its stop; None where it is no answer for people."""
    start += len(text[start:stop]) - len(text[start:stop].lstrip())
    end = _END.search(text, start, stop)
    piece = text[start : end.start() if end else stop].rstrip(" \n.")
    if len(piece) not in ANSWER or piece[0] in ".:-*`{(" or " " not in piece:
        return None
    return Span(piece, start)
