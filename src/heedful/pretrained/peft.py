"""Adapter folders of PEFT, read and written: ``adapter_config.json`` and ``adapter_model.safetensors``.

Tensor names are the model type's: ``base_model.model.<their module>.lora_A.weight`` is (r, in) and ``lora_B.weight``
(out, r), whichever way the linear map itself is stored. Where the model type stores several of our maps as one (GPT-2's
``c_attn``), they share its A, and its B is split among them; writing joins them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.adapters import LoraConfig, attach, fresh_head, low_rank_parts
from heedful.config import DecoderConfig, PooledHead, VisionConfig
from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.pretrained.config_keys import label_names
from heedful.pretrained.configuration import config_of, read_configs
from heedful.pretrained.fill_model import not_finite
from heedful.pretrained.folder import (
    ADAPTER_CONFIG,
    CONFIG,
    INDEX,
    PICKLE,
    PICKLE_INDEX,
    WEIGHTS,
    is_multi_label,
    is_regression,
)
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.peft_config import (
    HEADS,
    LORA_A,
    LORA_B,
    PREFIX,
    covers,
    find_base,
    read_config,
    split_tensors,
    trained_head,
    write_config,
)
from heedful.pretrained.peft_names import (
    layout_of,
    module_of,
    modules,
    renamed,
    transposed,
    without_prefix,
)
from heedful.pretrained.pooling import pooled_head, repool
from heedful.pretrained.rules import Tensors
from heedful.pretrained.scaled_output import stored
from heedful.pretrained.weights import read_tensors, refuse_not_finite

WHOLE_MODELS = (WEIGHTS, INDEX, PICKLE, PICKLE_INDEX)


def is_adapter(folder: Path) -> bool:
    """Returns whether a folder holds an adapter and no weights of its own."""
    return (folder / ADAPTER_CONFIG).exists() and not any((folder / name).exists() for name in WHOLE_MODELS)


# -------------------------------------------------------------------------------------------------------------- reading


def open_adapter(
    folder: Path,
    opened: Callable[..., Model],
    *,
    head: str | None,
    num_labels: int | None,
    dtype: str | torch.dtype | None,
    sizes: Mapping[str, Any],
    check_finite: bool,
    **options: Any,
) -> Model:
    """Returns the base that an adapter's folder names, with the adapter attached.

    Args:
        folder: the adapter's.
        opened: opens the base's folder, with the arguments below.
        head: another head than the adapter was trained under; what it stores of its own is then left out.
        num_labels: another number of classes than it was trained for, likewise.
        dtype: of everything; None leaves the base's to the base, and A and B have the wider of theirs and the base's.
        sizes: that the base is to have; images are else of the size that the adapter was trained on.
        check_finite: refuse NaN and infinity, in the base and in the adapter.
        **options: for ``opened``.
    """
    config = read_config(folder)
    stored = read_tensors(folder)
    if check_finite:
        refuse_not_finite(folder, not_finite(stored, None, str))
    low, rest = split_tensors(folder, stored)
    base, place = find_base(folder, config)
    if is_adapter(place):
        raise HeedfulError(f"{folder} is an adapter of {base}, which is one itself; merge that first and save it whole")
    kind, classes = trained_head(folder, config, place, rest)
    same = head in (None, kind) and num_labels in (None, classes)
    asked = {"head": head or kind, "num_labels": num_labels or (classes if same else None)}
    wanted = _sizes(folder) | {name: size for name, size in sizes.items() if size is not None}
    model = opened(place, dtype=dtype, sizes=wanted, check_finite=check_finite, **asked, **options)
    model.source = base
    model_type, architecture = layout_of(model)
    try:
        pairs = _pairs(model, model_type, architecture, config, low, exact=dtype is not None)
        whole = _whole(model, model_type, architecture, rest) if same else {}
    except HeedfulError as error:
        raise HeedfulError(f"the adapter in {folder} does not fit its base {base}: {error}") from None
    for name, tensor in whole.items():
        path, _, last = name.rpartition(".")
        setattr(model.get_submodule(path), last, nn.Parameter(tensor.to(model.device, model.dtype)))
    model.fresh = [name for name in model.fresh if name not in whole]
    _attach(model, config, pairs, (*model.classifier, *fresh_head(model), *whole))
    if same:
        _tell(model, folder)
        if kind == PooledHead.kind and (own := pooled_head(folder)) is not None:
            repool(model, own)
    return model


def _sizes(folder: Path) -> dict[str, Any]:
    """Returns the size of images in an adapter's own ``config.json``: the base may have been made for another one."""
    config = config_of(folder) if (folder / CONFIG).exists() else None
    return {"image_size": config.patches.image_size} if isinstance(config, VisionConfig) else {}


