"""Uploads a model's folder to the Hugging Face Hub. Imports no torch.

Downloads are in ``folder.py`` (``find``); ``heedful.util.downloads`` reads the Hub's environment variables.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from heedful import __version__
from heedful.errors import HeedfulError
from heedful.pretrained.folder import (
    CONFIG,
    HEEDFUL_JSON,
    MODEL_CARD,
    POOLING_FILES,
    indented_json,
    is_model_file,
    members_of,
    read_card,
    read_required_json,
)
from heedful.pretrained.model_card import card_of_folder, is_ours, shareable


def push(folder: str | Path, name: str, *, private: bool = False, revision: str | None = None) -> str:
    """Uploads a model's folder to the Hub: the files of the model, its tokenizer and its card, in one commit.

    Paths of this machine in ``heedful.json`` are reduced to file names, and a model card that heedful wrote has the
    name on the Hub in its code.

    Args:
        folder: a model's folder. Uploaded are weights, configurations, tokenizer, model card, files named LICENSE or
            NOTICE, and those that ``heedful.json`` lists as ``files``, but no other files (logs, checkpoints, texts).
        name: "org/name", or "name" for your own account; created if it does not exist.
        private: True makes a new repository private.
        revision: branch of the repository, created if it does not exist; None is "main".

    Returns:
        The URL of the repository.

    Raises:
        HeedfulError: if the Hub refuses the upload or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    folder = Path(folder).expanduser()
    files = model_files(folder)
    api = HfApi(library_name="heedful", library_version=__version__)
    try:
        url = api.create_repo(name, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(url.repo_id, branch=revision, exist_ok=True)
        if is_ours(folder) and MODEL_CARD in files:
            files[MODEL_CARD] = card_of_folder(folder, url.repo_id).encode()  # whose code then loads it from the Hub
        adds = [CommitOperationAdd(name, content) for name, content in files.items()]
        api.create_commit(url.repo_id, adds, commit_message="A model written by heedful", revision=revision)
        return str(url)
    except HFValidationError:
        problem = f"{name!r} is not a valid model name; use 'org/name'"
    except OfflineModeIsEnabled:
        problem = "HF_HUB_OFFLINE is set; unset it"
    except HfHubHTTPError as error:
        code = error.response.status_code
        message = error.server_message or f"status {code}"
        one_line = " ".join(message.split())
        problem = "you are not logged in; run hf auth login" if code == 401 else f"the Hub refuses it ({one_line})"
    except Exception as error:  # any failure of the network, a proxy or the Hub's client
        problem = f"the Hub cannot be reached ({type(error).__name__}); try again"
    raise HeedfulError(f"cannot upload {name} to the Hub: {problem}")


def check_push(name: str, option: str = "--push") -> None:
    """Raises ``HeedfulError`` unless ``name`` is one that a model on the Hub can have and a token is there.

    ``option`` is the option or the command that has the name, for the message.

    Asks no network: whether the Hub takes the token, only the upload tells.
    """
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    from heedful.util.downloads import is_offline

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise HeedfulError(f"{option} {name!r} is not a valid model name; use 'org/name'") from None
    if is_offline():
        raise HeedfulError(f"{option} {name} uploads to the Hub, but HF_HUB_OFFLINE is set; unset it")
    if get_token() is None:
        raise HeedfulError(f"{option} {name} uploads to the Hub, but you are not logged in; run hf auth login")


def push_run(folder: str | Path, name: str) -> str:
    """Uploads the model of a run that has ended, as :func:`push` does; an error says how to upload it later."""
    try:
        return push(folder, name)
    except HeedfulError as error:
        again = shlex.join(["heedful", "push", str(folder), name])
        raise HeedfulError(f"{error}; the run in {folder} is complete, upload it with: {again}") from None


def model_files(folder: Path) -> dict[str, Path | bytes]:
    """Returns the files of a model by name: paths, or of ``heedful.json`` its content without paths of this machine."""
    read_required_json(folder / CONFIG)  # raises if there is no model
    own = read_card(folder).get("files")  # of a task of one's own
    names = {file.name for file in folder.iterdir() if isinstance(own, list) and file.name in own}
    for inner in (folder, *members_of(folder)):
        known = filter(is_model_file, inner.iterdir())
        names |= {file.relative_to(folder).as_posix() for file in (*known, *inner.glob(POOLING_FILES))}
    files: dict[str, Path | bytes] = {name: folder / name for name in sorted(names) if (folder / name).is_file()}
    cards = [name for name in files if Path(name).name == HEEDFUL_JSON]  # an ensemble has one for each member too
    return files | {name: indented_json(shareable(read_card((folder / name).parent))) for name in cards}
