"""``heedful presets``, ``recipes``, ``tasks`` and ``doctor``: lists of what is available, a check of the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.parser import Json
from heedful.util.terminal import print_list


def list_presets(*, json: Json = False) -> None:
    """List the published model sizes."""
    from heedful import presets

    print_list(presets.describe(), json)


def list_recipes(*, json: Json = False) -> None:
    """List the published training settings."""
    from heedful import recipes

    print_list(recipes.describe(), json)


def list_tasks(*, json: Json = False) -> None:
    """List the tasks that a model can be trained for."""
    from heedful import tasks

    print_list(tasks.names(), json)


def doctor(
    *,
    out: Annotated[
        Path, Parameter(help="folder for runs, whose free disk space is checked; the current one by default")
    ] = Path(),
    json: Json = False,
) -> int:
    """Check this machine: versions, device, kernels, threads, memory, disk, and how to install what is missing.

    The exit status is 1 if something keeps heedful from working.
    """
    from heedful.doctor import report, report_lines
    from heedful.util.values import to_json

    facts = report(out)
    print(to_json(facts) if json else "\n".join(report_lines(facts)))
    return 0 if facts["ok"] else 1
