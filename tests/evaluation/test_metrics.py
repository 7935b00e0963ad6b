"""Metrics against the official scorer's command line and by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from heedful.evaluation.metrics import exact_match, translation_metrics

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
