"""The set of parameters: pieces of docstrings that describe one, no function in two parts, no answer either."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from python_sources import parameters
from python_sources.parameters import FORMS, LONGEST, MOST, described

from heedful.data.rows import Span

PARTS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def sets() -> dict[str, list[dict[str, Any]]]:
    return {part: parameters.rows(part) for part in PARTS}


def named(row: dict[str, Any]) -> str:
    """The parameter that is asked for."""
    patterns = (
        re.escape(form).replace(r"\{parameter\}", r"(\w+)").replace(r"\{function\}", r"[\w.]+") for form in FORMS
    )
    (name,) = (match[1] for pattern in patterns if (match := re.fullmatch(pattern, row["question"])))
    return name


@pytest.mark.full
def test_a_few_thousand_questions_of_several_forms(sets: dict[str, list[dict[str, Any]]]) -> None:
    assert 1500 < len(sets["train"]) < 6000
    assert all(150 < len(sets[part]) < len(sets["train"]) / 4 for part in ("valid", "test"))
    for rows in sets.values():
        assert max(Counter((row["function"], row["context"]) for row in rows).values()) <= MOST
        forms = Counter(re.sub(r"`[^`]*`", "", row["question"]) for row in rows)
        assert len(forms) == len(FORMS)
        assert max(forms.values()) < 2 * min(forms.values())


@pytest.mark.full
def test_answers_are_pieces_of_what_names_the_parameter(sets: dict[str, list[dict[str, Any]]]) -> None:
    for row in (row for rows in sets.values() for row in rows):
        (span,) = row["answers"]
        assert row["context"][span.start : span.start + len(span.text)] == span.text == span.text.strip()
        assert re.search(rf"(?<!\w){named(row)}(?!\w)", row["context"][: span.start])
        assert row["function"] in row["question"]
        assert len(row["context"]) <= LONGEST
        assert "\n\n" not in span.text
        assert " " in span.text


def test_a_package_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "PACKAGES", ("babel", "sacrebleu"))
    home = parameters.home
    both = list(parameters._files())
    monkeypatch.setattr(parameters, "home", lambda package: None if package == "babel" else home(package))
    assert 0 < len(list(parameters._files())) < len(both)


@pytest.mark.full
def test_no_function_and_no_answer_is_in_two_parts(sets: dict[str, list[dict[str, Any]]]) -> None:
    for what in (
        lambda row: row["function"].rpartition(".")[2].casefold(),
        lambda row: row["answers"][0].text,
        lambda row: row["context"],
    ):
        seen = [{what(row) for row in sets[part]} for part in PARTS]
        assert len(set().union(*seen)) == sum(map(len, seen))
    rows = sets["train"] + sets["valid"] + sets["test"]
    assert len({(row["question"], row["context"]) for row in rows}) == len(rows)


@pytest.mark.full
def test_signatures_are_those_of_the_installed_packages(sets: dict[str, list[dict[str, Any]]]) -> None:
    """The contexts of some well-known functions begin their own docstrings, as Python itself gives them."""
    owners: dict[str, Any] = {name: getattr(torch.nn, name) for name in ("Conv1d", "Dropout", "Embedding", "LSTM")}
    owners |= {name: getattr(np, name) for name in ("linspace", "repeat", "full", "cross", "roll", "tile", "interp")}
    owners |= {"SGD": torch.optim.SGD, "svd": np.linalg.svd, "rot90": np.rot90, "identity": np.identity}
    found = 0
    for row in (row for rows in sets.values() for row in rows):
        if row["function"] in owners:
            found += (inspect.getdoc(owners[row["function"]]) or "").startswith(row["context"])
    assert found >= 4


@pytest.mark.full
def test_questions_without_an_answer(sets: dict[str, list[dict[str, Any]]]) -> None:
    for part in PARTS:
        rows = parameters.rows(part, unanswered=True)
        without = [row for row in rows if not row["answers"]]
        assert 0.1 < len(without) / len(rows) < 0.35
        assert all(not re.search(rf"(?<!\w){named(row)}(?!\w)", row["context"]) for row in without)
        key = Counter((row["question"], row["context"]) for row in rows if row["answers"])
        assert key == Counter((row["question"], row["context"]) for row in sets[part])
        shared = {named(row) for row in without} & {named(row) for row in rows if row["answers"]}
        assert len(shared) > 5  # the name alone does not tell


NUMPY = """Add two numbers.

Parameters
----------
x, y : array_like
    The numbers, e.g. 2. They are
    broadcast.
out : ndarray, optional
    Where to put
    the result
**kwargs
    Others; see below.

Returns
-------
sum : ndarray
    The sum of both.
"""
GOOGLE = """Open a file.

Args:
    path (`str` or `Path`, *optional*):
        The path to open. It must exist.
    mode (Callable[[int], str]): how: to read
        or to write

        Long story.
    *rest: the others.
    odd:

Returns:
    result: a file of its own
"""
SPHINX = """Draw.

:param xy: Two points:
    a list of them.
:param int width: The line's width. In pixels.
:param fill: color
:returns: nothing at all
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            NUMPY,
            {
                "x": "The numbers, e.g. 2",
                "y": "The numbers, e.g. 2",
                "out": "Where to put\n    the result",
                "kwargs": "Others; see below",
            },
        ),
        (GOOGLE, {"path": "The path to open", "mode": "how: to read\n        or to write", "rest": "the others"}),
        (SPHINX, {"xy": "Two points:\n    a list of them", "width": "The line's width"}),
        ("No parameters.", None),
        ("One.\n\nArgs:\n    x: the only one.\n", None),
        (NUMPY.replace("Add", "Add " + "and " * 400), None),
    ],
)
def test_the_three_styles(text: str, expected: dict[str, str] | None) -> None:
    found = described("f", text)
    if expected is None:
        assert found is None
        return
    assert found is not None
    assert {name: span.text for name, span in found.parameters.items()} == expected
    assert all(text[span.start :].startswith(span.text) for span in found.parameters.values())
    assert found.text == text[: len(found.text)]
    assert "Returns" not in found.text
    assert ":returns" not in found.text
    assert isinstance(next(iter(found.parameters.values())), Span)
