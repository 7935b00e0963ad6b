"""Built-in data sets, accepted in place of a file: ``builtin:NAME[/ARGUMENT][:SPLIT]``. A file each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heedful.data.builtin import code_roles, dates, digits, docstrings, functions, languages, parameters, stdlib
from heedful.errors import HeedfulError, nearest

PREFIX = "builtin:"
SPLITS = ("train", "valid", "test")

# name -> (what makes its rows from the argument and the split, one line for listings)
_SETS: dict[str, tuple[Callable[[str | None, str], list[dict[str, Any]]], str]] = {
    "cldr-dates": (dates.rows, "dates and times written out in two languages, from CLDR; cldr-dates/en-fr by default"),
    "cldr-languages": (languages.rows, "names and phrases from CLDR, and in which of 36 languages each is written"),
    "code-roles": (code_roles.rows, "Python functions in tokens, and what each name in them is"),
    "digits": (digits.rows, "1,797 handwritten digits of 8 × 8 pixels, from scikit-learn"),
    "docstrings": (docstrings.rows, "what a Python function does in detail → the line that its docstring begins with"),
    "functions": (functions.rows, "what a Python function is for, and its source: code to be found by words"),
    "parameters": (
        parameters.rows,
        "what a parameter of a function does, a piece of its docstring; parameters/unanswered: or none",
    ),
    "stdlib": (stdlib.rows, "the source of Python's standard library, a module a document"),
}


def names() -> dict[str, str]:
    """The built-in sets, each with the line that describes it."""
    return {name: description for name, (_, description) in _SETS.items()}


def load(source: str, split: str | None = None) -> list[dict[str, Any]]:
    """The rows of a source string; `split` counts where the string names none, and "train" where neither does.

    >>> load("builtin:cldr-dates/en-fr:test")[0].keys()
    dict_keys(['source', 'target', 'format', 'exact'])

    Raises `HeedfulError` for an unknown set, argument or split, naming the nearest.
    """
    path, _, named = source.removeprefix(PREFIX).partition(":")
    name, _, argument = path.partition("/")
    if name not in _SETS:
        raise HeedfulError(f"unknown built-in set {name!r}, in {source}; {nearest(name, _SETS)}")
    part = named or split or "train"
    if part not in SPLITS:
        raise HeedfulError(f"unknown split {part!r}, in {source}; {nearest(part, SPLITS)}")
    return _SETS[name][0](argument or None, part)
