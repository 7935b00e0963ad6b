"""PEFT's ``adapter_config.json``: reads and writes it, finds the adapter's base and the head that it was trained with.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.config import PooledHead
from heedful.errors import HeedfulError, first_few
from heedful.pretrained.folder import ADAPTER_CONFIG, CONFIG, find, read_card, read_required_json
from heedful.pretrained.model_types import OWN, model_type_of
from heedful.pretrained.rules import Tensors
from heedful.util.values import fits, type_in_words

if TYPE_CHECKING:
    from torch import Tensor

    from heedful.adapters import Adapter

ADAPTER_WEIGHTS, ADAPTER_PICKLE = "adapter_model.safetensors", "adapter_model.bin"
HEADS = {  # PEFT's task type: the head that the adapter was trained with
    "SEQ_CLS": "sequence",
    "TOKEN_CLS": "token",
    "QUESTION_ANS": "span",
    "CAUSAL_LM": "language-model",
    "SEQ_2_SEQ_LM": "language-model",
}
BODY = "FEATURE_EXTRACTION"  # PEFT's task type of a model without a head; its adapters fit any head
CLASSIFIERS = ("sequence", "token", "span", "image")  # heads that are trained and stored whole
PREFIX, LORA_A, LORA_B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"  # in tensor names
KINDS: dict[str, Any] = {
    "r": int,
    "lora_alpha": float,
    "lora_dropout": float,
    "use_rslora": bool,
    "base_model_name_or_path": str,
    "task_type": str | None,
    "revision": str | None,
}
DEFAULTS = {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "use_rslora": False, "task_type": None, "revision": None}
# keys that are read, or do not change what the stored tensors compute; any other must be null, false, empty or "none"
ACCEPTED = {
    *KINDS,
    *("peft_type", "peft_version", "auto_mapping", "inference_mode", "init_lora_weights", "eva_config"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save"),
    *("fan_in_fan_out", "megatron_core", "qalora_group_size", "runtime_config"),
}
INITIALISATIONS = (True, False, None, "gaussian", "orthogonal", "eva")  # the others change the base's weights too


def read_config(folder: Path) -> dict[str, Any]:
    """Returns an adapter's ``adapter_config.json`` with PEFT's defaults; an error names unsupported settings."""
    path = folder / ADAPTER_CONFIG
    config = DEFAULTS | read_required_json(path)
    if config.get("peft_type") != "LORA":
        raise HeedfulError(f"{path}: peft_type {config.get('peft_type')!r} is not supported; only 'LORA' is supported")
    unsupported = {k: v for k, v in config.items() if k not in ACCEPTED and v not in (None, False, {}, [], "none")}
    if config.get("init_lora_weights", True) not in INITIALISATIONS:
        unsupported["init_lora_weights"] = config["init_lora_weights"]
    if unsupported:
        raise HeedfulError(
            f"{path}: {', '.join(f'{k}={v!r}' for k, v in unsupported.items())} is not supported; "
            "merge the adapter into its base with PEFT (merge_and_unload) and load the result"
        )
    for key, kind in KINDS.items():
        if not fits(config.get(key), kind):
            raise HeedfulError(f"{path}: {key} must be {type_in_words(kind)}, not {config.get(key)!r}")
    return config


def find_base(folder: Path, config: Mapping[str, Any]) -> tuple[str, Path]:
    """Returns the absolute path or Hub id of an adapter's base model, and its folder.

    A path in ``config`` is relative to the adapter's folder or to the current folder; any other name is a Hub id.
    """
    name, revision = config["base_model_name_or_path"], config["revision"]
    path = Path(name).expanduser()
    for base_folder in (folder / path, path):  # the same if the path is absolute
        if base_folder.is_dir():
            return str(base_folder.resolve()), base_folder.resolve()
    try:
        return f"{name}@{revision or ''}".removesuffix("@"), find(name, revision)
    except HeedfulError as error:
        remedy = f"put it back, or write its new path into {folder / ADAPTER_CONFIG} (base_model_name_or_path)"
        problem = f"no folder {name} here" if Path(name).is_absolute() else str(error).partition(";")[0]
        raise HeedfulError(f"{folder} is an adapter of {name!r}: {problem}; {remedy}") from None


def split_tensors(folder: Path, tensors: Tensors) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensors]:
    """Splits an adapter's tensors into ``{module: (A, B)}`` and the others by name; names have no PEFT prefix."""
    others = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    unknown = [name for name in tensors if not name.startswith(PREFIX)]
    pairs: dict[str, tuple[Tensor, Tensor]] = {}
    for name in [name for name in others if name.endswith(LORA_A)]:
        module = name.removesuffix(LORA_A)
        if module + LORA_B in others:
            pairs[module] = others.pop(name), others.pop(module + LORA_B)
    unknown += [PREFIX + name for name in others if ".lora_" in name]  # without its partner, or of another kind
    if unknown:
        raise HeedfulError(
            f"{folder} has tensors that are not lora_A and lora_B of a linear layer: {first_few(unknown)}; "
            "adapters with DoRA and of embeddings are not supported"
        )
    if not pairs:
        raise HeedfulError(f"{folder} has no pair of tensors lora_A and lora_B; save the adapter again with PEFT")
    return pairs, others


