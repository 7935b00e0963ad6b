"""Exact match and F1 of pieces of a text: by hand, by another way of counting, and on odd answers."""

from __future__ import annotations

import itertools
import os
import random
import re
import string
import subprocess
import sys

import numpy as np
import pytest
import torch

from heedful.metrics.squad import (
    AnswerScore,
    best_null_threshold,
    best_thresholds,
    by_kind,
    exact,
    most_similar_sentences,
    normalised_answer,
    overlap,
    score,
    sentences,
    squad_sums,
)
from tolerances import approx

ODD = ("", " ", "the", "The  an a", "...", "A.", "a-b", "U.S.", "Ünïcode the 東京", "東京", "東 京", "10,000", "10000")
ODD += ("The Cat's hat", "cats hat", "an other", "another", "theatre", "the\ttheatre\n", "«quoted»", "İstanbul", "ſ")


def compared(text: str) -> list[str]:
    """The words that SQuAD's script compares, letter by letter instead of by its expressions."""
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    parts = re.split(r"(\w+)", kept)  # words at the odd places
    return "".join(" " if part in ("a", "an", "the") and i % 2 else part for i, part in enumerate(parts)).split()


@pytest.mark.parametrize("text", ODD)
def test_normalized_answers(text: str) -> None:
    assert normalised_answer(text) == " ".join(compared(text))


def test_exact_match_and_f1_of_every_pair_of_odd_answers() -> None:
    """F1 as the harmonic mean of precision and recall, common words taken off one by one."""
    seen = set()
    for output, answer in itertools.product((*ODD, "the old cat s hat hat", "hat hat cats"), repeat=2):
        said, wanted = compared(output), compared(answer)
        left, common = list(wanted), 0
        for word in said:
            if word in left:
                left.remove(word)
                common += 1
        precision, recall = common / max(1, len(said)), common / max(1, len(wanted))
        f1 = 2 * precision * recall / (precision + recall) if common else float(not said and not wanted)
        assert overlap(output, answer) == approx(f1, "layer", dtype=torch.float64)
        assert exact(output, answer) == (said == wanted)
        seen.add(f1)
    assert len(seen) > 3


@pytest.mark.parametrize(
    ("output", "answers", "expected"),
    [
        ("Denver Broncos", ["Broncos", "the Denver Broncos"], AnswerScore(1.0, 1.0)),
        ("in 1912", ["1912", "in the year 1912"], AnswerScore(0.0, 0.8)),  # of two answers: 2/3, 4/5
        ("Paris", [], AnswerScore(0.0, 0.0)),
        ("", [], AnswerScore(1.0, 1.0)),
        ("the", [], AnswerScore(1.0, 1.0)),  # the script normalises before it compares
        ("", ["Paris"], AnswerScore(0.0, 0.0)),
        ("the", ["the", "."], AnswerScore(1.0, 1.0)),  # nothing is left of either: no answer
        ("the band", ["the", "the band"], AnswerScore(1.0, 1.0)),
        ("die Stadt", ["Stadt"], AnswerScore(0.0, 2 / 3)),  # English articles alone
        ("東京タワー", ["東京 タワー"], AnswerScore(0.0, 0.0)),  # words are what blanks part
    ],
)
def test_the_best_of_several_answers(output: str, answers: list[str], expected: AnswerScore) -> None:
    found = score(output, answers)
    assert (found.exact, found.f1) == (expected.exact, pytest.approx(expected.f1))


@pytest.mark.parametrize("seed", range(20))
def test_the_best_threshold_is_the_best_of_all(seed: int) -> None:
    """Against every threshold tried one by one, ties of the values included."""
    draw = random.Random(seed)
    size = draw.randint(1, 12)
    null = [draw.choice([-2.5, -1.0, 0.0, 0.5, 3.0]) + (seed % 2) * draw.random() for _ in range(size)]
    has = [draw.random() < 0.5 for _ in range(size)]
    outputs = [draw.choice(["", "a", "b c"]) for _ in range(size)]
    raw = [draw.choice([0.0, 0.5, 1.0]) if own else float(not said) for own, said in zip(has, outputs, strict=True)]

    def total(threshold: float) -> float:
        return sum(
            float(not own) if value > threshold else each for own, value, each in zip(has, null, raw, strict=True)
        )

    found = best_null_threshold(raw, outputs, has, null)
    tried = [total(value) for value in null] + [total(-100.0)]
    if len(set(null)) == size:
        assert found.score == pytest.approx(100 * max(tried) / size)
        reached = total(found.value) if found.score > 100 * total(-100.0) / size + 1e-9 else total(-100.0)
        assert reached == pytest.approx(max(tried))
    else:  # as the script has it, which stops within a tie
        assert found.score >= 100 * max(tried) / size - 1e-9


