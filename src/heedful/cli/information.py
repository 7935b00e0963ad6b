"""``heedful presets``, ``recipes`` and ``tasks``: what there is to choose from."""

from __future__ import annotations

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
