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

from cyclopts import CycloptsError, Group, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from heedful.cli.arguments import by_flags, join_dashes, likely, without_imports
from heedful.cli.chat import chat
from heedful.cli.evaluation import compare, evaluate
from heedful.cli.information import doctor, list_presets, list_recipes, list_tasks
from heedful.cli.model_folders import export, inspect, proofs, push, summary
from heedful.cli.parser import app, show_completion, with_help_flag, with_help_of_task, with_name_of_task
from heedful.cli.prediction import nearest, predict
from heedful.cli.processes import check_shared, rank, several, wait_passively
from heedful.cli.serve import serve
from heedful.cli.train import audit, demo, train, watch
from heedful.errors import HeedfulError, misspelled, shorten
from heedful.util.out_of_memory import is_out_of_memory

UNREAD = 141  # exit status of a program whose output is no longer read, as shells report SIGPIPE
RANK_0_SECONDS = 2.0  # time for rank 0 to report an error: torchrun ends all processes when one has ended

# The commands, grouped in the order of use: a function's signature is the options, its docstring the help.
GROUPS = ("Start", "Train", "Use a model", "Measure and check", "Look inside", "Lists")
START, TRAIN, USE, MEASURE, LOOK, LISTS = (Group(title, sort_key=number) for number, title in enumerate(GROUPS))
app.command(
    train,
    group=TRAIN,
    help_epilogue="Example:  heedful train translation --train train.en train.fr --out runs/en-fr\n"
    "Also:     --import mine.py registers own parts; HEEDFUL_TRAINING_LR=1e-3 is --training.lr 1e-3",
)
app.command(
    audit, group=TRAIN, help_epilogue="Example:  heedful audit text-classification --train labels.csv --valid held.csv"
)
app.command(watch, group=TRAIN, help_epilogue="Example:  heedful watch runs")
app.command(
    predict,
    group=USE,
    help_epilogue='Example:  heedful predict runs/en-fr "How are you?"\n'
    "A text that begins with a hyphen goes after --.",
)
app.command(chat, group=USE, help_epilogue="Example:  heedful chat runs/assistant --max-new-tokens 200")
app.command(
    evaluate, group=MEASURE, help_epilogue="Example:  heedful evaluate runs/en-fr --data test.en test.fr --num-beams 5"
)
app.command(
    compare, group=MEASURE, help_epilogue="Example:  heedful compare runs/small runs/large --data test.en test.fr"
)
app.command(
    nearest, group=USE, help_epilogue='Example:  heedful nearest runs/near "how do I open a file?" --among notes'
)
proofs.group = MEASURE  # cyclopts takes it from a sub-app alone
app.command(proofs)
app.command(
    export,
    group=USE,
    help_epilogue="Example:  heedful export runs/en-fr --to ctranslate2 --quantization int8 --out en-fr.ct2",
)
app.command(push, group=USE, help_epilogue="Example:  heedful push runs/labels org/labels --private")
app.command(summary, group=LOOK, help_epilogue="Example:  heedful summary bert-base --length 512 --batch 8")
app.command(
    inspect,
    group=LOOK,
    help_epilogue='Example:  heedful inspect runs/en-fr "How are you?" --out attention.html\n'
    "Decoding options are those of predict. A text that begins with a hyphen goes after --.",
)
app.command(
    serve,
    group=USE,
    help_epilogue="Example:  heedful serve runs/en-fr\nOthers may connect with: --host 0.0.0.0 --token-file token",
)
app.command(list_presets, group=LISTS, name="presets", help_epilogue="Example:  heedful summary vit-b/16")
app.command(
    list_recipes,
    group=LISTS,
    name="recipes",
    help_epilogue="Example:  heedful train text-generation --recipe nanogpt-shakespeare-cpu ...",
)
app.command(list_tasks, group=LISTS, name="tasks", help_epilogue="Example:  heedful train translation --help")
app.register_install_completion_command(
    help="Complete commands, options and their values in this shell; writes to its start file."
)
app.command(show_completion, name="--show-completion")
app.command(doctor, group=START, help_epilogue="Example:  heedful doctor --json")
app.command(demo, group=START, help_epilogue="Example:  heedful demo --to de\n          heedful demo --all")
app.group_commands = Group("Options", sort_key=len(GROUPS))
for _number, _command in enumerate(("demo", "train", "predict", "chat", "serve", "evaluate", "inspect")):
    app[_command].sort_key = _number  # the first of their groups; the others follow by name


