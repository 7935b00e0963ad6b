"""``heedful evaluate --out``: the files that it names, and where the mistakes stand in the data."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from answering_folders import LABELS, saved
from heedful import cli


def test_evaluate_names_its_files_and_the_lines_of_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved("text-classification", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    rows = [(f"a pear {'and a pear ' * 30}{number}", label) for number, label in enumerate(sorted(LABELS) * 2)]
    Path("test.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    assert cli.main(["evaluate", str(model), "--data", "test.tsv", "--out", "ev"]) == 0
    line = r"^written: ev/confusion.svg, ev/mistakes.html; the (\d) most confident of (\d) mistakes$"
    named = re.search(line, capsys.readouterr().out, re.MULTILINE)
    assert named is not None
    assert cli.main(["evaluate", str(model), "--data", "test.tsv", "--json"]) == 0
    mistakes = json.loads(capsys.readouterr().out)["mistakes"]
    assert named[1] == named[2] == str(len(mistakes))
    page = Path("ev/mistakes.html").read_text()
    for mistake in mistakes:
        text = rows[mistake["place"]][0]
        assert mistake["input"] == text[:199] + "…"
        assert f"test.tsv:{mistake['place'] + 2}<" in page
