"""Checks the options of ``verify resume`` before anything slow is imported. No torch here."""

from __future__ import annotations

from heedful.errors import HeedfulError
from heedful.settings import RunSettings
from heedful.util.values import check


def check_repeatable(settings: RunSettings, kills: int, processes: int = 1) -> None:
    """Raises ``HeedfulError`` for options whose run cannot be repeated with the same bits."""
    if settings.max_minutes is not None:
        raise HeedfulError("--max-minutes ends a run by the clock, so two runs would differ; give --max-steps")
    if settings.training.keep_checkpoints == 0:
        raise HeedfulError("--training.keep-checkpoints 0 leaves no checkpoint to compare; leave it out")
    for flag, is_given in (("--resume", settings.resume), ("--overwrite", settings.overwrite)):
        if is_given:
            raise HeedfulError(f"verify resume sets {flag} itself; leave it out")
    if settings.push is not None:
        raise HeedfulError("verify resume uploads nothing; leave --push out")
    if "-" in settings.files:
        raise HeedfulError("standard input cannot be read again when a run is resumed; give a file")
    check("--kills", kills, int, least=1)
    check("--processes", processes, int, least=1)
