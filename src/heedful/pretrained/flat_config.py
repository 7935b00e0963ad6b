"""Flat configurations: mappings from a field's path (``"decoder.dropout.attention"``) to its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heedful.config import Config

Flat = dict[str, Any]


def flat(config: Config) -> Flat:
    """Returns a configuration as a flat mapping; sizes that are derived from others are filled in."""
    paths: Flat = {}

    def visit(value: Any, path: str) -> None:
        if not isinstance(value, Mapping):
            paths[path] = value
            return
        if value["kind"] == "stack":
            dim, heads = value["dim"], value["heads"]
            derived = {"kv_heads": heads, "head_dim": dim // heads, "ff_dim": 4 * dim}
            value = {**value, **{k: derived[k] for k in derived if value[k] is None}}
        for key, inner in value.items():
            visit(inner, f"{path}.{key}" if path else key)

    visit(config.to_dict(), "")
    return paths


def nested(paths: Flat) -> dict[str, Any]:
    """Returns the nested mapping of a flat configuration, for ``Config.from_dict``."""
    tree: dict[str, Any] = {}
    for path, value in paths.items():
        *outer, last = path.split(".")
        branch = tree
        for key in outer:
            branch = branch.setdefault(key, {})
        branch[last] = value
    return tree
