"""Value checks against annotations and bounds, type names for people, and JSON."""

from __future__ import annotations

import json
import math
import operator
import os
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from heedful.errors import HeedfulError

KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", types.NoneType: "nothing"}
BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "above": (operator.gt, "above"),
    "least": (operator.ge, "at least"),
    "below": (operator.lt, "below"),
    "most": (operator.le, "at most"),
}


def fits(value: Any, hint: Any) -> bool:
    """Returns True if a value has the type of the annotation ``hint``. An int is also a float; a bool is neither."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if origin is tuple:
        kinds = [args[0]] * len(value) if isinstance(value, tuple) and args[-1] is Ellipsis else args
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(fits, value, kinds))
    if hint is float:
        hint = (int, float)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def type_in_words(hint: Any) -> str:
    """Returns a type annotation in words, such as "a whole number" or "one of relu, gelu"."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(type_in_words(arg) for arg in args if arg is not types.NoneType)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple:
        each = type_in_words(args[0])
        if args[-1] is Ellipsis:
            return f"a list of {each.removeprefix('a ')}s"
        return "a list of " + ", ".join(map(type_in_words, args))
    return KINDS.get(hint, hint.__name__)


def check(name: str, value: Any, hint: Any, **bounds: float) -> None:
    """Raises ``HeedfulError`` unless a value has the annotated type, and its numbers are finite and within the bounds.

    Args:
        name: name of the option or argument, for the message.
        value: the value. The numbers of a tuple are checked one by one; None is within any bounds.
        hint: annotated type, such as ``int | None``.
        bounds: limits of the numbers: ``above`` and ``below`` exclude the limit, ``least`` and ``most`` include it.

    >>> check("--training.lr", 0.1, float, above=0)
    >>> check("magnitude", 31, float, least=0, most=30)
    Traceback (most recent call last):
    heedful.errors.HeedfulError: magnitude must be at most 30, not 31
    """
    if not fits(value, hint):
        raise HeedfulError(f"{name} must be {type_in_words(hint)}, not {value!r}")
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, float) and not math.isfinite(number):
            raise HeedfulError(f"{name} must be a finite number, not {number}")
        for bound, limit in bounds.items():
            is_within, words = BOUNDS[bound]
            if number is not None and not is_within(number, limit):
                raise HeedfulError(f"{name} must be {words} {limit}, not {number}")


def to_json(value: Any) -> str:
    """Returns one line of JSON; NaN and infinity become null."""
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """Returns a value for JSON: NaN and infinity as None, arrays as lists, paths as strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return str(value) if isinstance(value, os.PathLike) else value
