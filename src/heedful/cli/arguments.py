"""Options before the work: read from a file, joined, checked. Nothing here imports torch."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cyclopts import App, ArgumentCollection, Token

from heedful import renamed
from heedful.cli.processes import rank
from heedful.errors import HeedfulError, nearest
from heedful.settings import AnsweringSettings, DecodingSettings, RunSettings, keys, read_toml
from heedful.util.files import parse_toml, read_bytes
from heedful.util.locks import check_unlocked, contents

TAIL = 2**16  # bytes at the end of a run's log, in which its last line stands

# what other programs call them
ELSEWHERE = {
    "learning-rate": "lr",
    "num-train-epochs": "max-epochs",
    "num-epochs": "max-epochs",
    "output-dir": "out",
    "hidden-size": "dim",
    "num-layers": "depth",
    "layers": "depth",
    "vocab-size": "size",
    "optimizer": "optimiser",
    "warmup-steps": "warmup",
    "eval-steps": "evaluate-every",
    "save-steps": "save-every",
    "save-total-limit": "keep",
    "gradient-accumulation-steps": "accumulate",
    "fsdp": "shard",
    "max-grad-norm": "clip",
    "min-lr": "min-lr-ratio",
    "report-to": "report",
    "reprob": "random-erasing",
    "fp16": "precision",
    "bf16": "precision",
}
FIRST = "training", "model", "tokenizer"  # of options of one name in several sections the one that is likely meant


# old names of options, as the command line writes them
NEW_OPTIONS = {
    f"--{old.replace('_', '-')}": f"--{new.replace('_', '-')}" for old, new in renamed.SETTINGS.items()
} | renamed.OPTIONS


def with_new_names(tokens: Sequence[str]) -> list[str]:
    """Returns a command line with the present names of its options; a line on standard error names each change."""
    end = [*tokens, "--"].index("--")
    changed = []
    for token in tokens[:end]:
        name, equals, value = token.partition("=")
        new = NEW_OPTIONS.get(name.replace("_", "-"))
        if new is not None:
            _tell_new_name(name, new)
        changed.append(token if new is None else f"{new}{equals}{value}")
    return [*changed, *tokens[end:]]


def _tell_new_name(old: str, new: str) -> None:
    """Prints that an option has another name now; on the first of several processes."""
    if rank() == 0:
        print(f"heedful: {old} is now {new}; the old name goes with the next version", file=sys.stderr)


def _with_new_keys(values: Mapping[str, Any], path: str, text: str, prefix: str = "") -> dict[str, Any]:
    """Returns the options of a file under their present names; a line on standard error names each change."""
    changed: dict[str, Any] = {}
    for name, value in values.items():
        key = prefix + name
        new = renamed.SETTINGS.get(key.replace("-", "_"))
        if isinstance(value, Mapping):
            value = _with_new_keys(value, path, text, f"{key}.")
        elif new is not None:
            _tell_new_name(f"{path}:{_line_of(key, text)}: {key}", new)
        changed[name if new is None else new.rpartition(".")[2]] = value
    return changed


def likely(name: str, known: Iterable[str]) -> str | None:
    """Returns the option that is likely meant by a name without its section, or by one of another program.

    >>> known = ["--lora.dropout", "--model.dropout", "--training.lr"]
    >>> likely("--dropout", known), likely("--training.learning_rate", known), likely("--nothing", known)
    ('--model.dropout', '--training.lr', None)
    """
    last = name.lstrip("-").replace("_", "-").rpartition(".")[2]
    wanted = ELSEWHERE.get(last, last)
    found = [one for one in known if one.lstrip("-").replace("_", "-").rpartition(".")[2] == wanted]
    return min(found, key=_section, default=None)


def _section(name: str) -> int:
    """Its place: no section before all of them, one that is not among the first after them."""
    section = name.lstrip("-").rpartition(".")[0]
    return ("", *FIRST, section).index(section)


def by_flags(text: str, tokens: Iterable[str]) -> str:
    """Rewrites a message about decoding options with their command-line names; a name that is also a word only where

    >>> by_flags("num_beams=4 searches, but temperature samples", ["--temperature=0.5"])
    '--num-beams=4 searches, but --temperature samples'
    """
    given = {token.partition("=")[0] for token in tokens}
    for field in (*fields(DecodingSettings), *fields(AnsweringSettings)):
        flag = f"--{field.name.replace('_', '-')}"
        if "_" in field.name or flag in given:
            text = re.sub(rf"(?<![\w.'/-])(the option )?{field.name}(?![\w'/])", flag, text)
    return text


# ---------------------------------------------------------------------------------------------- options from a file


def read_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fill what the command line left open from ``--config``; its keys are the flags', its tables their sections. Of a
    run's settings an audit hears some, and passes the others over.
    """
    given = [argument for argument in arguments if argument.name == "--config" and argument.tokens]
    if not given:
        return
    from cyclopts.config import Dict

    path = given[0].tokens[-1].value
    check_file(path)
    remedy = "mend it, or leave --config out"
    content = read_bytes(Path(path), remedy)
    values, text = parse_toml(content, path, remedy), content.decode("utf-8-sig")
    values = _with_new_keys(values, path, text)
    known = keys(RunSettings)
    for name in _dotted(values):
        if name.replace("-", "_") not in known:
            meant = likely(name, known)
            hint = f"did you mean {meant!r}?" if meant else nearest(name, known)
            raise HeedfulError(f"{path}:{_line_of(name, text)}: unknown key {name!r}; {hint}")
    # Nested under the command: flat keys that are a command's name, as train is, would be dropped without a word.
    heard = {argument.name.removeprefix("--").replace("-", "_") for argument in arguments}
    Dict({commands[0]: _heard(values, heard)}, source=path)(app, commands, arguments)


