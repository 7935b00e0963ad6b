"""Pruning: builds a smaller model that computes what the large model computes with some parts masked.

Shapes: D model width, H query heads in K groups that share a key-value head each, E head size, F feed-forward units.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

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
    """Returns a new, smaller model that computes what ``model`` computes with these parts masked.

    The output of a masked head is 0. Its columns of the output projection are removed, and its rows of the query
    projection; its rows of the key and value projections too, if no other head shares them. A masked feed-forward unit
    loses its rows of ``up`` and ``gate`` and its column of ``down``. A masked block returns its input.
    Heads: Michel, Levy and Neubig 2019; blocks: Fan, Grave and Joulin 2020.

    The head size E stays, as ``head_dim`` in the configuration, and with it the scale 1/√E. All blocks of a stack have
    equal sizes, so all its attentions, cross-attention too, must keep the same number of heads, and its feed-forwards
    the same number of units. If H query heads share K key-value heads, whole groups are removed, or the same number of
    heads in each group.

    Args:
        model: a model of any family. It is not changed.
        heads: heads to remove. Keys are a block's number (every attention of the blocks of that number) or the end of
            an attention's path, such as "decoder.block.1.cross_attention" or "cross_attention".
        units: feed-forward units to remove; keys as for heads, or the end of a path such as "block.1.feed_forward".
        layers: blocks to remove: numbers, or ends of paths such as "encoder.block.3".
        pad: fills up attentions that would keep fewer heads than others with *silent* heads, whose columns of the
            output projection are zero; units likewise. The outputs are the same, less memory is saved, and further
            training can change silent heads. By default unequal numbers are an error.

    Returns:
        A model of the same class, in the same mode and on the same device. ``save_pretrained`` writes it in its
        model type's layout if that can express the sizes, otherwise in heedful's own. All layouts can express fewer
        blocks and fewer units in every stack; Llama's and T5's can express another head size.

    Raises:
        HeedfulError: for a part that does not exist, if nothing would remain, for blocks that would become unequal, for
            a model with an adapter, and for heads that positions need. T5's relative positions are one table for all
            blocks, so the same heads must be removed in each. ALiBi's slopes follow from the number of heads, so the
            remaining heads must have slopes of a smaller model, such as every second of 8.

    >>> import heedful, torch
    >>> model = heedful.create("gpt-micro", seed=0).eval()
    >>> small = prune(model, heads={layer: [1, 3] for layer in range(4)}, layers=[2])
    >>> small.config.decoder.depth, small.config.decoder.heads, small.config.decoder.head_dim
    (3, 2, 32)
    >>> model.num_parameters(), small.num_parameters(), small(torch.tensor([[1, 2, 3]])).shape
    (809856, 512704, torch.Size([1, 3, 65]))
    """
    if not isinstance(model, Model):
        raise HeedfulError(f"a {type(model).__name__} cannot be pruned; give a model of heedful")
    model.check_not_optimised("prune it")
    if model.adapter is not None:
        raise HeedfulError("the model has an adapter; merge it first (heedful.adapters.merge), then prune")
    stacks = {path: part for path, part in model.named_modules() if isinstance(part, Stack)}
    removed = _removed_parts(model, stacks, heads or {}, units or {}, layers)
    pruned = {name: _prune_stack(name, stack, removed, pad) for name, stack in stacks.items()}
    configs: dict[str, Any] = {name: stack.config for name, stack in pruned.items()}
    small = build_empty(replace(model.config, **configs))
    old_names = {name: _old_name(name, pruned) for name in small.state_dict()}
    state = model.state_dict()
    weights = {name: _remaining_weight(old_names[name], state, pruned) for name in tied_names(small)}
    fill(small, weights, model.dtype, model.device)
    _copy_attributes(small, model, old_names)
    return small  # type: ignore[return-value]  # the class follows from the family's configuration


# ------------------------------------------------------------------------------------------------------- removed parts


@dataclass(frozen=True)
class _RemovedParts:
    """Parts to remove: the paths of blocks, and numbers of heads and units by path."""

    blocks: set[str]
    heads: dict[str, set[int]]
    units: dict[str, set[int]]


def _removed_parts(
    model: Model, stacks: Mapping[str, Stack], heads: Parts, units: Parts, layers: Iterable[int | str]
) -> _RemovedParts:
    blocks = [f"{name}.block.{i}" for name, stack in stacks.items() for i in range(len(stack.block))]
    modules = list(model.named_modules())
    head_counts = {path: part.heads for path, part in modules if isinstance(part, Attention)}
    unit_counts = {path: _unit_count(part) for path, part in modules if isinstance(part, FeedForward)}
    return _RemovedParts(
        {path for key in layers for path in _matching_paths(key, blocks, "block")},
        _numbers_by_path(heads, head_counts),
        _numbers_by_path(units, unit_counts),
    )


def _numbers_by_path(parts: Parts, sizes: Mapping[str, int]) -> dict[str, set[int]]:
    """Returns the numbers of the heads or units to remove, by path; raises ``HeedfulError`` for an invalid number."""
    removed: dict[str, set[int]] = {path: set() for path in sizes}
    for key, numbers in parts.items():
        for path in _matching_paths(key, list(sizes), "part"):
            wrong = [n for n in numbers if not 0 <= n < sizes[path]]
            if wrong:
                raise HeedfulError(
                    f"{path} has no part {wrong[0]}; its {sizes[path]} heads or units are numbered from 0"
                )
            removed[path] |= {int(n) for n in numbers}
    return removed


def _matching_paths(key: int | str, paths: Sequence[str], part_name: str) -> list[str]:
    """Returns the paths inside block ``key`` if it is a number, or the paths that end with ``key``."""
    if isinstance(key, str):
        matches, hint = [path for path in paths if f".{path}".endswith(f".{key}")], nearest(key, paths)
    else:
        matches, hint = [path for path in paths if f".block.{key}." in f"{path}."], "blocks are numbered from 0"
    if not matches:
        raise HeedfulError(f"the model has no {part_name} at {key!r} to prune; {hint}")
    return matches


# ----------------------------------------------------------------------------------------------------- remaining parts


@dataclass(frozen=True)
class _PrunedStack:
    """Configuration of a pruned stack, and the remaining parts of the large stack's weights."""

    config: StackConfig
    layers: list[int]  # remaining blocks
    remaining: dict[str, tuple[int, Tensor]]  # path of a linear map → axis, and its remaining rows or columns
    silent: dict[str, Tensor]  # path of a linear map → columns of the pruned map that are set to zero


