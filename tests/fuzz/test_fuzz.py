"""The short form of the fuzzer, and that it finds what it looks for.

What fails is printed with the command that runs that case alone again, such as
``python tests/fuzz/fuzz.py folders --seed 1 --case 76 --show``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz.py")
SEEDS = {"folders": 1, "data": 1, "commands": 1, "environments": 1}
FOUND = {"waits": "hang", "code": "executed"}  # the sorts that are told under another name


def fuzz(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(FUZZ), *options], capture_output=True, text=True)


@pytest.mark.parametrize("name", sorted(path.stem for path in FUZZ.parent.glob("hostile_*.py")))
def test_the_fuzzer_imports(name: str) -> None:
    """The rest is left to the full suite; a name that is gone is noticed in the short one."""
    import_module(name)


@pytest.mark.skipif(sys.platform != "linux", reason="the fuzzer forks a process a case and reads /proc")
@pytest.mark.parametrize("kind", SEEDS)
@pytest.mark.full
def test_hostile_inputs_are_accepted_or_refused_in_a_line(kind: str) -> None:
    done = fuzz(kind, "--short", f"--seed={SEEDS[kind]}", "--workers=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kind}, seed {SEEDS[kind]}: " in done.stdout
    assert "accepted" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the fuzzer forks a process a case and reads /proc")
@pytest.mark.full
def test_every_sort_of_fault_is_found() -> None:
    done = fuzz("faults", "--json", "--workers=1", "--busy=1", "--waiting=10", "--memory=64")
    assert done.returncode == 1, done.stderr
    outcomes: list[Mapping[str, str]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["what"]: one["kind"] for one in outcomes} == {
        one["what"]: FOUND.get(one["what"], one["what"]) for one in outcomes
    }
    assert len(outcomes) == 12
