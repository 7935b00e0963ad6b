"""Weights in several files: how they are divided, and the index that says which tensor is where."""

from __future__ import annotations

import re
from typing import Any

from heedful.errors import HeedfulError
from heedful.pretrained.rules import Tensors

UNITS = {"": 1, **{unit + "B": 1000**n for n, unit in enumerate("KMGT", 1)}}
UNITS |= {unit + "IB": 1024**n for n, unit in enumerate("KMGT", 1)}


def size_of(asked: int | str) -> int:
    """Bytes: a number of them, or "200MB", "5GB" (powers of ten), "5GiB" (powers of two).

    >>> size_of("200MB"), size_of("1.5KiB")
    (200000000, 1536)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]I?B|)", str(asked).strip().upper())
    size = int(float(found[1]) * UNITS[found[2]]) if found else 0
    if size < 1:
        raise HeedfulError(f"max_shard_size is {asked!r}; give a number of bytes, or a size such as '5GB' or '200MB'")
    return size


def divided(tensors: Tensors, most: int, name: str) -> dict[str, Tensors]:
    """Files of at most ``most`` bytes of tensors, in order; a larger one has its own. One alone is called ``name``."""
    groups: list[Tensors] = [{}]
    size = 0
    for key, tensor in tensors.items():
        if groups[-1] and size + tensor.nbytes > most:
            groups.append({})
            size = 0
        groups[-1][key] = tensor
        size += tensor.nbytes
    if len(groups) == 1:
        return {name: tensors}
    stem, _, ending = name.rpartition(".")
    return {f"{stem}-{i:05}-of-{len(groups):05}.{ending}": group for i, group in enumerate(groups, 1)}


def index_of(shards: dict[str, Tensors]) -> dict[str, Any]:
    """What the index says: the bytes of all tensors, and the file of each."""
    places = {name: file for file, tensors in shards.items() for name in tensors}
    total = sum(tensor.nbytes for tensors in shards.values() for tensor in tensors.values())
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
