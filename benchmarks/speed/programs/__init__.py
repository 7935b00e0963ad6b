"""One file a program. Its function of a row's action opens the model and returns ``ready``: Work → the call that is
timed.

The call returns what the judge compares: of the rows "generation" and "beam" the new tokens (batch, new), of "encoder"
the last hidden states (batch, longest, dim), of "vit" the logits (batch, labels). The action of rows that train is
"training", and returns the losses of the first steps: see ``steps``. A program that is not there raises ``Absent``,
with a remedy.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed.works import Work

Call = Callable[[], Any]
Ready = Callable[[Work], Call]


class Absent(Exception):
    """This cannot be measured here, and why."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings that a program is opened with."""

    model: Path  # the folder that the program reads: see weights.place
    precision: str
    way: str
    threads: int
    device: str
    nanogpt: str | None = None


def need(*packages: str) -> None:
    """Raise ``Absent`` where a package is not installed."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise Absent(f"{name} is not installed (pip install {name.replace('_', '-')})")
