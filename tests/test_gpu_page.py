"""docs/gpu.md: its commands, options and rows are those of the programs."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from heedful.settings import TrainingSettings

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
sys.path.insert(0, str(ROOT))


def test_options_of_the_benchmark_exist(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.gpu.__main__ import main

    with pytest.raises(SystemExit):
        main(["--help"])
    described = capsys.readouterr().out
    commands = re.findall(r"^    python -m benchmarks\.gpu (.*)$", PAGE, re.M)
    assert len(commands) == 2
    for option in {*re.findall(r"--[a-z-]+", " ".join(commands)), "--minutes", "--part", "--retry"}:
        assert option in described
        assert option in PAGE


def test_settings_exist() -> None:
    known = {field.name.replace("_", "-") for field in fields(TrainingSettings)}
    assert set(re.findall(r"--training\.([a-z0-9-]+)", PAGE)) <= known


def test_every_part_of_the_benchmark_is_in_the_table() -> None:
    from benchmarks.gpu.rows import ROWS

    parts = re.findall(r"^\| (all|\d) \|", PAGE, re.M)
    assert {0 if part == "all" else int(part) for part in parts} == {row.part for row in ROWS.values()}


def test_the_dry_run_is_the_variable_of_the_tests() -> None:
    (variable,) = re.findall(r"^    (\w+)=1 python -m pytest", PAGE, re.M)
    assert f'os.environ.get("{variable}")' in (ROOT / "tests" / "gpu" / "test_cuda.py").read_text(encoding="utf-8")


def test_expected_failures_are_those_of_the_tests() -> None:
    source = (ROOT / "tests" / "gpu" / "test_pretend_gpu.py").read_text(encoding="utf-8")
    expected = source.count("pytest.mark.xfail")
    words = {0: "None", 1: "One", 2: "Two", 3: "Three"}
    assert f"{words[expected]} of its tests " in PAGE
