"""Downloads from the Hugging Face Hub, through ``huggingface_hub``, into its cache.

The client's own settings apply: ``HF_HOME``, ``HF_ENDPOINT``, ``HF_TOKEN``, and ``HF_HUB_OFFLINE=1``, which allows only
earlier downloads.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

PATIENCE = 3.0  # seconds in which the Hub must answer


class Refused(Exception):
    """Failed download. Its message completes a sentence that begins with "the Hub": "has no such repository"."""


def fetched(
    name: str, patterns: Iterable[str], revision: str | None = None, kind: Literal["model", "dataset"] = "model"
) -> Path:
    """Downloads the files of a Hub repository that match ``patterns``, and returns their folder in the Hub's cache.

    Raises ``Refused`` for an unknown name or revision, a gated repository, or an unreachable network.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(name, repo_type=kind, revision=revision, allow_patterns=list(patterns)))
    except GatedRepoError:
        reason = "requires a login (hf auth login) with access to this repository"
    except RevisionNotFoundError:
        reason = f"does not have the revision {revision!r}"
    except (RepositoryNotFoundError, HFValidationError):
        reason = "has no such repository either" if kind == "model" else "has no such repository"
    except Exception as error:  # of the network, a proxy or the Hub's client
        reason = f"cannot be reached ({type(error).__name__})"
        if HF_HUB_OFFLINE:
            reason = "is not used while HF_HUB_OFFLINE is set, and there is no earlier download"
    raise Refused(reason)


def cached_folder(name: str, file: str) -> Path | None:
    """Returns the folder of an earlier download of the main revision of ``name`` that has ``file``; None without."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in a notebook without ipywidgets: about the bar of downloads
        from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(name, file)
    return Path(path).parent if isinstance(path, str) else None


def is_offline() -> bool:
    """Returns True if ``HF_HUB_OFFLINE`` forbids requests to the Hub."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


class ServerCheck:
    """Check in a thread of its own that a server answers, through the proxies that the Hub's client uses.

    Args:
        address: the server's.
        patience: seconds in which it must answer; looking up its name may take longer, without a limit.
    """

    def __init__(self, address: str, patience: float) -> None:
        self._address, self._patience, self._answers = address, patience, False
        self._thread = threading.Thread(target=self._request, daemon=True)
        self._thread.start()

    def _request(self) -> None:
        from huggingface_hub import get_session

        with suppress(Exception):  # of the network, a proxy or a certificate
            self._answers = get_session().head(self._address, timeout=self._patience).status_code < 500

    def answers(self, seconds: float) -> bool:
        """Returns True if the server has answered; waits for at most ``seconds``."""
        self._thread.join(seconds)
        return self._answers


@cache
def _check_of(address: str) -> ServerCheck:
    return ServerCheck(address, PATIENCE)


def check_hub() -> None:
    """Begins to check that the Hub answers, once in a process, unless ``HF_HUB_OFFLINE`` is set."""
    if not is_offline():
        from huggingface_hub import constants

        _check_of(constants.ENDPOINT)


def hub_answers(seconds: float) -> bool:
    """Returns True if the Hub has answered ``check_hub``; waits for at most ``seconds``. False offline."""
    if is_offline():
        return False
    from huggingface_hub import constants

    return _check_of(constants.ENDPOINT).answers(seconds)
