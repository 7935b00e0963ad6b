"""Our configurations as flat mappings: a field's whole path (``"decoder.dropout.attention"``) to its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heedful.config import Config

Flat = dict[str, Any]


def flat(config: Config) -> Flat:
    """Returns our configuration, flat, with sizes that follow from others filled in."""
    paths: Flat = {}

    def visit(value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            paths[path] = value
            return
        if value["kind"] == "stack":
            dim, heads = value["dim"], value["heads"]
            follows = {"kv_heads": heads, "head_dim": dim // heads, "ff_dim": 4 * dim}
            value = {**value, **{k: follows[k] for k in follows if value[k] is None}}
        for key, inner in value.items():
            visit(inner, f"{path}.{key}" if path else key)

    visit(config.to_dict(), "")
    return paths


def nested(paths: Flat) -> dict[str, Any]:
    """Returns a flat configuration as ``Config.from_dict`` takes it."""
    whole: dict[str, Any] = {}
    for path, value in paths.items():
        *outer, last = path.split(".")
        place = whole
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    return whole
