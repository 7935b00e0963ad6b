"""Reads and writes adapter folders of PEFT: ``adapter_config.json`` and ``adapter_model.safetensors``.

Tensor names are the model type's: ``base_model.model.<their module>.lora_A.weight`` is (r, in) and ``lora_B.weight``
(out, r), even if the linear map itself is stored transposed. Where the model type stores several of our maps as one
(GPT-2's ``c_attn``), our maps share its A, and its B is split among our maps; writing joins our maps again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.adapters import LoraConfig, adapter_of, attach, fresh_head, low_rank_parts
from heedful.config import DecoderConfig, NoHead, PooledHead, VisionConfig
from heedful.errors import HeedfulError, first_few
from heedful.models import Model
from heedful.models.create import NAMES
from heedful.pretrained.config_keys import label_names
from heedful.pretrained.configuration import config_of, read_configs
from heedful.pretrained.fill_model import not_finite, tied_names
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
    BODY,
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
    join_rows,
    layout_of,
    modules,
    peft_module,
    renamed,
    split_rows,
    transposed,
    without_peft_prefix,
)
from heedful.pretrained.pooling import pooled_head, repool
from heedful.pretrained.rules import Tensors
from heedful.pretrained.scaled_output import saved_tensors
from heedful.pretrained.weights import read_tensors, refuse_not_finite

WHOLE_MODELS = (WEIGHTS, INDEX, PICKLE, PICKLE_INDEX)


def is_adapter(folder: Path) -> bool:
    """Returns True if a folder holds an adapter and no whole model."""
    return (folder / ADAPTER_CONFIG).exists() and not any((folder / name).exists() for name in WHOLE_MODELS)


# -------------------------------------------------------------------------------------------------------------- reading


def load_adapter(
    folder: Path,
    load_base: Callable[..., Model],
    *,
    head: str | None,
    num_labels: int | None,
    dtype: str | torch.dtype | None,
    sizes: Mapping[str, Any],
    check_finite: bool,
    **options: Any,
) -> Model:
    """Returns the base model that an adapter's folder names, with the adapter attached.

    Args:
        folder: folder of the adapter.
        load_base: function that loads the base model's folder, with the arguments below.
        head: name of another head than the adapter was trained with; the adapter's own head is then not loaded.
        num_labels: another number of classes than the adapter was trained with; its head is not loaded either.
        dtype: dtype of all weights; None keeps the base's dtype, and gives A and B the wider of their dtype and the
            base's.
        sizes: other sizes of the base, as in ``from_pretrained``; by default images have the size that the adapter was
            trained on.
        check_finite: refuse NaN and infinity, in the base and in the adapter.
        **options: further arguments of ``load_base``.
    """
    config = read_config(folder)
    stored = read_tensors(folder)
    if check_finite:
        refuse_not_finite(folder, not_finite(stored, None, str))
    low, rest = split_tensors(folder, stored)
    base, base_folder = find_base(folder, config)
    if is_adapter(base_folder):
        raise HeedfulError(
            f"{folder} is an adapter of {base}, which is itself an adapter; merge {base} into its base model first, "
            "and save the result"
        )
    kind, classes = trained_head(folder, config, base_folder, rest)
    same_head = head in (None, NAMES[kind]) and num_labels in (None, classes)
    options |= {"head": head or NAMES[kind], "num_labels": num_labels or (classes if same_head else None)}
    sizes = _image_size(folder) | {name: size for name, size in sizes.items() if size is not None}
    model = load_base(base_folder, dtype=dtype, sizes=sizes, check_finite=check_finite, **options)
    model.folder.source = base
    model_type, architecture = layout_of(model)
    try:
        pairs = _lora_pairs(model, model_type, architecture, config, low, exact=dtype is not None)
        head_tensors = _head_tensors(model, model_type, architecture, rest) if same_head else {}
    except HeedfulError as error:
        raise HeedfulError(f"the adapter in {folder} does not fit its base {base}: {error}") from None
    for name, tensor in head_tensors.items():
        path, _, last = name.rpartition(".")
        setattr(model.get_submodule(path), last, nn.Parameter(tensor.to(model.device, model.dtype)))
    model.fresh = [name for name in model.fresh if name not in head_tensors]
    _attach(model, config, pairs, (*model.folder.classifier, *fresh_head(model), *head_tensors))
    if same_head:
        _set_labels(model, folder)
        if kind == PooledHead.kind and (pooling := pooled_head(folder)) is not None:
            repool(model, pooling)
    return model


def _image_size(folder: Path) -> dict[str, Any]:
    """Returns the image size in an adapter's own ``config.json``, which may differ from the base's."""
    config = config_of(folder) if (folder / CONFIG).exists() else None
    return {"image_size": config.patches.image_size} if isinstance(config, VisionConfig) else {}


def _lora_pairs(
    model: Model,
    model_type: ModelType,
    architecture: Architecture,
    config: Mapping[str, Any],
    low: Mapping[str, tuple[Tensor, Tensor]],
    *,
    exact: bool,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns ``{path of a linear map: (A, B)}`` on the model's device; one error names all that do not fit."""
    hub_modules = modules(model, model_type, architecture)
    paths = {without_peft_prefix(name, model_type, architecture): parts for name, parts in hub_modules.items()}
    stored = {
        renamed(without_peft_prefix(name, model_type, architecture), model_type): (name, pair)
        for name, pair in low.items()
    }
    unexpected = [name for short, (name, _) in stored.items() if short not in paths]
    missing = [
        name
        for name in hub_modules
        if without_peft_prefix(name, model_type, architecture) not in stored and covers(config, name)
    ]
    misshaped: list[str] = []
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for short, (name, (a, b)) in stored.items():
        parts = paths.get(short, ())
        maps = [model.get_parameter(f"{path}.weight") for path in parts]
        rank, shape = config["r"], (sum(map(len, maps)), maps[0].size(1) if maps else 0)
        if maps and (tuple(b.shape), tuple(a.shape)) != ((shape[0], rank), (rank, shape[1])):
            shapes = f"A {tuple(a.shape)} and B {tuple(b.shape)}"
            misshaped.append(f"{name} has {shapes} for a {shape} linear map with r = {rank}")
        elif maps:
            dtype = model.dtype if exact else torch.promote_types(a.dtype, model.dtype)
            a, b = (tensor.to(model.device, dtype, copy=True) for tensor in (a, b))
            rows = split_rows(b, parts, model_type, architecture)
            pairs |= {path: (a, part.clone()) for path, part in rows.items()}
    problems = {"missing": missing, "unexpected": unexpected, "of another shape": misshaped}
    if any(problems.values()):
        raise HeedfulError("; ".join(f"{problem}: {first_few(names)}" for problem, names in problems.items() if names))
    return pairs


