"""Uploads a model's folder to the Hugging Face Hub. No torch here.

Downloads are in ``folder.py`` (``find``); the Hub's own settings are heeded by ``heedful.util.downloads``.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from heedful import __version__
from heedful.errors import HeedfulError
from heedful.pretrained.folder import (
    CARD,
    CONFIG,
    POOLING_FILES,
    SAFETENSORS_FILES,
    TEXT_FILES,
    read_card,
    read_json,
    to_json,
)
from heedful.pretrained.model_card import shareable


def push(folder: str | Path, name: str, *, private: bool = False, revision: str | None = None) -> str:
    """Sends a model's folder to the Hub: the files of the model, its tokenizer and its card, in one commit.

    In ``heedful.json`` files and folders of this machine are called by their names alone.

    Args:
        folder: a model's folder; what a run keeps besides the model (folders, logs, checkpoints) stays here.
        name: "org/name", or "name" in one's own space; made where it does not exist.
        private: whether a new one is seen by its owners alone.
        revision: the branch, made where it does not exist; None is "main".

    Returns:
        The address of the repository. Raises ``HeedfulError`` where the Hub does not take it.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    files = _sent(Path(folder).expanduser())
    api = HfApi(library_name="heedful", library_version=__version__)
    try:
        made = api.create_repo(name, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(made.repo_id, branch=revision, exist_ok=True)
        adds = [CommitOperationAdd(name, content) for name, content in files.items()]
        api.create_commit(made.repo_id, adds, commit_message="A model written by heedful", revision=revision)
        return str(made)
    except HFValidationError:
        said = f"{name!r} is no name for a model there; take 'org/name'"
    except OfflineModeIsEnabled:
        said = "HF_HUB_OFFLINE is set; unset it"
    except HfHubHTTPError as error:
        code = error.response.status_code
        told = error.server_message or f"status {code}"
        said = "you are not logged in; run hf auth login" if code == 401 else f"it refuses ({_line(told)})"
    except Exception as error:  # whatever the network, its proxies and the Hub's client come up with
        said = f"it is out of reach ({type(error).__name__}); try again"
    raise HeedfulError(f"cannot send {name} to the Hub: {said}")


def _sent(folder: Path) -> dict[str, Path | bytes]:
    """Returns the files to upload by name; ``heedful.json`` without paths of this machine."""
    read_json(folder / CONFIG)  # raises where there is no model
    patterns = ("*.md", *TEXT_FILES, *SAFETENSORS_FILES)
    names = sorted(file.name for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    names += sorted(file.relative_to(folder).as_posix() for file in folder.glob(POOLING_FILES) if file.is_file())
    files: dict[str, Path | bytes] = {
        name: folder / name for name in names if any(fnmatch(name, pattern) for pattern in patterns)
    }
    return files | ({CARD: to_json(shareable(read_card(folder)))} if CARD in files else {})


def _line(text: str) -> str:
    return " ".join(text.split())
