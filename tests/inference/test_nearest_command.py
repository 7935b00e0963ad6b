"""``heedful nearest``: what is found, kept, opened again and refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from heedful import cli
from tolerances import approx

WORDS = ["one", "two", "three", "four", "five", "six"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and texts to look in."""
    place = tmp_path_factory.mktemp("near")
    pairs = [f"{a} {b}\t{b} {a}" for a in WORDS for b in WORDS if a != b]
    (place / "pairs.tsv").write_text("\n".join(["text\ttext_pair", *pairs]) + "\n", encoding="utf-8")
    (place / "texts.txt").write_text("".join(f"{a} {b}\n" for a in WORDS for b in WORDS), encoding="utf-8")
    small = ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--tokenizer.size=60", "--max-steps=2", "--json"]
    command = ["train", "feature-extraction", "--train", str(place / "pairs.tsv"), "--out", str(place / "model")]
    assert cli.main([*command, *small]) == 0
    return place


def test_the_text_itself_is_nearest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["nearest", str(folder / "model"), "three five", "six two", "--among", str(folder / "texts.txt")]
    assert cli.main([*command, "--k", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "three five"
    assert lines[1].split()[0] == "1.000"
    assert lines[1].endswith(f"{folder / 'texts.txt'}:17  three five")
    assert len(lines) == 8
    assert cli.main([*command, "--k", "2", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["input"] for one in told] == ["three five", "six two"]
    assert told[1]["output"][0] == {
        "text": "six two",
        "score": approx(1, "training"),
        "file": str(folder / "texts.txt"),
        "line": 32,
    }


def test_the_column_of_a_table_is_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["nearest", str(folder / "model"), "three five", "--among"]
    assert cli.main([*command, str(folder / "pairs.tsv"), "--json"]) == 0
    assert f"searches column text of {folder / 'pairs.tsv'}" in capsys.readouterr().err
    assert cli.main([*command, str(folder / "pairs.tsv"), "--column", "text_pair"]) == 0
    assert "searches column text_pair" in capsys.readouterr().err
    assert cli.main([*command, str(folder / "texts.txt")]) == 0
    assert "column" not in capsys.readouterr().err


def test_progress_is_shown_while_texts_are_read(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.util.progress.LINE_SECONDS", 0.0)
    monkeypatch.setattr("heedful.tasks.feature_extraction.EVALUATED", 48)  # several batches
    texts = folder / "twice.txt"
    texts.write_text((folder / "texts.txt").read_text() * 2)
    assert cli.main(["nearest", str(folder / "model"), "three five", "--among", str(texts), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["input"] == "three five"  # nothing else on standard output
    lines = said.err.splitlines()
    assert len(lines) > 2
    done = [int(re.match(r"(\d+) of 72 texts  [\d.,]+ texts/s", line)[1]) for line in lines]  # type: ignore[index]
    assert done == sorted(done)
    assert done[-1] == 72  # equal ones counted


def test_vectors_are_kept(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = str(tmp_path / "kept")
    ask = ["nearest", str(folder / "model"), "four one", "--json"]
    assert cli.main([*ask, "--among", str(folder / "texts.txt"), "--index", index]) == 0
    first = json.loads(capsys.readouterr().out)
    assert cli.main([*ask, "--index", index]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [one["text"] for one in again["output"]] == [one["text"] for one in first["output"]]
    assert cli.main([*ask, "--among", str(folder / "texts.txt"), "--index", index]) == 2
    assert "exists; leave --among out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "no text to search for"),
        (["one"], "give --among with"),
        (["one", "--index", "nowhere"], "give --among with"),
        (["one", "--among", "nowhere.txt"], "no such file"),
        (["one", "--among", "{texts}", "--k", "0"], "k is 0; give 1 or more"),
        (["one", "--index", "{texts}", "--column", "x"], "--among"),
    ],
)
def test_wrong_arguments_are_errors_of_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    words = [word.format(texts=folder / "texts.txt") for word in given]
    assert cli.main(["nearest", str(folder / "model"), *words]) == 2
    told = capsys.readouterr().err.strip()
    assert said in told
    assert len(told.splitlines()) == 1
