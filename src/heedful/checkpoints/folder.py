"""A model's folder: found here or on the Hub, its JSON files read, files written beside and renamed. No torch here."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError

CONFIG, CARD, GENERATION, WEIGHTS = "config.json", "heedful.json", "generation_config.json", "model.safetensors"
INDEX, PICKLE = "model.safetensors.index.json", "pytorch_model.bin"
MULTI_LABEL = {"problem_type": "multi_label_classification"}  # in config.json, where an input may have several labels

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_HUB_FILES = ["*.json", "*.txt", "*.model", "*.spm", "model*.safetensors"]  # a pickle only where nothing else is


def find(folder_or_id: str | Path, revision: str | None = None) -> Path:
    """The folder of this name, or else the Hub's, downloaded once (``HF_HOME`` and offline mode are heard)."""
    folder = Path(folder_or_id).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise HeedfulError(f"{folder} is a file; give the model's folder")
    if isinstance(folder_or_id, Path) or not _HUB_ID.fullmatch(folder_or_id):
        raise HeedfulError(f"no folder {folder_or_id} here; give a model's folder or a Hub id such as 'org/name'")
    found = _download(folder_or_id, revision, _HUB_FILES)
    if not any((found / name).exists() for name in (WEIGHTS, INDEX)):
        found = _download(folder_or_id, revision, [*_HUB_FILES, PICKLE])
    return found


def _download(name: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except GatedRepoError:
        reason = "asks for a login (huggingface-cli login)"
    except RevisionNotFoundError:
        reason = f"has no revision {revision!r} of it"
    except (RepositoryNotFoundError, HFValidationError):
        reason = "does not know it either"
    except Exception as error:  # whatever the network, its proxies and the Hub's client come up with
        reason = f"is out of reach ({type(error).__name__})"
    raise HeedfulError(f"no folder {name} here, and the Hub {reason}; check the name, or download the folder first")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; a missing file, or one that is no JSON object, is an error that names it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HeedfulError(f"{path.parent} is no model's folder: {path.name} is missing") from None
    except json.JSONDecodeError as error:
        raise HeedfulError(f"broken JSON in {path}:{error.lineno}: {error.msg}; write the model anew") from None
    except (OSError, UnicodeDecodeError) as error:
        raise HeedfulError(f"cannot read {path}: {_reason(error)}") from None
    if not isinstance(data, dict):
        raise HeedfulError(f"{path} is no JSON object; write the model anew")
    return data


def read_card(folder: str | Path) -> dict[str, Any]:
    """What ``heedful.json`` in the folder says (task, labels, metrics, ...); {} where there is none."""
    path = Path(folder) / CARD
    return read_json(path) if path.exists() else {}


def label_names(theirs: Mapping[str, Any]) -> list[str]:
    """The names of the classes in a ``config.json``, in the order of their ids; [] where it tells none."""
    table = theirs.get("id2label")
    if not isinstance(table, Mapping):
        return []
    try:
        return [str(table[key]) for key in sorted(table, key=int)]
    except ValueError:
        raise HeedfulError(f"id2label has keys that are no numbers: {', '.join(table)}") from None


def multi_label(theirs: Mapping[str, Any]) -> bool:
    """Whether a ``config.json`` says that an input may have several labels, or none."""
    return theirs.get("problem_type") == MULTI_LABEL["problem_type"]


def to_json(data: Mapping[str, Any]) -> bytes:
    """JSON for people: indented, keys in order, text as it is."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


@contextmanager
def written(folder: Path) -> Iterator[Path]:
    """A place to write files that come to stand in ``folder``: all of them when the block ends well, else none.

    A new folder appears whole; in an existing one each file is renamed into place, and others stay.
    """
    place = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        place.mkdir(parents=True)
        yield place
        if folder.exists():
            for file in sorted(place.iterdir()):
                file.replace(folder / file.name)
            place.rmdir()
        else:
            place.rename(folder)
    except OSError as error:
        raise HeedfulError(
            f"cannot write {folder}: {_reason(error)}; free some room or choose another folder"
        ) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).splitlines()[0]
