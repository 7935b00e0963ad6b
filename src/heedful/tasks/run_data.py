"""The rows of a run: from two sources, the parts of one that has parts, or one set divided."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from heedful.data import Rows, read, splits
from heedful.data.conll import with_stripped_words
from heedful.data.split import Same, content_digest, exact_bytes
from heedful.errors import HeedfulError
from heedful.pretrained import read_card
from heedful.settings import RunSettings
from heedful.tasks.task import Task

BY_CONTENT = "content"  # in heedful.json, under data.same


def remembered_by(model: str | None) -> dict[str, str]:
    """Returns the column names of the training data; {} where the folder does not hold them."""
    return columns_of(read_card(model)) if model is not None and Path(model).is_dir() else {}


def columns_of(card: Mapping[str, Any]) -> dict[str, str]:
    """Returns the column names of the training data from ``heedful.json``."""
    data = card.get("data")
    found = data.get("columns") if isinstance(data, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    return {name: called for name, called in found.items() if isinstance(name, str) and isinstance(called, str)}


def rule_of(card: Mapping[str, Any]) -> Same:
    """Which rows counted as the same when a run held some back: by content, or, of a run whose ``heedful.json`` does
    not say it, as written.
    """
    data = card.get("data")
    return content_digest if isinstance(data, Mapping) and data.get("same") == BY_CONTENT else exact_bytes


def divided(
    kind: type[Task], settings: RunSettings, settled: bool = False, same: Same = content_digest
) -> tuple[Rows, Rows]:
    """Training and validation rows, the same ones whenever the settings are, of the class that ``kind.for_rows`` tells,
    or, where that is ``settled``, of ``kind``. Rows whose first column is the ``same`` are not divided.

    Raises ``HeedfulError`` for what cannot be read, and for ``--data.valid-fraction`` beside validation data.
    """
    data = settings.data
    take = partial(read, names=data.columns, separator=data.label_separator)
    remembered = remembered_by(settings.start_from)
    rows = take(list(settings.train), kind.columns, split="train", limit=data.limit, remembered=remembered)
    if data.strip_prefix is not None:
        _check_prefix(rows, data.strip_prefix)
        rows = with_stripped_words(rows, data.strip_prefix)
    if not settled:
        kind = kind.for_rows(rows, settings)
        rows = kind.convert_rows(rows)
    if settings.valid or "valid" in splits(settings.train):
        if data.valid_fraction is not None:
            raise HeedfulError("--data.valid-fraction has no effect where validation data is given; leave it out")
        held = take(list(settings.valid or settings.train), kind.columns, split="valid", remembered=rows.mapping)
        return rows, with_stripped_words(held, data.strip_prefix)
    learned, held = kind.split_rows(rows, data.valid_fraction, settings.seed or 0, same)
    learned.blank = rows.blank
    learned.read_as(rows)
    return learned, held


def prefix_of(card: Mapping[str, Any]) -> str | None:
    """Returns the prefix that is stripped from every word of the data, from ``heedful.json``."""
    settings = card.get("settings")
    data = settings.get("data") if isinstance(settings, Mapping) else None
    prefix = data.get("strip_prefix") if isinstance(data, Mapping) else None
    return prefix if isinstance(prefix, str) else None


def _check_prefix(rows: Rows, prefix: str) -> None:
    if not prefix or not any(word.startswith(prefix) for row in rows for word in row.values.get("words", ())):
        first = f"{rows[0].file}:{rows[0].line}: " if rows else ""
        raise HeedfulError(f"{first}no word begins with {prefix!r} (--data.strip-prefix); correct it, or leave it out")
