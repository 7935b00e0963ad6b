"""The set of docstrings: by Python's own reading of them, and no family in two parts."""

from __future__ import annotations

import importlib
import inspect
import re
import sysconfig
from itertools import combinations
from pathlib import Path

import pytest
from python_sources import docstrings

from heedful.errors import HeedfulError

PARTS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def sets() -> dict[str, list[dict[str, str]]]:
    return {part: docstrings.rows(part) for part in PARTS}


def runs(text: str, size: int) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}


@pytest.mark.full
def test_sizes_and_shares(sets: dict[str, list[dict[str, str]]]) -> None:
    total = sum(map(len, sets.values()))
    assert total > 2000
    assert 0.08 <= len(sets["test"]) / total <= 0.10
    assert 0.06 <= len(sets["valid"]) / total <= 0.08
    for rows in sets.values():
        assert all(set(row) == {"text", "summary", "name"} and all(row.values()) for row in rows)
        assert all(3 <= len(row["summary"].split()) <= 25 and "\n" not in row["summary"] for row in rows)
        assert not any(">>>" in row["text"] for row in rows)


@pytest.mark.full
def test_summaries_and_details_are_python_s_own(sets: dict[str, list[dict[str, str]]]) -> None:
    """Of functions of the standard library, imported here and nowhere in the package."""
    found = 0
    for module in ("shutil", "difflib", "textwrap", "random", "statistics", "inspect", "tempfile"):
        for row in (row for rows in sets.values() for row in rows):
            name = re.fullmatch(rf"{module}\.(\w+)\((.*)\)", row["name"])
            if name is None:
                continue
            function = getattr(importlib.import_module(module), name[1])
            summary, detail = inspect.getdoc(function).split("\n\n", 1)
            assert row["summary"] == summary
            kept = [one for one in re.split(r"\n\s*\n", detail) if ">>>" not in one]
            assert row["text"] == f"{row['name']}\n\n" + "\n\n".join(one.strip("\n") for one in kept).strip()
            known = inspect.signature(function).parameters.values()
            stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            plain = [one.name for one in known if one.kind not in stars and one.name != "cls"]
            assert name[2] == ", ".join(plain)
            found += 1
    assert found > 15


@pytest.mark.full
def test_no_family_is_in_two_parts(sets: dict[str, list[dict[str, str]]]) -> None:
    for one, other in combinations(PARTS, 2):
        first, second = (
            {
                "summaries": {" ".join(re.findall(r"\w+", row["summary"].lower())) for row in sets[part]},
                "runs": set[tuple[str, ...]]().union(
                    *(runs(row["text"].partition("\n\n")[2], 8) for row in sets[part])
                ),
                "names": {row["name"] for row in sets[part]},
            }
            for part in (one, other)
        )
        assert not first["summaries"] & second["summaries"]
        assert not first["runs"] & second["runs"]
        assert not first["names"] & second["names"]


@pytest.mark.full
def test_each_once_and_the_same_every_time(sets: dict[str, list[dict[str, str]]]) -> None:
    every = [(row["summary"], row["text"].partition("\n\n")[2]) for rows in sets.values() for row in rows]
    assert len(set(every)) == len(every)
    docstrings._splits.cache_clear()
    assert docstrings.rows("valid") == sets["valid"]


def test_families_by_hand() -> None:
    words = "one two three four five six seven eight"
    texts = [
        ("Does this.", f"{words} nine"),
        ("Does that.", f"zero {words}"),
        ("Is alone.", "one two three four five six seven ten"),
        ("does THAT", "another detail altogether"),
        ("Is short.", "a b"),
        ("Is short, too.", "a b"),
    ]
    assert docstrings._families(texts) == [0, 0, 2, 0, 4, 4]


def test_unreadable_files_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    detail = "The detail tells a good deal more, in twelve words, of what it does.\n"
    (tmp_path / "good.py").write_text(f'def f(a, *b, c=1, **d):\n    """Do a thing.\n\n    {detail}    """\n')
    (tmp_path / "bad.py").write_text("def f(:\n")
    (tmp_path / "latin.py").write_bytes(b'"""caf\xe9"""\n')
    made = [
        one
        for name in ("good", "bad", "latin")
        for one in docstrings._docstrings_of_file(str(tmp_path / f"{name}.py"), name)
    ]
    assert made == [docstrings.Docstring("good.f(a, c)", "Do a thing.", detail.strip())]
    monkeypatch.setattr(docstrings, "_all_docstrings", docstrings._all_docstrings.__wrapped__)  # which keeps nothing
    monkeypatch.setattr(docstrings, "PACKAGES", ("no_such_package",))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "nothing"))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(
        HeedfulError, match=r"no Python source in .*nothing; install Python with the source of its library"
    ):
        docstrings.rows("train")
