"""The set of functions: what is taken of a source file, and that no function has its twin in another part."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from python_sources import functions

SOURCE = '''
def short(x):
    """Tell three words."""
    return x


class Box:
    """A class is no function."""

    def open(self, lid, *, quick=False):
        """Open the box by its lid.

        Slowly, if need be.
        """
        # "quick" is for people in a hurry
        if not quick:
            wait()
        return lid

    async def shut(self):
        "Shut the box, and wait for it."
        def inner(a):
            """Do what is inside of it."""
            b = a
            return b
        return inner(self)

    def one(self): "All of this is on one line."; return 1

    def empty(self):
        """Say nothing but what it is."""

    def silent(self):
        return 0
'''


def test_functions_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "boxes.py"
    file.write_text(SOURCE, encoding="utf-8")
    found = {name: (text, source) for text, source, name in functions._functions_of_file(str(file), "boxes")}
    assert list(found) == ["boxes.Box.open", "boxes.Box.shut", "boxes.Box.shut.inner"]
    text, source = found["boxes.Box.open"]
    assert text == "Open the box by its lid."
    assert source == (
        "def open(self, lid, *, quick=False):\n"
        '    # "quick" is for people in a hurry\n'
        "    if not quick:\n        wait()\n    return lid"
    )
    assert found["boxes.Box.shut"][1].startswith("async def shut(self):\n    def inner(a):\n")
    (tmp_path / "broken.py").write_text("def f(:\n", encoding="utf-8")
    assert list(functions._functions_of_file(str(tmp_path / "broken.py"), "broken")) == []


@pytest.mark.full
def test_packages_are_whole_and_the_parts_of_their_sizes() -> None:
    parts = {part: functions.rows(part) for part in ("train", "valid", "test")}
    packages = {part: {row["name"].partition(".")[0] for row in rows} for part, rows in parts.items()}
    assert not packages["train"] & packages["test"]
    assert not packages["train"] & packages["valid"]
    assert not packages["valid"] & packages["test"]
    total = sum(map(len, parts.values()))
    assert 0.08 <= len(parts["test"]) / total <= 0.15
    assert 0.06 <= len(parts["valid"]) / total <= 0.13
    every = [row for rows in parts.values() for row in rows]
    for side in ("text", "text_pair"):
        assert max(Counter(row[side] for row in every).values()) == 1
    for row in every[::50]:
        (node,) = ast.parse(row["text_pair"]).body
        assert node.name == row["name"].rpartition(".")[2]
        assert row["text"] != (ast.get_docstring(node) or "").partition("\n")[0]
