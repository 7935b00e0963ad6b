"""Loads a model: configuration and tensors of a folder, checked strictly, into a model built without weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from heedful.config import Head, ModelConfig, PooledHead, SequenceHead
from heedful.errors import HeedfulError, nearest
from heedful.kernels.optimize import LOW, optimize, stored_as
from heedful.kernels.plan import AUTO, apply_plan, plan_of
from heedful.models import Model
from heedful.models.base import device_of
from heedful.models.create import head_config
from heedful.pretrained.config_keys import label_names
from heedful.pretrained.configuration import IDS, read_configs
from heedful.pretrained.fill_model import build_empty, check_sizes, fill, fresh_head, match_tensors, not_finite
from heedful.pretrained.folder import CONFIG, GENERATION, find, is_multi_label, is_regression, read_card, read_json
from heedful.pretrained.model_type import ModelType
from heedful.pretrained.model_types import model_type_of
from heedful.pretrained.peft import is_adapter, open_adapter
from heedful.pretrained.peft_names import set_adapter_targets
from heedful.pretrained.pooling import pooled_head
from heedful.pretrained.resizing import resize, resized
from heedful.pretrained.rules import Tensors
from heedful.pretrained.weights import FLOATS, read_tensors, refuse_not_finite

log = logging.getLogger("heedful")


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
) -> Model:
    """Opens a model's folder (ours or Hugging Face's) or a Hub id, in evaluation mode.

    Every tensor must be there, known and of the right shape; otherwise one ``HeedfulError`` names all that are not.
    A folder that holds an adapter alone (PEFT's, or ours) is opened on the base that its ``adapter_config.json`` names,
    under the head that it was trained under: see ``heedful.adapters``.

    Args:
        folder_or_id: a folder that exists, or else the name of one on the Hub, "org/name" or "org/name@revision".
        head: another head on the stored body (the names of ``heedful.create``). What the folder cannot fill is drawn
            anew, named in ``model.fresh`` and logged: such a head must be trained before its answers mean anything.
            "pooled" is as a folder of sentence-transformers says, the mean where none says anything.
        revision: a branch, tag or commit of the Hub's folder; refused for one that is here.
        dtype: "float32", "bfloat16", "float16", "float64" or torch's; None is the stored one, but float32 for float16
            on a CPU, which computes it hundreds of times more slowly. "int8" and "int4", on a CPU, make a model for
            inference alone (``heedful.optimize``).
        device: where the weights go; None is the CPU.
        num_labels: classes of the head; another number than the stored one makes the head's output fresh.
        positions: how many the model is to have, more or fewer; stored rows are kept, further ones are fresh.
        image_size: pixels a side, or (height, width); the stored positions are interpolated on the grid of patches.
        vocab_size: tokens, no fewer than are stored; further rows are fresh, in the embeddings and in the output.
        check_finite: refuse weights that hold NaN, infinity, or numbers that ``dtype`` cannot hold. False leaves the
            weights unread until they are used.
        kernels: "plain" computes everything by the code of the model's own classes, in generation too: to look for a
            bug. "auto" lets generation choose its kernels; another name is that of a plan (``heedful.kernels.plan``).

    Returns:
        The model, with ``labels`` (their names, [] where none are stored), ``multi_label`` (whether an input may have
        several), ``generation`` (generation_config.json but for the token ids, which are in ``config.special``) and
        ``fresh`` (names of parameters drawn anew, with their rows where it is not all of them: ``"...weight[8:16]"``).
    """
    plan = None if kernels == AUTO else plan_of(kernels)
    options: dict[str, Any] = {"head": head, "num_labels": num_labels, "dtype": dtype, "device": device}
    options["check_finite"] = check_finite
    options["sizes"] = {"positions": positions, "image_size": image_size, "vocab_size": vocab_size}
    if (name := str(dtype)) in LOW:
        options["dtype"] = stored_as(name, device_of(device or "cpu"))
    folder = find(folder_or_id, revision)
    if is_adapter(folder):
        model = open_adapter(folder, _opened, **options)
    else:
        model = _opened(folder, **options)
        model.source = _source(folder_or_id, folder, revision)
    rows = [name for name in model.fresh if "[" in name]
    for what, names in (("the head is", [name for name in model.fresh if name not in rows]), ("rows are", rows)):
        if names:
            log.warning("%s new and untrained: %s; train before trusting its answers", what, ", ".join(names))
    model = (optimize(model, name) if name in LOW else model).eval()
    return model if plan is None else apply_plan(model, plan)


def _opened(
    folder: Path,
    *,
    head: str | None,
    num_labels: int | None,
    dtype: str | torch.dtype | None,
    device: str | torch.device | None,
    sizes: Mapping[str, Any],
    check_finite: bool,
) -> Model:
    """Returns the model of a folder that holds weights."""
    theirs, generation = read_configs(folder)
    place = device_of(device or "cpu")
    stored: Tensors = {}
    try:
        model_type = model_type_of(theirs)
        architecture = model_type.architecture_of(theirs)
        stored = model_type.names(read_tensors(folder), architecture)
        config = model_type.read(theirs, architecture, model_type.implied_by(architecture, stored))
        check_sizes(config, stored)
        pools = head == PooledHead.kind or (head is None and read_card(folder).get("head") == PooledHead.kind)
        told_head = pooled_head(folder) if pools and config.head.kind != PooledHead.kind else None
        requested = told_head or _asked(model_type, theirs, stored, config, head, num_labels)
        wanted = resized(replace(config, head=requested), **sizes)
        model = build_empty(wanted)
        other = requested.kind != config.head.kind
        loaded = model_type.tensors_in(stored, architecture, head=not other)
        if other:  # what check_sizes to the old head is left where it is; a pooler may serve the new one too
            kept = {name for name in model.state_dict() if "head.pooler." in name}
            loaded = {name: t for name, t in loaded.items() if not name.startswith("head.") or name in kept}
            stored = {name: t for name, t in stored.items() if not model_type.known(name)}
        rows = resize(loaded, config, wanted)
        named = partial(model_type.their_name, architecture=architecture)
        tensors, fresh = match_tensors(model, loaded, list(stored), named, requested != config.head)
    except HeedfulError as error:
        where = "" if str(folder) in str(error) else f"{folder / CONFIG}: "
        raise HeedfulError(f"{where}{error}") from None
    kind = _dtype(dtype, tensors, place)
    if check_finite:
        refuse_not_finite(folder, not_finite(tensors, kind, named))
    tensors |= fresh_head(model, fresh)
    rows = [name for name in rows if name.partition("[")[0] in tensors]  # a tied one under its first name alone
    fill(model, tensors, kind, place)
    model.layout, model.fresh, model.generation = model_type.name, [*fresh, *rows], generation
    model.labels = label_names(theirs) if requested == config.head else []
    model.multi_label = is_multi_label(theirs)
    model.regression = isinstance(model.config.head, SequenceHead) and is_regression(theirs)
    model.source_config = dict(theirs)
    if (folder / GENERATION).exists():
        model.source_ids = {key: value for key, value in read_json(folder / GENERATION).items() if key in IDS}
    set_adapter_targets(model)
    return model


def _source(requested: str | Path, folder: Path, revision: str | None) -> str:
    """Returns the source of the weights: the given folder, or the Hub id of the downloaded one."""
    here = Path(requested).expanduser().is_dir()
    return str(folder.resolve()) if here else f"{requested}@{revision or ''}".rstrip("@")


def _asked(
    model_type: ModelType,
    theirs: Mapping[str, Any],
    stored: Tensors,
    config: ModelConfig,
    head: str | None,
    num_labels: int | None,
) -> Head:
    """Returns the requested head; a head that is not stored is as the model type has it, so that it can be saved."""
    requested = head_config(config, head)
    if requested.kind == config.head.kind:
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
        plain = {k: v for k, v in theirs.items() if k not in ("id2label", "num_labels", "heedful")}
        requested = model_type.read(plain, architecture, model_type.implied_by(architecture, stored)).head
    return head_config(replace(config, head=requested), None, num_labels)


def _dtype(requested: str | torch.dtype | None, tensors: Tensors, device: torch.device) -> torch.dtype:
    """Returns the type of the weights; raises for float16 on a CPU."""
    name = str(requested).removeprefix("torch.")
    if requested is not None and name not in FLOATS:
        raise HeedfulError(f"dtype {name!r} is no type for weights; {nearest(name, [*FLOATS, *LOW])}")
    stored = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    dtype = FLOATS[name] if requested is not None else stored.pop() if len(stored) == 1 else torch.float32
    if dtype is not torch.float16 or device.type != "cpu":
        return dtype
    if requested is not None:
        raise HeedfulError(
            "float16 is hundreds of times slower on a CPU; use dtype='bfloat16' or 'float32', or for inference alone "
            "heedful.optimize(model, 'float16')"
        )
    return torch.float32
