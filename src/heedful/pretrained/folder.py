"""Pretrained folders: found locally or on the Hub, JSON files read, files written atomically. No torch here."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError
from heedful.util import files
from heedful.util.downloads import Refused, fetched

CONFIG, CARD, GENERATION, WEIGHTS = "config.json", "heedful.json", "generation_config.json", "model.safetensors"
INDEX, README = "model.safetensors.index.json", "README.md"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
ADAPTER_CONFIG = "adapter_config.json"  # PEFT's
READY, MOVES = ".ready", "moves.json"  # the ending of a folder of files to be moved, and the list of them
MULTI_LABEL = {"problem_type": "multi_label_classification"}  # in config.json, where an input may have several labels
REGRESSION = {"problem_type": "regression"}  # where the only output is a number
# file name patterns that are downloaded from the Hub, and sent there
SHARD_SUFFIX = "-?????-of-?????"
SAFETENSORS_FILES = ("model.safetensors", f"model{SHARD_SUFFIX}.safetensors", "adapter_model.safetensors")
PICKLE_FILES = ("pytorch_model.bin", f"pytorch_model{SHARD_SUFFIX}.bin", "adapter_model.bin")
TEXT_FILES = ("*.json", "*.txt", "*.model", "*.spm")  # configurations, indices, tokenizers
POOLING_FILES = "[0-9]_*/config.json"  # of sentence-transformers, as "1_Pooling/config.json"

_HUB_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*(/[\w.-]+)?)(@(?P<revision>[^@\s]+))?")


def find(folder_or_id: str | Path, revision: str | None = None) -> Path:
    """The folder of this name, or else the Hub's ("org/name", "org/name@revision"), fetched once into its cache."""
    if not isinstance(folder_or_id, str | Path):
        raise HeedfulError(f"a model's folder or its Hub id is wanted, not a {type(folder_or_id).__name__}")
    folder = Path(folder_or_id).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise HeedfulError(f"revision {revision!r} is asked for, but {folder} is a folder here; leave it out")
        _settled(folder)
        return folder
    if folder.exists():
        raise HeedfulError(f"{folder} is a file; give the model's folder")
    match = None if isinstance(folder_or_id, Path) else _HUB_ID.fullmatch(folder_or_id)
    if match is None:
        raise HeedfulError(f"no folder {folder_or_id} here; give a model's folder or a Hub id such as 'org/name'")
    if revision is not None and match["revision"] not in (None, revision):
        raise HeedfulError(f"{folder_or_id} names a revision, and revision is {revision!r}; give one of them")
    return fetch(match["name"], revision or match["revision"])


def fetch(name: str, revision: str | None = None) -> Path:
    """Returns the folder of a Hub id in the Hub's cache. A pickle is fetched only where there are no safetensors.

    Raises ``HeedfulError`` for a name or revision that the Hub does not know, a gate, or a network that is away.
    """
    snapshot = _fetch(name, revision, (*TEXT_FILES, *SAFETENSORS_FILES))
    if not any(next(snapshot.glob(pattern), None) for pattern in SAFETENSORS_FILES):
        snapshot = _fetch(name, revision, (*TEXT_FILES, *SAFETENSORS_FILES, *PICKLE_FILES))
    return snapshot


