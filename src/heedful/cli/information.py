"""``heedful presets``, ``recipes``, ``tasks`` and ``doctor``: what there is to choose from, and the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from heedful.cli.parser import Json
from heedful.util.terminal import print_list


def list_presets(*, json: Json = False) -> None:
    """List the published sizes that a model can be made in."""
    from heedful import presets

    print_list(presets.describe(), json)


def list_recipes(*, json: Json = False) -> None:
    """List the published training settings that a run can take."""
    from heedful import recipes

    print_list(recipes.describe(), json)


def list_tasks(*, json: Json = False) -> None:
    """List what a model can be trained for."""
    from heedful import tasks

    print_list(tasks.names(), json)


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
