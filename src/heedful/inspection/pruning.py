"""Pruning: a smaller model that computes what the large one computes with some of its parts masked.

Shapes: D model width, H query heads in K groups that share a key-value head each, E head size, F feed-forward units.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from heedful.config import StackConfig
from heedful.errors import HeedfulError, nearest
from heedful.layers.attention import Attention
from heedful.layers.feedforward import FeedForward
from heedful.layers.position import Alibi, Relative
from heedful.models import Model
from heedful.pretrained.fill_model import build_empty, fill, tied_names
from heedful.pretrained.peft_names import set_adapter_targets
from heedful.stack import Stack

M = TypeVar("M", bound=Model)
Parts = Mapping[int | str, Sequence[int]]

_BLOCK = re.compile(r"(?P<stack>\w+)\.block\.(?P<layer>\d+)\.(?P<inner>.+)")


def prune(
    model: M,
    *,
    heads: Parts | None = None,
    units: Parts | None = None,
    layers: Iterable[int | str] = (),
    pad: bool = False,
) -> M:
    """A new, smaller model that computes what ``model`` computes with these parts masked.

    A masked head says nothing, its sum of values is 0: the columns of the output projection that read it can go, and
    the rows of the projections that make its query (and key and value, where no other head shares them). So with a
    masked feed-forward unit, its rows of ``up`` and ``gate`` and its column of ``down``. A masked block hands its
    stream on as it came. Heads: Michel, Levy and Neubig 2019; blocks: Fan, Grave and Joulin 2020.

    The head size E stays, as ``head_dim`` in the configuration, and with it the scale 1/√E. All blocks of a stack are
    equal, so each attention of it, cross-attention too, must keep as many heads and each feed-forward as many units.
    Where H query heads share K key-value heads, whole groups go, or as many heads of each group.

    Args:
        model: of any family. It is left as it is.
        heads: which heads go. Keys are a block's number (every attention of the blocks of that number) or the end of an
            attention's path, such as "decoder.block.1.cross_attention" or "cross_attention".
        units: which feed-forward units go; keys as before, or the end of a path such as "block.1.feed_forward".
        layers: which blocks go: numbers, or ends of paths such as "encoder.block.3".
        pad: where attentions would keep different heads, fill up those that keep fewer with *silent* heads, whose
            columns of the output projection are zero; so with units. The outputs are the same, less is saved, and
            further training may wake them. By default such a request is an error.

    Returns:
        A model of the same class, in the same mode and on the same device. ``save_pretrained`` writes it in its
        family's layout where that can say the sizes (fewer blocks, or as few units in every stack: all; a head size of
        its own: Llama, T5), else in heedful's own.

    Raises:
        HeedfulError: for a part that is not there, where nothing would be left, for blocks that would become unequal,
            for a model with an adapter, and where positions hinder it: T5's relative positions are one table for all
            blocks, so the same heads must go in each; ALiBi's slopes follow from the number of heads, so only heads may
            stay whose slopes a smaller model has, such as every second of 8.

    >>> import heedful, torch
    >>> model = heedful.create("gpt-micro", seed=0).eval()
    >>> small = prune(model, heads={layer: [1, 3] for layer in range(4)}, layers=[2])
    >>> small.config.decoder.depth, small.config.decoder.heads, small.config.decoder.head_dim
    (3, 2, 32)
    >>> model.count(), small.count(), small(torch.tensor([[1, 2, 3]])).shape
    (809856, 512704, torch.Size([1, 3, 65]))
    """
    if not isinstance(model, Model):
        raise HeedfulError(f"a model of heedful is wanted, not a {type(model).__name__}")
    model.whole("prune it")
    if model.adapter is not None:
        raise HeedfulError("the model has an adapter; merge it first (heedful.adapters.merge), then prune")
    modules = dict(model.named_modules())
    stacks = {path: part for path, part in modules.items() if isinstance(part, Stack)}
    blocks = [f"{name}.block.{i}" for name, stack in stacks.items() for i in range(len(stack.block))]
    gone = _Gone(
        {path for key in layers for path in _matching(key, blocks, "block")},
        _numbers(heads or {}, {path: part.heads for path, part in modules.items() if isinstance(part, Attention)}),
        _numbers(units or {}, {path: _inner(part) for path, part in modules.items() if isinstance(part, FeedForward)}),
    )
    plans = {name: _plan(name, stack, gone, pad) for name, stack in stacks.items()}
    sizes: dict[str, Any] = {name: plan.config for name, plan in plans.items()}
    made = build_empty(replace(model.config, **sizes))
    old = {name: _old(name, plans) for name in made.state_dict()}
    state = model.state_dict()
    fill(made, {name: _taken(old[name], state, plans) for name in tied_names(made)}, model.dtype, model.device)
    _tell(made, model, old)
    return made  # type: ignore[return-value]  # a family's configuration makes its class


# --------------------------------------------------------------------------------------------------- what is asked for


@dataclass(frozen=True)
class _Gone:
    """Parts to remove: the paths of blocks, and heads and units by their paths."""

    blocks: set[str]
    heads: dict[str, set[int]]
    units: dict[str, set[int]]


def _numbers(parts: Parts, sizes: Mapping[str, int]) -> dict[str, set[int]]:
    """The numbers that are to go, for each path."""
    found: dict[str, set[int]] = {path: set() for path in sizes}
    for key, numbers in parts.items():
        for path in _matching(key, list(sizes), "part"):
            wrong = [n for n in numbers if not 0 <= n < sizes[path]]
            if wrong:
                raise HeedfulError(f"{path} has no number {wrong[0]}; it has {sizes[path]}, from 0")
            found[path] |= {int(n) for n in numbers}
    return found


def _matching(key: int | str, paths: Sequence[str], what: str) -> list[str]:
    """The paths of a block's number, or that end in ``key``."""
    if isinstance(key, str):
        found, hint = [path for path in paths if f".{path}".endswith(f".{key}")], nearest(key, paths)
    else:
        found, hint = [path for path in paths if f".block.{key}." in f"{path}."], "number them from 0"
    if not found:
        raise HeedfulError(f"the model has no {what} at {key!r} to prune; {hint}")
    return found


