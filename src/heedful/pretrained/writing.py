"""Saves a model in the layout of the first model type that can express its configuration, or else in our own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from heedful import __version__
from heedful.config import (
    EnsembleConfig,
    ImageHead,
    LanguageHead,
    PooledHead,
    SequenceHead,
    TokenHead,
    VisionConfig,
    patches_of,
)
from heedful.errors import HeedfulError
from heedful.kernels.plan import KERNELS
from heedful.kernels.registered_attention import RegisteredAttention
from heedful.layers.attention import ATTENTIONS, Attention
from heedful.layers.feedforward import FeedForward
from heedful.layers.linear import ScaledLinear
from heedful.layers.position import sinusoid
from heedful.models import Ensemble, Model
from heedful.pretrained.config_keys import AnyConfigKey, StoredTensor, WrittenKey, label_tables
from heedful.pretrained.configuration import GENERATION_KEYS, IDS, OTHER_PADDING
from heedful.pretrained.ensemble import member_card
from heedful.pretrained.fill_model import build_empty, tied_names
from heedful.pretrained.flat_config import flat
from heedful.pretrained.folder import (
    ADAPTER_CONFIG,
    CONFIG,
    GENERATION,
    HEEDFUL_JSON,
    INDEX,
    MODEL_CARD,
    MULTI_LABEL,
    REGRESSION,
    WEIGHTS,
    atomic_write,
    indented_json,
    member_folder,
    members_of,
)
from heedful.pretrained.model_card import card_text, is_ours
from heedful.pretrained.model_type import Architecture, ModelType
from heedful.pretrained.model_types import OWN, OWN_ARCHITECTURE, express
from heedful.pretrained.peft import adapter_files
from heedful.pretrained.peft_config import ADAPTER_WEIGHTS
from heedful.pretrained.pooling import module_files
from heedful.pretrained.rules import SinusoidTable, Tensors
from heedful.pretrained.scaled_output import saved_tensors
from heedful.pretrained.special_config_keys import StoredSinusoidKey, SubConfig

# keys of the source's config.json that are not copied: about the file, labels or generation
NOT_COPIED = {
    *("architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "_name_or_path", "auto_map"),
    *("id2label", "label2id", "num_labels", "problem_type", "heedful", "quantization_config", "_num_labels"),
    OTHER_PADDING,
    *("rope_theta", "rope_scaling"),  # written as rope_parameters
    *GENERATION_KEYS,
}
UNITS = {"": 1, **{unit + "B": 1000**n for n, unit in enumerate("KMGT", 1)}}
UNITS |= {unit + "IB": 1024**n for n, unit in enumerate("KMGT", 1)}
FORMAT = {"format": "pt"}  # metadata that readers for several frameworks expect
STALE = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json|adapter_(model|config)\..*")


def save(
    model: Model,
    folder: str | Path,
    *,
    extra: Mapping[str, Any] | None = None,
    max_shard_size: int | str = "5GB",
) -> str:
    """Saves a model: ``config.json``, ``model.safetensors``, and ``generation_config.json`` for a language model.

    ``heedful.json`` and the model card, ``README.md``, are added; a README.md that a person wrote is not replaced.

    Tied weights are stored once. The write is atomic: after a crash the folder loads with the old weights or the new.
    Old weight files, shards too, are deleted, and the members of an ensemble that the folder held; other files in the
    folder stay. Each member of an ensemble is written as a complete folder, ``member-0``, ``member-1``, ...

    If a model has an adapter (``heedful.adapters``), only the adapter is saved, as PEFT does, in a folder of its own:
    ``adapter_config.json``, which names the base, ``adapter_model.safetensors``, and the other files. To save a whole
    model, call ``heedful.adapters.merge`` first.

    A model that pools is saved as its body, with the files by which ``sentence-transformers`` pools. A pooler that its
    architecture has and the model does not use is stored as zeros, so that no reader initialises a random one.

    Args:
        model: a model of any type, on any device and in any dtype.
        folder: created if it does not exist.
        extra: further contents of ``heedful.json``: task, labels, metrics, ...; ``labels``, a list of names, is written
            to ``config.json`` too.
        max_shard_size: maximum size of a weight file, in bytes or as "200MB", "5GB", "5GiB". Larger models are split
            into shards, with an index, ``model.safetensors.index.json``.

    Returns:
        The layout. Other programs read "gpt2", "bert", ...; only heedful reads its own, "heedful".
    """
    model.check_not_optimised("save it")
    check_parts(model)
    out, extra, shard_bytes = Path(folder).expanduser(), dict(extra or {}), size_of(max_shard_size)
    files, shards = _content(model, extra, shard_bytes, out)
    if isinstance(model, Ensemble):
        for number, member in enumerate(model.members):
            name = member_folder(Path(), number).as_posix()
            assert isinstance(member, Model)
            own_files, own_shards = _content(member, member_card(extra), shard_bytes, out)
            files |= {f"{name}/{file}": content for file, content in own_files.items()}
            shards |= {f"{name}/{file}": tensors for file, tensors in own_shards.items()}
    _write(out.resolve(), files, shards, STALE if model.adapter is None else None)
    return str(files[HEEDFUL_JSON]["layout"])


def _content(
    model: Model, extra: dict[str, Any], shard_bytes: int, folder: Path
) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """Returns a folder's JSON files and its files of weights, by their names; an ensemble has no weights of its own."""
    model_type, architecture, config_json = express(model.config, model.folder.layout, model.folder.config) or (
        OWN,
        OWN_ARCHITECTURE,
        {"model_type": OWN.name, **model.config.to_dict()},
    )
    config_json = _with_source_keys(model, model_type, architecture, config_json) | _label_entries(model, extra)
    config_json["dtype"] = str(model.dtype).removeprefix("torch.")
    head, unused_pooler = model.config.head, {}
    files: dict[str, Any] = {CONFIG: config_json}
    if isinstance(head, PooledHead) and model_type is not OWN:
        files |= module_files(head, model.main.dim)
        unused_pooler = _zero_pooler(architecture.config_keys, model)
        extra["head"] = head.kind
    elif patches_of(model.config) is not None and isinstance(head, LanguageHead):
        unused_pooler = _zero_pooler(model_type.config_keys, model)
    shards: dict[str, Tensors] = {}
    if model.adapter is not None:
        files[ADAPTER_CONFIG], tensors = adapter_files(model, model_type, architecture, folder)
        shards = {ADAPTER_WEIGHTS: tensors}
    elif not isinstance(model, Ensemble):
        tensors = _untied(model) | unused_pooler | _sinusoids(model_type, config_json, model)
        shards, index = _split(model_type.tensors_out(tensors, architecture), shard_bytes)
        files |= {INDEX: index} if len(shards) > 1 else {}
    files[HEEDFUL_JSON] = {
        "layout": model_type.name,
        "heedful": __version__,
        "parameters": model.num_parameters(),
    } | extra
    if isinstance(head, LanguageHead):
        files[GENERATION] = _generation_config(model)
    return files, shards


