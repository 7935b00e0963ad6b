"""The command line: parses, calls, prints. What is wrong with the options is said before anything slow is imported.

Every command prints for people, and with ``--json`` one JSON object (``predict``: a line an input) and nothing else on
standard output. An error is one line on standard error with exit status 2; ``HEEDFUL_DEBUG=1`` shows where it arose.

    entry         ``command``: the process, its standard streams, Ctrl-C from its first moment on
    run           ``main``: one command line, its errors as one line, its exit status
    commands      which command is which function
    parser        the app, and the options of several commands
    processes     those that ``torchrun`` started together: who speaks, what they may share
    training      train, audit, watch, demo
    answering     predict, nearest
    evaluation    evaluate, compare
    verification  verify, verify resume
    looking       summary, inspect
    export        export
    lists         presets, recipes, tasks
    doctor        doctor

The work is done in other rooms, which a command imports once its options are checked. No room imports this one.
"""

from __future__ import annotations

from importlib import import_module

from heedful.cli.entry import command

TYPE_CHECKING = False  # as in typing, which is not imported before Ctrl-C is handled

if TYPE_CHECKING:
    from typing import Any

    from heedful.cli.command_line import main
    from heedful.cli.commands import app

__all__ = ["app", "command", "main"]


def __getattr__(name: str) -> Any:
    """Imports the app and ``main`` when they are asked for: before, ``command`` hears Ctrl-C."""
    homes = {"app": "heedful.cli.commands", "main": "heedful.cli.command_line"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)
