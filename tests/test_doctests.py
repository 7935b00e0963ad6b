"""Every example in the package's docstrings, run; and every public part has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

import heedful
import heedful.layers
import heedful.models

SOURCE = Path(heedful.__file__).parent


def with_examples() -> Iterator[str]:
    """The modules whose source has a prompt, none of them imported: each process of a run collects this file."""
    for path in sorted(SOURCE.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            yield ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def examples_of(module: str) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    return [test for test in found if test.examples]


@pytest.mark.parametrize("module", list(with_examples()))
def test_examples(module: str) -> None:
    report: list[str] = []
    for example in examples_of(module):
        torch.manual_seed(0)
        with torch.random.fork_rng():
            torch.set_printoptions(profile="default", sci_mode=False)
            example.globs = {**example.globs}
            doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=report.append)
        torch.set_printoptions(profile="default")
    assert not report, "".join(report)


# what a position scheme of one's own is made of: docs/own_parts.md shows its use
OF_SCHEMES = {"Distances", "PositionBias", "PositionEncoding", "PositionScheme", "RelativeEncoding", "RelativeLayer"}
OF_SCHEMES |= {"Terms"}
PARTS = [f"heedful.layers.{name}" for name in heedful.layers.__all__ if name not in OF_SCHEMES]
PARTS += [f"heedful.{name}" for name in ("Block", "Stack", "Encoder", "Decoder", "EncoderDecoder", "VisionTransformer")]


@pytest.mark.parametrize("part", PARTS)
def test_every_public_part_shows_its_use(part: str) -> None:
    """At least an example that computes something, of at most five lines and a few for what it prints."""
    owner, _, name = part.rpartition(".")
    text = inspect.getdoc(getattr(importlib.import_module(owner), name)) or ""
    examples = doctest.DocTestParser().get_examples(text)
    assert any(name in example.source for example in examples), f"{part} has no example in its docstring"
    assert sum(example.want != "" for example in examples) > 0


def test_the_examples_are_found() -> None:
    """In every module but those that run when they are imported."""
    names = [module.name for module in pkgutil.walk_packages(heedful.__path__, "heedful.")]
    found = {name: len(examples_of(name)) for name in names if not name.endswith("__main__")}
    assert {name for name, count in found.items() if count} <= {*with_examples()}
    assert sum(found.values()) > 60
