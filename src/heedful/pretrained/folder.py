"""Pretrained folders: finds them locally or on the Hub, reads their JSON files, writes files atomically. No torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from heedful.config import EnsembleConfig
from heedful.errors import HeedfulError
from heedful.util import files
from heedful.util.downloads import Refused, cached_folder, fetched

CONFIG, HEEDFUL_JSON, GENERATION, WEIGHTS = "config.json", "heedful.json", "generation_config.json", "model.safetensors"
INDEX, MODEL_CARD = "model.safetensors.index.json", "README.md"
PICKLE, PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
ADAPTER_CONFIG = "adapter_config.json"  # PEFT's
READY, MOVES = ".ready", "moves.json"  # suffix of a folder of files to be moved, and the list of these files
# entries of config.json
MULTI_LABEL = {"problem_type": "multi_label_classification"}
REGRESSION = {"problem_type": "regression"}
# file name patterns of downloads and uploads
SHARD_SUFFIX = "-?????-of-?????"
SAFETENSORS_FILES = (
    *("model.safetensors", f"model{SHARD_SUFFIX}.safetensors", "adapter_model.safetensors"),
    *("member-[0-9]*/model.safetensors", f"member-[0-9]*/model{SHARD_SUFFIX}.safetensors"),
)
PICKLE_FILES = ("pytorch_model.bin", f"pytorch_model{SHARD_SUFFIX}.bin", "adapter_model.bin")
TEXT_FILES = ("*.json", "*.txt", "*.model", "*.spm", "*.jinja")  # downloaded: configurations, indices, tokenizers
TOKENIZER_FILES = (  # of tokenizers and preprocessing
    *("tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "target_vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "vocab.txt"),
    *("*.spm", "spm.model", "spiece.model", "sentencepiece.bpe.model"),
    *("preprocessor_config.json", "processor_config.json"),
    *("sentence_bert_config.json", "config_sentence_transformers.json"),
)
CONFIG_FILES = (CONFIG, HEEDFUL_JSON, GENERATION, INDEX, ADAPTER_CONFIG, "modules.json")
CARD_FILES = (MODEL_CARD, "LICENSE*", "NOTICE*")
MEMBER_FILES = "member-[0-9]*/*"  # of an ensemble
POOLING_FILES = "[0-9]_*/config.json"  # of sentence-transformers, as "1_Pooling/config.json"

_HUB_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*(/[\w.-]+)?)(@(?P<revision>[^@\s]+))?")


def find(folder_or_id: str | Path, revision: str | None = None) -> Path:
    """Returns the folder of a model: a local one, or a Hub id ("org/name", "org/name@revision") downloaded once."""
    if not isinstance(folder_or_id, str | Path):
        raise HeedfulError(f"give a model's folder or Hub id, not a {type(folder_or_id).__name__}")
    folder = Path(folder_or_id).expanduser()
    if folder.is_dir():
        if revision is not None:
            raise HeedfulError(f"revision is {revision!r}, but {folder} is a local folder; leave it out")
        _recover(folder)
        return folder
    if folder.exists():
        raise HeedfulError(f"{folder} is a file; give the model's folder")
    match = None if isinstance(folder_or_id, Path) else _HUB_ID.fullmatch(folder_or_id)
    if match is None:
        remedy = similar_folder(folder) or "give a model's folder or a Hub id such as 'org/name'"
        raise HeedfulError(f"no folder {folder_or_id} here; {remedy}")
    if revision is not None and match["revision"] not in (None, revision):
        raise HeedfulError(f"{folder_or_id} names a revision, and revision={revision!r} names another; give only one")
    remedy = similar_folder(folder) or "check the name, or download the folder first"
    return fetch(match["name"], revision or match["revision"], remedy=remedy)


def similar_folder(folder: Path) -> str:
    """Returns a hint at the model's folder beside a missing ``folder`` whose name is similar; "" if there is none."""
    close = files.similar_path(folder)
    holds_model = close is not None and any((close / name).is_file() for name in (CONFIG, ADAPTER_CONFIG))
    return f"did you mean {str(close)!r}?" if holds_model else ""


