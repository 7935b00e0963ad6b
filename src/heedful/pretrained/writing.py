"""Saves a model: in the layout of the first model type that can express its configuration, else in our own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from heedful import __version__
from heedful.config import ImageHead, LanguageHead, PooledHead, SequenceHead, TokenHead, VisionConfig
from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.pretrained.config_keys import StoredTensor, WrittenKey, label_tables
from heedful.pretrained.configuration import GENERATES
from heedful.pretrained.fill_model import tied_names
from heedful.pretrained.flat_config import flat
from heedful.pretrained.folder import (
    ADAPTER_CONFIG,
    CARD,
    CONFIG,
    GENERATION,
    INDEX,
    MULTI_LABEL,
    README,
    REGRESSION,
    WEIGHTS,
    atomic_write,
    to_json,
)
from heedful.pretrained.model_card import card_text, is_ours
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types import OWN, OWN_ARCHITECTURE, express
from heedful.pretrained.peft import adapter_files
from heedful.pretrained.peft_config import ADAPTER_WEIGHTS
from heedful.pretrained.pooling import module_files
from heedful.pretrained.rules import Tensors
from heedful.pretrained.scaled_output import stored

# keys of a config.json that are of the file or of its program, that labels and heads decide, or that tell of generating
NOT_KEPT = {
    *("architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "_name_or_path", "auto_map"),
    *("id2label", "label2id", "num_labels", "problem_type", "heedful", "quantization_config", "_num_labels"),
    *("rope_theta", "rope_scaling"),  # said anew in rope_parameters
    *GENERATES,
}
UNITS = {"": 1, **{unit + "B": 1000**n for n, unit in enumerate("KMGT", 1)}}
UNITS |= {unit + "IB": 1024**n for n, unit in enumerate("KMGT", 1)}
FORMAT = {"format": "pt"}  # as readers of several frameworks want it told
STALE = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json|adapter_(model|config)\..*")


def save(
    model: Model,
    folder: str | Path,
    *,
    extra: Mapping[str, Any] | None = None,
    max_shard_size: int | str = "5GB",
) -> str:
    """Writes a model: ``config.json``, ``model.safetensors``, ``generation_config.json`` where it generates.

    Beside them go ``heedful.json`` and the model card, ``README.md``, but for one that a person wrote.

    Tied weights are stored once. Files are written beside and renamed: whatever happens, the folder opens with the old
    weights or with the new. Earlier weights go, be they one file or shards; other files in the folder stay.

    Of a model with an adapter (``heedful.adapters``) the adapter alone is written, as PEFT does: a folder of its own
    with ``adapter_config.json``, which names the base, ``adapter_model.safetensors``, and the rest as ever. For a whole
    model call ``heedful.adapters.merge`` first.

    A model that pools is written as its body, with the files by which ``sentence-transformers`` pools alike; a pooler
    of the model type's that it has no use for is written as zeros, so that nobody draws a random one.

    Args:
        model: of any model type, on any device, in its own dtype.
        folder: made where it does not exist.
        extra: what ``heedful.json`` says besides the layout: task, labels, metrics, ...; ``labels``, a list of names,
            goes into ``config.json`` too.
        max_shard_size: of a weight file, in bytes or as "200MB", "5GB", "5GiB". More goes into several, with an index,
            ``model.safetensors.index.json``, that tells which tensor is in which.

    Returns:
        The layout: "gpt2", "bert", ... open elsewhere as they are; "heedful" is our own, which only we open.
    """
    model.whole("save it")
    extra = dict(extra or {})
    model_type, architecture, theirs = express(model.config, model.layout) or (
        OWN,
        OWN_ARCHITECTURE,
        {"model_type": OWN.name, **model.config.to_dict()},
    )
    theirs = _with_kept(model, model_type, architecture, theirs) | _labels(model, extra)
    theirs["dtype"] = str(model.dtype).removeprefix("torch.")
    most = size_of(max_shard_size)
    head, pools, unused = model.config.head, {}, {}
    if isinstance(head, PooledHead) and model_type is not OWN:
        pools, unused = module_files(head, model.main.dim), _unused(architecture, model.main.dim)
        extra["head"] = head.kind
    settings: dict[str, Any] = {}
    if model.adapter is None:
        shards, index = _split(model_type.tensors_out(_once(model) | unused, architecture), most)
    else:
        settings, tensors = adapter_files(model, model_type, architecture, Path(folder).expanduser())
        shards, index = {ADAPTER_WEIGHTS: tensors}, {}
    files = {
        CONFIG: theirs,
        CARD: {"layout": model_type.name, "heedful": __version__, "parameters": model.count()} | extra,
    }
    if settings:
        files[ADAPTER_CONFIG] = settings
    if len(shards) > 1:
        files[INDEX] = index
    if isinstance(model.config.head, LanguageHead):
        files[GENERATION] = _generation(model)
    out = Path(folder).expanduser().resolve()
    try:
        with atomic_write(out, STALE if model.adapter is None else None) as place:
            for name, content in (files | pools).items():
                (place / name).parent.mkdir(exist_ok=True)
                (place / name).write_bytes(to_json(content))
            if is_ours(out):
                base = settings.get("base_model_name_or_path")
                (place / README).write_text(
                    card_text(out.name, files[CARD], theirs, base), encoding="utf-8", newline="\n"
                )
            for name, shard in shards.items():
                save_file({n: t.detach().cpu().contiguous() for n, t in shard.items()}, place / name, FORMAT)
                (place / name).chmod((place / CONFIG).stat().st_mode)  # it is written for the owner alone
    except SafetensorError as error:
        raise HeedfulError(f"cannot write {folder}: {error}; free some room or choose another folder") from None
    return model_type.name


def size_of(max_shard_size: int | str) -> int:
    """Returns a size in bytes; takes a number of bytes, or "200MB", "5GB" (powers of ten), "5GiB" (powers of two).

    >>> size_of("200MB"), size_of("1.5KiB")
    (200000000, 1536)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]I?B|)", str(max_shard_size).strip().upper())
    size = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if size < 1:
        raise HeedfulError(
            f"max_shard_size is {max_shard_size!r}; give a number of bytes, or a size such as '5GB' or '200MB'"
        )
    return size


