"""Completion of values in a shell: tasks, presets, recipes, words of a setting, run folders, files.

The shell's script asks for them by ``heedful __complete``, at each press of the tab key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, get_args

from heedful.settings.base import REGISTERED, Settings, key

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

WORDS = {"device": ("cpu", "cuda", "mps"), "dtype": ("float32", "bfloat16", "float16", "int8", "int4")}
MOST_FILES = 200  # entries of a folder that are offered


def values(context: CompletionContext) -> list[tuple[str, str]]:
    """Returns the values of the argument that is being typed, each with its description ("" without one)."""
    name = context.argument.name.lstrip("-").replace("-", "_")
    if name == "task":
        from heedful.tasks import TASKS

        return [(task, entry.summary) for task, entry in TASKS.items()]
    if name == "preset":
        from heedful.presets import PRESETS

        return [(preset, "") for preset in PRESETS]
    if name == "recipe":
        from heedful.recipes import RECIPES

        return [(recipe, "") for recipe in RECIPES]
    if words := WORDS.get(name) or _words().get(name):
        return [(word, "") for word in words]
    kinds = {context.argument.hint, *get_args(context.argument.hint)}
    return [(path, "") for path in paths(context.incomplete)] if str in kinds else []


def _words() -> dict[str, tuple[str, ...]]:
    """Returns the words that each setting of a run takes, by its key, such as "training.schedule"."""
    found = {}
    sections: list[type[Settings]] = Settings.__subclasses__()
    for section in sections:
        for f in fields(section):
            if words := f.metadata.get("words", ()):
                name = key(section, f.name)
                found[name] = (*words, *REGISTERED.get(name, ()))
    return found


def paths(typed: str) -> list[str]:
    """Returns the files and folders whose path begins with ``typed``, folders with a slash at the end, at most 200.

    None for a path that begins with ``~``, which bash would quote, and no name that is not UTF-8.

    A shell writes a space after a single candidate. So in place of a single folder its entries are returned, with which
    the shell completes the folder's name and waits.
    """
    if typed.startswith("~"):
        return []
    found = list(_entries(typed))
    while len(found) == 1 and found[0].endswith("/") and (inner := list(_entries(found[0]))):
        found = inner
    return found


def _entries(typed: str) -> Iterator[str]:
    folder, slash, start = typed.rpartition("/")
    try:
        entries = sorted(os.scandir(folder + slash or "."), key=lambda entry: entry.name)
    except OSError:
        return
    count = 0
    for entry in entries:
        if not entry.name.startswith(start) or (entry.name.startswith(".") and not start.startswith(".")):
            continue
        if any("\ud800" <= letter <= "\udfff" for letter in entry.name):
            continue
        yield f"{folder}{slash}{entry.name}{'/' if os.path.isdir(entry.path) else ''}"  # False for a link to itself
        count += 1
        if count == MOST_FILES:
            return
