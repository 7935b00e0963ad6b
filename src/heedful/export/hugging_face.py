"""Writes Hugging Face's layout: configuration, weights, tokenizer and preprocessing, for use without Heedful."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from heedful.adapters import merge
from heedful.config import ModelConfig
from heedful.errors import HeedfulError
from heedful.export.target import copy_beside
from heedful.models import Model
from heedful.pretrained import load, read_card, save
from heedful.pretrained.config_keys import Inexpressible, StoredTensor
from heedful.pretrained.configuration import read_configs
from heedful.pretrained.flat_config import Flat, flat
from heedful.pretrained.folder import is_ensemble
from heedful.pretrained.model_type import FREE, Architecture, ModelType
from heedful.pretrained.model_types import MODEL_TYPES, express

SHOWN = 6  # fields in an error
CARD_KEYS = (
    "layout",
    "heedful",
    "verification",
)  # keys of the card that ``save`` writes anew, and checks of the original weights


def write(source: Path, out: Path, dtype: str | None = None) -> dict[str, Any]:
    """Writes the model of ``source`` into the folder ``out``; returns its layout, dtype and copied files."""
    model = load_expressible(source)
    if dtype is not None:
        model.to(getattr(torch, dtype))
    card = {name: value for name, value in read_card(source).items() if name not in CARD_KEYS}
    layout = save(model, out, extra=card)
    return {"layout": layout, "dtype": str(model.dtype).removeprefix("torch."), "beside": copy_beside(source, out)}


def load_merged(source: Path, dtype: str | None = None) -> Model:
    """Loads a model with its adapter merged; ``dtype`` None is as stored."""
    model = load(source, device="cpu", dtype=dtype)
    return model if model.adapter is None else merge(model)


def load_expressible(source: Path) -> Model:
    """Loads a model with its adapter merged; raises ``HeedfulError`` if no published layout expresses it."""
    model = load_merged(source)
    of_ensemble = is_ensemble(source.absolute().parent)
    remedy = "train one model that learns from it (--teacher)" if of_ensemble else "change these fields"
    check_expressible(model.config, remedy)
    return model


def stored_dtype(source: Path) -> str | None:
    """Returns the dtype that ``config.json`` gives, such as "float16"; None if it gives none."""
    hub, _ = read_configs(source)
    return hub.get("dtype", hub.get("torch_dtype"))


def check_expressible(config: ModelConfig, remedy: str = "change these fields") -> None:
    """Raises ``HeedfulError`` with the fields that no published layout expresses, and the ``remedy``."""
    if express(config) is not None:
        return
    same_family = [model_type for model_type in MODEL_TYPES.values() if model_type.fixed["kind"] == config.kind]
    candidates = [
        (inexpressible_fields(config, model_type, architecture), architecture.name)
        for model_type in same_family
        for architecture in model_type.architectures
    ]
    fields, name = min(candidates, key=lambda candidate: len(candidate[0]))
    more = f" and {len(fields) - SHOWN} more" if len(fields) > SHOWN else ""
    raise HeedfulError(
        f"no Hugging Face class can store this model; the nearest, {name}, has no "
        f"{', '.join(fields[:SHOWN])}{more}; {remedy}, or use --to onnx"
    )


def inexpressible_fields(config: ModelConfig, model_type: ModelType, architecture: Architecture) -> list[str]:
    """Returns the fields of a configuration that an architecture cannot express."""
    ours = flat(config)
    hub: dict[str, Any] = {"architectures": [architecture.name], "model_type": model_type.name}
    config_keys, missing = (*model_type.config_keys, *architecture.config_keys), []
    for config_key in config_keys:
        try:
            config_key.write(ours, hub)
        except Inexpressible as error:
            missing.append(str(error))
    implied = {
        config_key.hub_name: config_key.from_config(ours)
        for config_key in config_keys
        if isinstance(config_key, StoredTensor)
    }
    try:
        read_back = flat(model_type.read(hub, architecture, implied))
    except HeedfulError:
        read_back = {}
    return sorted({*missing, *_different(ours, read_back)})


def _different(ours: Flat, read_back: Flat) -> list[str]:
    """Returns the fields that differ, except those that only concern initialisation and training."""
    paths = ours.keys() | read_back.keys()
    return [path for path in paths if not path.endswith(FREE) and ours.get(path) != read_back.get(path)]
