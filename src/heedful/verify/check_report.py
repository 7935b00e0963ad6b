"""Results of a verification: one result per check, the report, and its record in ``heedful.json``. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heedful import __version__
from heedful.errors import HeedfulError
from heedful.pretrained.folder import HEEDFUL_JSON, indented_json, read_card
from heedful.pretrained.model_card import update_model_card
from heedful.util.files import write

if TYPE_CHECKING:
    from rich.table import Table

Verdict = Literal["ok", "failed", "skipped"]
COLOURS = {"ok": "green", "failed": "bold red", "skipped": "dim"}


class Skipped(Exception):
    """Exception of a check that does not apply to a model; its message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Result of one check function: the largest difference, the tolerance, and a reason in words."""

    difference: float
    tolerance: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        """True if the difference is finite and within the tolerance."""
        return math.isfinite(self.difference) and self.difference <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Result of one check.

    Attributes:
        name: the name of the check.
        description: what the check proves.
        verdict: "ok", "failed" or "skipped".
        difference: the largest difference of two numbers, relative to the largest number, or the number of differing
            items. None if the check was skipped or raised an error.
        tolerance: the tolerance.
        reason: why the check failed or was skipped, or what it left out.
        seconds: duration.
    """

    name: str
    description: str
    verdict: Verdict
    difference: float | None = None
    tolerance: float | None = None
    reason: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """Text of the check's row in the table, the reason, or what the check proves."""
        if self.verdict == "skipped":
            return self.reason
        return f"{self.description} ({self.reason})" if self.reason else self.description


@dataclass(frozen=True, kw_only=True)
class CheckResults:
    """Results of several checks."""

    checks: tuple[CheckResult, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """True if no check failed; skipped checks do not count."""
        return not any(check.verdict == "failed" for check in self.checks)

    def table(self) -> Table:
        """Returns a table with one row for each check: verdict, largest difference against the tolerance, and text."""
        from rich.table import Table
        from rich.text import Text

        table = Table("check", "verdict", box=None, pad_edge=False, header_style="bold")
        table.add_column("difference", no_wrap=True)
        table.add_column("", overflow="fold")
        for check in self.checks:
            sign = "≤" if check.verdict == "ok" else ">"
            difference = "" if check.difference is None else f"{check.difference:.2g} {sign} {check.tolerance:.2g}"
            table.add_row(check.name, Text(check.verdict, style=COLOURS[check.verdict]), difference, Text(check.text))
        return table


@dataclass(frozen=True, kw_only=True)
class Report(CheckResults):
    """Results of all checks of one folder, in the order of the table."""

    model: str

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        finished = [check for check in self.checks if check.verdict != "skipped"]
        off = sum(check.verdict == "failed" for check in finished)
        skipped = len(self.checks) - len(finished)
        text = f"{off} of {len(finished)} checks failed" if off else f"all {len(finished)} checks passed"
        return f"{text}{f', {skipped} skipped' if skipped else ''} ({self.seconds:.1f} s)"

    def as_dict(self) -> dict[str, Any]:
        """Returns ``{"ok", "checks", "model", "seconds"}`` in plain values."""
        checks = [asdict(check) for check in self.checks]
        return {"ok": self.ok, "checks": checks, "model": self.model, "seconds": self.seconds}


def save_report(report: Report, folder: str | Path) -> None:
    """Writes the results as "verification" into ``heedful.json`` of the folder, and updates its model card.

    The record has the verdict, the date, the versions of the packages, and the results of the checks that were not
    skipped.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise HeedfulError(f"{folder} is not a local folder, so the results cannot be saved in it; leave --save out")
    finished = [check for check in report.checks if check.verdict != "skipped"]
    checks = [
        {
            "name": check.name,
            "verdict": check.verdict,
            "difference": check.difference if isfinite(check.difference or 0.0) else None,  # JSON has no infinity
            "tolerance": check.tolerance,
            "reason": check.reason,
        }
        for check in finished
    ]
    versions = {"heedful": __version__} | {
        name: installed for name in ("torch", "transformers") if (installed := _version(name))
    }
    record = {"ok": report.ok, "date": date.today().isoformat(), "versions": versions, "checks": checks}
    write(folder / HEEDFUL_JSON, indented_json({**read_card(folder), "verification": record}).decode())
    update_model_card(folder)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
