"""``heedful doctor``: what a person sends along with a question."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.parser import Json


def doctor(
    *,
    out: Annotated[
        Path, Parameter(help="folder in which runs are to be written: its free disk space is told")
    ] = Path(),
    json: Json = False,
) -> int:
    """Show versions, device, kernels, threads, memory and disk, what is missing and the line that installs it.

    The exit status is 1 where something is found that keeps heedful from working.
    """
    from heedful.doctor import lines, report
    from heedful.util.values import to_json

    facts = report(out)
    print(to_json(facts) if json else "\n".join(lines(facts)))
    return 0 if facts["ok"] else 1
