"""docs/inside.md: its table is that of the code, its code runs, and its options, views, files and figures exist."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from heedful import cli
from heedful.inspection.tensor_paths import TENSORS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "inside.md").read_text(encoding="utf-8")


def test_the_table_of_tensors_is_the_codes_own() -> None:
    owners: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for module, kinds in TENSORS.items():
        for kind in kinds:
            owners[kind.name, kind.axes, kind.description].append(module.__name__)
    rows = [
        f"| {', '.join(modules)} | `{name}` | ({', '.join(axes)}) | {description} |"
        for (name, axes, description), modules in owners.items()
    ]
    shown = re.findall(r"^\| [^|]* \| `\w+` \| \(.*$", PAGE, re.M)
    assert shown == rows


def test_the_code_runs() -> None:
    names: dict[str, Any] = {}
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(block, names)
    assert names["recorded"].keys() == {"decoder.block.2.attention.pattern", "decoder.block.2.stream"}
    assert names["smaller"].num_parameters() < names["model"].num_parameters()
    assert len(names["found"]) == 16
    assert names["worth"].change["decoder.block.0.attention"].shape == (4,)


def test_options_and_views_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    said = ""
    for command in (["inspect", "--help"], ["train", "--help-all"]):
        assert cli.main(command) == 0
        said += capsys.readouterr().out
    for option in set(re.findall(r"(?<![\w-])--[a-z][\w.-]+", PAGE)):
        assert option.rstrip(".") in said, option
    views = re.findall(r"^\| `(\w+)` \| ", PAGE, re.M)
    assert len(views) == 14
    assert all(view in said for view in views)


def test_files_and_pictures_are_there() -> None:
    named = re.findall(r"`((?:examples|benchmarks|tests)/[\w/]+\.py)`", PAGE)
    named += [f"docs/{name}" for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", PAGE)]
    assert len(named) >= 8
    for name in named:
        assert (ROOT / name).is_file(), name
