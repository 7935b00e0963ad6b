"""Adds adapters to a model, merges and removes them, and sets which parameters are trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from heedful.adapters.low_rank import LowRank
from heedful.config import Adapter, LoraConfig
from heedful.errors import HeedfulError, nearest
from heedful.layers.norm import BatchNorm
from heedful.models.base import Model
from heedful.settings import LORA_TARGETS

M = TypeVar("M", bound=Model)


def low_rank_parts(model: nn.Module) -> dict[str, LowRank]:
    """The maps that have an adapter, by path."""
    return {path: part for path, part in model.named_modules() if isinstance(part, LowRank)}


def add_adapter(model: M, config: LoraConfig, seed: int | None = None) -> M:
    """Put an adapter on a model, in place, and freeze the rest: at first it computes what it did.

    A is drawn as ``nn.Linear`` draws its weight, uniform in ±1/√in, and B is zero. Trained are A and B, and whole the
    head where it tells classes or spans (``model.classifier``), as with PEFT, which does not open a file without it.

    Args:
        model: any; one that was read from a folder or the Hub can be saved as an adapter of that.
        config: the kind of adapter.
        seed: makes A repeatable, and leaves torch's own random state untouched; None draws from that state.

    Returns:
        The model itself.

    Raises:
        HeedfulError: for a model that has an adapter, batch norms (their statistics are no part of an adapter) or new
            parameters outside its head, and for unknown targets and such as it has not.

    >>> import heedful
    >>> from heedful.adapters import LoraConfig, add_adapter, merge
    >>> model = add_adapter(heedful.create("bert-tiny"), LoraConfig(rank=4, targets=("query", "value")))
    >>> sum(p.numel() for p in model.parameters() if p.requires_grad)
    4096
    >>> type(merge(model).encoder.block[0].attention.query).__name__
    'Linear'
    """
    model.whole("train an adapter")
    paths = _targets(model, config.targets)
    outside = [name for name in model.fresh if name not in fresh_head(model)]
    if outside:
        raise HeedfulError(f"{', '.join(outside)} is new, and no part of an adapter; train the whole model instead")
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    with nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        for group in _groups(model, paths):
            weights = [_linear(model, path).weight for path in group]
            a = torch.empty(config.rank, weights[0].size(1))
            nn.init.kaiming_uniform_(a, a=5**0.5)
            a = a.to(weights[0])
            pairs |= {path: (a, w.new_zeros(len(w), config.rank)) for path, w in zip(group, weights, strict=True)}
    return attach(model, config, pairs, (*model.classifier, *fresh_head(model)))


def attach(model: M, config: LoraConfig, pairs: Mapping[str, tuple[Tensor, Tensor]], whole: Sequence[str]) -> M:
    """Put given A and B beside the maps at these paths, and freeze all but them and the parameters named ``whole``.

    The same tensor A at several paths becomes one parameter.
    """
    if model.adapter is not None:
        raise HeedfulError("the model has an adapter already; merge it first (heedful.adapters.merge), or remove it")
    if any(isinstance(part, BatchNorm) for part in model.modules()):
        raise HeedfulError("batch norm keeps statistics that an adapter does not hold; train the whole model instead")
    parameters = {id(a): nn.Parameter(a) for a, _ in pairs.values()}
    for path, (a, b) in pairs.items():
        made = LowRank(
            _linear(model, path),
            parameters[id(a)],
            nn.Parameter(b),
            alpha=config.alpha or 0.0,
            dropout=config.dropout,
            rslora=config.rslora,
        )
        _put(model, path, made)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((".lora_a", ".lora_b")))
    model.adapter = Adapter(config=config)
    return train_whole(model, whole)


def train_whole(model: M, names: Sequence[str]) -> M:
    """Have these parameters of a model with an adapter, a head's, trained whole and saved with it."""
    assert model.adapter is not None
    for name in names:
        model.get_parameter(name).requires_grad_(True)
    model.adapter = replace(model.adapter, whole=tuple(dict.fromkeys((*model.adapter.whole, *names))))
    return model


def fresh_head(model: Model) -> tuple[str, ...]:
    """The parameters of the head that are new as a whole; of a larger vocabulary only rows are."""
    return tuple(name for name in model.fresh if name.startswith("head.") and "[" not in name)


def merge(model: M) -> M:
    """Fold the adapter into the weights, in place: W + s B A, in plain maps again, all of them trainable.

    What the model computes stays, to rounding; it is then a model as any other and is saved whole.

    >>> import heedful
    >>> merge(heedful.create("bert-tiny"))
    Traceback (most recent call last):
    heedful.errors.HeedfulError: the model has no adapter
    """
    for path, part in _adapted(model).items():
        if sum(part.weight is p for _, p in model.named_parameters(remove_duplicate=False)) > 1:
            raise HeedfulError(
                f"{path} shares its weight with another part, which merging would change; untie it first"
            )
    return _replaced(model, {path: part.merged() for path, part in low_rank_parts(model).items()})


def remove(model: M) -> M:
    """Take the adapter off, in place: the base again, all of it trainable. A head that was trained with it stays."""
    return _replaced(model, {path: part.base() for path, part in _adapted(model).items()})


def _adapted(model: Model) -> dict[str, LowRank]:
    if model.adapter is None:
        raise HeedfulError("the model has no adapter")
    return low_rank_parts(model)


def _replaced(model: M, parts: Mapping[str, nn.Linear]) -> M:
    for path, part in parts.items():
        _put(model, path, part)
    model.adapter = None
    model.requires_grad_(True)
    return model


def _put(model: nn.Module, path: str, part: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, part)


def _linear(model: nn.Module, path: str) -> nn.Linear:
    part = model.get_submodule(path)
    assert isinstance(part, nn.Linear)
    return part


def _targets(model: Model, targets: Iterable[str]) -> list[str]:
    """The paths of the maps of the blocks that are asked for by their last names, in the model's order."""
    asked = set(targets)
    there = {
        path: path.rpartition(".")[2]
        for path, part in model.named_modules()
        if isinstance(part, nn.Linear) and ".block." in path
    }
    for name in sorted(asked - {"all"}):
        if name not in LORA_TARGETS:
            raise HeedfulError(f"unknown target {name!r} of an adapter; {nearest(name, [*LORA_TARGETS, 'all'])}")
        if name not in there.values():
            raise HeedfulError(
                f"the model has no map {name!r} for an adapter; known: {', '.join(sorted(set(there.values())))}"
            )
    if not asked:
        raise HeedfulError(f"the adapter has no targets; give some of {', '.join(LORA_TARGETS)}, or all")
    chosen = [path for path, name in there.items() if asked & {name, "all"}]
    wanted = {path for group in _groups(model, chosen) for path in group}
    return [path for path in there if path in wanted]


def _groups(model: Model, paths: Iterable[str]) -> list[tuple[str, ...]]:
    """The paths, each with those that are one map with it in the model's layout."""
    fused = {path: tuple(group) for group in model.fused for path in group}
    return list(dict.fromkeys(fused.get(path, (path,)) for path in paths))
