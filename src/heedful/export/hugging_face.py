"""Hugging Face's layout: configuration, weights, tokenizer, preprocessing; what ``transformers`` opens without us."""

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
from heedful.pretrained.flat_config import Flat, flat
from heedful.pretrained.model_type import FREE, Architecture, ModelType
from heedful.pretrained.model_types import MODEL_TYPES, express

SHOWN = 6  # fields in an error
OWN = ("layout", "heedful", "verification")  # of the card: what ``save`` says itself, and figures of other weights


def write(source: Path, place: Path, dtype: str | None = None) -> dict[str, Any]:
    """Writes the model of ``source`` into the folder ``place``; returns its layout."""
    model = opened(source)
    if dtype is not None:
        model.to(getattr(torch, dtype))
    card = {name: value for name, value in read_card(source).items() if name not in OWN}
    layout = save(model, place, extra=card)
    return {"layout": layout, "dtype": str(model.dtype).removeprefix("torch."), "beside": copy_beside(source, place)}


def opened(source: Path) -> Model:
    """Returns the model as it would be written: adapters merged; raises where no layout of theirs can say it."""
    model = load(source, device="cpu")
    if model.adapter is not None:
        merge(model)
    refuse_unsayable(model.config)
    return model


def refuse_unsayable(config: ModelConfig) -> None:
    """Raises ``HeedfulError``, naming the fields, for a configuration that no model type can say."""
    if express(config) is not None:
        return
    alike = [model_type for model_type in MODEL_TYPES.values() if model_type.fixed["kind"] == config.kind]
    tried = [
        (unsaid(config, model_type, architecture), architecture.name)
        for model_type in alike
        for architecture in model_type.architectures
    ]
    fields, name = min(tried, key=lambda found: len(found[0]))
    more = f" and {len(fields) - SHOWN} more" if len(fields) > SHOWN else ""
    raise HeedfulError(
        f"no layout of Hugging Face can say this model; the nearest class, {name}, has no words for "
        f"{', '.join(fields[:SHOWN])}{more}; change those, or export --to onnx"
    )


def unsaid(config: ModelConfig, model_type: ModelType, architecture: Architecture) -> list[str]:
    """Returns the fields of a configuration that an architecture cannot express."""
    ours = flat(config)
    theirs: dict[str, Any] = {"architectures": [architecture.name], "model_type": model_type.name}
    config_keys, missing = (*model_type.config_keys, *architecture.config_keys), []
    for config_key in config_keys:
        try:
            config_key.write(ours, theirs)
        except Inexpressible as error:
            missing.append(str(error))
    implied = {
        config_key.theirs: config_key.foretold(ours)
        for config_key in config_keys
        if isinstance(config_key, StoredTensor)
    }
    try:
        back = flat(model_type.read(theirs, architecture, implied))
    except HeedfulError:
        back = {}
    return sorted({*missing, *_different(ours, back)})


def _different(ours: Flat, back: Flat) -> list[str]:
    """Paths whose values differ, but for those that only tell how a model is born and trained."""
    paths = ours.keys() | back.keys()
    return [path for path in paths if not path.endswith(FREE) and ours.get(path) != back.get(path)]
