"""What the README shows is run, in order, as a reader would run it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from heedful import cli

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```([a-z]*)\n(.*?)^```$", README, re.S | re.M)
    return [text for named, text in fences if re.fullmatch(language, named)]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a person's two text files in it."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{a} {b}" for a in WORDS for b in WORDS]
    for name, texts in {"train": lines, "test": lines[::9]}.items():
        (tmp_path / f"{name}.en").write_text("\n".join(texts) + "\n", encoding="utf-8")
        (tmp_path / f"{name}.fr").write_text("\n".join(text[::-1] for text in texts) + "\n", encoding="utf-8")
    return tmp_path


def test_the_commands_and_the_python_face(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train, predict, evaluate = blocks("")[1].strip().splitlines()
    small = ["--max-steps", "3", "--model.dim", "16", "--model.heads", "2", "--model.depth", "1"]
    assert cli.main([*shlex.split(train)[1:], *small, "--tokenizer.size", "300"]) == 0
    assert cli.main([*shlex.split(predict)[1:], "--max-new-tokens", "3"]) == 0
    assert cli.main([*shlex.split(evaluate)[1:], "--max-new-tokens", "3"]) == 0
    first, second = blocks("python")
    names: dict[str, object] = {}
    capsys.readouterr()
    exec(first, names)
    printed = capsys.readouterr().out
    assert printed.startswith("124439808\n")
    assert "torch.Size([1, 12, 8, 8])" in printed
    assert "86,567,656 parameters" in printed
    exec(second, names)
    assert (desk / "out" / "model.safetensors").is_file()


def test_every_command_that_is_named_exists() -> None:
    named = set(re.findall(r"heedful ([a-z]+)\b", " ".join(blocks("[a-z]*"))))
    assert {"train", "predict", "evaluate"} <= named
    for command in named:
        assert command in cli.app, command


def test_every_option_that_is_named_exists(capsys: pytest.CaptureFixture[str]) -> None:
    known = ""
    for command in ("train", "predict", "evaluate", "demo"):
        cli.main([command, "--help"])
        known += capsys.readouterr().out
    for option in set(re.findall(r"(?<![\w-])--[a-z][\w.-]+", README)) - {"--help"}:
        assert option in known, option


def test_its_pictures_are_there() -> None:
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (Path(__file__).resolve().parents[1] / path).is_file(), path


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.findall(r"\b[A-Z]+_[A-Z_]+\b", re.sub(r"`[^`]*`", "", README))
