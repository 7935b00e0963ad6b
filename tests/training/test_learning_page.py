"""docs/learning.md: its options and files exist, and its formulae are those of the code."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import get_args

from torch import nn

from heedful.metrics.verdict import Kind
from heedful.settings import RunSettings, keys
from heedful.training.averages import Exponential, Polynomial
from heedful.training.schedule import SCHEDULES, schedule

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
VERDICTS = {kind for kind in get_args(Kind) if " " not in kind}


def test_every_option_and_file_is_there() -> None:
    known = {f"--{key.replace('_', '-')}" for key in keys(RunSettings)} | {
        "--lr-range-test",
        "--print-config",
        "--config",
    }
    known |= {"--port", "--no-open", "--json"}  # of heedful watch
    known |= {"--python"}  # of the benchmark of a busy machine
    assert set(re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", PAGE)) <= known
    for file in re.findall(r"`(\w+/\w+\.py)`", PAGE):
        assert (ROOT / "src" / "heedful" / file).is_file(), file
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M)) == {*SCHEDULES} | VERDICTS


def test_its_formulae_are_the_codes() -> None:
    done, floor = 0.93, 0.1
    step = 9301
    q = {"linear": done, "cosine": done, "wsd": (done - 0.8) / 0.2}
    told = {
        "linear": 1 - (1 - floor) * q["linear"],
        "cosine": floor + (1 - floor) * (1 + math.cos(math.pi * q["cosine"])) / 2,
        "wsd": 1 - (1 - floor) * math.sqrt(q["wsd"]),
    }
    for name, factor in told.items():
        assert math.isclose(schedule(name, 0, floor)(step, done), factor, rel_tol=1e-6), name
    polynomial, exponential = Polynomial(nn.Linear(1, 1), share=0.1), Exponential(nn.Linear(1, 1), decay=0.999)
    for t in (1, 7, 100, 20_000):
        polynomial.updates = exponential.updates = t
        gamma = 1 / 0.1 - 2
        assert math.isclose(polynomial.weight_of_update(), (gamma + 1) / (gamma + t))
        assert math.isclose(exponential.weight_of_update(), 1 - min(0.999, (1 + t) / (10 + t)), rel_tol=1e-9)
