"""Opening a model: configuration and tensors from a folder, strictly, into a model built without weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heedful.checkpoints.families import family_of
from heedful.checkpoints.family import Family
from heedful.checkpoints.folder import CONFIG, GENERATION, find, label_names, multi_label, read_json
from heedful.checkpoints.rules import Tensors, same
from heedful.checkpoints.weights import read_tensors
from heedful.config import Head, ModelConfig, VisionConfig
from heedful.errors import HeedfulError, nearest
from heedful.heads import head_of
from heedful.models import Model, build
from heedful.models.create import head_config
from heedful.stack import initialise

IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

log = logging.getLogger("heedful")


def load(
    folder_or_id: str | Path,
    *,
    head: str | None = None,
    revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    num_labels: int | None = None,
) -> Model:
    """Open a model's folder (ours or Hugging Face's) or a Hub id, in evaluation mode.

    Every tensor must be there, known and of the right shape; otherwise one ``HeedfulError`` names all that are not.

    Args:
        folder_or_id: a folder that exists, or else the name of one on the Hub.
        head: another head on the stored body (the names of ``heedful.create``). What the folder cannot fill is drawn
            anew, named in ``model.fresh`` and logged: such a head must be trained before its answers mean anything.
        revision: of the Hub's folder.
        dtype: "float32", "bfloat16", "float16", "float64" or torch's; None is the stored one, but float32 for float16
            on a CPU, which computes it hundreds of times more slowly.
        device: where the weights go; None is the CPU.
        num_labels: classes of the head; another number than the stored one makes the head's output fresh.

    Returns:
        The model, with ``labels`` (their names, [] where none are stored), ``multi_label`` (whether an input may have
        several), ``generation`` (generation_config.json but for the token ids, which are in ``config.special``) and
        ``fresh`` (names of parameters drawn anew).
    """
    folder = find(folder_or_id, revision)
    theirs = read_json(folder / CONFIG)
    generation = read_json(folder / GENERATION) if (folder / GENERATION).exists() else {}
    theirs |= {key: generation.pop(key) for key in IDS if generation.get(key) is not None}
    place = _device(device)
    stored: Tensors = {}
    try:
        family = family_of(theirs)
        case = family.case_of(theirs)
        stored = family.names(read_tensors(folder))
        config = family.read(theirs, case, family.told(case, stored))
        asked = _asked(family, theirs, stored, config, head, num_labels)
        with torch.device("meta"):
            model = build(replace(config, head=asked))
        other = asked.kind != config.head.kind
        made = family.tensors_in(stored, case, head=not other)
        if other:  # what belongs to the old head is left where it is; a pooler may serve the new one too
            kept = {name for name in model.state_dict() if "head.pooler." in name}
            made = {name: t for name, t in made.items() if not name.startswith("head.") or name in kept}
            stored = {name: t for name, t in stored.items() if not family.known(name)}
        tensors, fresh = _matched(
            model, made, list(stored), partial(family.their_name, case=case), asked != config.head
        )
    except HeedfulError as error:
        where = "" if str(folder) in str(error) else f"{folder / CONFIG}: "
        raise HeedfulError(f"{where}{error}") from None
    _fill(model, tensors | _fresh_head(model, fresh), _dtype(dtype, tensors, place), place)
    if fresh:
        log.warning("the head is new and untrained: %s; train before trusting its answers", ", ".join(fresh))
    labels = [] if asked != config.head else label_names(theirs)
    vars(model).update(fresh=fresh, labels=labels, multi_label=multi_label(theirs), generation=generation)
    return model.eval()


def _asked(
    family: Family,
    theirs: Mapping[str, Any],
    stored: Tensors,
    config: ModelConfig,
    head: str | None,
    num_labels: int | None,
) -> Head:
    """The head that is asked for; another one than the stored is as the family has it, so that it can be saved so."""
    asked = head_config(config, head)
    if asked.kind == config.head.kind:
        return head_config(config, None, num_labels)
    case = next((case for case in family.cases if case.fixed.get("head.kind") == asked.kind), None)
    if case is not None:
        plain = {k: v for k, v in theirs.items() if k not in ("id2label", "num_labels", "heedful")}
        asked = family.read(plain, case, family.told(case, stored)).head
    return head_config(replace(config, head=asked), None, num_labels)


def places(model: nn.Module) -> Iterator[list[str]]:
    """The names of each stored thing: all places that share one parameter together, each persistent buffer alone."""
    shared: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        shared.setdefault(id(parameter), []).append(name)
    yield from shared.values()
    parameters = {name for names in shared.values() for name in names}
    yield from ([name] for name in model.state_dict() if name not in parameters)


def _matched(
    model: Model, made: Tensors, unknown: list[str], named: Callable[[str], str], may_be_fresh: bool
) -> tuple[Tensors, list[str]]:
    """A tensor for each of the model's places, and the names of the head's that have none; all misfits in one error."""
    tensors: Tensors = {}
    fresh, missing, misshaped = [], [], []
    state = model.state_dict()
    for names in places(model):
        found = {named(name): made.pop(name) for name in names if name in made}
        optional = may_be_fresh and all(name.startswith("head.") for name in names)
        tensor, wanted = same(found) if found else None, tuple(state[names[0]].shape)
        if tensor is not None and tuple(tensor.shape) == wanted:
            tensors[names[0]] = tensor
        elif optional:
            fresh.append(names[0])
        elif tensor is None:
            missing.append(named(names[0]))
        else:
            misshaped.append(f"{next(iter(found))} is {tuple(tensor.shape)}, the configuration says {wanted}")
    unexpected = sorted([*unknown, *map(named, made)])
    lists = {"missing": sorted(set(missing)), "unexpected": unexpected, "of another shape": misshaped}
    wrong = [f"{what}: {', '.join(names)}" for what, names in lists.items() if names]
    if wrong:
        raise HeedfulError(f"the weights do not fit the configuration; {'; '.join(wrong)}")
    return tensors, fresh


def _fresh_head(model: Model, names: list[str]) -> Tensors:
    """New values for parameters of the head, drawn from torch's random state."""
    if not names:
        return {}
    config, embedding = model.config, getattr(model, "target_embedding", model.embedding)
    prefix = config.patches.prefix_tokens if isinstance(config, VisionConfig) else 0
    head = head_of(config.head, model.main.dim, getattr(embedding, "token", None), prefix)
    initialise(head, model.main)
    state = head.state_dict()
    return {name: state[name.removeprefix("head.")] for name in names}