def _explain(error: BaseException, tokens: Sequence[str]) -> tuple[str, int]:
    """Returns the error's message of one line, and the exit status."""
    command = tokens[0] if tokens and not tokens[0].startswith("-") else ""
    if isinstance(error, CycloptsError):
        return f"{_usage_error(error, tokens)} (see heedful {command + ' ' if command in app else ''}--help)", 2
    if isinstance(error, KeyboardInterrupt):
        if not error.args:
            return "stopped", 130
        again = [token for token in tokens if token not in ("--resume", "--overwrite")]
        return f"stopped; continue with: heedful {shlex.join(again)} --resume", 130
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        remedy = {
            errno.ENOSPC: "; free some space or use another folder",
            errno.EACCES: "; change the permissions or use another folder",
        }
        return f"{file}{error.strerror or error}{remedy.get(error.errno or 0, '')}", 2
    if is_out_of_memory(error):
        amount = re.search(r"allocate ([\d,]+) bytes|allocate ([\d.]+ [KMGT]iB)", str(error))
        size = f" (could not allocate {next(filter(None, amount.groups()))})" if amount else ""
        remedy_of = {
            "train": "a smaller --training.batch-tokens or --training.batch-size, or a smaller --preset",
            "predict": "a smaller --batch-tokens, fewer --num-beams or shorter inputs",
        }
        return f"out of memory{size}; give {remedy_of.get(command, 'a smaller model or shorter inputs')}", 2
    if isinstance(error, HeedfulError):
        return by_flags(str(error), tokens) if command in ("predict", "evaluate", "compare") else str(error), 2
    registration = sys.modules.get("heedful.registration")  # imported only with own parts
    if registration is not None and (place := registration.own_part_at_fault(error)):
        return f"{place}: {type(error).__name__}: {error}; correct the file (HEEDFUL_DEBUG=1 shows the traceback)", 2
    return f"a bug in heedful: {type(error).__name__}: {error} (HEEDFUL_DEBUG=1 shows the traceback)", 1


def _usage_error(error: CycloptsError, tokens: Sequence[str]) -> str:
    """Returns the parser's message, with the option that is likely meant."""
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected {error.unused_tokens}"
    if isinstance(error, UnknownOptionError):
        return _unknown_options(error, tokens)
    if isinstance(error, MissingArgumentError) and error.argument is not None and error.keyword is None:
        _, did_you_mean, hint = str(error).partition(" Did you mean")
        name = error.argument.name  # without error.keyword, option and value are missing, not the value alone
        label = name.removeprefix("--").upper() if error.argument.index is not None else name
        if name == "--train" and "--resume" in tokens:
            return "--train is missing; the settings of the run have it: --config OUT/run.toml --resume"
        return f"{label} is missing" + (f".{did_you_mean}{hint}" if did_you_mean else "")
    return str(error)


def _unknown_options(error: UnknownOptionError, tokens: Sequence[str]) -> str:
    """Returns the message for all unknown options of a command line, each with the option that is likely meant."""
    options = [argument.name for argument in error.argument_collection]
    known = {name for argument in error.argument_collection for name in argument.names}
    end = [*tokens, "--"].index("--")
    given = [token.partition("=")[0] for token in tokens[1:end] if token.startswith("--")]
    unknown = [name for name in dict.fromkeys((error.token.keyword, *given)) if name and name not in known]
    meant = {name: likely(name, options) or misspelled(name, options) or _longer(name, options) for name in unknown}
    if len(unknown) == 1:
        (name,) = unknown
        return f"Unknown option: {name}." + (f" Did you mean {meant[name]}?" if meant[name] else "")
    each = (f"{name} (did you mean {option}?)" if option else name for name, option in meant.items())
    return f"Unknown options: {', '.join(each)}"


def _longer(name: str, options: Sequence[str]) -> str | None:
    """Returns the only option that begins with ``name``, or ends with it after a hyphen or a point: --num-beams for
    --beams.
    """
    bare = name.lstrip("-")
    found = [option for option in options if option.startswith(name) or option.endswith((f"-{bare}", f".{bare}"))]
    return found[0] if len(found) == 1 else None


def _check_current_folder() -> None:
    """Raises ``HeedfulError`` if the current folder was removed: libraries look for their files from there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise HeedfulError("the current folder was removed; change to another: cd ~") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status: 0, 2 for an error, 130 for Ctrl-C, 1 for a bug.

    ``verify`` returns 1 if a check fails.
    """
    tokens = join_dashes(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as input files, whatever the locale
    try:
        _check_current_folder()
        tokens = without_imports(tokens)
        check_shared(tokens)
        status = app(
            with_help_of_task(with_name_of_task(with_help_flag(tokens))), exit_on_error=False, print_error=False
        )
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("HEEDFUL_DEBUG") == "1":
            raise
        if isinstance(error, BrokenPipeError):
            return UNREAD
        message, status = _explain(error, tokens)
        prefix = f"heedful, process {rank()}:" if rank() else "heedful:"
        # all ranks get Ctrl-C and the same wrong options; only the errors of train may differ between ranks
        is_shared = status == 130 or (tokens[:1] != ["train"] and status == 2)
        if not (is_shared and rank()):
            print(prefix, shorten(message), file=sys.stderr)
        return status
    return status if isinstance(status, int) else 0


def run_process() -> int:
    """Runs the command line of this process and returns its exit status."""
    if several():  # silences DistributedDataParallel's warning that find_unused_parameters found none
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if (line := wait_passively(sys.argv[1:])) is not None:
        print(line, file=sys.stderr)
    try:
        return main()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich exits so if its output is no longer read
            return UNREAD
        return end.code if isinstance(end.code, int) else 1


def wait_for_rank_0() -> None:
    """Sleeps for a moment, so that rank 0 can report its error before this process ends."""
    time.sleep(RANK_0_SECONDS)
