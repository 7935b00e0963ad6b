"""Cases that are wrong on purpose, one of each sort: the fuzzer has to find every one of them."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from sandbox import CANARY, Case, Fault

from heedful.errors import HeedfulError

NAMES = (
    "accepted",
    "refused",
    "exception",
    "message",
    "hang",
    "waits",
    "memory",
    "written",
    "executed",
    "crash",
    "fault",
)
NAMES += ("code",)


def prepare(root: Path) -> None:
    """Nothing is needed."""


def case(random: Random, root: Path, folder: Path) -> Case:
    """The case whose number the folder is named after."""
    name = NAMES[int(folder.name)]

    def wrong() -> str:
        match name:
            case "refused":
                raise HeedfulError("no such file: x; check the path")
            case "exception":
                raise KeyError("x")
            case "message":
                raise HeedfulError(" ")  # says nothing
            case "hang":
                while True:
                    pass
            case "waits":
                time.sleep(3600)
            case "memory":
                time.sleep(0.2 * float(np.ones(120 << 20, np.uint8)[-1]))
            case "written":
                (root.parent / "elsewhere").write_text("x")
            case "executed":
                subprocess.run(["true"], check=True)
            case "crash":
                os.abort()
            case "fault":
                raise Fault("not as it should be")
            case "code":
                (folder / "out" / CANARY).touch()
        return "nothing"

    made: Callable[[], str] = wrong
    return name, made