def _split(tensors: Tensors, most: int) -> tuple[dict[str, Tensors], dict[str, Any]]:
    """Returns files of at most ``most`` bytes of tensors (a larger tensor has its own), and their index."""
    from huggingface_hub import split_state_dict_into_shards_factory

    stem, _, ending = WEIGHTS.rpartition(".")
    split = split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern=f"{stem}{{suffix}}.{ending}",
        max_shard_size=most,
    )
    shards = {file: {name: tensors[name] for name in names} for file, names in split.filename_to_tensors.items()}
    return shards, {"metadata": split.metadata, "weight_map": dict(sorted(split.tensor_to_filename.items()))}


def _with_kept(
    model: Model, model_type: ModelType, architecture: Architecture, theirs: dict[str, Any]
) -> dict[str, Any]:
    """``config.json`` with the keys that came in and that we do not write; without them where another model would be
    read, or where the layout is another.

    A key that is only written for other programs (``max_position_embeddings`` of Marian) keeps the value that came in.
    """
    if model_type.name != model.layout or model_type is OWN or not model.source_config:
        return theirs
    free = {config_key.theirs for config_key in model_type.config_keys if isinstance(config_key, WrittenKey)} - {
        *GENERATES,
        "is_encoder_decoder",
    }
    kept = {key: value for key, value in model.source_config.items() if key in free or key not in {*theirs, *NOT_KEPT}}
    stored = {
        config_key.theirs: config_key.from_config(flat(model.config))
        for config_key in (*model_type.config_keys, *architecture.config_keys)
        if isinstance(config_key, StoredTensor)
    }
    try:
        same = model_type.read(theirs | kept, architecture, stored) == model_type.read(theirs, architecture, stored)
    except HeedfulError:
        same = False
    return theirs | kept if same else theirs


def _once(model: Model) -> Tensors:
    """Returns the model's tensors by our names, those with several places under the first."""
    state = stored(model)
    return {first: state[first] for first in tied_names(model)}


def _unused(architecture: Architecture, dim: int) -> Tensors:
    """Returns the pooler that a class of the model type has and a pooled model has not."""
    has = any(
        isinstance(config_key, StoredTensor) and config_key.ours == "head.pooler"
        for config_key in architecture.config_keys
    )
    sizes = {"weight": (dim, dim), "bias": (dim,)} if has else {}
    return {f"head.pooler.dense.{name}": torch.zeros(size) for name, size in sizes.items()}


def _labels(model: Model, extra: Mapping[str, Any]) -> dict[str, Any]:
    head = model.config.head
    names = extra.get("labels") or model.labels
    if not names or not isinstance(head, SequenceHead | TokenHead | ImageHead):
        return {}
    if len(names) != head.labels:
        raise HeedfulError(f"{len(names)} label names for a head of {head.labels} labels")
    several = MULTI_LABEL if model.multi_label else REGRESSION if model.regression else {}
    return label_tables([str(name) for name in names]) | several


def _generation(model: Model) -> dict[str, Any]:
    """Returns the token ids, and the settings that came with the model."""
    config = model.config
    assert not isinstance(config, VisionConfig)
    special = config.special
    start = "bos_token_id" if config.kind == "decoder" else "decoder_start_token_id"
    end = list(special.end) if len(special.end) > 1 else next(iter(special.end), None)
    ids = dict(model.source_ids)
    ids |= {start: special.start, "eos_token_id": end, "pad_token_id": special.pad}
    return {key: value for key, value in ids.items() if value is not None} | dict(model.generation)
