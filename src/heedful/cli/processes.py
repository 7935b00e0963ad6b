"""The processes that ``torchrun`` started together, as it says in the environment: who speaks, and what they may share.

For what comes before torch; the work itself is shared out by ``heedful.training.ranks``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from heedful.errors import HeedfulError

SHARED = (["train"], ["evaluate"], ["predict"])  # what several processes do together


def rank() -> int:
    """This process's number among them: 0 speaks. Alone it is 0."""
    return int(os.environ.get("RANK", "0"))


def several() -> bool:
    """Whether there are others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def check_shared(tokens: Sequence[str]) -> None:
    """Several processes may only run a command that shares its work among them."""
    if several() and tokens[:1] not in SHARED:
        raise HeedfulError(
            "torchrun's processes share the work of heedful train, evaluate, and predict --in; leave torchrun out"
        )