def _fetch(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    try:
        return fetched(name, patterns, revision)
    except Refused as refused:
        raise HeedfulError(
            f"no folder {name} here, and the Hub {refused}; check the name, or download the folder first"
        ) from None


def _settled(folder: Path) -> None:
    try:
        settle(folder)
    except OSError as error:
        what = f"a write to {folder} was cut off and cannot be ended here ({reason(error)})"
        raise HeedfulError(f"{what}; open it where it may be written") from None


def read_json(path: Path) -> dict[str, Any]:
    """Returns a JSON object; a missing file, or one that is no JSON object, is an error that names it."""
    if not os.path.lexists(path):
        raise HeedfulError(f"{path.parent} is no model's folder: {path.name} is missing")
    data = files.read_json(path, "write the model anew")
    if not isinstance(data, dict):
        raise HeedfulError(f"{path} is no JSON object; write the model anew")
    return data


def read_card(folder: str | Path) -> dict[str, Any]:
    """Reads ``heedful.json`` of a folder (task, labels, metrics, ...); {} if there is none."""
    path = Path(folder) / CARD
    card = read_json(path) if path.exists() else {}
    columns = card.get("columns")
    if not isinstance(columns, Mapping | None) or not all(isinstance(kind, str) for kind in (columns or {}).values()):
        raise HeedfulError(f"{path}: columns is {columns!r}; it must be an object of names, or absent")
    return card


def multi_label(theirs: Mapping[str, Any]) -> bool:
    """Returns whether a ``config.json`` says that an input may have several labels, or none."""
    return theirs.get("problem_type") == MULTI_LABEL["problem_type"]


def regression(theirs: Mapping[str, Any]) -> bool:
    """Returns whether a ``config.json`` says that the only output of a classifier is a number: by its name, or as
    ``transformers`` takes one of a single output that says nothing.
    """
    problem, names = theirs.get("problem_type"), theirs.get("id2label")
    labels = len(names) if isinstance(names, Mapping) else theirs.get("num_labels", 2)
    return problem == REGRESSION["problem_type"] or (problem is None and labels == 1)


def to_json(data: Any) -> bytes:
    """JSON for people: indented, keys in order, text as it is but for halves of surrogate pairs, which are escaped."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text).encode()


@contextmanager
def written(folder: Path, stale: re.Pattern[str] | None = None) -> Iterator[Path]:
    """Returns a place to write files that come to stand in ``folder``: all of them when the block ends well, else none.

    A new folder appears whole. In an existing one the files are put beside the others under a name that says that they
    are all there; from then on they count, and ``settle`` moves them, now or, after a crash, when the folder is opened.
    Other files stay, but for those whose whole names fit ``stale`` and that are not among the new. A file may stand in
    a folder of its own there ("1_Pooling/config.json").
    """
    beside = folder / files.temporary_name() if folder.is_dir() else files.temporary_path(folder)
    try:
        beside.mkdir(parents=True)
        yield beside
        names = sorted(file.relative_to(beside).as_posix() for file in beside.rglob("*") if file.is_file())
        for name in names:
            with (beside / name).open("rb+") as file:
                os.fsync(file.fileno())  # the bytes before the name: a power cut leaves the old files or the new ones
        if folder.exists():
            old = [file.name for file in folder.iterdir() if stale and stale.fullmatch(file.name)]
            (beside / MOVES).write_bytes(to_json({"new": names, "old": sorted({*old} - {*names})}))
            files.move(beside, folder / f".{time.time_ns()}{READY}")
            settle(folder)
        else:
            files.move(beside, folder)
    except OSError as error:
        raise HeedfulError(f"cannot write {folder}: {reason(error)}; free some room or choose another folder") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def settle(folder: Path) -> None:
    """Brings to an end what ``written`` began in ``folder``; a process that does the same meanwhile does no harm."""
    for ready in sorted(folder.glob(f".*{READY}")):
        if (ready / MOVES).exists():
            _moved(ready, folder)
        with suppress(OSError):  # the other process was quicker
            for inner in [file for file in ready.iterdir() if file.is_dir()]:
                inner.rmdir()
            ready.rmdir()


def _moved(ready: Path, folder: Path) -> None:
    moves = read_json(ready / MOVES)
    new, old = moves.get("new"), moves.get("old")
    if ready.is_symlink() or not all(isinstance(names, list) and all(map(_plain, names)) for names in (new, old)):
        raise HeedfulError(f"{ready} was not written by heedful; remove it")
    for name in moves["new"]:
        (folder / name).parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # it was moved before
            files.move(ready / name, folder / name)
    for name in moves["old"]:
        (folder / name).unlink(missing_ok=True)
    (ready / MOVES).unlink(missing_ok=True)


def _plain(name: Any) -> bool:
    """Returns whether a name is that of a file of the folder, or of a folder in it."""
    return isinstance(name, str) and 0 < len(parts := name.split("/")) <= 2 and all(map(_inside, parts))


def _inside(part: str) -> bool:
    return Path(part).name == part and part not in ("", ".", "..")


def reason(error: Exception) -> str:
    """Returns the first line of what an error says."""
    said = getattr(error, "strerror", None) or str(error)
    return next(iter(said.splitlines()), type(error).__name__)
