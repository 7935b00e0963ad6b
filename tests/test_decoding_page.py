"""docs/decoding.md: its Python runs, and it names every option and type."""

from __future__ import annotations

import re
from pathlib import Path

from heedful.generation.options import NAMES
from heedful.kernels import PLANS
from heedful.optimize_model import LINEAR_CLASSES

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "decoding.md").read_text(encoding="utf-8")


def test_its_python_runs() -> None:
    names: dict[str, object] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.S | re.M)
    assert len(blocks) == 7
    for block in blocks:
        exec(compile(block, "docs/decoding.md", "exec"), names)


def test_every_option_is_named() -> None:
    finer = {"num_assistant_tokens", "diversity_penalty", "renormalize_logits"}
    options = {*NAMES} - finer
    assert {name for name in options if not re.search(rf"\b{name}\b", PAGE)} == set()


def first_column(page: str) -> set[str]:
    """The names in the first column of a page's tables."""
    return {name for row in re.findall(r"^\| (`[^|]*) \|", page, re.M) for name in re.findall(r"`([\w-]+)`", row)}


def test_every_type_and_plan_is_named() -> None:
    optimise, kernels = re.split(r"^## (?=Optimise|Kernels)", PAGE, flags=re.M)[1:]
    assert first_column(optimise) - {"dtype", "--dtype"} == set(LINEAR_CLASSES) - {"float64"}
    assert first_column(kernels) == set(PLANS)
