"""The data sets that an example makes of Python's source: files that are read as meant, the same every time."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

import code_sets
from heedful.data import Kind, read

PARTS = ("train", "valid", "test")
COLUMNS: dict[str, dict[str, Kind]] = {
    "code-roles": {"words": "words", "tags": "tags"},
    "docstrings": {"text": "text", "summary": "text"},
    "functions": {"text": "text", "text_pair": "text"},
    "parameters": {"question": "text", "context": "text", "answers": "answers"},
    "parameters-unanswered": {"question": "text", "context": "text", "answers": "answers"},
}


def test_every_set_is_tested_here() -> None:
    assert set(COLUMNS) == set(code_sets.SETS)


@pytest.mark.full(keep=1)
@pytest.mark.parametrize("name", sorted(COLUMNS))
def test_files_have_the_rows_of_a_set(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code_sets.main(name, tmp_path / name)
    assert capsys.readouterr().out.count(" rows\n") == 3
    items = {}
    for part in PARTS:
        made = code_sets.SETS[name](part)
        rows = read(tmp_path / name / f"{part}.jsonl", COLUMNS[name])
        assert [{column: row.values[column] for column in COLUMNS[name]} for row in rows] == [
            {column: row[column] for column in COLUMNS[name]} for row in made
        ]
        items[part] = {str(row[next(iter(COLUMNS[name]))]) + str(row.get("context")) for row in made}
    assert not items["train"] & items["valid"]
    assert not items["train"] & items["test"]
    assert not items["valid"] & items["test"]
    assert len(items["train"]) > len(items["test"]) > 0


@pytest.mark.full
def test_two_processes_make_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for seed in ("1", "77"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        program = Path(str(code_sets.__file__))
        for name in ("code-roles", "parameters"):
            command = [sys.executable, str(program), name, str(tmp_path / seed / name)]
            subprocess.run(command, check=True, capture_output=True)
        files = sorted((tmp_path / seed).rglob("*.jsonl"))
        digests.append([hashlib.sha256(file.read_bytes()).hexdigest() for file in files])
    assert digests[0] == digests[1]
    assert len(digests[0]) == 6


def test_an_unknown_set_is_refused() -> None:
    told = subprocess.run([sys.executable, str(code_sets.__file__), "x"], capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith("give the name of a set: docstrings, ")
