"""The command line: parses, calls, prints. What is wrong with the options is said before anything slow is imported.

Every command prints for people, and with ``--json`` one JSON object (``predict``: a line an input) and nothing else on
standard output. An error is one line on standard error with exit status 2; ``HEEDFUL_DEBUG=1`` shows where it arose.

    run           ``main``: one command line, its errors as one line, its exit status; ``command``: the process
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

from heedful.cli.commands import app
from heedful.cli.run import command, main

__all__ = ["app", "command", "main"]
