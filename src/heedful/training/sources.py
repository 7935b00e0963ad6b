"""The rows of a run: from two sources, the parts of one that has parts, or one set divided."""

from __future__ import annotations

from functools import partial

from heedful.data import Rows, parts, read
from heedful.errors import HeedfulError
from heedful.settings import RunSettings
from heedful.tasks.task import Task


def divided(kind: type[Task], settings: RunSettings) -> tuple[Rows, Rows]:
    """Training and validation rows, the same ones whenever the settings are.

    Raises ``HeedfulError`` for what cannot be read, and for ``--data.valid-fraction`` beside validation data.
    """
    data = settings.data
    take = partial(read, columns=kind.columns, names=data.columns, separator=data.label_separator)
    rows = take(list(settings.train), split="train", limit=data.limit)
    if settings.valid or "valid" in parts(settings.train):
        if data.valid_fraction is not None:
            raise HeedfulError("--data.valid-fraction has no effect where validation data is given; leave it out")
        return rows, take(list(settings.valid or settings.train), split="valid")
    learned, held = kind.divide(rows, data.valid_fraction, settings.seed or 0)
    learned.blank = rows.blank
    return learned, held
