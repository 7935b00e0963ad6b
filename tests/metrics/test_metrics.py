"""Scores of texts against the official scorer, its command line and its corpus scores, and by hand."""

from __future__ import annotations

import json
import logging
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF, TER

from heedful.metrics.example_scores import overall
from heedful.metrics.translation import (
    exact_match,
    signatures,
    translation_metrics,
    translation_scores,
    unspaced,
    warnings_of,
)
from tolerances import approx

OUTPUTS = ["the cat sat on the mat .", "a dog ran", "Bonjour à tous !"]
REFERENCES = ["the cat sat on a mat .", "the dog ran away", "Bonjour à tous !"]
ODD = [
    (["", "", ""], ["a cat", "one", "two three"]),
    (["a", "b"], ["c", "d"]),
    (["x"], ["x"]),
    (["猫が好きです。", "เขาไปโรงเรียน", "مرحبا بالعالم"], ["猫が好き。", "เขาไปโรงเรียน", "مرحبا يا عالم"]),
    (["  spaced   out  ", "tab\there", "&quot;it&quot;"], ["spaced out", "tab here", '"it"']),
    (["🙂🙂", "e\u0301te\u0301", "1,234.5"], ["🙂", "été", "1,234.5"]),
    (["a b c d e f g h"], ["h g f e d c b a"]),
    (["some words", ""], ["", ""]),
]


def words(count: int, seed: int) -> tuple[list[str], list[str]]:
    draw = random.Random(seed)
    references = [" ".join(draw.choices("abcdefgh", k=draw.randint(1, 12))) for _ in range(count)]
    outputs = [" ".join(w for w in text.split() if draw.random() < 0.8) for text in references]
    return outputs, references


def official(outputs: list[str], references: list[str]) -> dict[str, float]:
    found = {name: kind().corpus_score(outputs, [references]).score for name, kind in KINDS.items()}
    return {**found, "exact_match": exact_match(outputs, references)}


KINDS = {"bleu": BLEU, "chrf": CHRF, "ter": TER}


def test_the_figures_are_those_of_sacrebleus_command(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("\n".join(OUTPUTS) + "\n", encoding="utf-8")
    (tmp_path / "ref").write_text("\n".join(REFERENCES) + "\n", encoding="utf-8")
    metrics = translation_metrics(OUTPUTS, REFERENCES)
    line = [sys.executable, "-m", "sacrebleu", str(tmp_path / "ref"), "-i", str(tmp_path / "out"), "-m", *KINDS]
    printed = subprocess.run([*line, "-b", "-w", "6"], capture_output=True, text=True, check=True).stdout
    assert [metrics[name] for name in KINDS] == approx(json.loads(printed), "layer")
    assert metrics["exact_match"] == pytest.approx(100 / 3)


def test_signatures_are_sacrebleus() -> None:
    scorers = {name: kind() for name, kind in KINDS.items()}
    for scorer in scorers.values():
        scorer.corpus_score(OUTPUTS, [REFERENCES])
    expected = {f"{name}_signature": str(scorer.get_signature()) for name, scorer in scorers.items()}
    assert signatures() == expected
    assert "tok:13a" in signatures()["bleu_signature"]
    assert list(signatures(ter=False)) == ["bleu_signature", "chrf_signature"]


def test_in_lower_case_the_figures_and_signatures_are_those_of_sacrebleus_own_option() -> None:
    outputs, references = (
        ["the CAT sat on the mat .", "Äpfel und birnen"],
        ["The cat sat on the mat .", "Äpfel und Birnen"],
    )
    scorers = {"bleu": BLEU(lowercase=True), "chrf": CHRF(lowercase=True), "ter": TER()}
    found = overall(translation_scores(outputs, references, lowercase=True))
    assert found.pop("exact_match") == 100.0
    assert found == approx(
        {n: s.corpus_score(outputs, [references]).score for n, s in scorers.items()}, dtype=torch.float64
    )
    assert signatures(lowercase=True) == {f"{n}_signature": str(s.get_signature()) for n, s in scorers.items()}
    assert "case:lc" in signatures(lowercase=True)["bleu_signature"]
    assert overall(translation_scores(outputs, references))["exact_match"] == 0.0


@pytest.mark.parametrize(("outputs", "references"), [*ODD, words(100, 0), words(7, 1)])
def test_of_any_choice_of_the_rows_the_figures_are_corpus_scores(outputs: list[str], references: list[str]) -> None:
    scored = translation_scores(outputs, references)
    assert overall(scored) == approx(official(outputs, references), dtype=torch.float64)
    draw = np.random.default_rng(0)
    for size in (1, len(outputs), 2 * len(outputs)):
        places = draw.integers(len(outputs), size=size)
        taken = [[side[i] for i in places] for side in (outputs, references)]
        assert scored.metrics_of(places) == approx(official(*taken), dtype=torch.float64)
    some = np.stack([draw.integers(len(outputs), size=5) for _ in range(4)])
    assert scored.metrics_of_draws(some) == [approx(scored.metrics_of(places), dtype=torch.float64) for places in some]


def test_rows_that_do_not_count_add_nothing() -> None:
    counted = translation_scores(OUTPUTS, REFERENCES, [True, False, True])
    assert len(counted) == 3
    assert overall(counted) == approx(official(OUTPUTS[::2], REFERENCES[::2]), dtype=torch.float64)
    without = translation_scores(OUTPUTS, REFERENCES, ter=False)
    assert list(overall(without)) == ["bleu", "chrf", "exact_match"]
    assert overall(without)["bleu"] == approx(official(OUTPUTS, REFERENCES)["bleu"], dtype=torch.float64)


def test_it_says_when_words_cannot_be_counted(caplog: pytest.LogCaptureFixture) -> None:
    assert unspaced(["猫が好きです", "ok"])
    assert unspaced(["他去学校"])
    assert unspaced(["เขาไปโรงเรียน"])
    assert not unspaced(["학교에 갔다", "مرحبا", "школа", "été", "1 2 3 !"])
    assert not unspaced([])
    assert warnings_of(OUTPUTS, REFERENCES) == []
    (told,) = warnings_of(["猫"], ["犬"])
    assert told.endswith("use chrF")
    (told,) = warnings_of(["a cat ."] * 100, ["a cat ."] * 100)
    assert told.startswith("100 outputs end in a space and a full stop")
    with caplog.at_level(logging.WARNING):
        translation_metrics(["a cat ."] * 100, ["a cat ."] * 100)
    assert caplog.messages == []


def test_exact_match() -> None:
    assert exact_match(["a ", "b", "c"], ["a", "b", "d"]) == pytest.approx(200 / 3)
    assert exact_match([], []) == 0.0
    with pytest.raises(ValueError, match="zip"):
        exact_match(["a"], [])
