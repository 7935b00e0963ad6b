"""PEFT's module names of our linear maps: from the model type's rules, with exceptions."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import torch
from torch import Tensor, nn

from heedful.models import Model
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types import OWN, OWN_ARCHITECTURE, express
from heedful.pretrained.peft_config import CLASSIFIERS
from heedful.pretrained.rules import RotatedPairs, Split, Transpose, bound

# module names in files and in memory since transformers 5; PEFT uses the latter
_VIT = (
    ("encoder.layer.{i}.attention.attention.query", "layers.{i}.attention.q_proj"),
    ("encoder.layer.{i}.attention.attention.key", "layers.{i}.attention.k_proj"),
    ("encoder.layer.{i}.attention.attention.value", "layers.{i}.attention.v_proj"),
    ("encoder.layer.{i}.attention.output.dense", "layers.{i}.attention.o_proj"),
    ("encoder.layer.{i}.intermediate.dense", "layers.{i}.mlp.fc1"),
    ("encoder.layer.{i}.output.dense", "layers.{i}.mlp.fc2"),
)
_DINOV2 = tuple((old, new.replace("layers", "encoder.layer")) for old, new in _VIT[:4])
_CAPTIONER = tuple((f"encoder.{old}", f"encoder.{new}") for old, new in _VIT)
RENAMED = {"vit": _VIT, "deit": _VIT, "ijepa": _VIT, "dinov2": _DINOV2, "vision-encoder-decoder": _CAPTIONER}
RENAMED |= {"gpt_neox": (("embed_out", "lm_head"),)}


def modules(model: nn.Module, model_type: ModelType, architecture: Architecture) -> dict[str, tuple[str, ...]]:
    """Returns the paths of our linear maps by PEFT's module name; one module may store several of our maps as rows.

    Of maps that share their weight, and are one module in PEFT, the first is returned.
    """
    paths: dict[str, tuple[str, ...]] = {}
    known: set[int] = set()
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for path, part in model.named_modules():
        if isinstance(part, nn.Linear) and id(part.weight) not in known:
            known.add(id(part.weight))
            module = peft_module(f"{path}.weight", model_type, architecture, names)
            paths.setdefault(module, _parts(path, model_type, architecture, names))
    return paths


def peft_module(name: str, model_type: ModelType, architecture: Architecture, names: Container[str] = ()) -> str:
    """Returns PEFT's name of the module that holds the tensor that we call ``name``, beside the tensors ``names``.

    A map that is a parameter of a module with several (XLNet's attention) has the parameter's name. PEFT knows no such
    module; Heedful reads the adapter.
    """
    hub = model_type.hub_name_of(name, architecture, names)
    whole = hub.removesuffix(".weight").removesuffix(".bias")
    short = without_peft_prefix(whole, model_type, architecture)
    return whole.removesuffix(short) + renamed(short, model_type)


def without_peft_prefix(name: str, model_type: ModelType, architecture: Architecture) -> str:
    """Returns a module's name without the model type's prefix, which not every architecture has."""
    (tensor_name,) = model_type.names({f"{name}.weight": torch.empty(0)}, architecture)
    return tensor_name.removesuffix(".weight")


def renamed(name: str, model_type: ModelType) -> str:
    """Returns a module's name in a loaded ``transformers`` model, from its name in files."""
    for old, new in RENAMED.get(model_type.name, ()):
        if values := bound(old, [name]):
            return new.format(**values[0])
    return name


def _parts(path: str, model_type: ModelType, architecture: Architecture, names: Container[str]) -> tuple[str, ...]:
    """Returns the paths of the linear maps that are stored as one with that at ``path``, if a model has them all."""
    rule = _split_of(path, model_type, architecture)
    if rule is None:
        return (path,)
    values = next(values[0] for pattern in rule.ours if (values := bound(pattern, [f"{path}.weight"])))
    parts = [ours.format(**values) for ours in rule.ours]
    return tuple(part.removesuffix(".weight") for part in parts) if all(part in names for part in parts) else (path,)


def _split_of(path: str, model_type: ModelType, architecture: Architecture) -> Split | None:
    """Returns the rule of the stored map that holds our linear map at ``path`` beside others."""
    rules = [rule for rule in (*architecture.body, *model_type.rules) if isinstance(rule, Split)]
    return next((rule for rule in rules if rule.hub_name_of(f"{path}.weight")), None)


def split_rows(
    rows: Tensor, paths: Sequence[str], model_type: ModelType, architecture: Architecture
) -> dict[str, Tensor]:
    """Returns the rows (out, ...) of our linear maps at ``paths``, from those of the one map that is stored."""
    rule = _split_of(paths[0], model_type, architecture) if len(paths) > 1 else None
    parts = [rows] if rule is None else rule.split(rows)
    ours = {f"{path}.weight": part for path, part in zip(paths, parts, strict=True)}
    for pairs in _row_orders(model_type):
        pairs.read({}, ours)
    return {name.removesuffix(".weight"): part for name, part in ours.items()}


def join_rows(parts: Mapping[str, Tensor], model_type: ModelType, architecture: Architecture) -> Tensor:
    """Returns the rows of the one map that is stored, from the rows of our linear maps by their paths."""
    rule = _split_of(next(iter(parts)), model_type, architecture) if len(parts) > 1 else None
    ours = {f"{path}.weight": part for path, part in parts.items()}
    for pairs in _row_orders(model_type):
        pairs.write(ours, {})
    joined: Sequence[Tensor] = [*ours.values()]
    return joined[0] if rule is None else rule.join(joined)


def _row_orders(model_type: ModelType) -> list[RotatedPairs]:
    return [rule for rule in model_type.rules if isinstance(rule, RotatedPairs)]


def transposed(path: str, model_type: ModelType, architecture: Architecture) -> bool:
    """Returns True if the model type stores our linear map at ``path`` as (in, out)."""
    for rule in (*architecture.rules, *architecture.body, *model_type.rules):
        transposes = isinstance(rule, Transpose) or (isinstance(rule, Split) and rule.transposed)
        if transposes and rule.hub_name_of(f"{path}.weight"):
            return True
    return False


def layout_of(model: Model) -> tuple[ModelType, Architecture]:
    """Returns the model type and architecture in whose layout a model is written."""
    model_type, architecture, _ = express(model.config, model.folder.layout, model.folder.config) or (
        OWN,
        OWN_ARCHITECTURE,
        {},
    )
    return model_type, architecture


def set_adapter_targets(model: Model) -> None:
    """Sets ``model.folder.fused`` and ``model.folder.classifier``, which adapters need.

    The first has the groups of linear maps that the model's layout stores as one map, the second the names of the
    parameters of a classifier or span head.
    """
    model_type, architecture = layout_of(model)
    maps = [path for path, part in model.named_modules() if isinstance(part, nn.Linear)]
    weights = {f"{path}.weight" for path in maps}
    groups = dict.fromkeys(_parts(path, model_type, architecture, weights) for path in maps)
    model.folder.fused = tuple(parts for parts in groups if len(parts) > 1)
    if model.config.head.kind in CLASSIFIERS:
        names = [name for name, _ in model.named_parameters() if name.startswith("head.")]
        own = [name for name in names if any(rule.hub_name_of(name) for rule in architecture.rules)]
        model.folder.classifier = tuple(names if model_type is OWN else own)