def fetch(name: str, revision: str | None = None, *, remedy: str) -> Path:
    """Returns the folder of a Hub id in the Hub's cache. Pickles are downloaded only if there are no safetensors.

    Raises ``HeedfulError``, which ends in ``remedy``, for an unknown name or revision, a gated model, or an unreachable
    network.
    """
    try:
        snapshot = fetched(name, (*TEXT_FILES, *SAFETENSORS_FILES), revision)
        if not _has_weights(snapshot, SAFETENSORS_FILES):
            snapshot = fetched(name, (*TEXT_FILES, *SAFETENSORS_FILES, *PICKLE_FILES), revision)
    except Refused as refused:
        raise HeedfulError(f"no folder {name} here, and the Hub {refused}; {remedy}") from None
    return snapshot


def downloaded(name: str) -> bool:
    """Returns True if the Hub's cache has the model ``name``, in its main revision. Asks no network."""
    snapshot = cached_folder(name, CONFIG)
    return snapshot is not None and _has_weights(snapshot, (*SAFETENSORS_FILES, *PICKLE_FILES))


def _has_weights(snapshot: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(snapshot.glob(pattern), None) for pattern in patterns)


def _recover(folder: Path) -> None:
    """Finishes a write that was interrupted."""
    try:
        finish_writing(folder)
    except OSError as error:
        raise HeedfulError(
            f"a write to {folder} was interrupted and cannot be finished ({reason(error)}); make the folder writable"
        ) from None