def _pairs(
    model: Model,
    model_type: ModelType,
    architecture: Architecture,
    config: Mapping[str, Any],
    low: Mapping[str, tuple[Tensor, Tensor]],
    *,
    exact: bool,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns a and B for each of our maps that has an adapter, on the model's device; all misfits in one error."""
    named = modules(model, model_type, architecture)
    there = {without_prefix(name, model_type, architecture): parts for name, parts in named.items()}
    stored = {
        renamed(without_prefix(name, model_type, architecture), model_type): (name, pair) for name, pair in low.items()
    }
    unexpected = [name for short, (name, _) in stored.items() if short not in there]
    missing = [n for n in named if without_prefix(n, model_type, architecture) not in stored and covers(config, n)]
    misshaped: list[str] = []
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for short, (name, (a, b)) in stored.items():
        parts = there.get(short, ())
        maps = [model.get_parameter(f"{path}.weight") for path in parts]
        rank, wanted = config["r"], (sum(map(len, maps)), maps[0].size(1) if maps else 0)
        if maps and (tuple(b.shape), tuple(a.shape)) != ((wanted[0], rank), (rank, wanted[1])):
            misshaped.append(f"{name} has A {tuple(a.shape)} and B {tuple(b.shape)} for a map {wanted} and r {rank}")
        elif maps:
            dtype = model.dtype if exact else torch.promote_types(a.dtype, model.dtype)
            a, b = (tensor.to(model.device, dtype, copy=True) for tensor in (a, b))
            pairs |= {path: (a, part.clone()) for path, part in zip(parts, b.chunk(len(parts)), strict=True)}
    lists = {"missing": missing, "unexpected": unexpected, "of another shape": misshaped}
    wrong = [f"{what}: {', '.join(names)}" for what, names in lists.items() if names]
    if wrong:
        raise HeedfulError("; ".join(wrong))
    return pairs


def _whole(model: Model, model_type: ModelType, architecture: Architecture, rest: Tensors) -> Tensors:
    """Returns our parameters of the head that are stored whole; anything else that is stored is an error."""
    stored = model_type.names(rest, architecture)
    made = model_type.tensors_in(stored, architecture)
    names = [name for name, _ in model.named_parameters()]  # a tied one has its name in the embedding
    wrong = [f"{name} is not of the head" for name in stored]
    for name, tensor in made.items():
        if not name.startswith("head.") or name not in names:
            wrong.append(f"{model_type.their_name(name, architecture)} is not of the head alone")
        elif tensor.shape != model.get_parameter(name).shape:
            shape = tuple(model.get_parameter(name).shape)
            wrong.append(f"{model_type.their_name(name, architecture)} is {tuple(tensor.shape)}, the head has {shape}")
    if wrong:
        raise HeedfulError(f"modules_to_save may only be those of the head, but {', '.join(wrong)}")
    return made


def _attach(
    model: Model, config: Mapping[str, Any], pairs: Mapping[str, tuple[Tensor, Tensor]], whole: Sequence[str]
) -> None:
    asked = LoraConfig(
        rank=config["r"],
        alpha=config["lora_alpha"],
        dropout=config["lora_dropout"],
        targets=tuple(dict.fromkeys(path.rpartition(".")[2] for path in pairs)),
        rslora=config["use_rslora"],
    )
    attach(model, asked, pairs, whole)


def _tell(model: Model, folder: Path) -> None:
    """Sets label names and generation settings from our own adapter folder."""
    if (folder / CONFIG).exists():
        theirs, generation = read_configs(folder)
        model.labels, model.multi_label = label_names(theirs), is_multi_label(theirs)
        model.regression = is_regression(theirs)
        model.generation = generation or model.generation


# -------------------------------------------------------------------------------------------------------------- writing


def adapter_files(
    model: Model, model_type: ModelType, architecture: Architecture, folder: Path
) -> tuple[dict[str, Any], Tensors]:
    """``adapter_config.json`` and the tensors of a model with an adapter, by PEFT's names, for ``folder``."""
    adapter = model.adapter
    if adapter is None:
        raise HeedfulError("the model has no adapter; add one with heedful.adapters.add_adapter")
    if not model.source:
        raise HeedfulError(
            "the model was not read from a folder or the Hub, so its adapter has no base to name; "
            "save the base and open it from there, or make one model of both: heedful.adapters.merge"
        )
    if any((folder / name).exists() for name in WHOLE_MODELS):
        raise HeedfulError(f"{folder} holds a whole model, an adapter wants a folder of its own; choose another")
    low = low_rank_parts(model)
    adapted = {name: parts for name, parts in modules(model, model_type, architecture).items() if parts[0] in low}
    tensors: Tensors = {}
    for name, parts in adapted.items():
        if len({id(low[path].lora_a) for path in parts}) > 1:
            raise HeedfulError(
                f"{', '.join(parts)} are stored as one linear map, so they must share one lora_A; add the adapter with "
                "heedful.adapters.add_adapter"
            )
        tensors[PREFIX + name + LORA_A] = low[parts[0]].lora_a
        tensors[PREFIX + name + LORA_B] = torch.cat([low[path].lora_b for path in parts])
    tensors_of = stored(model)
    whole = model_type.tensors_out({name: tensors_of[name] for name in adapter.whole}, architecture)
    others = {
        module_of(name, model_type, architecture) for name in model.state_dict() if ".lora_" not in name
    } - adapted.keys()
    config = write_config(
        adapter,
        source=model.source,
        task_type=_task_type(model),
        targets=sorted({_ending(name, others) for name in adapted}),
        saved=sorted(
            {without_prefix(name.rpartition(".")[0], model_type, architecture).partition(".")[0] for name in whole}
        ),
        transposed=any(transposed(path, model_type, architecture) for path in low),
    )
    return config, tensors | {PREFIX + name: tensor for name, tensor in whole.items()}


def _ending(name: str, others: set[str]) -> str:
    """Returns the shortest end of a module's name that no other module has."""
    parts = name.split(".")
    ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
    return next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)), name)


def _task_type(model: Model) -> str | None:
    kind = model.config.head.kind
    if kind == "language-model":
        return "CAUSAL_LM" if isinstance(model.config, DecoderConfig) else "SEQ_2_SEQ_LM"
    return next((task for task, head in HEADS.items() if head == kind), None)
