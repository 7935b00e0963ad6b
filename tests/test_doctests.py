"""Every example in the package's docstrings, run; and every public part has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest
import torch

import heedful
import heedful.layers
import heedful.models


def modules() -> Iterator[str]:
    """Every module but those that run when they are imported."""
    found = pkgutil.walk_packages(heedful.__path__, "heedful.")
    return (module.name for module in found if not module.name.endswith("__main__"))


EXAMPLES = [
    test
    for name in modules()
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(name))
    if test.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda test: test.name.removeprefix("heedful."))
def test_example(example: doctest.DocTest) -> None:
    torch.manual_seed(0)
    report: list[str] = []
    with torch.random.fork_rng():
        torch.set_printoptions(profile="default", sci_mode=False)
        example.globs = {**example.globs}
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=report.append)
    torch.set_printoptions(profile="default")
    assert not report, "".join(report)


PARTS = [f"heedful.layers.{name}" for name in heedful.layers.__all__]
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
    assert len(EXAMPLES) > 60