def read_required_json(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file; raises ``HeedfulError`` if the file is missing or holds something else."""
    if not os.path.lexists(path):
        raise HeedfulError(f"{path.parent} is not a model folder: {path.name} is missing; give a model's folder")
    data = files.read_json(path, "save the model again")
    if not isinstance(data, dict):
        raise HeedfulError(f"{path} is not a JSON object; save the model again")
    return data


SECTIONS = ("data", "pooling")  # of the settings of a run, which a folder's task reads


def read_card(folder: str | Path) -> dict[str, Any]:
    """Returns the contents of a folder's ``heedful.json`` (task, labels, metrics, ...); {} if there is none."""
    path = Path(folder) / HEEDFUL_JSON
    card = read_required_json(path) if path.exists() else {}
    columns = card.get("columns")
    if not isinstance(columns, Mapping | None) or not all(isinstance(kind, str) for kind in (columns or {}).values()):
        raise HeedfulError(f"{path}: columns is {columns!r}; write an object of names, or remove it")
    settings = card.get("settings", {})
    if not isinstance(settings, Mapping) or not all(isinstance(settings.get(name, {}), Mapping) for name in SECTIONS):
        raise HeedfulError(f"{path}: settings is {settings!r:.60}; write an object of sections, or remove it")
    return card


def is_ensemble(folder: Path) -> bool:
    """Returns True if a folder holds an ensemble, whose members have folders of their own."""
    path = folder / CONFIG
    return path.exists() and read_required_json(path).get("kind") == EnsembleConfig.kind


def is_model_file(path: Path) -> bool:
    """Returns True if a file has the name of one of a model: its weights, configurations, tokenizer or card.

    >>> [is_model_file(Path(name)) for name in ("model-00001-of-00002.safetensors", "tokenizer.json", "notes.md")]
    [True, True, False]
    """
    patterns = (*CARD_FILES, *CONFIG_FILES, *TOKENIZER_FILES, *SAFETENSORS_FILES)
    return any(fnmatch(path.name, pattern) for pattern in patterns)


def member_folder(folder: Path, number: int = 0) -> Path:
    """Returns the folder of a member of the ensemble in ``folder``.

    >>> member_folder(Path("runs/labels"), 1).name
    'member-1'
    """
    return folder / f"member-{number}"


def members_of(folder: Path) -> list[Path]:
    """Returns the folders of the members of the ensemble in ``folder``; [] for any other model."""
    if not is_ensemble(folder):
        return []
    members = read_required_json(folder / CONFIG).get("members")
    if not isinstance(members, list) or len(members) < 2:
        raise HeedfulError(f"{folder / CONFIG}: an ensemble has a list of two or more members; save the model again")
    return [member_folder(folder, number) for number in range(len(members))]


def is_multi_label(hub: Mapping[str, Any]) -> bool:
    """Returns True if ``config.json`` declares a multi-label classifier: an input has any number of labels."""
    return hub.get("problem_type") == MULTI_LABEL["problem_type"]


def is_regression(hub: Mapping[str, Any]) -> bool:
    """Returns True if ``config.json`` declares a regression model.

    As in ``transformers``, a classifier with one output and no ``problem_type`` is a regression model.
    """
    problem, names = hub.get("problem_type"), hub.get("id2label")
    labels = len(names) if isinstance(names, Mapping) else hub.get("num_labels", 2)
    return problem == REGRESSION["problem_type"] or (problem is None and labels == 1)


def indented_json(data: Any) -> bytes:
    """Returns indented JSON in UTF-8, keys in their order; lone surrogates are escaped."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text).encode()


@contextmanager
def atomic_write(
    folder: Path, stale: re.Pattern[str] | None = None, stale_folders: Iterable[Path] = ()
) -> Iterator[Path]:
    """Context manager that yields a temporary folder, whose files replace those of ``folder`` if the block succeeds.

    Either all files are replaced, or none.
    A new folder is renamed into place. For an existing folder, the temporary one is first renamed to a name that marks
    it as complete; ``finish_writing`` then moves its files, now or, after a crash, when the folder is next opened.
    Other files stay, except those whose names match ``stale`` and that are not written, and the files of the models in
    ``stale_folders``, subfolders of ``folder``. Files may be in subfolders ("1_Pooling/config.json").
    """
    beside = folder / files.temporary_name() if folder.is_dir() else files.temporary_path(folder)
    try:
        beside.mkdir(parents=True)
        yield beside
        names = sorted(file.relative_to(beside).as_posix() for file in beside.rglob("*") if file.is_file())
        for name in names:
            with (beside / name).open("rb+") as file:
                os.fsync(file.fileno())  # content before rename: a power cut leaves the old files or the new ones
        if folder.exists():
            old = [file.name for file in folder.iterdir() if stale and stale.fullmatch(file.name)]
            inner = (file for part in stale_folders if part.is_dir() for file in part.iterdir())
            old += [file.relative_to(folder).as_posix() for file in inner if file.is_file() and is_model_file(file)]
            (beside / MOVES).write_bytes(indented_json({"new": names, "old": sorted({*old} - {*names})}))
            files.move(beside, folder / f".{time.time_ns()}{READY}")
            finish_writing(folder)
        else:
            files.move(beside, folder)
    except OSError as error:
        raise HeedfulError(
            f"cannot write {folder}: {reason(error)}; free some space or choose another folder"
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def finish_writing(folder: Path) -> None:
    """Moves the files of complete but interrupted writes of ``atomic_write``; several processes may do so at once."""
    for ready in sorted(folder.glob(f".*{READY}")):
        if (ready / MOVES).exists():
            _move_files(ready, folder)
        with suppress(OSError):  # another process was quicker
            for inner in [file for file in ready.iterdir() if file.is_dir()]:
                inner.rmdir()
            ready.rmdir()


def _move_files(ready: Path, folder: Path) -> None:
    moves = read_required_json(ready / MOVES)
    new, old = moves.get("new"), moves.get("old")
    if ready.is_symlink() or not all(isinstance(names, list) and all(map(_is_inside, names)) for names in (new, old)):
        raise HeedfulError(f"{ready} was not written by heedful; remove it")
    for name in moves["new"]:
        (folder / name).parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # already moved
            files.move(ready / name, folder / name)
    for name in moves["old"]:
        (folder / name).unlink(missing_ok=True)
    for part in {(folder / name).parent for name in moves["old"]} - {folder}:
        with suppress(OSError):  # it holds other files
            part.rmdir()
    (ready / MOVES).unlink(missing_ok=True)


def _is_inside(name: Any) -> bool:
    """Returns True if a name is a file of the folder, or of a direct subfolder."""
    parts = name.split("/") if isinstance(name, str) else []
    return 0 < len(parts) <= 2 and all(Path(part).name == part and part not in ("", ".", "..") for part in parts)


def reason(error: Exception) -> str:
    """Returns the first line of an error's message."""
    message = getattr(error, "strerror", None) or str(error)
    return next(iter(message.splitlines()), type(error).__name__)
