"""The figures of a verification, kept in the folder that was verified."""

from __future__ import annotations

from datetime import date
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path

from heedful import __version__
from heedful.errors import HeedfulError
from heedful.pretrained.card import describe
from heedful.pretrained.folder import CARD, read_card, to_json
from heedful.util.files import write
from heedful.verify.report import Report


def keep(report: Report, folder: str | Path) -> None:
    """Write the figures as "verification" into ``heedful.json`` of the folder, and its model card anew.

    They are the verdict, the day, the versions of what was compared, and of each check made its verdict, the largest
    difference and what is allowed.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise HeedfulError(f"{folder} is no folder here, so nothing can be kept in it; leave --save out")
    made = [check for check in report.checks if check.verdict != "skipped"]
    figures = [
        {
            "name": check.name,
            "verdict": check.verdict,
            "difference": check.difference if isfinite(check.difference or 0.0) else None,  # JSON has no other word
            "allowed": check.allowed,
            "reason": check.reason,
        }
        for check in made
    ]
    versions = {"heedful": __version__} | {
        name: found for name in ("torch", "transformers") if (found := _version(name))
    }
    told = {"ok": report.ok, "date": date.today().isoformat(), "versions": versions, "checks": figures}
    write(folder / CARD, to_json({**read_card(folder), "verification": told}).decode())
    describe(folder)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