def _heard(values: Mapping[str, Any], names: set[str], prefix: str = "") -> dict[str, Any]:
    """Returns the names of the options that a command has."""
    found = {
        name: _heard(value, names, f"{prefix}{name}.") if isinstance(value, Mapping) else value
        for name, value in values.items()
        if isinstance(value, Mapping) or f"{prefix}{name}".replace("-", "_") in names
    }
    return {name: value for name, value in found.items() if value != {}}


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


def try_without_a_folder(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """``train --lr-range-test`` writes nothing, and needs no ``--out``."""
    found = {argument.name: argument for argument in arguments}
    tries = found.get("--lr-range-test")
    if tries is not None and any(one.implicit_value for one in tries.tokens) and not found["--out"].tokens:
        found["--out"].append(Token(keyword="--out", value=".", source="--lr-range-test"))


def refuse_fractions(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """A fraction where a whole number belongs is an error; the parser alone would round it."""
    for argument in arguments:
        if argument.hint in (int, int | None):
            for token in argument.tokens:
                if "." in token.value:
                    raise HeedfulError(f"{argument.name} must be a whole number, not {token.value}")


# ------------------------------------------------------------------------------------------------------ as they came


def join_dashes(tokens: Iterable[str]) -> list[str]:
    """``--train -`` as ``--train=-``, and ``predict MODEL -`` (``inspect`` too) as ``predict MODEL -- -``: the parser
    takes a lone hyphen for an option, here it is standard input.
    """
    tokens = _files_joined(list(tokens))
    before = tokens[: [*tokens, "--"].index("--")]
    if tokens[:1] in (["predict"], ["inspect"]) and "-" in before:
        texts = tokens[len(before) + 1 :]
        return [*(token for token in before if token != "-"), "--", *["-"] * before.count("-"), *texts]
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


def _files_joined(tokens: list[str]) -> list[str]:
    """``predict MODEL --in -`` as ``--in=-``, and ``--out -`` alike: these hyphens are no text to answer."""
    if tokens[:1] != ["predict"]:
        return tokens
    joined: list[str] = []
    for token in tokens:
        if token == "-" and joined[-1] in ("--in", "--out") and "--" not in joined:
            token = f"{joined.pop()}=-"
        joined.append(token)
    return joined


# ------------------------------------------------------------------------------------------- checks before the work


def check_file(name: str) -> None:
    """A named file must be there; ``-`` and ``builtin:...`` are no files."""
    if name == "-" or re.match(r"\w\w+:", name) or Path(name).exists():
        return
    folder = Path(name).parent
    close = get_close_matches(Path(name).name, os.listdir(folder) if folder.is_dir() else [], n=1)
    raise HeedfulError(
        f"{name}: no such file; " + (f"did you mean {str(folder / close[0])!r}?" if close else "check the path")
    )


def check_model(name: str) -> None:
    """Raises unless the path is a model folder; a name of one or two words may also be a model of the Hub."""
    path = Path(name)
    if path.is_file():
        there = f"the folder it lies in, {path.parent}" if _holds_model(path.parent) else "the folder of a model"
        raise HeedfulError(f"{name} is a file, no model folder; give {there}")
    line = resume_line(path)
    if path.exists() and not _holds_model(path):
        if line is not None:
            raise HeedfulError(f"{name}: the run was stopped before it kept any weights; continue it with: {line}")
        remedy = "give the --out of a finished training, or the folder of a published model"
        raise HeedfulError(f"{name} is no model folder: it has no config.json; {remedy}")
    if not path.exists() and not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?(@\w[\w./-]*)?", name):
        raise HeedfulError(f"{name}: no such folder; give the --out of a finished training, or check the path")
    if line is not None and rank() == 0 and (step := _unfinished(path)) is not None:
        told = (
            f"{name}: its run has not ended, it is at step {step:,}; if nothing trains there, continue it with: {line}"
        )
        print(told, file=sys.stderr)


def resume_line(folder: Path) -> str | None:
    """The command line that resumes the run in a folder; None where there is no run, or none that can be read."""
    for file in (folder / "run.toml", folder / "run.toml.part"):
        if file.is_file():
            try:
                settings = read_toml(file)
            except HeedfulError:
                return None
            files = shlex.join(settings.train)
            return f"heedful train {settings.task} --train {files} --out {shlex.quote(str(folder))} --resume"
    return None


def _unfinished(folder: Path) -> int | None:
    """Returns the last logged step of a run that was stopped on its way; None of one that ended, or does not say it."""
    try:
        ended = json.loads((folder / "last" / "heedful.json").read_text(encoding="utf-8")).get("steps")
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            logged = json.loads(file.read().splitlines()[-1])["step"]
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return None
    both = isinstance(ended, int) and isinstance(logged, int)
    return logged if both and logged > ended else None


def _holds_model(folder: Path) -> bool:
    return any((folder / file).is_file() for file in ("config.json", "adapter_config.json"))


def check_out(settings: RunSettings) -> None:
    """The run's folder must be new or meant, and writable."""
    if not settings.out.strip():
        raise HeedfulError("--out is empty; name a folder for the run")
    if any("\ud800" <= letter <= "\udfff" for letter in settings.out):  # bytes that are not UTF-8
        raise HeedfulError(f"--out {settings.out!a} is not UTF-8; give a folder whose name is")
    out = Path(settings.out)
    if out.exists() and not out.is_dir():
        raise HeedfulError(f"--out {out} is a file; name a folder")
    check_unlocked(out)
    if contents(out) and not settings.resume and not settings.overwrite:
        raise HeedfulError(f"--out {out} is not empty; --resume goes on with that run, --overwrite replaces it")
    parent = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise HeedfulError(f"--out {out}: cannot write in {parent}; choose another folder")
