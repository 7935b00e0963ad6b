"""Metrics against the official scorer's command line and by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from heedful.data import Row
from heedful.errors import HeedfulError
from heedful.evaluation.metrics import exact_match, translation_metrics
from heedful.evaluation.run import scored
from heedful.tasks.translation import Translation
from heedful.text import Tokenizer

OUTPUTS = ["the cat sat on the mat .", "a dog ran", "Bonjour à tous !"]
REFERENCES = ["the cat sat on a mat .", "the dog ran away", "Bonjour à tous !"]


def test_bleu_and_chrf_are_sacrebleus(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("\n".join(OUTPUTS) + "\n", encoding="utf-8")
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    metrics = translation_metrics(OUTPUTS, REFERENCES)
    for name in ("bleu", "chrf"):
        line = [sys.executable, "-m", "sacrebleu", str(tmp_path / "ref"), "-i", str(tmp_path / "out"), "-m", name]
        printed = subprocess.run([*line, "-b", "-w", "6"], capture_output=True, text=True, check=True).stdout
        assert metrics[name] == pytest.approx(float(printed), abs=1e-6)
    assert "tok:13a" in metrics["bleu_signature"]


def test_exact_match() -> None:
    assert exact_match(["a ", "b", "c"], ["a", "b", "d"]) == pytest.approx(200 / 3)
    assert exact_match([], []) == 0.0
    with pytest.raises(ValueError, match="zip"):
        exact_match(["a"], [])


def test_rows_that_cannot_be_exact_count_by_format_only() -> None:
    rows = [
        Row({"source": "1", "target": "1", "format": "long", "exact": "yes"}, "f", 1),
        Row({"source": "2", "target": "2", "format": "long", "exact": "yes"}, "f", 2),
        Row({"source": "3", "target": "3", "format": "short", "exact": "no"}, "f", 3),
    ]
    tokenizer = Tokenizer.train(["1 2 3"], 300)
    result = scored(Translation(tokenizer, tokenizer), ["1", "x", "3"], rows)
    assert result["metrics"]["exact_match"] == 50.0
    assert result["by_format"]["long"] == {"exact_match": 50.0, "examples": 2, "counted": True}
    assert result["by_format"]["short"] == {"exact_match": 100.0, "examples": 1, "counted": False}
    with pytest.raises(HeedfulError, match="no example"):
        scored(Translation(tokenizer, tokenizer), [], [])
