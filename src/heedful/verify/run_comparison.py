"""Compares two run folders bit by bit, except for times."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from heedful.pretrained.folder import HEEDFUL_JSON, MEMBER_FILES
from heedful.training.checkpoint import FILE_NAME, Checkpoints
from heedful.training.run_folder import MODEL_FOLDERS, SHARDS
from heedful.verify.check_report import CheckResult
from heedful.verify.kills import unfinished

# files of a run folder that are not part of its model: compared separately, or drawn from compared files
RUN_FILES = ("metrics.jsonl", "run.toml", "watch.jsonl")
FIGURES = {".svg", ".html"}
OWN_SETTINGS = ("out", "resume", "overwrite", "teacher")  # settings in which the two runs may differ
TIMED = ("seconds", "_per_second", "share_of_ceiling")  # suffixes of names in the log that depend on the clock
SHOWN = 3  # names in a reason
Facts = Mapping[str, str]  # digests and numbers by name


def compare_runs(whole: Path, stopped: Path) -> list[CheckResult]:
    """Compares the folder of a stopped and resumed run with that of an undisturbed run.

    The two folders must have the same name, because the model card contains the name. ``difference`` counts what
    differs: files of a model, tensors and numbers of the checkpoint, lines of the log. An item that neither run has is
    left out.
    """
    checks: list[tuple[str, str, Callable[[Path], Facts]]] = [
        ("last weights", "the files of last/", lambda run: _model(run / "last")),
        ("best weights", "the model in the run's folder, its metrics and tokenizer", _model),
        ("averaged weights", "the files of average/", lambda run: _model(run / "average")),
        ("checkpoint", "weights, optimiser, averages, position in the data, best metric and patience", _state),
        ("losses", "metrics.jsonl, without seconds and speeds", _lines),
        ("attention", "watch.jsonl", lambda run: _digests(run, ["watch.jsonl"])),
        ("files", "the same file names, and no half-written file", _names),
    ]
    pairs = [(name, description, facts(whole), facts(stopped)) for name, description, facts in checks]
    return [_result(name, description, first, second) for name, description, first, second in pairs if first or second]


def _result(name: str, description: str, whole: Facts, stopped: Facts) -> CheckResult:
    differing = sorted(key for key in whole.keys() | stopped.keys() if whole.get(key) != stopped.get(key))
    more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return CheckResult(
        name=name,
        description=description,
        verdict="failed" if differing else "ok",
        difference=float(len(differing)),
        tolerance=0.0,
        reason=", ".join(differing[:SHOWN]) + more,
    )


def _model(folder: Path) -> Facts:
    """Returns digests of the files of a model, without the files of a run, and the values of ``heedful.json``."""
    excluded = {
        name
        for name in _files(folder)
        if name in RUN_FILES or FILE_NAME.fullmatch(name) or Path(name).suffix in FIGURES
    }
    names = [name for name in _files(folder) if name not in excluded]
    facts = dict(_digests(folder, [name for name in names if name != HEEDFUL_JSON]))
    if HEEDFUL_JSON in names:
        card = json.loads((folder / HEEDFUL_JSON).read_text(encoding="utf-8"))
        settings = {name: value for name, value in card.get("settings", {}).items() if name not in OWN_SETTINGS}
        facts |= {f"{HEEDFUL_JSON}: {key}": json.dumps(value) for key, value in (card | {"settings": settings}).items()}
    return facts


def _files(folder: Path) -> list[str]:
    """Returns the files of a folder, and of the modules ("1_Pooling/config.json") and members in it."""
    paths = [*folder.glob("*"), *folder.glob("[0-9]_*/*"), *folder.glob(MEMBER_FILES)]
    return [path.relative_to(folder).as_posix() for path in paths if path.is_file()]


def _digests(folder: Path, names: list[str]) -> Facts:
    return {name: _digest(folder / name) for name in names if (folder / name).is_file()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state(run: Path) -> Facts:
    state = Checkpoints(run).load() or {}
    if SHARDS in state:  # names a folder of shards; its name and its number are not part of the state
        from heedful.training.sharded import DIGESTS, load_whole_tensors

        state[SHARDS] = load_whole_tensors(run / state[SHARDS])
        del state["number"], state[DIGESTS]
    return dict(_flat(state))


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yields every tensor (as a digest) and number (as its text) in a mapping of state, by its path."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _flat(inner, f"{name}.{index}")
    elif isinstance(value, torch.Tensor):
        bits = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        yield name, f"{value.dtype} {list(value.shape)} {hashlib.sha256(bits).hexdigest()}"
    elif not name.endswith("seconds"):
        yield name, repr(value)


def _lines(run: Path) -> Facts:
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    untimed = [{name: value for name, value in json.loads(line).items() if not name.endswith(TIMED)} for line in lines]
    return {
        f"line {number} (step {line.get('step')})": json.dumps(line) for number, line in enumerate(untimed, start=1)
    }


def _names(run: Path) -> Facts:
    names = [f"{part}/{name}".removeprefix("./") for part in MODEL_FOLDERS for name in _files(run / part)]
    names += [f"{SHARDS} {number}" for number, _ in enumerate(run.glob(f"{SHARDS}-*"), start=1)]
    return dict.fromkeys(names, "present") | dict.fromkeys(unfinished(run), f"half-written in {run}")
