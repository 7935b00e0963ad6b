"""Errors for people: one line that says what happened and what to do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import heedful
from heedful.errors import HeedfulError, InputError, lookup, nearest, shorten

PACKAGE = Path(heedful.__file__).parent


def text_of(node: ast.expr) -> str:
    """The text of an expression, with {} for what is only known when it runs."""
    match node:
        case ast.Constant():
            return str(node.value)
        case ast.JoinedStr():
            return "".join(map(text_of, node.values))
        case ast.BinOp():
            return text_of(node.left) + text_of(node.right)
    return "{}"


def messages() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "HeedfulError" and node.args:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text_of(node.args[0])


def test_every_message_says_what_to_do() -> None:
    """A remedy follows a semicolon, or is a command that installs; a message may pass on another's, which has one."""
    found = list(messages())
    assert len(found) > 1000
    without = [
        (place, text)
        for place, text in found
        if ";" not in text and "pip install" not in text and not text.endswith("{}") and "give " not in text
    ]
    assert without == []


def test_no_message_ends_as_a_sentence_or_has_a_line_break() -> None:
    assert [(place, text) for place, text in messages() if text.rstrip(".") + "." == text or "\n" in text] == []


def test_a_message_is_one_line_whatever_it_quotes() -> None:
    assert str(HeedfulError("no such file: a\nb.tsv; check\r\nthe path")) == "no such file: a b.tsv; check the path"
    assert isinstance(HeedfulError("x"), ValueError), "in Python it is an ordinary error"


@pytest.mark.parametrize("length", [30, 80, 500])
def test_a_long_message_keeps_its_beginning_and_its_remedy(length: int) -> None:
    line = shorten("begin " + "word " * 1000 + "; give less", length)
    assert len(line) <= length
    assert line.startswith("begin")
    assert line.endswith("; give less")
    assert shorten("short; give more", length) == "short; give more"


def test_an_input_is_named_by_its_place() -> None:
    error = InputError(3, "has no text")
    assert (str(error), str(error.named("a.txt:4"))) == ("input 3 has no text", "a.txt:4 has no text")


def test_an_unknown_name_gets_the_nearest_or_the_known_ones() -> None:
    assert lookup({"relu": 1}, "relu", "activation") == 1
    with pytest.raises(HeedfulError, match="unknown activation 'rleu'; did you mean 'relu'"):
        lookup({"relu": 1, "gelu": 2}, "rleu", "activation")
    assert nearest("RELU", ["relu"]) == "did you mean 'relu'?", "whatever the case of its letters"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