def trained_head(folder: Path, config: Mapping[str, Any], base: Path, rest: Tensors) -> tuple[str, int | None]:
    """Returns the kind of head that the adapter was trained with, and the number of classes that it stores."""
    base_folder = folder if (folder / CONFIG).exists() else base
    hub = read_required_json(base_folder / CONFIG)
    try:
        model_type = model_type_of(hub)
        architecture = model_type.architecture_of(hub)
        kind = architecture.fixed["head.kind"] if model_type is not OWN else hub["head"]["kind"]
        if base_folder is base and config["task_type"] in HEADS:
            kind = HEADS[config["task_type"]]
            architecture = next(
                (
                    architecture
                    for architecture in model_type.architectures
                    if architecture.fixed.get("head.kind") == kind
                ),
                architecture,
            )
        if read_card(folder).get("head") == PooledHead.kind:  # no architecture of transformers stands for it
            kind = PooledHead.kind
        loaded = model_type.tensors_in(model_type.names(rest, architecture), architecture)
    except (HeedfulError, KeyError, TypeError) as error:
        raise HeedfulError(f"{base_folder / CONFIG}: {error}") from None
    output = loaded.get("head.output.weight", loaded.get("head.output.0.weight"))
    return kind, len(output) if output is not None and kind in CLASSIFIERS else None


def covers(config: Mapping[str, Any], module: str) -> bool:
    """Returns True if an adapter's ``config`` has a list ``target_modules`` that names the module, for every layer."""
    targets = config.get("target_modules")
    if not isinstance(targets, list) or config.get("layers_to_transform") or config.get("exclude_modules"):
        return False
    return any(module == name or module.endswith(f".{name}") for name in targets)


def write_config(
    adapter: Adapter,
    *,
    source: str,
    task_type: str | None,
    targets: Sequence[str],
    saved: Sequence[str],
    transposed: bool,
) -> dict[str, Any]:
    """Returns ``adapter_config.json`` as PEFT reads it.

    Args:
        adapter: adapter of our model.
        source: where the base comes from: a folder's absolute path, or "org/name@revision".
        task_type: PEFT's name of the task, such as "SEQ_CLS".
        targets: names, or ends of names, that match the modules with an adapter and no other modules.
        saved: names of the modules that are stored whole.
        transposed: True if the base stores its linear maps as (in, out).
    """
    lora = adapter.config
    name, _, revision = (source, "", "") if Path(source).is_absolute() else source.partition("@")
    alpha = lora.alpha or 0.0
    return {
        "base_model_name_or_path": name,
        "bias": "none",
        "fan_in_fan_out": transposed,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": lora.dropout,
        "modules_to_save": list(saved) or None,
        "peft_type": "LORA",
        "r": lora.rank,
        "revision": revision or None,
        "target_modules": list(targets),
        "task_type": task_type,
        "use_dora": False,
        "use_rslora": lora.rslora,
    }