def test_figures_of_any_choice() -> None:
    scores = [AnswerScore(1, 1), AnswerScore(0, 0.5), AnswerScore(1, 1), AnswerScore(0, 0)]
    each = squad_sums(scores, [True, True, False, False], [1.0, 2.0, 3.0, 6.0], [1, 1, 2, 2])
    assert len(each) == 4
    assert each.metrics_of(np.arange(4)) == pytest.approx(
        {
            "loss": 2.0,
            "exact_match": 50.0,
            "f1": 62.5,
            "HasAns_exact": 50.0,
            "HasAns_f1": 75.0,
            "NoAns_exact": 50.0,
            "NoAns_f1": 50.0,
        }
    )
    again = each.metrics_of(np.array([1, 1, 3]))
    assert again["f1"] == pytest.approx(100 / 3)
    assert again["loss"] == pytest.approx(10 / 4)
    assert each.metrics_of(np.array([0]))["NoAns_f1"] == 0.0
    assert by_kind(each, [True, True, False, False])["answerable"] == {"exact_match": 50.0, "f1": 75.0, "examples": 2}
    assert squad_sums(scores, [True] * 4, [0] * 4, [1] * 4).metrics_of(np.arange(4)).keys() == {
        "loss",
        "exact_match",
        "f1",
    }


def test_thresholds_of_both_figures() -> None:
    """Answering the first alone is best by F1; by exact match answering nothing is as good."""
    found = best_thresholds(["in Rome", "Oslo", "Bern"], [["Rome"], [], []], [-1.0, 0.0, 2.0])
    assert found == pytest.approx(
        {"best_exact": 200 / 3, "best_exact_thresh": 0.0, "best_f1": 800 / 9, "best_f1_thresh": -1.0}
    )


def test_sentences_are_cut_where_they_end() -> None:
    text = 'She left. "Why?" he asked (as ever.)  Then 3.5 km later…\n\nA heading\n\n東京。京都！'
    assert list(sentences(text)) == [
        "She left.",
        '"Why?"',
        "he asked (as ever.)",
        "Then 3.5 km later…",
        "A heading",
        "東京。",
        "京都！",
    ]
    assert list(sentences("one")) == ["one"]
    assert list(sentences(" . ")) == ["."]


def test_the_likest_sentence_is_that_of_scikit_learn() -> None:
    """TF-IDF of different words, cosine, on made-up paragraphs."""
    text = pytest.importorskip("sklearn.feature_extraction.text")
    draw = random.Random(0)
    words = [f"w{draw.randint(0, 60)}" for _ in range(600)]
    contexts = [". ".join(" ".join(draw.choices(words, k=8)) for _ in range(6)) for _ in range(20)]
    questions = [" ".join(draw.choices(words, k=6)) for _ in contexts]
    pieces = [list(sentences(context)) for context in contexts]
    model = text.TfidfVectorizer(binary=True, token_pattern=r"\w+").fit([one for each in pieces for one in each])
    found = most_similar_sentences(questions, contexts, 2)
    for question, each, (chosen, second) in zip(questions, pieces, found, strict=True):
        likeness = (model.transform(each) @ model.transform([question]).T).toarray()[:, 0]
        assert likeness[each.index(chosen)] == pytest.approx(likeness.max())
        assert likeness[each.index(second)] == pytest.approx(np.sort(likeness)[-2])
        assert likeness.max() > 0


PERMUTED = """
import random
from heedful.metrics.squad import most_similar_sentences, sentences

draw, words = random.Random(0), [f"w{number}" for number in range(60)]
drawn = [draw.sample(words, k=draw.randint(5, 12)) for _ in range(100)]
contexts = [". ".join(" ".join(draw.sample(own, k=len(own))) for _ in range(4)) for own in drawn]
ranked = most_similar_sentences([" ".join(words)] * 100, contexts, 4)
print(sum(found != [*sentences(context)] for found, context in zip(ranked, contexts)))
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_order_of_sentences_does_not_depend_on_hashes(seed: str) -> None:
    """Sentences with the same words are equally similar, so that they stay in their order."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    process = subprocess.run([sys.executable, "-c", PERMUTED], env=environment, capture_output=True, check=True)
    assert int(process.stdout) == 0
