"""Type checks of values against annotations, type names for people, and JSON."""

from __future__ import annotations

import json
import math
import os
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", types.NoneType: "nothing"}


def fits(value: Any, hint: Any) -> bool:
    """Returns True if a value has the annotated type. An int is a float; a bool is neither."""
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


def describe(hint: Any) -> str:
    """Returns an annotation in words: "a whole number", "one of relu, gelu"."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arg) for arg in args if arg is not types.NoneType)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple:
        return "a list of " + ", ".join(describe(arg) for arg in args if arg is not Ellipsis)
    return KINDS.get(hint, hint.__name__)


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
