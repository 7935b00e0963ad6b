"""Adds adapters to a model, merges and removes them, and sets which parameters are trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from heedful.adapters.low_rank import LowRank
from heedful.errors import HeedfulError, nearest
from heedful.layers.experts import Router
from heedful.layers.norm import BatchNorm
from heedful.models import Ensemble, Model
from heedful.settings import LORA_TARGETS
from heedful.util.random_state import seeded
from heedful.util.values import check

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Configuration of a low-rank adapter (Hu et al. 2022).

    Args:
        rank: r, the inner width of the adapter.
        alpha: α; the output of the adapter is scaled by α/r. None is 2r, so that the learning rate need not change with
            the rank.
        dropout: probability on the adapter's input in training.
        targets: the linear maps of every block that get an adapter: "query", "key", "value", "out" of each attention,
            "up", "down", "gate" of the feed-forward; ("all",) for all of these. By default query and value, as in
            section 4.2 of the paper. Where the model's layout stores several as one map (GPT-2's query, key and value),
            all of them get an adapter with the same A, which is an adapter of that one map.
        rslora: scale by α/√r (Kalajdzievski 2023).
    """

    rank: int = 8
    alpha: float | None = None
    dropout: float = 0.0
    targets: tuple[str, ...] = ("query", "value")
    rslora: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.targets, str):
            object.__setattr__(self, "targets", (self.targets,))
        check("the adapter's rank", self.rank, int, least=1)
        check("the adapter's dropout", self.dropout, float, least=0, below=1)
        if self.alpha is None:
            object.__setattr__(self, "alpha", 2.0 * self.rank)


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Adapter of a model: its configuration, and the parameters trained in full (those of a classifier)."""

    config: LoraConfig
    whole: tuple[str, ...] = ()


def low_rank_parts(model: nn.Module) -> dict[str, LowRank]:
    """Returns the linear maps of a model that have an adapter, by their path in the model."""
    return {path: part for path, part in model.named_modules() if isinstance(part, LowRank)}


def add_adapter(model: M, config: LoraConfig, seed: int | None = None) -> M:
    """Adds an adapter to a model, in place, and freezes all other weights. The model's outputs do not change at first.

    A is drawn as ``nn.Linear`` draws its weight, uniform in ±1/√in, and B is zero. A and B are trained, and all weights
    of a classifier or span head (``model.folder.classifier``), as in PEFT, which loads only files that contain them.

    Args:
        model: any model. If it was loaded from a folder or the Hub, its adapter can be saved alone.
        config: rank, targets and other settings of the adapter.
        seed: makes A repeatable, and leaves torch's own random state untouched; None draws from that state.

    Returns:
        The model itself.

    Raises:
        HeedfulError: for a model that already has an adapter, has batch norms (an adapter does not store their
            statistics) or newly initialised parameters outside its head, and for unknown or absent targets.

    >>> import heedful
    >>> from heedful.adapters import LoraConfig, add_adapter, merge
    >>> model = add_adapter(heedful.create("bert-tiny"), LoraConfig(rank=4, targets=("query", "value")))
    >>> model.num_parameters(trainable_only=True)
    4096
    >>> type(merge(model).encoder.block[0].attention.query).__name__
    'Linear'
    """
    model.check_not_optimised("train an adapter")
    if isinstance(model, Ensemble):
        raise HeedfulError("an adapter is added to one model, not to an ensemble; load one of its members")
    paths = _targets(model, config.targets)
    outside = [name for name in model.fresh if name not in fresh_head(model)]
    if outside:
        raise HeedfulError(
            f"{', '.join(outside)} has newly initialised weights, which an adapter does not store; train the whole "
            "model instead"
        )
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    with nullcontext() if seed is None else seeded(seed):
        for group in _groups(model, paths):
            weights = [model.get_parameter(f"{path}.weight") for path in group]
            a = torch.empty(config.rank, weights[0].size(1))
            nn.init.kaiming_uniform_(a, a=5**0.5)
            a = a.to(weights[0])
            pairs |= {path: (a, w.new_zeros(len(w), config.rank)) for path, w in zip(group, weights, strict=True)}
    return attach(model, config, pairs, (*model.folder.classifier, *fresh_head(model)))


def attach(model: M, config: LoraConfig, pairs: Mapping[str, tuple[Tensor, Tensor]], whole: Sequence[str]) -> M:
    """Adds an adapter with the given matrices to a model, in place, and freezes all other weights.

    Args:
        model: a model without an adapter.
        config: settings of the adapter.
        pairs: ``{path: (A, B)}``: the matrices of each adapted linear map, by its path in the model. A tensor A that
            stands at several paths becomes one shared parameter. Maps that share their weight share A and B too.
        whole: names of other parameters that are trained and saved too, such as those of a new head.

    Returns:
        The model itself.

    Raises:
        HeedfulError: for a model that already has an adapter, or has batch norms, and for a path without a linear map.
    """
    if model.adapter is not None:
        raise HeedfulError("the model already has an adapter; merge it first (heedful.adapters.merge), or remove it")
    if any(isinstance(part, BatchNorm) for part in model.modules()):
        raise HeedfulError("an adapter does not store the statistics of batch norm; train the whole model instead")
    linear_maps = {
        path: part for path, part in model.named_modules(remove_duplicate=False) if isinstance(part, nn.Linear)
    }
    for path in pairs:  # before the model changes
        if path not in linear_maps:
            raise HeedfulError(f"the model has no linear map {path!r} for an adapter; {nearest(path, linear_maps)}")
    pairs = {
        twin: pair
        for path, pair in pairs.items()
        for twin, part in linear_maps.items()
        if part.weight is linear_maps[path].weight
    }
    parameters = {id(matrix): nn.Parameter(matrix) for pair in pairs.values() for matrix in pair}
    for path, (a, b) in pairs.items():
        low_rank = LowRank(
            linear_maps[path],
            parameters[id(a)],
            parameters[id(b)],
            alpha=config.alpha or 0.0,
            dropout=config.dropout,
            rslora=config.rslora,
        )
        _set_part(model, path, low_rank)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((".lora_a", ".lora_b")))
    model.adapter = Adapter(config=config)
    return train_whole(model, whole)


def train_whole(model: M, names: Sequence[str]) -> M:
    """Makes the parameters called ``names`` trainable, to be saved with the adapter; returns the model.

    Raises ``HeedfulError`` for a model without an adapter.
    """
    adapter = adapter_of(model)
    for name in names:
        model.get_parameter(name).requires_grad_(True)
    model.adapter = replace(adapter, whole=tuple(dict.fromkeys((*adapter.whole, *names))))
    return model


def fresh_head(model: Model) -> tuple[str, ...]:
    """Returns the names of the head's newly initialised parameters, without those that are new in some rows only."""
    return tuple(name for name in model.fresh if name.startswith("head.") and "[" not in name)


