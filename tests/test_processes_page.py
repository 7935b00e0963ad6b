"""docs/processes.md: its plan is the output of its formulas, and its options exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from heedful.settings import AveragingSettings, TrainingSettings

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "processes.md").read_text(encoding="utf-8")


def test_the_plan_is_what_the_formulas_give(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.S | re.M)
    exec(compile(block, "docs/processes.md", "exec"), {})
    (table,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.S | re.M)
    assert capsys.readouterr().out == table


def test_its_options_are_options() -> None:
    for section, name in re.findall(r"--(training|averaging)\.([a-z-]+)", PAGE):
        known = {
            field.name for field in fields({"training": TrainingSettings, "averaging": AveragingSettings}[section])
        }
        assert name.replace("-", "_") in known