def check_parts(model: Model) -> None:
    """Raises ``HeedfulError`` for a replaced part of a model, which a saved folder would lose without notice.

    A part is allowed if the configuration has its name and ``heedful.register`` knows it. Adapters and quantised
    weights are allowed too; they are saved in their own way.
    """
    described = dict(build_empty(model.config).named_modules())
    for path, part in model.named_modules():
        expected = described.get(path)
        custom = expected is not None and _differs(part, expected)
        if custom or "forward" in vars(part):
            raise HeedfulError(
                f"{path or 'the model'} was replaced ({type(part).__name__}), but the configuration does not name the "
                "new part: a folder would lose it; register it (heedful.register) and name it in the configuration"
            )
        if isinstance(part, Attention) and part.attend not in (*KERNELS["attend"], getattr(expected, "attend", None)):
            if isinstance(part.attend, RegisteredAttention) and part.attend.__name__ in ATTENTIONS:
                continue
            name = getattr(part.attend, "__name__", type(part.attend).__name__)
            raise HeedfulError(
                f"{path}.attend is the function {name!r}, which no folder stores; register it: "
                f"heedful.register('attention', {name!r}, ...), and name it in the configuration"
            )


def _differs(part: nn.Module, expected: nn.Module) -> bool:
    """Returns True if a part computes something else than the part that the configuration describes.

    A class of the same name counts as the same: a notebook defines it anew. Adapters and storage describe themselves.
    """
    own = type(part)
    storage = own.__module__.startswith(("heedful.adapters", "heedful.kernels", "heedful.pretrained"))
    if storage or isinstance(part, ScaledLinear):
        return False
    if (own.__module__, own.__qualname__) != (type(expected).__module__, type(expected).__qualname__):
        return True
    options = {
        Attention: ("scale", "heads", "kv_heads", "head_dim"),
        FeedForward: ("activation",),
        nn.LayerNorm: ("eps",),
    }
    names = next((names for kind, names in options.items() if isinstance(part, kind)), ())
    return any(getattr(part, name) != getattr(expected, name) for name in names)


