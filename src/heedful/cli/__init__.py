"""The command line: parses, calls, prints. It checks options before it imports anything slow.

Every command prints for people, and with ``--json`` one JSON object (``predict``: a line an input) and nothing else on
standard output. An error is one line on standard error with exit status 2; ``HEEDFUL_DEBUG=1`` shows its traceback.

    entry          ``command``: the process, its standard streams, Ctrl-C from the start
    command_line   the table of commands; ``main`` runs one command line: errors as one line, exit status
    parser         the app, and options that several commands share
    arguments      checks and completion of options, --config files
    processes      processes of ``torchrun`` (rank, number), threads
    train          train, audit, watch, demo
    prediction     predict, nearest
    chat           chat
    serve          serve
    evaluation     evaluate, compare
    model_folders  summary, inspect, verify, verify resume, export
    information    presets, recipes, tasks, doctor
    scores         metrics as text

To add a command, write a function whose signature is the options and whose docstring is the help, and add a line to the
table in ``command_line``. No room imports this one.
"""

from __future__ import annotations

from importlib import import_module

from heedful.cli.entry import command

TYPE_CHECKING = False  # as in typing, which is not imported before Ctrl-C is handled

if TYPE_CHECKING:
    from typing import Any

    from heedful.cli.command_line import app, main

__all__ = ["app", "command", "main"]


def __getattr__(name: str) -> Any:
    """Imports the app and ``main`` on first use, so that ``command`` can handle Ctrl-C before."""
    homes = {"app": "heedful.cli.command_line", "main": "heedful.cli.command_line"}
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(homes[name]), name)
