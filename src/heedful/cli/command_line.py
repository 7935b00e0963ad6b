"""The table of commands, and ``main``, which runs one command line: errors as one line, exit status."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from io import TextIOWrapper

from cyclopts import CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from heedful.cli.arguments import by_flags, join_dashes, likely, with_new_names
from heedful.cli.evaluation import compare, evaluate
from heedful.cli.information import doctor, list_presets, list_recipes, list_tasks
from heedful.cli.model_folders import export, inspect, proofs, summary
from heedful.cli.parser import app
from heedful.cli.prediction import nearest, predict
from heedful.cli.processes import check_shared, rank, several, wait_passively
from heedful.cli.train import audit, demo, train, watch
from heedful.errors import HeedfulError, shorten

UNREAD = 141  # exit status of a program whose output nobody reads any more, as shells report SIGPIPE
MOMENT = 2.0  # seconds: torchrun ends all where one has, and the first is to have said why

# The commands, in the order of ``heedful --help``: a function's signature is the options, its docstring the help.
app.command(train, help_epilogue="Example:  heedful train translation --train train.en train.fr --out runs/en-fr")
app.command(audit, help_epilogue="Example:  heedful audit text-classification --train labels.csv --valid held.csv")
app.command(watch, help_epilogue="Example:  heedful watch runs")
app.command(
    predict,
    help_epilogue='Example:  heedful predict runs/en-fr "How are you?"\n'
    "A text that begins with a hyphen goes after --.",
)
app.command(evaluate, help_epilogue="Example:  heedful evaluate runs/en-fr --data test.en test.fr --num-beams 5")
app.command(compare, help_epilogue="Example:  heedful compare runs/small runs/large --data test.en test.fr")
app.command(nearest, help_epilogue='Example:  heedful nearest runs/near "how do I open a file?" --among notes')
app.command(proofs)
app.command(
    export, help_epilogue="Example:  heedful export runs/en-fr --to ctranslate2 --quantization int8 --out en-fr.ct2"
)
app.command(summary, help_epilogue="Example:  heedful summary bert-base --length 512 --batch 8")
app.command(
    inspect,
    help_epilogue='Example:  heedful inspect runs/en-fr "How are you?" --out look.html\n'
    "Decoding options are those of predict. A text that begins with a hyphen goes after --.",
)
app.command(list_presets, name="presets", help_epilogue="Example:  heedful summary vit-b/16")
app.command(
    list_recipes,
    name="recipes",
    help_epilogue="Example:  heedful train text-generation --recipe nanogpt-shakespeare-cpu ...",
)
app.command(list_tasks, name="tasks", help_epilogue="Example:  heedful train translation --help")
app.command(doctor, help_epilogue="Example:  heedful doctor --json")
app.command(demo, help_epilogue="Example:  heedful demo --to de\n          heedful demo --all")


def _explain(error: BaseException, tokens: Sequence[str]) -> tuple[str, int]:
    """Returns the one line that a person reads and the exit status."""
    command = tokens[0] if tokens and not tokens[0].startswith("-") else ""
    if isinstance(error, CycloptsError):
        text = str(error)
        if isinstance(error, UnusedCliTokensError):
            text = f"unexpected {error.unused_tokens}"
        elif isinstance(error, UnknownOptionError) and (meant := _meant(error)):
            text = f"Unknown option: {error.token.keyword}. Did you mean {meant}?"
        elif isinstance(error, MissingArgumentError) and error.argument is not None and error.keyword is None:
            _, nearly, hint = text.partition(" Did you mean")
            name = error.argument.name  # all of it is not there; else its value, which the error says
            text = f"{name.removeprefix('--').upper() if error.argument.index is not None else name} is missing"
            text += f".{nearly}{hint}" if nearly else ""
        return f"{text} (heedful {command + ' ' if command in app else ''}--help lists what there is)", 2
    if isinstance(error, KeyboardInterrupt):
        if not error.args:
            return "stopped", 130
        again = [token for token in tokens if token not in ("--resume", "--overwrite")]
        return f"stopped; continue with: heedful {shlex.join(again)} --resume", 130
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        remedy = {
            errno.ENOSPC: "; free some space or write elsewhere",
            errno.EACCES: "; ask for the right or go elsewhere",
        }
        return f"{where}{error.strerror or error}{remedy.get(error.errno or 0, '')}", 2
    if _lacks_memory(error):
        amount = re.search(r"allocate ([\d,]+) bytes|allocate ([\d.]+ [KMGT]iB)", str(error))
        asked = f" ({next(filter(None, amount.groups()))} more were asked for)" if amount else ""
        smaller = {
            "train": "a smaller --training.batch-tokens or --training.batch-size, or a smaller --preset",
            "predict": "a smaller --batch-tokens, fewer --num-beams or shorter inputs",
        }.get(command, "a smaller model or shorter inputs")
        return f"there is too little memory{asked}; give {smaller}", 2
    if isinstance(error, HeedfulError):
        return by_flags(str(error), tokens) if command in ("predict", "evaluate", "compare") else str(error), 2
    return f"a fault in heedful: {type(error).__name__}: {error} (HEEDFUL_DEBUG=1 shows where)", 1


def _lacks_memory(error: BaseException) -> bool:
    """Python's own error, PyTorch's of a GPU, or PyTorch's of a CPU, which has no type of its own."""
    of_cpu = isinstance(error, RuntimeError) and (
        "can't allocate memory" in str(error) or "not enough memory" in str(error)
    )
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or of_cpu


def _check_current_folder() -> None:
    """Raises ``HeedfulError`` where the current folder was removed: libraries look for their own files from it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise HeedfulError("the current folder was removed; change to one that exists: cd ~") from None


def _meant(error: UnknownOptionError) -> str | None:
    return likely(error.token.keyword or "", [argument.name for argument in error.argument_collection])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status: 0, 2 for an error, 130 for Ctrl-C, 1 for a fault of ours.

    ``verify`` returns 1 where it finds something off.
    """
    tokens = with_new_names(join_dashes(sys.argv[1:] if argv is None else argv))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as what is read, whatever the locale
    try:
        _check_current_folder()
        check_shared(tokens)
        status = app(tokens, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("HEEDFUL_DEBUG") == "1":
            raise
        if isinstance(error, BrokenPipeError):
            return UNREAD
        message, status = _explain(error, tokens)
        who = f"heedful, process {rank()}:" if rank() else "heedful:"
        # Ctrl-C reaches all, and so does what is asked for and, where all do the same, what is wrong with it
        same = status == 130 or (tokens[:1] != ["train"] and status == 2)
        if not (same and rank()):
            print(who, shorten(message), file=sys.stderr)
        return status
    return status if isinstance(status, int) else 0


def process() -> int:
    """Runs the command line of this process, and returns its exit status."""
    if several():  # each would warn that DistributedDataParallel looked for unused parameters and found none
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if (line := wait_passively(sys.argv[1:])) is not None:
        print(line, file=sys.stderr)
    try:
        return main()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # as rich ends a process whose help nobody reads
            return UNREAD
        return end.code if isinstance(end.code, int) else 1


def wait_for_the_first() -> None:
    """Gives the first of several processes the time to say what is wrong."""
    time.sleep(MOMENT)