def _prune_stack(name: str, stack: Stack, removed: _RemovedParts, pad: bool) -> _PrunedStack:
    layers = _remaining_layers(name, stack, removed)
    prefixes = tuple(f"{name}.block.{i}." for i in layers)
    removed_heads, removed_units = (
        {path: numbers for path, numbers in parts.items() if path.startswith(prefixes)}
        for parts in (removed.heads, removed.units)
    )
    if stack.config.shared_blocks > 1:
        _check_shared_weights(name, stack, removed_heads | removed_units, layers)
    first: Any = stack.block[0]
    attention: Attention = first.attention
    config = stack.config
    unit_count = config.ff_dim or 4 * config.dim
    self_attentions = [path for path in removed_heads if path.endswith(".attention")]
    if attention.relative is not None and any(removed_heads[path] for path in self_attentions):
        _check_shared_positions(name, stack, attention.relative)
    if config.qk_norm == "all" and any(removed_heads.values()):
        raise HeedfulError(
            f"the {name} norms the queries of all heads together (qk_norm is 'all'), so that no head can be pruned; "
            "prune blocks or units of the feed-forward"
        )
    group_size, size = attention.heads // attention.kv_heads, attention.head_dim
    tables = [path for path, part in stack.position.named_modules() if isinstance(part, Relative)]  # by head
    one_table = self_attentions if tables else []
    heads = remaining_heads(removed_heads, attention.heads, attention.kv_heads, one_table, pad=pad)
    units = remaining_units(removed_units, unit_count, pad=pad)
    if isinstance(stack.position, Alibi):
        for path in self_attentions:
            heads.numbers[path] = _in_groups(
                path, heads.numbers[path], removed_heads[path], stack.position.slopes, group_size, heads.count
            )
    remaining: dict[str, tuple[int, Tensor]] = {}
    silent: dict[str, Tensor] = {}
    for path, numbers in heads.numbers.items():
        queries, keys = (
            _head_rows(numbers, size),
            _head_rows(list(dict.fromkeys(h // group_size for h in numbers)), size),
        )
        remaining |= {f"{path}.query": (0, queries), f"{path}.key": (0, keys), f"{path}.value": (0, keys)}
        remaining[f"{path}.out"] = 1, queries
        silent[f"{path}.out"] = _head_rows([i for i, h in enumerate(numbers) if h in removed_heads[path]], size)
    for path, numbers in units.numbers.items():
        rows = torch.tensor(numbers)
        remaining |= {f"{path}.up": (0, rows), f"{path}.gate": (0, rows), f"{path}.down": (1, rows)}
        silent[f"{path}.down"] = _head_rows([i for i, n in enumerate(numbers) if n in removed_units[path]], 1)
    for table in tables:
        remaining[".".join(filter(None, (name, "position", table, "table")))] = (
            1,
            torch.tensor(heads.numbers[self_attentions[0]]),
        )
    head_count = len(heads.numbers[self_attentions[0]])
    config = replace(
        config,
        depth=len(layers),
        heads=head_count,
        kv_heads=config.kv_heads and heads.count,
        head_dim=config.head_dim if head_count == attention.heads else size,
        ff_dim=config.ff_dim if units.count == unit_count else units.count,
    )
    return _PrunedStack(config, layers, remaining, silent)


def _in_groups(
    path: str, numbers: Sequence[int], removed: Collection[int], slopes: Sequence[float], group_size: int, groups: int
) -> list[int]:
    """Returns the heads in the order of ALiBi's slopes; raises if heads that share a key-value head are then apart."""
    ordered = _order_by_slope(path, numbers, removed, slopes)
    new_group_size = len(ordered) // groups
    group_of = [head // group_size for head in ordered]
    if any(group_of[i] != group_of[i - i % new_group_size] for i in range(len(ordered))):
        raise HeedfulError(
            f"{path}: without these heads, ALiBi's slopes separate heads that share a key-value head; keep all heads"
        )
    return ordered


def _remaining_layers(name: str, stack: Stack, removed: _RemovedParts) -> list[int]:
    layers = [i for i in range(len(stack.block)) if f"{name}.block.{i}" not in removed.blocks]
    if not layers:
        raise HeedfulError(f"no block of the {name} would be left; keep at least one")
    if len(layers) < len(stack.block) and stack.config.experts is not None and stack.config.experts.step > 1:
        raise HeedfulError(f"some blocks of the {name} have experts, by their numbers; keep all of its blocks")
    if layers[0] and stack.config.convolution is not None:
        raise HeedfulError(f"the first block of the {name} has a convolution beside it; keep this block")
    return layers


def _check_shared_weights(name: str, stack: Stack, removed: Mapping[str, set[int]], layers: Sequence[int]) -> None:
    """Raises ``HeedfulError`` for parts that some of the blocks would lose, but not others with the same weights."""
    parts: dict[str, set[frozenset[int]]] = {}
    for path, numbers in removed.items():
        parts.setdefault(path.partition(".block.")[2].partition(".")[2], set()).add(frozenset(numbers))
    is_cut = len(layers) < len(stack.block) and stack.config.distinct_blocks != 1
    if is_cut or any(len(different) > 1 for different in parts.values()):
        raise HeedfulError(
            f"blocks of the {name} share their weights; prune the same heads and units in every block, and no block "
            "unless all share them"
        )


def _check_shared_positions(name: str, stack: Stack, relative: nn.Module) -> None:
    """Raises ``HeedfulError`` if the relative positions of an attention have weights, which belong to heads."""
    if next(relative.parameters(), None) is not None:
        raise HeedfulError(
            f"{stack.config.position.kind!r} positions of the {name} have weights for each head, which cannot be "
            "pruned; prune blocks or units of the feed-forward"
        )


def _unit_count(feed_forward: FeedForward) -> int:
    return feed_forward.up.out_features


def _head_rows(numbers: Sequence[int], size: int) -> Tensor:
    """Returns the rows of heads of this size."""
    return (torch.tensor(numbers, dtype=torch.long)[:, None] * size + torch.arange(size)).flatten()


def _order_by_slope(path: str, heads: Sequence[int], silent: Collection[int], slopes: Sequence[float]) -> list[int]:
    """Orders heads so that each has its ALiBi slope in a model with their number; silent heads fill the gaps."""
    new = Alibi(len(heads)).slopes
    active = {slopes[head]: head for head in heads if head not in silent}
    if set(active) - set(new):
        fitting = sorted(slopes.index(slope) for slope in new if slope in slopes)
        raise HeedfulError(
            f"{path} would keep heads {[*active.values()]}, but ALiBi's slopes follow from the number of heads, and "
            f"those of {len(new)} are the slopes of heads {fitting} here; keep these heads, or all"
        )
    unplaced = iter([head for head in heads if head in silent])
    return [active[slope] if slope in active else next(unplaced) for slope in new]


# --------------------------------------------------------------------------------------------------- remaining weights


def _old_name(name: str, pruned: Mapping[str, _PrunedStack]) -> str:
    """Returns the large model's name of a tensor of the small one, whose block has another number."""
    match = _BLOCK.match(name)
    return f"{match[1]}.block.{pruned[match[1]].layers[int(match[2])]}.{match[3]}" if match else name


def _remaining_weight(name: str, state: Mapping[str, Tensor], pruned: Mapping[str, _PrunedStack]) -> Tensor:
    """Returns a copy of the remaining rows or columns of the large model's tensor of this name."""
    tensor, path = state[name], name.rpartition(".")[0]
    remaining = {path: index for stack in pruned.values() for path, index in stack.remaining.items()}
    silent = {path: columns for stack in pruned.values() for path, columns in stack.silent.items()}
    if path not in remaining or remaining[path][0] == tensor.dim():  # the bias of a map that loses columns
        return tensor.clone()
    axis, numbers = remaining[path]
    tensor = tensor.index_select(axis, numbers.to(tensor.device))
    return tensor.index_fill(1, silent[path].to(tensor.device), 0) if path in silent else tensor


def _copy_attributes(small: Model, model: Model, old_names: Mapping[str, str]) -> None:
    """Copies attributes of the large model other than its weights."""
    small.labels, small.multi_label, small.regression = model.labels, model.multi_label, model.regression
    small.generation, small.folder.layout = model.generation, model.folder.layout
    fresh = [entry.partition("[") for entry in model.fresh]  # "name", or "name[8:16]"
    small.fresh = [new + mark + rest for new, old in old_names.items() for name, mark, rest in fresh if name == old]
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in small.named_parameters():
        parameter.requires_grad_(parameters[old_names[name]].requires_grad)
    if model.folder.layout:
        set_adapter_targets(small)
    small.train(model.training)


Numbers = Mapping[str, Collection[int]]


@dataclass(frozen=True)
class Remaining:
    """Heads or units that remain after pruning, by path: their old numbers, in the new order."""

    count: int  # of units, or of key-value heads
    numbers: dict[str, list[int]]


def remaining_heads(removed: Numbers, heads: int, kv_heads: int, one_table: Collection[str], *, pad: bool) -> Remaining:
    """Returns the heads that remain without ``removed``.

    Every attention keeps the same number of key-value heads, each with the same number of query heads.

    Args:
        removed: heads to remove, by the attention's path.
        heads: query heads H of each attention.
        kv_heads: key-value heads K.
        one_table: paths of attentions that share a table of positions by head, and so must keep the same heads.
        pad: keeps some of the removed heads in attentions where too few would remain; False raises an error there.

    Raises:
        HeedfulError: if no head would remain, or if heads or their numbers differ between attentions.

    >>> remaining_heads({"a": [0, 1], "b": [2, 3]}, heads=6, kv_heads=3, one_table=(), pad=False)
    Remaining(count=2, numbers={'a': [2, 3, 4, 5], 'b': [0, 1, 4, 5]})
    >>> remaining_heads({"a": [0, 3, 5], "b": [3]}, heads=6, kv_heads=3, one_table=(), pad=True)
    Remaining(count=3, numbers={'a': [0, 1, 2, 3, 4, 5], 'b': [0, 1, 2, 3, 4, 5]})
    """
    size = heads // kv_heads
    remaining = {path: [h for h in range(heads) if h not in numbers] for path, numbers in removed.items()}
    union = sorted({h for path in one_table for h in remaining[path]})
    groups = {
        path: _by_group(union if path in one_table else heads_left, size) for path, heads_left in remaining.items()
    }
    count = max(map(len, groups.values()))
    largest = max((len(group) for by_group in groups.values() for group in by_group.values()), default=0)
    if not count:
        raise HeedfulError(f"no head would be left in {', '.join(removed)}; keep a head, or prune blocks (layers)")
    numbers = {path: _fill_groups(by_group, count, largest, size) for path, by_group in groups.items()}
    uneven = [path for path in remaining if numbers[path] != remaining[path]]
    if uneven and not pad:
        raise HeedfulError(_uneven_message(uneven[0], remaining, count * largest, size, one_table))
    return Remaining(count, numbers)


def remaining_units(removed: Numbers, units: int, *, pad: bool) -> Remaining:
    """Returns the units that remain without ``removed``, the same number in each feed-forward; see ``remaining_heads``.

    >>> remaining_units({"a": [0], "b": [2]}, 3, pad=False)
    Remaining(count=2, numbers={'a': [1, 2], 'b': [0, 1]})
    """
    remaining = {path: [n for n in range(units) if n not in numbers] for path, numbers in removed.items()}
    count = max(map(len, remaining.values()))
    if not count:
        raise HeedfulError(f"no unit would be left in {', '.join(removed)}; keep a unit, or prune blocks (layers)")
    fewest = min(remaining, key=lambda path: len(remaining[path]))
    if len(remaining[fewest]) < count and not pad:
        raise HeedfulError(
            f"{fewest} would keep {len(remaining[fewest])} units and others {count}, but all blocks must be equal; "
            "prune the same number in each, or give pad=True to fill up with silent units"
        )
    return Remaining(
        count, {path: _fill_groups({0: units_left}, 1, count, units) for path, units_left in remaining.items()}
    )


def _by_group(heads: Sequence[int], size: int) -> dict[int, list[int]]:
    return {h // size: [i for i in heads if i // size == h // size] for h in heads}


def _fill_groups(groups: Mapping[int, list[int]], count: int, largest: int, size: int) -> list[int]:
    """Returns ``count`` groups of ``largest`` members: the remaining heads, filled up with the first removed heads."""
    chosen = dict(groups)
    for number in range(count):
        if len(chosen) < count:
            chosen.setdefault(number, [])
    filled = []
    for number, members in sorted(chosen.items()):
        others = [n for n in range(number * size, (number + 1) * size) if n not in members]
        filled += sorted(members + others[: largest - len(members)])
    return filled


def _uneven_message(
    path: str, remaining: Mapping[str, list[int]], others: int, size: int, one_table: Collection[str]
) -> str:
    """Explains why the remaining heads of ``path`` do not fit."""
    heads = remaining[path]
    problem, remedy = f"{path} would keep heads {heads}", "or give pad=True to fill up with silent heads"
    if path in one_table and any(remaining[other] != heads for other in one_table):
        return f"{problem}, but all blocks share one table of positions; prune the same heads in each block, {remedy}"
    if size > 1 and len({len(group) for group in _by_group(heads, size).values()}) > 1:
        return f"{problem} of groups of {size} that share a key-value head; prune the same number in each, {remedy}"
    return f"{problem}, but others keep {others}, and all blocks must be equal; prune the same number in each, {remedy}"
