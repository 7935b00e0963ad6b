"""Downloads from the Hugging Face Hub, through ``huggingface_hub``, into its cache.

The client's own settings apply: ``HF_HOME``, ``HF_ENDPOINT``, ``HF_TOKEN``, and ``HF_HUB_OFFLINE=1``, with which only
earlier downloads are found.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal


class Refused(Exception):
    """What the Hub says, where it does not give something: "the Hub ..."."""


def fetched(
    name: str, patterns: Iterable[str], revision: str | None = None, kind: Literal["model", "dataset"] = "model"
) -> Path:
    """The folder, in the Hub's cache, with those files of a repository whose paths are like one of ``patterns``.

    Raises ``Refused`` for a name or revision that the Hub does not know, a gate, or a network that is away.
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
        said = "asks for a login (hf auth login) that its owners have let in"
    except RevisionNotFoundError:
        said = f"has no revision {revision!r} of it"
    except (RepositoryNotFoundError, HFValidationError):
        said = "does not know it either" if kind == "model" else "does not know it"
    except Exception as error:  # whatever the network, its proxies and the Hub's client come up with
        said = f"is out of reach ({type(error).__name__})"
        if HF_HUB_OFFLINE:
            said = "is not asked while HF_HUB_OFFLINE is set (nothing of it was brought here before)"
    raise Refused(said)