def merge(model: M) -> M:
    """Merges the adapter into the weights, in place: each layer becomes a plain linear layer with W + s B A (s is
    the adapter's scale), and all weights become trainable.

    Outputs stay equal up to rounding. The model is then saved with all its weights.

    >>> import heedful
    >>> merge(heedful.create("bert-tiny"))
    Traceback (most recent call last):
    heedful.errors.HeedfulError: the model has no adapter; add one with heedful.adapters.add_adapter
    """
    adapted = _adapted(model)
    for path, part in adapted.items():
        twins = [twin for twin in adapted.values() if twin.weight is part.weight and twin.lora_b is part.lora_b]
        if sum(part.weight is p for _, p in model.named_parameters(remove_duplicate=False)) > len(twins):
            raise HeedfulError(
                f"{path} shares its weight with another layer, which merging would change; untie the weight first"
            )
    merged = {id(part.weight): part.merged().weight for part in adapted.values()}
    parts = {path: part.base() for path, part in adapted.items()}
    for path, part in adapted.items():
        parts[path].weight = merged[id(part.weight)]
    return _replace_parts(model, parts)


def remove(model: M) -> M:
    """Removes the adapter, in place; all weights become trainable. A head that was trained with the adapter stays."""
    return _replace_parts(model, {path: part.base() for path, part in _adapted(model).items()})


def adapter_of(model: Model) -> Adapter:
    """Returns the adapter of a model; raises ``HeedfulError`` for a model without one."""
    if not isinstance(model.adapter, Adapter):
        raise HeedfulError("the model has no adapter; add one with heedful.adapters.add_adapter")
    return model.adapter


def _adapted(model: Model) -> dict[str, LowRank]:
    adapter_of(model)
    return low_rank_parts(model)


def _replace_parts(model: M, parts: Mapping[str, nn.Linear]) -> M:
    for path, part in parts.items():
        _set_part(model, path, part)
    model.adapter = None
    model.requires_grad_(True)
    return model


def _set_part(model: nn.Module, path: str, part: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, part)


def _targets(model: Model, targets: Iterable[str]) -> list[str]:
    """Returns the paths of the blocks' linear maps whose last names are ``targets``, in the model's order."""
    requested = set(targets)
    names = {
        path: path.rpartition(".")[2]
        for path, part in model.named_modules()
        if isinstance(part, nn.Linear) and not isinstance(part, Router) and ".block." in path
    }
    for name in sorted(requested - {"all"}):
        if name not in LORA_TARGETS:
            raise HeedfulError(f"unknown adapter target {name!r}; {nearest(name, [*LORA_TARGETS, 'all'])}")
        if name not in names.values():
            raise HeedfulError(
                f"the model has no linear map {name!r} for an adapter; known: {', '.join(sorted(set(names.values())))}"
            )
    if not requested:
        raise HeedfulError(f"the adapter has no targets; give one or more of {', '.join(LORA_TARGETS)}, or all")
    chosen = [path for path, name in names.items() if requested & {name, "all"}]
    target_paths = {path for group in _groups(model, chosen) for path in group}
    return [path for path in names if path in target_paths]


def _groups(model: Model, paths: Iterable[str]) -> list[tuple[str, ...]]:
    """Groups the paths whose linear maps are stored as one in the model's layout."""
    fused = {path: tuple(group) for group in model.folder.fused for path in group}
    return list(dict.fromkeys(fused.get(path, (path,)) for path in paths))
