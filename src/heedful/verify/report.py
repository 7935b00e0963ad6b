"""What a verification found: a finding a check, and all of them as a table. No torch here."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.table import Table

Verdict = Literal["ok", "off", "skipped"]
COLOURS = {"ok": "green", "off": "bold red", "skipped": "dim"}


class Skipped(Exception):
    """Raised by a check that cannot be made here; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a check returns: the largest difference found, what is allowed, and what a person should know of it."""

    difference: float
    allowed: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the difference is a number and within what is allowed."""
        return math.isfinite(self.difference) and self.difference <= self.allowed


@dataclass(frozen=True, kw_only=True)
class Finding:
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
    def told(self) -> str:
        """What a person reads beside the figures."""
        if self.verdict == "skipped":
            return self.reason
        return f"{self.what} ({self.reason})" if self.reason else self.what


@dataclass(frozen=True, kw_only=True)
class Report:
    """All findings of one folder, in the order of the table of checks."""

    model: str
    checks: tuple[Finding, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether no check is off; skipped ones do not count."""
        return not any(check.verdict == "off" for check in self.checks)

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        made = [check for check in self.checks if check.verdict != "skipped"]
        off = sum(check.verdict == "off" for check in made)
        skipped = len(self.checks) - len(made)
        told = f"{off} of {len(made)} checks are off" if off else f"everything holds: {len(made)} checks"
        return f"{told}{f', {skipped} skipped' if skipped else ''} ({self.seconds:.1f} s)"

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
            table.add_row(check.name, Text(check.verdict, style=COLOURS[check.verdict]), apart, Text(check.told))
        return table
