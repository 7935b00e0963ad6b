"""Built-in data sets, accepted in place of a file: ``builtin:NAME[/ARGUMENT][:SPLIT]``. Each has its own file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heedful.data.builtin import dates, digits, languages, shapes, stdlib
from heedful.errors import HeedfulError, nearest

PREFIX = "builtin:"
SPLITS = ("train", "valid", "test")

# name -> (function that returns its rows for an argument and a split, description for listings)
_SETS: dict[str, tuple[Callable[[str | None, str], list[dict[str, Any]]], str]] = {
    "cldr-dates": (dates.rows, "dates and times written out in two languages, from CLDR; cldr-dates/en-fr by default"),
    "cldr-languages": (languages.rows, "names and phrases from CLDR in 36 languages, with their language"),
    "digits": (digits.rows, "1,797 handwritten digits of 8 × 8 pixels, from scikit-learn"),
    "shapes": (shapes.rows, "drawn images of two coloured shapes, each with a sentence: image captioning"),
    "stdlib": (stdlib.rows, "the source of Python's standard library; each module is a document"),
}
# name -> function that returns the languages of its texts for an argument
_LANGUAGES: dict[str, Callable[[str], tuple[str, ...]]] = {
    "cldr-dates": lambda pair: tuple(code.partition("_")[0] for code in (pair or dates.DEFAULT_PAIR).split("-")),
    "cldr-languages": lambda _: languages.LANGUAGES,
    "shapes": lambda _: ("en",),
}


def names() -> dict[str, str]:
    """Returns the names of the built-in sets, each with a one-line description."""
    return {name: description for name, (_, description) in _SETS.items()}


def load(source: str, split: str | None = None) -> list[dict[str, Any]]:
    """Returns the rows of a built-in set, ``builtin:NAME[/ARGUMENT][:SPLIT]``.

    The split is the one in `source`, else `split`, else "train".

    >>> load("builtin:cldr-dates/en-fr:test")[0].keys()
    dict_keys(['source', 'target', 'format', 'exact'])

    Raises `HeedfulError` for an unknown set, argument or split; it names the nearest known one.
    """
    path, _, named = source.removeprefix(PREFIX).partition(":")
    name, _, argument = path.partition("/")
    if name not in _SETS:
        raise HeedfulError(f"unknown built-in set {name!r}, in {source}; {nearest(name, _SETS)}")
    chosen = named or split or "train"
    if chosen not in SPLITS:
        raise HeedfulError(f"unknown split {chosen!r}, in {source}; {nearest(chosen, SPLITS)}")
    return _SETS[name][0](argument or None, chosen)


def languages_of(source: str) -> tuple[str, ...]:
    """Returns the ISO 639 codes of the languages of a built-in set; () for a set without texts in a language.

    >>> languages_of("builtin:cldr-dates/en-fr:test"), languages_of("builtin:digits")
    (('en', 'fr'), ())
    """
    name, _, argument = source.removeprefix(PREFIX).partition(":")[0].partition("/")
    return _LANGUAGES[name](argument) if name in _LANGUAGES else ()
