"""Loads a model: reads a folder's configuration and tensors, checks them, and fills a model built without weights."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from heedful.config import Head, ModelConfig, PooledHead, SequenceHead, with_head
from heedful.errors import HeedfulError, nearest
from heedful.kernels.plan import AUTO, apply_plan, plan_of
from heedful.models import Model
from heedful.models.base import device_of
from heedful.models.create import head_config, head_name
from heedful.optimize_model import CPU_ONLY, DtypeName, load_dtype, optimize
from heedful.pretrained.config_keys import label_names
from heedful.pretrained.configuration import IDS, read_configs
from heedful.pretrained.ensemble import load_ensemble
from heedful.pretrained.fill_model import build_empty, check_sizes, fill, fresh_head, match_tensors, not_finite
from heedful.pretrained.folder import (
    CONFIG,
    GENERATION,
    find,
    is_ensemble,
    is_multi_label,
    is_regression,
    read_card,
    read_required_json,
)
from heedful.pretrained.model_type import ModelType
from heedful.pretrained.model_types import model_type_of
from heedful.pretrained.peft import is_adapter, load_adapter
from heedful.pretrained.peft_names import set_adapter_targets
from heedful.pretrained.pooling import pooled_head
from heedful.pretrained.resizing import resize_tensors, resized
from heedful.pretrained.rules import Tensors
from heedful.pretrained.weights import FLOATS, read_tensors, refuse_not_finite

log = logging.getLogger("heedful")


# arguments of transformers' ``from_pretrained``, and what they are here
MEANT = {
    "torch_dtype": "write dtype=...",
    "device_map": "write device=...; one device holds the whole model",
    "trust_remote_code": "leave it out: nothing in a folder is ever run",
    "load_in_8bit": 'write dtype="int8"',
    "load_in_4bit": 'write dtype="int4"',
    "quantization_config": 'write dtype="int8" or "int4"',
    "attn_implementation": 'leave it out: attention is fused; kernels="plain" runs without optimised kernels',
    "low_cpu_mem_usage": "leave it out: weights are mapped from the file",
    "use_safetensors": "leave it out: other weights are never run",
    "token": "log in with: huggingface-cli login",
    "cache_dir": "set the environment variable HF_HOME",
}


def _meant(argument: str) -> str:
    """Returns a line about an argument that ``load`` does not have."""
    known = [name for name in inspect.signature(load).parameters if name not in ("folder_or_id", "unknown")]
    return f"from_pretrained has no argument {argument!r}; {MEANT.get(argument) or nearest(argument, known)}"


def load(
    folder_or_id: str | Path,
    *,
    head: str | None = None,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    num_labels: int | None = None,
    positions: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    vocab_size: int | None = None,
    check_finite: bool = True,
    kernels: str = AUTO,
    **unknown: Any,
) -> Model:
    """Loads a model from a folder (ours or Hugging Face's) or a Hub id, in evaluation mode.

    Raises one ``HeedfulError`` that names the missing, unexpected and misshaped tensors, the first few of many.
    A folder with only an adapter (PEFT's or ours) is loaded on the base that ``adapter_config.json`` names, with the
    head that it was trained with: see ``heedful.adapters``.

    Args:
        folder_or_id: local folder, or else a Hub id, "org/name" or "org/name@revision".
        head: another head on the stored body (names as in ``heedful.create``). Missing parameters are initialised,
            named in ``model.fresh`` and logged: train such a head before you use its predictions. "pooled" pools as the
            folder's sentence-transformers files say, or by the mean if there are no such files.
        revision: branch, tag or commit on the Hub; an error for a local folder.
        dtype: "float32", "bfloat16", "float16", "float64" or torch's; None is the stored dtype, but float32 for stored
            float16 on a CPU, where float16 is hundreds of times slower. "int8" and "int4", on a CPU, are for inference
            alone (``heedful.optimize``).
        device: device of the weights; None is the CPU.
        num_labels: classes of the head; the head's output is initialised if this differs from the stored number.
        positions: number of positions, more or fewer than stored; added rows are initialised.
        image_size: pixels a side, or (height, width); stored positions are interpolated on the grid of patches.
        vocab_size: number of tokens, at least the stored number; added rows of embeddings and output are initialised.
        check_finite: refuse weights with NaN, infinity, or numbers that ``dtype`` cannot hold. False leaves the
            weights unread until they are used.
        kernels: "plain" runs the code of the model's own classes, in generation too, which helps to find a bug. "auto"
            lets generation choose its kernels; another name is that of a plan (``heedful.kernels.plan``).

    Returns:
        The model, with ``labels`` (names, [] if none are stored), ``multi_label`` (an input has any number of labels),
        ``generation`` (generation_config.json without the token ids, which are in ``config.special``) and ``fresh``
        (names of initialised parameters, with rows if only some are new: ``"...weight[8:16]"``); ``folder`` has what
        only writing the model again needs (``heedful.models.base.ModelFolder``).
    """
    if unknown:
        raise HeedfulError(_meant(next(iter(unknown))))
    plan = None if kernels == AUTO else plan_of(kernels)
    options: dict[str, Any] = {"head": None if head is None else head_name(head), "num_labels": num_labels}
    options |= {"dtype": dtype, "device": device, "check_finite": check_finite}
    options["sizes"] = {"positions": positions, "image_size": image_size, "vocab_size": vocab_size}
    if (name := str(dtype)) in CPU_ONLY:
        options["dtype"] = load_dtype(name, device_of(device or "cpu"))
    folder = find(folder_or_id, revision)
    if is_adapter(folder):
        model = load_adapter(folder, _load_folder, **options)
    else:
        model = _load_folder(folder, **options)
        model.folder.source = _source(folder_or_id, folder, revision)
    _warn_untrained(model.fresh)
    model = (optimize(model, cast(DtypeName, name)) if name in CPU_ONLY else model).eval()
    return model if plan is None else apply_plan(model, plan)


def _warn_untrained(fresh: Sequence[str]) -> None:
    """Logs the parameters of a head, and the rows of tables, that were initialised and not loaded."""
    rows = [name for name in fresh if "[" in name]
    for subject, names in (("the head is", [name for name in fresh if name not in rows]), ("rows are", rows)):
        if names:
            log.warning(
                "%s new and untrained: %s; train the model before you use its predictions", subject, ", ".join(names)
            )


def _load_folder(
    folder: Path,
    *,
    head: str | None,
    num_labels: int | None,
    dtype: str | torch.dtype | None,
    device: str | torch.device | None,
    sizes: Mapping[str, Any],
    check_finite: bool,
) -> Model:
    """Returns the model of a folder that holds weights, or an ensemble, whose members' folders do."""
    hub, generation = read_configs(folder)
    if is_ensemble(folder):
        options = {"head": head, "num_labels": num_labels, "dtype": dtype, "device": device, "sizes": sizes}
        return load_ensemble(folder, hub, _load_folder, check_finite=check_finite, **options)
    target_device = device_of(device or "cpu")
    stored: Tensors = {}
    try:
        model_type = model_type_of(hub)
        architecture = model_type.architecture_of(hub)
        stored = model_type.names(read_tensors(folder), architecture)
        config = model_type.read(hub, architecture, model_type.implied_by(architecture, stored))
        check_sizes(config, stored)
        pools = head == PooledHead.kind or (head is None and read_card(folder).get("head") == PooledHead.kind)
        pooling = pooled_head(folder) if pools and config.head.kind != PooledHead.kind else None
        requested = pooling or _requested_head(model_type, hub, stored, config, head, num_labels)
        new_config = resized(with_head(config, requested), **sizes)
        model = build_empty(new_config)
        other_head = requested.kind != config.head.kind or getattr(requested, "dense", 0) != getattr(
            config.head, "dense", 0
        )
        loaded = model_type.sized(config).tensors_in(stored, architecture, head=not other_head)
        if other_head:  # the old head's tensors are not loaded, except a pooler that the new head has too
            poolers = {name for name in model.state_dict() if "head.pooler." in name}
            loaded = {name: t for name, t in loaded.items() if not name.startswith("head.") or name in poolers}
            stored = {name: t for name, t in stored.items() if not model_type.known(name)}
        new_rows = resize_tensors(loaded, config, new_config)
        hub_name = partial(model_type.hub_name_of, architecture=architecture)
        tensors, fresh = match_tensors(model, loaded, list(stored), hub_name, requested != config.head)
    except HeedfulError as error:
        file = "" if str(folder) in str(error) else f"{folder / CONFIG}: "
        raise HeedfulError(f"{file}{error}") from None
    weight_dtype = _dtype(dtype, tensors, target_device)
    if check_finite:
        refuse_not_finite(folder, not_finite(tensors, weight_dtype, hub_name))
    tensors |= fresh_head(model, fresh)
    new_rows = [name for name in new_rows if name.partition("[")[0] in tensors]  # a tied tensor by its first name only
    fill(model, tensors, weight_dtype, target_device)
    model.folder.layout, model.fresh, model.generation = model_type.name, [*fresh, *new_rows], generation
    model.labels = label_names(hub) if requested == config.head else []
    model.multi_label = is_multi_label(hub)
    model.regression = isinstance(model.config.head, SequenceHead) and is_regression(hub)
    model.folder.config = dict(hub)
    if (folder / GENERATION).exists():
        model.folder.ids = {key: value for key, value in read_required_json(folder / GENERATION).items() if key in IDS}
    set_adapter_targets(model)
    return model


def _source(requested: str | Path, folder: Path, revision: str | None) -> str:
    """Returns the source of the weights: the absolute path of a local folder, or the Hub id with its revision."""
    is_local = Path(requested).expanduser().is_dir()
    return str(folder.resolve()) if is_local else f"{requested}@{revision or ''}".rstrip("@")


def _requested_head(
    model_type: ModelType,
    hub: Mapping[str, Any],
    stored: Tensors,
    config: ModelConfig,
    head: str | None,
    num_labels: int | None,
) -> Head:
    """Returns the requested head; if it is not stored, it is configured so that the model type's layout can save it."""
    requested = head_config(config, head)
    has_own_labels = "head.labels" in model_type.architecture_of(hub).fixed  # of a discriminator, not of a classifier
    if requested.kind == config.head.kind and (num_labels is None or not has_own_labels):
        return head_config(config, None, num_labels)
    architecture = next(
        (
            architecture
            for architecture in model_type.architectures
            if architecture.fixed.get("head.kind") == requested.kind
        ),
        None,
    )
    if architecture is not None:
        plain = {k: v for k, v in hub.items() if k not in ("id2label", "num_labels", "heedful")}
        requested = model_type.read(plain, architecture, model_type.implied_by(architecture, stored)).head
    return head_config(with_head(config, requested), None, num_labels)


def _dtype(requested: str | torch.dtype | None, tensors: Tensors, device: torch.device) -> torch.dtype:
    """Returns the dtype to load weights in; raises for float16 on a CPU."""
    name = str(requested).removeprefix("torch.")
    if requested is not None and name not in FLOATS:
        raise HeedfulError(f"unknown dtype {name!r}; {nearest(name, [*FLOATS, *CPU_ONLY])}")
    stored = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    dtype = FLOATS[name] if requested is not None else stored.pop() if len(stored) == 1 else torch.float32
    if dtype is not torch.float16 or device.type != "cpu":
        return dtype
    if requested is not None:
        raise HeedfulError(
            "float16 is hundreds of times slower than float32 on a CPU; use dtype='bfloat16' or 'float32', or for "
            "inference alone heedful.optimize(model, 'float16')"
        )
    return torch.float32