def _head_tensors(model: Model, model_type: ModelType, architecture: Architecture, rest: Tensors) -> Tensors:
    """Returns the head's parameters that are stored whole; raises for stored tensors outside the head."""
    stored = model_type.names(rest, architecture)
    loaded = model_type.tensors_in(stored, architecture)
    names = [name for name, _ in model.named_parameters()]  # a tied parameter has its name in the embedding
    problems = [f"{name} is not in the head" for name in stored]
    for name, tensor in loaded.items():
        hub_name = model_type.hub_name_of(name, architecture)
        if not name.startswith("head.") or name not in names:
            problems.append(f"{hub_name} is not only in the head")
        elif tensor.shape != model.get_parameter(name).shape:
            shape = tuple(model.get_parameter(name).shape)
            problems.append(f"{hub_name} is {tuple(tensor.shape)}, but the head has {shape}")
    if problems:
        raise HeedfulError(
            f"modules_to_save may list only modules of the head, but {first_few(problems)}; merge the adapter into its "
            "base with PEFT (merge_and_unload) and load the result"
        )
    return loaded


def _attach(
    model: Model, config: Mapping[str, Any], pairs: Mapping[str, tuple[Tensor, Tensor]], whole: Sequence[str]
) -> None:
    lora = LoraConfig(
        rank=config["r"],
        alpha=config["lora_alpha"],
        dropout=config["lora_dropout"],
        targets=tuple(dict.fromkeys(path.rpartition(".")[2] for path in pairs)),
        rslora=config["use_rslora"],
    )
    attach(model, lora, pairs, whole)


def _set_labels(model: Model, folder: Path) -> None:
    """Sets label names and generation settings from our own adapter folder."""
    if (folder / CONFIG).exists():
        hub, generation = read_configs(folder)
        model.labels, model.multi_label = label_names(hub), is_multi_label(hub)
        model.regression = is_regression(hub)
        model.generation = generation or model.generation


# -------------------------------------------------------------------------------------------------------------- writing


def adapter_files(
    model: Model, model_type: ModelType, architecture: Architecture, folder: Path
) -> tuple[dict[str, Any], Tensors]:
    """Returns what a model's adapter is saved as: ``adapter_config.json``, and the tensors by PEFT's names.

    Raises ``HeedfulError`` if the model has no adapter, or ``folder``, where it will be saved, holds a whole model.
    """
    adapter = adapter_of(model)
    if not model.folder.source:
        raise HeedfulError(
            "the model was not loaded from a folder or the Hub, so its adapter cannot name a base; save the base "
            "and load it from its folder, or merge the adapter with heedful.adapters.merge"
        )
    if any((folder / name).exists() for name in WHOLE_MODELS):
        raise HeedfulError(f"{folder} holds a whole model; choose another folder for the adapter")
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
        rows = {path: low[path].lora_b for path in parts}
        tensors[PREFIX + name + LORA_B] = join_rows(rows, model_type, architecture)
    state = saved_tensors(model)
    whole = model_type.tensors_out({name: state[name] for name in adapter.whole}, architecture)
    others = {
        peft_module(name, model_type, architecture) for name in tied_names(model) if ".lora_" not in name
    } - adapted.keys()
    config = write_config(
        adapter,
        source=model.folder.source,
        task_type=_task_type(model),
        targets=sorted({_unique_ending(name, others) for name in adapted}),
        saved=sorted(
            {without_peft_prefix(name.rpartition(".")[0], model_type, architecture).partition(".")[0] for name in whole}
        ),
        transposed=any(transposed(path, model_type, architecture) for path in low),
    )
    return config, tensors | {PREFIX + name: tensor for name, tensor in whole.items()}


def _unique_ending(name: str, others: set[str]) -> str:
    """Returns the shortest end of a module's name that no other module has."""
    parts = name.split(".")
    ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
    return next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)), name)


def _task_type(model: Model) -> str | None:
    kind = model.config.head.kind
    if kind == "language-model":
        return "CAUSAL_LM" if isinstance(model.config, DecoderConfig) else "SEQ_2_SEQ_LM"
    if kind in (NoHead.kind, PooledHead.kind):
        return BODY
    return next((task for task, head in HEADS.items() if head == kind), None)