def _write(out: Path, files: Mapping[str, Any], shards: Mapping[str, Tensors], stale: re.Pattern[str] | None) -> None:
    """Writes JSON files, the model card and weights atomically; deletes old files that match ``stale``, and of an
    ensemble the members that are not written.
    """
    written = {out / PurePosixPath(name).parent for name in files}
    try:
        with atomic_write(out, stale, [member for member in _old_members(out) if member not in written]) as temporary:
            for name, content in files.items():
                (temporary / name).parent.mkdir(exist_ok=True)
                (temporary / name).write_bytes(indented_json(content))
            for part in (PurePosixPath(name).parent for name in files if name.endswith(HEEDFUL_JSON)):
                if is_ours(out / part):
                    contents, config_json = (files[str(part / name)] for name in (HEEDFUL_JSON, CONFIG))
                    card = card_text((out / part).name, contents, config_json, files.get(ADAPTER_CONFIG))
                    (temporary / part / MODEL_CARD).write_text(card, encoding="utf-8", newline="\n")
            for name, shard in shards.items():
                save_file(
                    {key: tensor.detach().cpu().contiguous() for key, tensor in shard.items()}, temporary / name, FORMAT
                )
                (temporary / name).chmod((temporary / CONFIG).stat().st_mode)  # save_file makes it the owner's alone
    except SafetensorError as error:
        raise HeedfulError(f"cannot write {out}: {error}; free some space or choose another folder") from None


def _old_members(folder: Path) -> list[Path]:
    """Returns the folders of the members of the ensemble that ``folder`` holds; [] of any other or a damaged folder."""
    try:
        return members_of(folder)
    except HeedfulError:
        return []


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


def _split(tensors: Tensors, shard_bytes: int) -> tuple[dict[str, Tensors], dict[str, Any]]:
    """Returns shards of at most ``shard_bytes`` (a larger tensor has its own shard) by file name, and their index."""
    from huggingface_hub import split_state_dict_into_shards_factory

    stem, _, extension = WEIGHTS.rpartition(".")
    split = split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern=f"{stem}{{suffix}}.{extension}",
        max_shard_size=shard_bytes,
    )
    shards = {file: {name: tensors[name] for name in names} for file, names in split.filename_to_tensors.items()}
    return shards, {"metadata": split.metadata, "weight_map": dict(sorted(split.tensor_to_filename.items()))}


