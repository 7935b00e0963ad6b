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
    return _told("RANK", 0)


def several() -> bool:
    """Whether there are others."""
    return _told("WORLD_SIZE", 1) > 1


def _told(name: str, default: int) -> int:
    """A number in the environment; the default where that is none, of which ``check_shared`` has spoken."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else default


def check_shared(tokens: Sequence[str]) -> None:
    """Several processes are told who they are, and may only run a command that shares its work among them."""
    for name in ("RANK", "WORLD_SIZE"):
        if (text := os.environ.get(name, "0")) and not text.isdecimal():
            raise HeedfulError(f"{name} in the environment is {text!r}, no number; unset it, or start with torchrun")
    if several() and tokens[:1] not in SHARED:
        raise HeedfulError(
            "torchrun's processes share the work of heedful train, evaluate, and predict --in; leave torchrun out"
        )
