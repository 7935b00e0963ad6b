"""Reads options from a file, completes and checks them before the work. Imports no torch."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from cyclopts import App, ArgumentCollection, Token

from heedful.cli.processes import rank
from heedful.errors import HeedfulError, nearest
from heedful.generation.options import DecodingSettings
from heedful.settings import AnsweringSettings, RunSettings, keys, read_toml, with_present_keys
from heedful.settings.base import FOREIGN_NAMES
from heedful.util.files import parse_toml, read_bytes, similar_path
from heedful.util.locks import check_unlocked, contents

TAIL = 2**16  # bytes at the end of a run's log that contain its last line

FIRST = "training", "model", "tokenizer"  # preferred sections, for an option name that several sections have


def likely(name: str, known: Iterable[str]) -> str | None:
    """Returns the known option that an unknown name most likely means; None if there is none.

    The name may lack its section, or be the name of the same option in another program.

    >>> known = ["--lora.dropout", "--model.dropout", "--training.lr"]
    >>> likely("--dropout", known), likely("--training.learning_rate", known), likely("--nothing", known)
    ('--model.dropout', '--training.lr', None)
    """
    last = name.lstrip("-").replace("_", "-").rpartition(".")[2]
    last = FOREIGN_NAMES.get(last.replace("-", "_"), last).replace("_", "-")
    options = [option for option in known if option.lstrip("-").replace("_", "-").rpartition(".")[2] == last]
    return min(options, key=_section_order, default=None)


def _section_order(name: str) -> int:
    """Returns a sort key: options without a section first, then the sections in ``FIRST``, then the others."""
    section = name.lstrip("-").rpartition(".")[0]
    return ("", *FIRST, section).index(section)


def by_flags(text: str, tokens: Iterable[str]) -> str:
    """Rewrites a message about decoding options with their command-line names.

    A name that is also an English word is rewritten only if its option is among ``tokens``.

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
    """Sets the options of the TOML file ``--config`` that the command line does not set.

    A key of the file is an option's name, a table of the file is a section of options.

    A command with fewer options than ``train``, such as ``audit``, ignores the other options of the file.
    """
    config = next((argument for argument in arguments if argument.name == "--config" and argument.tokens), None)
    if config is None:
        return
    from cyclopts.config import Dict

    path = config.tokens[-1].value
    check_file(path)
    remedy = "correct it, or leave --config out"
    content = read_bytes(Path(path), remedy)
    values, text = with_present_keys(parse_toml(content, path, remedy)), content.decode("utf-8-sig")
    _import_files(values.pop("import", []), path)
    known = keys(RunSettings)
    for name in _dotted(values):
        if name.replace("-", "_") not in known:
            suggestion = likely(name, known)
            if name.rpartition(".")[2] == "import":
                raise HeedfulError(f"{path}:{_line_of(name, text)}: import is in a table; move it to the file's head")
            hint = f"did you mean {suggestion!r}?" if suggestion else nearest(name, known)
            raise HeedfulError(f"{path}:{_line_of(name, text)}: unknown key {name!r}; {hint}")
    # Nested under the command: Dict drops flat keys that are a command's name, as train is, silently.
    names = {argument.name.removeprefix("--").replace("-", "_") for argument in arguments}
    Dict({commands[0]: _only(values, names)}, source=path)(app, commands, arguments)


def _import_files(sources: Any, path: str) -> None:
    """Imports the files that the key ``import`` of a settings file names; refuses the key in a model's folder."""
    sources = [sources] if isinstance(sources, str) else sources
    if not isinstance(sources, list) or not all(isinstance(source, str) and source for source in sources):
        raise HeedfulError(f'{path}: import is {sources!r}; give a file, or a list of files: import = ["mine.py"]')
    folders = {*Path(path).resolve().parents, Path(path).parent.resolve(), *Path(path).parent.resolve().parents}
    if sources and any((folder / name).exists() for folder in folders for name in ("config.json", "heedful.json")):
        raise HeedfulError(
            f"{path}: import has no effect in a model's folder, which may come from others; give --import "
            f"{shlex.quote(sources[0])}"
        )
    for source in sources:
        beside = Path(path).parent / source
        import_own_parts(str(beside) if beside.is_file() and not Path(source).is_file() else source, f"{path}: import")


def _only(values: Mapping[str, Any], names: set[str], prefix: str = "") -> dict[str, Any]:
    """Returns the values whose dotted names are among ``names``."""
    chosen = {
        name: _only(value, names, f"{prefix}{name}.") if isinstance(value, Mapping) else value
        for name, value in values.items()
        if isinstance(value, Mapping) or f"{prefix}{name}".replace("-", "_") in names
    }
    return {name: value for name, value in chosen.items() if value != {}}


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def _line_of(name: str, text: str) -> int:
    """Returns the line of a TOML text that sets a dotted key, in a table or dotted; 1 for any other notation."""
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[([^\]]+)\]", line):
            table = header[1].strip() + "."
        elif (assigned := re.match(r"\s*([^=#]+?)\s*=", line)) and table + assigned[1].strip("\"'") == name:
            return number
    return 1