def _with_source_keys(
    model: Model, model_type: ModelType, architecture: Architecture, config_json: dict[str, Any]
) -> dict[str, Any]:
    """Returns ``config_json`` completed with those keys of the source's ``config.json`` that Heedful does not write.

    The source's keys are left out if the layout differs, or if another model would be read with them. A key that
    Heedful writes only for other programs (``max_position_embeddings`` of Marian) keeps the source's value.
    """
    if model_type.name != model.folder.layout or model_type is OWN or not model.folder.config:
        return config_json
    keys_for_other_programs = {
        config_key.hub_name for config_key in model_type.config_keys if isinstance(config_key, WrittenKey)
    }
    replaceable = keys_for_other_programs - {*GENERATION_KEYS, "is_encoder_decoder"}
    copied = {
        key: value
        for key, value in model.folder.config.items()
        if key in replaceable or key not in {*config_json, *NOT_COPIED}
    }
    for config_key in (*model_type.config_keys, *architecture.config_keys):
        if isinstance(config_key, SubConfig):
            inner: Mapping[str, Any] = model.folder.config[config_key.hub_name]
            written = {k: v for k, v in config_json[config_key.hub_name].items() if k not in IDS or k not in inner}
            copied[config_key.hub_name] = dict(inner) | written
    stored_flags = {
        config_key.hub_name: config_key.from_config(flat(model.config))
        for config_key in (*model_type.config_keys, *architecture.config_keys)
        if isinstance(config_key, StoredTensor)
    }
    try:
        same_config = model_type.read(config_json | copied, architecture, stored_flags) == model_type.read(
            config_json, architecture, stored_flags
        )
    except HeedfulError:
        same_config = False
    return config_json | copied if same_config else config_json


def _untied(model: Model) -> Tensors:
    """Returns the model's tensors by our names, a tied tensor by its first name only."""
    state = saved_tensors(model)
    return {first: state[first] for first in tied_names(model)}


def _zero_pooler(config_keys: Iterable[AnyConfigKey], model: Model) -> Tensors:
    """Returns a pooler of zeros, which means that it is absent, if the layout has a pooler and the model has none."""
    fields, dim = flat(model.config), model.main.dim
    stored_parts = (config_key.ours for config_key in config_keys if isinstance(config_key, StoredTensor))
    pooler = next((str(name) for name in stored_parts if str(name).endswith("pooler")), None)
    shapes = {} if pooler is None or fields.get(pooler) else {"weight": (dim, dim), "bias": (dim,)}
    return {f"{pooler}.dense.{name}": torch.zeros(shape) for name, shape in shapes.items()}


def _sinusoids(model_type: ModelType, config_json: Mapping[str, Any], model: Model) -> Tensors:
    """Returns the tables of sinusoids that the layout stores, though they are computed, by our names."""
    rows = [config_json[key.hub_name] for key in model_type.config_keys if isinstance(key, StoredSinusoidKey)]
    tables = [rule.ours for rule in model_type.rules if isinstance(rule, SinusoidTable)]
    return {name: sinusoid(rows[0], model.main.dim, order="halves").to(model.dtype) for name in tables}


def _label_entries(model: Model, extra: Mapping[str, Any]) -> dict[str, Any]:
    head = model.config.head
    names = extra.get("labels") or model.labels
    if not names or not isinstance(head, SequenceHead | TokenHead | ImageHead):
        return {}
    if len(names) != head.labels:
        raise HeedfulError(f"{len(names)} label names for a head of {head.labels} labels; give one name per label")
    problem_type = MULTI_LABEL if model.multi_label else REGRESSION if model.regression else {}
    return label_tables([str(name) for name in names]) | problem_type


def _generation_config(model: Model) -> dict[str, Any]:
    """Returns ``generation_config.json``: the token ids, and the settings of the source."""
    config = model.config
    assert not isinstance(config, VisionConfig | EnsembleConfig)
    special = config.special
    start_key = "decoder_start_token_id" if config.kind == "encoder-decoder" else "bos_token_id"
    end_ids = list(special.end) if len(special.end) > 1 else next(iter(special.end), None)
    ids = dict(model.folder.ids)
    ids |= {start_key: special.start, "eos_token_id": end_ids, "pad_token_id": special.pad}
    return {key: value for key, value in ids.items() if value is not None} | dict(model.generation)
