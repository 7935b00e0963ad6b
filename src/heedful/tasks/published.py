"""``task_specific_params`` of a folder's ``config.json``, as T5 and BART are published with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.config import EncoderDecoderConfig
from heedful.errors import HeedfulError
from heedful.pretrained.configuration import config_of, read_configs
from heedful.pretrained.folder import read_card


def specific(folder: Path, task: str) -> dict[str, Any]:
    """The entry of this task, or of the only pair of languages that it has (``translation_en_to_de``); {} where there
    is none, and where there are several pairs.
    """
    entries = _entries(folder)
    named = [task] if task in entries else [name for name in entries if name.startswith(f"{task}_")]
    entry = entries[named[0]] if len(named) == 1 else {}
    if not isinstance(entry, Mapping):
        raise HeedfulError(f"{folder / 'config.json'}: task_specific_params of {named[0]} is no object; write one")
    return dict(entry)


def summarizes(folder: Path) -> bool:
    """Returns True if a published folder speaks of summaries and of no other task (BART's summarizers)."""
    return {name.partition("_")[0] for name in _entries(folder)} == {"summarization"}


def _entries(folder: Path) -> Mapping[str, Any]:
    table = read_configs(folder)[0].get("task_specific_params")
    return table if isinstance(table, Mapping) else {}


def prefix_of(folder: Path, task: str) -> str:
    """What stands before every text that a folder's model is asked with for this task: as it was trained here
    (``heedful.json``), or as it was published; "" where neither says.
    """
    card = read_card(folder)
    if card.get("task") == task:
        return str(card.get("settings", {}).get("data", {}).get("prefix") or "")
    return str(specific(folder, task).get("prefix") or "")


def encoder_decoder_of(folder: Path, task: str) -> EncoderDecoderConfig:
    """The configuration of a folder's model, which must be an encoder-decoder."""
    config = config_of(folder)
    if not isinstance(config, EncoderDecoderConfig):
        raise HeedfulError(f"{task} needs an encoder-decoder; the model in {folder} is of kind {config.kind!r}")
    return config
