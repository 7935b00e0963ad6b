"""Task and prefix of a published folder, inferred from its head and the ``task_specific_params`` of T5 and BART."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heedful.config import DecoderConfig, EncoderDecoderConfig, PooledHead, patches_of
from heedful.errors import HeedfulError
from heedful.pretrained.configuration import config_of, read_configs
from heedful.pretrained.folder import read_card
from heedful.pretrained.pooling import pooled_head
from heedful.tasks import TASKS


def task_specific_params(folder: Path, task: str) -> dict[str, Any]:
    """Returns the entry of a task in ``task_specific_params`` of a folder's ``config.json``.

    For translation it is the entry of the only language pair (``translation_en_to_de``). Returns {} if there is no
    entry, or several pairs.
    """
    entries = _entries(folder)
    named = [task] if task in entries else [name for name in entries if name.startswith(f"{task}_")]
    entry = entries[named[0]] if len(named) == 1 else {}
    if not isinstance(entry, Mapping):
        raise HeedfulError(
            f"{folder / 'config.json'}: task_specific_params of {named[0]} is not a JSON object; correct it"
        )
    return dict(entry)


def task_of(folder: Path) -> str:
    """Returns the task that fits the head of a published model.

    If several tasks fit and ``task_specific_params`` names exactly one of them (``summarization`` in BART's
    summarizers), returns that task, else the first fitting task of ``TASKS``.

    Raises:
        HeedfulError: no task of Heedful uses such a model.
    """
    config = config_of(folder)
    reads_images = isinstance(config, EncoderDecoderConfig) and patches_of(config) is not None
    kind = f"image {config.kind}" if reads_images else config.kind
    fitting = [name for name, entry in TASKS.items() if (kind, config.head.kind) in entry.heads]
    if len(fitting) > 1:
        named = {name.partition("_")[0] for name in _entries(folder)}
        return next((name for name in fitting if named == {name}), fitting[0])
    if fitting:
        return fitting[0]
    if pooled_head(folder) is not None:
        return next(name for name, entry in TASKS.items() if PooledHead.kind in dict(entry.heads).values())
    remedy = "fine-tune it: heedful train text-classification --from MODEL"
    if isinstance(config, EncoderDecoderConfig | DecoderConfig):
        remedy = "load the model with its language-model head"
    raise HeedfulError(
        f"{folder} names no task, and no task uses a model of kind {config.kind!r} whose head is of kind "
        f"{config.head.kind!r}; {remedy}"
    )


def _entries(folder: Path) -> Mapping[str, Any]:
    table = read_configs(folder)[0].get("task_specific_params")
    return table if isinstance(table, Mapping) else {}


def prefix_of(folder: Path, task: str) -> str:
    """Returns the text to put before every source for this task; "" if there is none.

    It is read from ``heedful.json``, or else from ``task_specific_params`` of ``config.json``.
    """
    card = read_card(folder)
    if card.get("task") == task:
        return str(card.get("settings", {}).get("data", {}).get("prefix") or "")
    return str(task_specific_params(folder, task).get("prefix") or "")


def encoder_decoder_of(folder: Path, task: str) -> EncoderDecoderConfig:
    """Returns the configuration of a folder's model; raises ``HeedfulError`` unless it is an encoder-decoder."""
    config = config_of(folder)
    if not isinstance(config, EncoderDecoderConfig):
        raise HeedfulError(
            f"{task} needs an encoder-decoder; the model in {folder} is of kind {config.kind!r}; choose another model"
        )
    return config
