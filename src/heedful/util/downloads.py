"""Downloads from the Hugging Face Hub, through ``huggingface_hub``, into its cache.

The client's own settings apply: ``HF_HOME``, ``HF_ENDPOINT``, ``HF_TOKEN``, and ``HF_HUB_OFFLINE=1``, which allows only
earlier downloads.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal


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
