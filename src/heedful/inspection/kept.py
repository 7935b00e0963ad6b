"""What can stay when parts of equal blocks go: as many heads in each attention, as many units in each feed-forward.

Heads are query heads, H of them in K groups that share a key-value head each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from heedful.errors import HeedfulError

Numbers = Mapping[str, Collection[int]]


@dataclass(frozen=True)
class Kept:
    """What stays, by path: the old numbers in their new order."""

    count: int  # of units, or of key-value heads
    numbers: dict[str, list[int]]


def heads_kept(gone: Numbers, heads: int, kv_heads: int, alike: Collection[str], *, pad: bool) -> Kept:
    """The heads that stay when those of ``gone`` go: in each attention as many groups of one size.

    Args:
        gone: the heads that go, by the attention's path.
        heads: query heads H of each attention.
        kv_heads: key-value heads K.
        alike: paths of attentions whose positions are one table by head: they must keep the same heads.
        pad: fill up with some of those that were to go, where too few would stay, instead of raising.

    Raises:
        HeedfulError: where no head would stay, or other heads or numbers of heads in some attentions than in others.

    >>> heads_kept({"a": [0, 1], "b": [2, 3]}, heads=6, kv_heads=3, alike=(), pad=False)
    Kept(count=2, numbers={'a': [2, 3, 4, 5], 'b': [0, 1, 4, 5]})
    >>> heads_kept({"a": [0, 3, 5], "b": [3]}, heads=6, kv_heads=3, alike=(), pad=True)
    Kept(count=3, numbers={'a': [0, 1, 2, 3, 4, 5], 'b': [0, 1, 2, 3, 4, 5]})
    """
    size = heads // kv_heads
    stay = {path: [h for h in range(heads) if h not in numbers] for path, numbers in gone.items()}
    together = sorted({h for path in alike for h in stay[path]})
    groups = {path: _grouped(together if path in alike else own, size) for path, own in stay.items()}
    count = max(map(len, groups.values()))
    most = max((len(group) for own in groups.values() for group in own.values()), default=0)
    if not count:
        raise HeedfulError(f"no head would be left in {', '.join(gone)}; keep one, or prune whole blocks (layers)")
    numbers = {path: _filled(own, count, most, size) for path, own in groups.items()}
    uneven = [path for path in stay if numbers[path] != stay[path]]
    if uneven and not pad:
        raise HeedfulError(_uneven(uneven[0], stay, count * most, size, alike))
    return Kept(count, numbers)


def units_kept(gone: Numbers, units: int, *, pad: bool) -> Kept:
    """The feed-forward units that stay when those of ``gone`` go, as many in each path; see ``heads_kept``.

    >>> units_kept({"a": [0], "b": [2]}, 3, pad=False)
    Kept(count=2, numbers={'a': [1, 2], 'b': [0, 1]})
    """
    stay = {path: [n for n in range(units) if n not in numbers] for path, numbers in gone.items()}
    count = max(map(len, stay.values()))
    if not count:
        raise HeedfulError(f"no unit would be left in {', '.join(gone)}; keep one, or prune whole blocks (layers)")
    fewest = min(stay, key=lambda path: len(stay[path]))
    if len(stay[fewest]) < count and not pad:
        raise HeedfulError(
            f"{fewest} would keep {len(stay[fewest])} units and others {count}, but a model's blocks are equal; "
            "prune as many in each, or give pad=True to fill up with silent ones"
        )
    return Kept(count, {path: _filled({0: own}, 1, count, units) for path, own in stay.items()})


def _grouped(heads: Sequence[int], size: int) -> dict[int, list[int]]:
    return {h // size: [i for i in heads if i // size == h // size] for h in heads}


def _filled(groups: Mapping[int, list[int]], count: int, most: int, size: int) -> list[int]:
    """The members of ``count`` groups of ``most`` each: those that stay, and the first of the others where too few."""
    chosen = dict(groups)
    for number in range(count):  # no more are needed than there are
        if len(chosen) < count:
            chosen.setdefault(number, [])
    filled = []
    for number, own in sorted(chosen.items()):
        spare = [n for n in range(number * size, (number + 1) * size) if n not in own]
        filled += sorted(own + spare[: most - len(own)])
    return filled


def _uneven(path: str, stay: Mapping[str, list[int]], wanted: int, size: int, alike: Collection[str]) -> str:
    """Why what stays in ``path`` cannot."""
    found, ways = f"{path} would keep heads {stay[path]}", "or give pad=True to fill up with silent heads"
    if path in alike and any(stay[other] != stay[path] for other in alike):
        return f"{found}, but its relative positions are one table for all blocks; prune the same heads in each, {ways}"
    if size > 1 and len({len(own) for own in _grouped(stay[path], size).values()}) > 1:
        return f"{found} of groups of {size} that share a key-value head; prune as many in each group, {ways}"
    return f"{found}, but others keep {wanted}, and a model's blocks are equal; prune as many in each, {ways}"