def _fill(model: Model, tensors: Tensors, dtype: torch.dtype, device: torch.device) -> None:
    """Put the tensors into all their places, and everything on the device."""
    for names in places(model):
        tensor = tensors.pop(names[0])
        tensor = tensor.to(device, dtype if tensor.is_floating_point() else None).contiguous()
        value = nn.Parameter(tensor) if isinstance(_at(model, names[0]), nn.Parameter) else tensor
        for name in names:
            module, _, last = name.rpartition(".")
            setattr(model.get_submodule(module), last, value)
    for name, buffer in list(model.named_buffers()):  # computed ones keep their precision
        module, _, last = name.rpartition(".")
        setattr(model.get_submodule(module), last, buffer.to(device))


def _at(model: nn.Module, name: str) -> Tensor:
    module, _, last = name.rpartition(".")
    return getattr(model.get_submodule(module), last)


def _device(device: str | torch.device | None) -> torch.device:
    try:
        return torch.empty(0, device=device or "cpu").device
    except (RuntimeError, AssertionError) as error:
        raise HeedfulError(f"device {str(device)!r} is not to be had: {str(error).splitlines()[0]}") from None


def _dtype(asked: str | torch.dtype | None, tensors: Tensors, device: torch.device) -> torch.dtype:
    """The type of the weights; raises for float16 on a CPU."""
    name = str(asked).removeprefix("torch.")
    if asked is not None and name not in DTYPES:
        raise HeedfulError(f"dtype {name!r} is no type for weights; {nearest(name, DTYPES)}")
    stored = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    dtype = DTYPES[name] if asked is not None else stored.pop() if len(stored) == 1 else torch.float32
    if dtype is not torch.float16 or device.type != "cpu":
        return dtype
    if asked is not None:
        raise HeedfulError("float16 is hundreds of times slower on a CPU; use dtype='bfloat16' or 'float32'")
    return torch.float32