# ------------------------------------------------------------------------------------------------------- what can stay


@dataclass(frozen=True)
class _Plan:
    """Plan that turns a stack into the smaller one."""

    config: StackConfig
    layers: list[int]  # the blocks that stay
    taken: dict[str, tuple[int, Tensor]]  # of maps by their old path: the axis, and the rows or columns that stay
    silent: dict[str, Tensor]  # of maps by their old path: columns, as they are now, that only fill a place


def _plan(name: str, stack: Stack, gone: _Gone, pad: bool) -> _Plan:
    layers = [i for i in range(len(stack.block)) if f"{name}.block.{i}" not in gone.blocks]
    if not layers:
        raise HeedfulError(f"no block of the {name} would be left; keep at least one")
    staying = tuple(f"{name}.block.{i}." for i in layers)
    no_heads, no_units = (
        {path: numbers for path, numbers in asked.items() if path.startswith(staying)}
        for asked in (gone.heads, gone.units)
    )
    first: Any = stack.block[0]
    attention: Attention = first.attention
    inner, config = _inner(first.feed_forward), stack.config
    own = [path for path in no_heads if path.endswith(".attention")]
    shared, size = attention.heads // attention.kv_heads, attention.head_dim
    alike = own if isinstance(stack.position, Relative) else []
    heads = heads_kept(no_heads, attention.heads, attention.kv_heads, alike, pad=pad)
    units = units_kept(no_units, inner, pad=pad)
    if isinstance(stack.position, Alibi):
        for path in own:
            ordered = _sloped(path, heads.numbers[path], no_heads[path], stack.position.slopes)
            together = len(ordered) // heads.count
            if any(ordered[i] // shared != ordered[i - i % together] // shared for i in range(len(ordered))):
                raise HeedfulError(f"{path}: ALiBi's slopes would part heads that share a key-value head; keep all")
            heads.numbers[path] = ordered
    taken: dict[str, tuple[int, Tensor]] = {}
    silent: dict[str, Tensor] = {}
    for path, numbers in heads.numbers.items():
        queries, keys = _wide(numbers, size), _wide(list(dict.fromkeys(h // shared for h in numbers)), size)
        taken |= {f"{path}.query": (0, queries), f"{path}.key": (0, keys), f"{path}.value": (0, keys)}
        taken[f"{path}.out"] = 1, queries
        silent[f"{path}.out"] = _wide([i for i, h in enumerate(numbers) if h in no_heads[path]], size)
    for path, numbers in units.numbers.items():
        rows = torch.tensor(numbers)
        taken |= {f"{path}.up": (0, rows), f"{path}.gate": (0, rows), f"{path}.down": (1, rows)}
        silent[f"{path}.down"] = _wide([i for i, n in enumerate(numbers) if n in no_units[path]], 1)
    if alike:
        taken[f"{name}.position.table"] = 1, torch.tensor(heads.numbers[own[0]])
    number = len(heads.numbers[own[0]])
    config = replace(
        config,
        depth=len(layers),
        heads=number,
        kv_heads=config.kv_heads and heads.count,
        head_dim=config.head_dim if number == attention.heads else size,
        ff_dim=config.ff_dim if units.count == inner else units.count,
    )
    return _Plan(config, layers, taken, silent)


def _inner(feed_forward: FeedForward) -> int:
    return feed_forward.up.out_features


def _wide(numbers: Sequence[int], size: int) -> Tensor:
    """The rows of heads of this size."""
    return (torch.tensor(numbers, dtype=torch.long)[:, None] * size + torch.arange(size)).flatten()


def _sloped(path: str, kept: Sequence[int], silent: Collection[int], slopes: Sequence[float]) -> list[int]:
    """The heads in the places where a model of so many has their ALiBi slopes; silent ones in those left over."""
    new = Alibi(len(kept)).slopes
    speaking = {slopes[head]: head for head in kept if head not in silent}
    if set(speaking) - set(new):
        fitting = sorted(slopes.index(slope) for slope in new if slope in slopes)
        raise HeedfulError(
            f"{path} would keep heads {[*speaking.values()]}, but ALiBi's slopes follow from the number of heads, and "
            f"those of {len(new)} are the slopes of heads {fitting} here; keep these, or all"
        )
    spare = iter([head for head in kept if head in silent])
    return [speaking[slope] if slope in speaking else next(spare) for slope in new]


# ------------------------------------------------------------------------------------------------------- what is taken


def _old(name: str, plans: Mapping[str, _Plan]) -> str:
    """The large model's name of the small one's tensor: its block's number is another."""
    found = _BLOCK.match(name)
    return f"{found[1]}.block.{plans[found[1]].layers[int(found[2])]}.{found[3]}" if found else name


def _taken(name: str, state: Mapping[str, Tensor], plans: Mapping[str, _Plan]) -> Tensor:
    """A copy of what stays of the large model's tensor of this name."""
    tensor, path = state[name], name.rpartition(".")[0]
    taken = {path: each for plan in plans.values() for path, each in plan.taken.items()}
    silent = {path: each for plan in plans.values() for path, each in plan.silent.items()}
    if path not in taken or taken[path][0] == tensor.dim():  # the bias of a map whose columns go stays whole
        return tensor.clone()
    axis, numbers = taken[path]
    tensor = tensor.index_select(axis, numbers.to(tensor.device))
    return tensor.index_fill(1, silent[path].to(tensor.device), 0) if path in silent else tensor


def _tell(made: Model, model: Model, old: Mapping[str, str]) -> None:
    """Copies attributes of the large model other than its weights."""
    made.labels, made.multi_label, made.regression = model.labels, model.multi_label, model.regression
    made.generation, made.layout = model.generation, model.layout
    rows = [each.partition("[") for each in model.fresh]  # "name", or "name[8:16]"
    made.fresh = [name + mark + rest for name in old for their, mark, rest in rows if their == old[name]]
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(parameters[old[name]].requires_grad)
    if model.layout:
        set_adapter_targets(made)
    made.train(model.training)


Numbers = Mapping[str, Collection[int]]


@dataclass(frozen=True)
class Kept:
    """Heads or units that stay, by path: the old numbers in their new order."""

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
    """Explains why the remaining heads of ``path`` do not fit."""
    found, ways = f"{path} would keep heads {stay[path]}", "or give pad=True to fill up with silent heads"
    if path in alike and any(stay[other] != stay[path] for other in alike):
        return f"{found}, but its relative positions are one table for all blocks; prune the same heads in each, {ways}"
    if size > 1 and len({len(own) for own in _grouped(stay[path], size).values()}) > 1:
        return f"{found} of groups of {size} that share a key-value head; prune as many in each group, {ways}"
    return f"{found}, but others keep {wanted}, and a model's blocks are equal; prune as many in each, {ways}"
