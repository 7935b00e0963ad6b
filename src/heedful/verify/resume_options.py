"""Checks the options of ``verify resume`` before anything slow is imported. No torch here."""

from __future__ import annotations

from heedful.errors import HeedfulError
from heedful.settings import RunSettings


def check_repeatable(settings: RunSettings, kills: int, processes: int = 1) -> None:
    """Raises ``HeedfulError`` for options whose run cannot be repeated with the same bits."""
    if settings.max_minutes is not None:
        raise HeedfulError("--max-minutes ends a run by the clock, so no two are the same; give --max-steps")
    if settings.training.keep == 0:
        raise HeedfulError("--training.keep 0 leaves no checkpoint to compare; leave it out")
    for flag, given in (("--resume", settings.resume), ("--overwrite", settings.overwrite)):
        if given:
            raise HeedfulError(f"{flag} is given by verify resume itself; leave it out")
    if "-" in (*settings.train, *(settings.valid or ())):
        raise HeedfulError("standard input cannot be read again when a run is resumed; give a file")
    if kills < 1:
        raise HeedfulError(f"--kills must be at least 1, not {kills}")
    if processes < 1:
        raise HeedfulError(f"--processes must be at least 1, not {processes}")
