"""Results of a verification: a finding per check, the report, and its record in ``heedful.json``. No torch here."""

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
from heedful.pretrained.folder import CARD, read_card, to_json
from heedful.pretrained.model_card import describe
from heedful.util.files import write

if TYPE_CHECKING:
    from rich.table import Table

Verdict = Literal["ok", "off", "skipped"]
COLOURS = {"ok": "green", "off": "bold red", "skipped": "dim"}


class Skipped(Exception):
    """Raised by a check that cannot be made here; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a check: the largest difference, the tolerance, and a reason for people."""

    difference: float
    allowed: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        """True if the difference is a number and within what is allowed."""
        return math.isfinite(self.difference) and self.difference <= self.allowed


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One check.

    Attributes:
        name: what to call it.
        what: what it shows when it holds.
        verdict: "ok", "off" or "skipped".
        difference: the largest found: of the largest value where numbers are compared, else a count. None: skipped, or
            broken off.
        allowed: the largest that is ok.
        reason: why it is off or skipped, or what was left out.
        seconds: how long it took.
    """

    name: str
    what: str
    verdict: Verdict
    difference: float | None = None
    allowed: float | None = None
    reason: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """Text beside the numbers: the reason, or what the check shows."""
        if self.verdict == "skipped":
            return self.reason
        return f"{self.what} ({self.reason})" if self.reason else self.what


@dataclass(frozen=True, kw_only=True)
class Report:
    """All findings of one folder, in the order of the table of checks."""

    model: str
    checks: tuple[CheckResult, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """True if no check is off; skipped ones do not count."""
        return not any(check.verdict == "off" for check in self.checks)

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        finished = [check for check in self.checks if check.verdict != "skipped"]
        off = sum(check.verdict == "off" for check in finished)
        skipped = len(self.checks) - len(finished)
        text = f"{off} of {len(finished)} checks are off" if off else f"everything holds: {len(finished)} checks"
        return f"{text}{f', {skipped} skipped' if skipped else ''} ({self.seconds:.1f} s)"

    def as_dict(self) -> dict[str, Any]:
        """``{"ok", "checks", "model", "seconds"}``, plain values."""
        checks = [asdict(check) for check in self.checks]
        return {"ok": self.ok, "checks": checks, "model": self.model, "seconds": self.seconds}

    def table(self) -> Table:
        """A row a check: its verdict, the largest difference against what is allowed, and what it shows or lacks."""
        from rich.table import Table
        from rich.text import Text

        table = Table("check", "verdict", box=None, pad_edge=False, header_style="bold")
        table.add_column("difference", no_wrap=True)
        table.add_column("", overflow="fold")
        for check in self.checks:
            sign = "≤" if check.verdict == "ok" else ">"
            apart = "" if check.difference is None else f"{check.difference:.2g} {sign} {check.allowed:.2g}"
            table.add_row(check.name, Text(check.verdict, style=COLOURS[check.verdict]), apart, Text(check.text))
        return table


def keep(report: Report, folder: str | Path) -> None:
    """Writes the figures as "verification" into ``heedful.json`` of the folder, and its model card anew.

    They are the verdict, the day, the versions of what was compared, and of each check made its verdict, the largest
    difference and what is allowed.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise HeedfulError(f"{folder} is no folder here, so nothing can be kept in it; leave --save out")
    finished = [check for check in report.checks if check.verdict != "skipped"]
    figures = [
        {
            "name": check.name,
            "verdict": check.verdict,
            "difference": check.difference if isfinite(check.difference or 0.0) else None,  # JSON has no other word
            "allowed": check.allowed,
            "reason": check.reason,
        }
        for check in finished
    ]
    versions = {"heedful": __version__} | {
        name: found for name in ("torch", "transformers") if (found := _version(name))
    }
    text = {"ok": report.ok, "date": date.today().isoformat(), "versions": versions, "checks": figures}
    write(folder / CARD, to_json({**read_card(folder), "verification": text}).decode())
    describe(folder)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