def trials_without_out(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Makes ``--out`` optional for ``train --lr-range-test`` and ``--print-config``, which write nothing."""
    by_name = {argument.name: argument for argument in arguments}
    for name in ("--lr-range-test", "--print-config"):
        trial = by_name.get(name)
        if trial is None or by_name["--out"].tokens:
            return
        if any(token.implicit_value for token in trial.tokens):
            by_name["--out"].append(Token(keyword="--out", value=".", source=name))


def refuse_fractions(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Raises ``HeedfulError`` for a fraction where a whole number is required; the parser alone would round it."""
    for argument in arguments:
        if argument.hint in (int, int | None):
            for token in argument.tokens:
                if "." in token.value:
                    raise HeedfulError(f"{argument.name} must be a whole number, not {token.value}")


# ---------------------------------------------------------------------------------------------------- standard input


def join_dashes(tokens: Iterable[str]) -> list[str]:
    """Rewrites lone hyphens. They mean standard input, but the parser would read them as options.

    ``--train -`` becomes ``--train=-``; ``predict MODEL -`` (and ``inspect``) becomes ``predict MODEL -- -``.
    """
    tokens = _join_file_dashes(list(tokens))
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


def _join_file_dashes(tokens: list[str]) -> list[str]:
    """Rewrites ``--in -`` of ``predict`` as ``--in=-``, and ``--out -`` likewise: these hyphens are no inputs."""
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
    """Raises ``HeedfulError`` unless a file exists; ``-`` and ``builtin:...`` are not checked."""
    if name == "-" or re.match(r"\w\w+:", name) or Path(name).exists():
        return
    close = similar_path(name)
    raise HeedfulError(f"{name}: no such file; " + (f"did you mean {str(close)!r}?" if close else "check the path"))


def check_model(name: str) -> None:
    """Raises ``HeedfulError`` unless the name is a model folder, or may be a Hub id.

    Prints how to resume if the folder's run has not finished.
    """
    path = Path(name)
    if path.is_file():
        folder = f"its folder, {path.parent}" if _holds_model(path.parent) else "the folder of a model"
        raise HeedfulError(f"{name} is a file, not a model folder; give {folder}")
    line = resume_line(path)
    if path.exists() and not _holds_model(path):
        if line is not None:
            raise HeedfulError(f"{name}: the run was stopped before it saved any weights; continue it with: {line}")
        remedy = "give the --out folder of a finished training run, or the folder of a published model"
        raise HeedfulError(f"{name} is not a model folder: it has no config.json; {remedy}")
    if not path.exists() and not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?(@\w[\w./-]*)?", name):
        from heedful.pretrained.folder import similar_folder

        remedy = similar_folder(path) or "give the --out folder of a training run, or check the path"
        raise HeedfulError(f"{name}: no such folder; {remedy}")
    if line is not None and rank() == 0 and (step := _unfinished_step(path)) is not None:
        print(
            f"{name}: the training is not finished (step {step:,}); this command uses the last saved weights. If no "
            f"process is training it now, continue it with: {line}",
            file=sys.stderr,
        )


def resume_line(folder: Path) -> str | None:
    """Returns the command line that resumes the run in a folder; None without a readable run."""
    for file in (folder / "run.toml", folder / "run.toml.part"):
        if file.is_file():
            try:
                settings = read_toml(file)
            except HeedfulError:
                return None
            files = shlex.join(settings.train)
            return f"heedful train {settings.task} --train {files} --out {shlex.quote(str(folder))} --resume"
    return None


def _unfinished_step(folder: Path) -> int | None:
    """Returns the last logged step of an unfinished run; None for a finished run, or if it is unknown."""
    try:
        last_step = json.loads((folder / "last" / "heedful.json").read_text(encoding="utf-8")).get("steps")
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            logged = json.loads(file.read().splitlines()[-1])["step"]
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return None
    return logged if isinstance(last_step, int) and isinstance(logged, int) and logged > last_step else None


def _holds_model(folder: Path) -> bool:
    return any((folder / file).is_file() for file in ("config.json", "adapter_config.json"))


def check_out(settings: RunSettings) -> None:
    """Raises ``HeedfulError`` unless the run's folder is new, or may be resumed or overwritten, and is writable."""
    if not settings.out.strip():
        raise HeedfulError("--out is empty; name a folder for the run")
    if any("\ud800" <= letter <= "\udfff" for letter in settings.out):  # bytes that are not UTF-8
        raise HeedfulError(f"--out {settings.out!a} is not UTF-8; name another folder")
    out = Path(settings.out)
    if out.exists() and not out.is_dir():
        raise HeedfulError(f"--out {out} is a file; name a folder")
    check_unlocked(out)
    if contents(out) and not settings.resume and not settings.overwrite:
        raise HeedfulError(f"--out {out} is not empty; --resume continues that run, --overwrite replaces it")
    parent = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise HeedfulError(f"--out {out}: cannot write in {parent}; choose another folder")


IMPORTS: list[str] = []  # files that this command imported, which the next one must name again


def without_imports(tokens: Sequence[str]) -> list[str]:
    """Imports the files that ``HEEDFUL_IMPORT`` and ``--import`` name, in order; returns the other tokens.

    ``--import mine.py`` and ``--import=mine.py`` may stand anywhere; the parts that a file registers are then known to
    every command.
    """
    IMPORTS.clear()
    if variable := os.environ.get("HEEDFUL_IMPORT"):
        import_own_parts(variable, "HEEDFUL_IMPORT")
    rest: list[str] = []
    remaining = iter(tokens)
    for token in remaining:
        if token != "--import" and not token.startswith("--import="):
            rest.append(token)
            continue
        source = token.partition("=")[2] if "=" in token else next(remaining, "")
        if not source:
            raise HeedfulError("--import names no file; give a Python file that registers parts: --import mine.py")
        import_own_parts(source)
    return rest


def import_own_parts(source: str, option: str = "--import") -> None:
    """Imports a file that registers parts; ``option`` named it."""
    from heedful.registration import import_file  # which imports torch with some parts

    import_file(source, option)
    if option != "HEEDFUL_IMPORT":
        IMPORTS.append(source)
