"""The command line: parses, calls, prints. What is wrong with the options is said before anything slow is imported.

Every command prints for people, and with ``--json`` one JSON object (``predict``: a line an input) and nothing else on
standard output. An error is one line on standard error with exit status 2; ``HEEDFUL_DEBUG=1`` shows where it arose.
"""

from __future__ import annotations

import errno
import json as json_format
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, cast

from cyclopts import App, ArgumentCollection, CycloptsError, Parameter, UnusedCliTokensError, default_name_transform

from heedful import __version__
from heedful.errors import HeedfulError, nearest
from heedful.settings import (
    DataSettings,
    DecodingSettings,
    ModelSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
    keys,
)

_STDIN_BATCH = 64  # lines answered together: enough to fill a batch, few enough to be seen coming

for _section, _title in (
    (DataSettings, "Data"),
    (TokenizerSettings, "Tokenizer"),
    (ModelSettings, "Model: parts of the preset to change"),
    (TrainingSettings, "Training"),
    (DecodingSettings, "Decoding"),
):
    Parameter(group=_title)(_section)

Flattened = Parameter(
    name="*", name_transform=lambda name: "from" if name == "start_from" else default_name_transform(name)
)
Json = Annotated[bool, Parameter(help="print JSON for programs instead of text for people")]
Device = Annotated[str | None, Parameter(help="cpu, cuda, cuda:1, mps; the best there is by default")]
Decoding = Annotated[DecodingSettings, Parameter(name="*")]


# ---------------------------------------------------------------------------------------------- options from a file


def _read_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill what the command line left open from ``--config``; its keys are the flags', its tables their sections."""
    given = [argument for argument in arguments if argument.name == "--config" and argument.tokens]
    if not given:
        return
    import tomllib

    from cyclopts.config import Dict

    path = given[0].tokens[-1].value
    try:
        text = Path(path).read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except ValueError as error:  # not UTF-8, or not TOML; both say where
        raise HeedfulError(f"{path} is not a TOML file: {error}") from error
    known = keys(RunSettings)
    for name in _dotted(values):
        if name.replace("-", "_") not in known:
            raise HeedfulError(f"{path}:{_line_of(name, text)}: unknown key {name!r}; {nearest(name, known)}")
    # Nested under the command: flat keys that are a command's name, as train is, would be dropped without a word.
    Dict({commands[0]: values}, source=path)(app, commands, arguments)


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def _line_of(name: str, text: str) -> int:
    """The line of a TOML text that sets a dotted key, in a table or in one go; 1 where it is written otherwise."""
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[([^\]]+)\]", line):
            table = header[1].strip() + "."
        elif (assigned := re.match(r"\s*([^=#]+?)\s*=", line)) and table + assigned[1].strip("\"'") == name:
            return number
    return 1


def _refuse_fractions(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """A fraction where a whole number belongs is an error; the parser alone would round it."""
    for argument in arguments:
        if argument.hint in (int, int | None):
            for token in argument.tokens:
                if "." in token.value:
                    raise HeedfulError(f"{argument.name} must be a whole number, not {token.value}")


app = App(
    name="heedful",
    version=__version__,
    help="Train, use and look into Transformers of all four families.",
    help_epilogue="Start with:  heedful demo\nThen:        heedful train translation --train pairs.tsv --out runs/mine",
    help_format="plaintext",
    default_parameter=Parameter(consume_multiple=1, allow_repeating=True, negative=(), show_default=False),
    config=(_read_file, _refuse_fractions),
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)


# --------------------------------------------------------------------------------------------------------- commands


@app.command(help_epilogue="Example:  heedful train translation --train train.en train.fr --out runs/en-fr")
def train(
    settings: Annotated[RunSettings, Flattened],
    *,
    config: Annotated[str | None, Parameter(help="TOML file of options; the command line wins over it")] = None,
    json: Json = False,
) -> None:
    """Train a model on your own files."""
    from heedful import presets, tasks

    tasks.check(settings.task)
    if settings.preset is not None:
        presets.get(settings.preset)
    if settings.start_from is not None:
        _check_model(settings.start_from)
    for file in (*settings.train, *(settings.valid or ())):
        _check_file(file)
    _check_out(settings)

    from heedful.training.run import train as run

    try:
        result = run(settings, say=_say(json), quiet=json)
    except KeyboardInterrupt:
        saved = Path(settings.out).is_dir() and any(Path(settings.out).iterdir())
        raise KeyboardInterrupt(*([settings.out] if saved else [])) from None
    _print_result(result, json)
    if not json:
        print(f"next: heedful predict {shlex.quote(settings.out)} ...")


@app.command(
    help_epilogue='Example:  heedful predict runs/en-fr "How are you?"\nA text that begins with a hyphen goes after --.'
)
def predict(
    model: Annotated[str, Parameter(help="model folder")],
    /,
    *inputs: Annotated[str, Parameter(help="texts; without any, standard input line by line")],
    task: Annotated[str | None, Parameter(help="what to do; by default what the model was trained for")] = None,
    device: Device = None,
    decoding: Decoding = DecodingSettings(),  # noqa: B008 (frozen)
    json: Json = False,
) -> None:
    """Answer texts with a trained model, in order, as they come."""
    _check_model(model)
    for number, text in enumerate(inputs, start=1):
        if any("\ud800" <= letter <= "\udfff" for letter in text):  # what the shell passed was no UTF-8
            raise HeedfulError(f"text {number} of the command line is not UTF-8; convert it first")
    if task is not None:
        from heedful import tasks

        tasks.check(task)
    import heedful

    pipe = heedful.pipeline(task, model, device=device)
    if not inputs and sys.stdin.isatty():
        print("write one text a line; Ctrl-D ends", file=sys.stderr, flush=True)
    for texts in [inputs] if inputs else _lines(cast(BufferedReader, sys.stdin.buffer)):
        for answer in _answers(partial(pipe, **decoding.given()), texts):
            output = answer["output"]
            print(_to_json(answer) if json else output if isinstance(output, str) else _to_json(output))
        sys.stdout.flush()


@app.command(help_epilogue="Example:  heedful evaluate runs/en-fr --data test.en test.fr --num-beams 5")
def evaluate(
    model: Annotated[str, Parameter(help="model folder")],
    /,
    *,
    data: Annotated[tuple[str, ...], Parameter(help="a file of examples, or one a language; - is standard input")],
    columns: Annotated[
        tuple[str, ...] | None, Parameter(help="names or numbers from 1, source first, as en,fr")
    ] = None,
    split: Annotated[str, Parameter(help="part of a data set that has several; test by default")] = "test",
    device: Device = None,
    decoding: Decoding = DecodingSettings(),  # noqa: B008 (frozen)
    json: Json = False,
) -> None:
    """Score a trained model on examples with known answers."""
    _check_model(model)
    for file in data:
        _check_file(file)

    from heedful.evaluation.run import evaluate as run

    columns = DataSettings(columns=columns).columns
    result = run(model, data, columns=columns, decoding=decoding.given(), device=device, split=split, say=_say(json))
    _print_result(result, json)


@app.command(help_epilogue="Example:  heedful summary bert-base")
def summary(
    name: Annotated[str, Parameter(help="model folder or preset")],
    /,
    *,
    json: Json = False,
) -> None:
    """Show a model's layers, parameters and operations."""
    from heedful import presets

    if name not in presets.names() and not Path(name).exists() and "/" not in name:
        presets.get(name)  # raises, with the nearest name
    import heedful

    info = heedful.summary(name)
    print(_to_json(info.as_dict()) if json else info)


@app.command(name="presets", help_epilogue="Example:  heedful summary vit-b/16")
def list_presets(*, json: Json = False) -> None:
    """List the published sizes that a model can be made in."""
    from heedful import presets

    _print_list(presets.describe(), json)


@app.command(name="tasks", help_epilogue="Example:  heedful train translation --help")
def list_tasks(*, json: Json = False) -> None:
    """List what a model can be trained for."""
    from heedful import tasks

    _print_list(tasks.names(), json)


@app.command(help_epilogue="Example:  heedful demo --to de")
def demo(
    *,
    to: Annotated[str, Parameter(help="language of the dates; fr by default")] = "fr",
    out: Annotated[str | None, Parameter(help="folder of the run and its model")] = None,
    json: Json = False,
) -> None:
    """Train a small translator of written-out dates before your eyes, in minutes."""
    from heedful.demo import demo as run

    result = run(to=to, out=out, say=_say(json), quiet=json)
    if json:
        print(_to_json(result))


# ------------------------------------------------------------------------------------------- checks before the work


def _check_file(name: str) -> None:
    """A named file must be there; ``-`` and ``builtin:...`` are no files."""
    if name == "-" or re.match(r"\w\w+:", name) or Path(name).exists():
        return
    folder = Path(name).parent
    close = get_close_matches(Path(name).name, os.listdir(folder) if folder.is_dir() else [], n=1)
    raise HeedfulError(
        f"{name}: no such file; " + (f"did you mean {str(folder / close[0])!r}?" if close else "check the path")
    )


def _check_model(name: str) -> None:
    """What lies there must be a model folder; a name of one or two words may also be a model of the Hub."""
    path = Path(name)
    if path.exists() and not (path / "config.json").is_file():
        raise HeedfulError(f"{name} is no model folder: it has no config.json; give the --out of a finished training")
    if not path.exists() and not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        raise HeedfulError(f"{name}: no such folder; give the --out of a finished training")


def _check_out(settings: RunSettings) -> None:
    """The run's folder must be new or meant, and writable."""
    out = Path(settings.out)
    if out.exists() and not out.is_dir():
        raise HeedfulError(f"--out {out} is a file; name a folder")
    filled = out.is_dir() and any(out.iterdir())
    if filled and not settings.resume and not settings.overwrite:
        raise HeedfulError(f"--out {out} is not empty; --resume goes on with that run, --overwrite replaces it")
    if settings.resume and not filled:
        raise HeedfulError(f"--out {out} holds no run to go on with; leave --resume out to start one")
    parent = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise HeedfulError(f"--out {out}: cannot write in {parent}; choose another folder")


# ----------------------------------------------------------------------------------------------- reading and printing


def _lines(stream: BufferedReader) -> Iterator[list[str]]:
    """The lines of a stream in lists of at most 64: as many as are there, so that each is answered as it comes."""
    rest, number = b"", 0
    while True:
        chunk = stream.read1(1 << 16)  # what is there; waits only for the first byte
        *lines, rest = (rest + chunk).split(b"\n")
        if not chunk and rest:
            lines = [rest]
        for start in range(0, len(lines), _STDIN_BATCH):
            texts: list[str] = []
            for line in lines[start : start + _STDIN_BATCH]:
                number += 1
                try:
                    texts.append(line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r"))
                except UnicodeDecodeError as error:
                    yield texts
                    found = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
                    raise HeedfulError(
                        f"standard input:{number}: {found} is not UTF-8; convert the text first"
                    ) from error
            yield texts
        if not chunk:
            return


def _answers(pipe: Callable[[list[str]], list[dict[str, Any]]], texts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """One answer a text, in order; an empty text is not asked about and has an empty answer."""
    asked = [text for text in texts if text.strip()]
    answers = iter(pipe(asked) if asked else [])
    for text in texts:
        yield next(answers) if text.strip() else {"input": text, "output": "", "score": None}


def _say(json: bool) -> Callable[[str], None]:
    return partial(print, file=sys.stderr if json else sys.stdout, flush=True)


def _to_json(value: Any) -> str:
    return json_format.dumps(_plain(value), ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    """The value as JSON knows it: numbers that are not finite become null, arrays lists, paths texts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return str(value) if isinstance(value, os.PathLike) else value


def _print_result(result: Mapping[str, Any], json: bool) -> None:
    if json:
        print(_to_json(result))
        return
    rows = {**result["metrics"], "seconds": result["seconds"]}
    for name, value in rows.items():
        print(f"{name:<16}{value:.4g}" if isinstance(value, float) else f"{name:<16}{value}")


def _print_list(rows: Sequence[Mapping[str, Any]], json: bool) -> None:
    if json:
        print(_to_json(rows))
        return
    lines = [list(rows[0]), *([f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


# ----------------------------------------------------------------------------------------------------------- the end


def _join_dashes(tokens: Iterable[str]) -> list[str]:
    """``--train -`` as ``--train=-``: the parser takes a lone hyphen for an option, here it is standard input."""
    joined: list[str] = []
    flag = ""
    for token in tokens:
        if token.startswith("--"):
            flag = token.partition("=")[0]
        if token == "-" and flag not in ("", "--"):
            if joined[-1] == flag:
                joined.pop()
            token = f"{flag}=-"
        joined.append(token)
    return joined


def _explain(error: BaseException, tokens: Sequence[str]) -> tuple[str, int]:
    """The one line that a person reads and the exit status."""
    command = tokens[0] if tokens and not tokens[0].startswith("-") else ""
    if isinstance(error, CycloptsError):
        text = f"unexpected {error.unused_tokens}" if isinstance(error, UnusedCliTokensError) else str(error)
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
    if isinstance(error, HeedfulError):
        return str(error), 2
    return f"a fault in heedful: {type(error).__name__}: {error} (HEEDFUL_DEBUG=1 shows where)", 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status: 0, 2 for an error, 1 for a fault of ours, 130 for Ctrl-C."""
    tokens = _join_dashes(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as what is read, whatever the locale
    try:
        app(tokens, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("HEEDFUL_DEBUG") == "1":
            raise
        if isinstance(error, BrokenPipeError):
            return 141  # as a shell reports a program that nobody listens to any more
        message, status = _explain(error, tokens)
        print("heedful:", " ".join(message.split()), file=sys.stderr)
        return status
    return 0
