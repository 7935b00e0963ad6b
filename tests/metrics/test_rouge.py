"""ROUGE: the documented cases of rouge_score and of the paper, a brute-force oracle, and scripts that both forget."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from heedful.metrics.example_scores import overall
from heedful.metrics.rouge import KINDS, Rouge, common, rouge, words
from tolerances import approx

# "identical texts score 100", trap 18
SCRIPTS = {
    "Greek": "Η γρήγορη αλεπού πήδηξε",
    "Russian": "Быстрая лиса прыгнула",
    "Arabic": "قفز الثعلب السريع",
    "Hebrew": "השועל המהיר קפץ",
    "Hindi": "तेज़ लोमड़ी कूद गई",
    "Tamil": "வேகமான நரி பாய்ந்தது",
    "Korean": "빠른 여우가 뛰었다",
    "Chinese": "敏捷的狐狸跳了起来。",
    "Japanese": "すばやいキツネが跳んだ。",
    "Thai": "สุนัขจิ้งจอกกระโดด",
    "Khmer": "កញ្ជ្រោងលោត",
    "Amharic": "ፈጣኑ ቀበሮ ዘለለ",
    "French": "Le château élevé",
}


def as_published(text: str) -> list[str]:
    """rouge_score's tokens without a stemmer, as its documentation has them."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).split()


def subsequence(first: list[str], second: list[str]) -> int:
    """The longest common subsequence by trying all of them."""
    for size in range(min(len(first), len(second)), 0, -1):
        ours = {tuple(first[i] for i in chosen) for chosen in combinations(range(len(first)), size)}
        if ours & {tuple(second[i] for i in chosen) for chosen in combinations(range(len(second)), size)}:
            return size
    return 0


def grams(found: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(found[i : i + n]) for i in range(len(found) - n + 1))


def summary_level(output: list[list[str]], reference: list[list[str]]) -> int:
    """The hits of rougeLsum as rouge_score counts them, its backtracking written as a recursion."""

    def places(first: tuple[str, ...], second: tuple[str, ...]) -> set[int]:
        @cache
        def longest(i: int, j: int) -> int:
            if not i or not j:
                return 0
            if first[i - 1] == second[j - 1]:
                return longest(i - 1, j - 1) + 1
            return max(longest(i - 1, j), longest(i, j - 1))

        def back(i: int, j: int) -> set[int]:
            if not i or not j:
                return set()
            if first[i - 1] == second[j - 1]:
                return back(i - 1, j - 1) | {i - 1}
            return back(i, j - 1) if longest(i, j - 1) > longest(i - 1, j) else back(i - 1, j)

        return back(len(first), len(second))

    said = Counter(word for sentence in output for word in sentence)
    wanted = Counter(word for sentence in reference for word in sentence)
    hits = 0
    for sentence in reference:
        union = sorted(set[int]().union(*(places(tuple(sentence), tuple(other)) for other in output)))
        for place in union:
            word = sentence[place]
            if said[word] > 0 and wanted[word] > 0:
                said[word] -= 1
                wanted[word] -= 1
                hits += 1
    return hits


def ratios(hits: int, said: int, wanted: int) -> tuple[float, float, float]:
    if not hits:
        return 0.0, 0.0, 0.0
    p, r = hits / said, hits / wanted
    return p, r, 2 * p * r / (p + r)


# ------------------------------------------------------------------------------------------------- what is documented


@pytest.mark.parametrize(
    ("kind", "output", "reference", "expected"),
    [  # the cases of rouge_score's own tests: (precision, recall, F1)
        ("rouge1", "testing", "testing one two", (1, 1 / 3, 1 / 2)),
        ("rouge2", "testing one", "testing one two", (1, 1 / 2, 2 / 3)),
        ("rougeL", "testing one", "testing one two", (1, 2 / 3, 4 / 5)),
        ("rougeL", "testing two", "testing one two", (1, 2 / 3, 4 / 5)),
        ("rouge1", "testing one", "testing one two", (1, 2 / 3, 4 / 5)),
        ("rougeLsum", "w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", (0.4, 0.8, 0.5333333)),
        ("rougeLsum", "", "w1 w2 w3 w4 w5", (0, 0, 0)),
        ("rougeLsum", "w1", "", (0, 0, 0)),
        ("rougeLsum", "/", "w1 w2 w3 w4 w5", (0, 0, 0)),
        # Lin 2004, section 3.1
        ("rougeL", "police kill the gunman", "police killed the gunman", (3 / 4, 3 / 4, 3 / 4)),
        ("rougeL", "the gunman kill police", "police killed the gunman", (1 / 2, 1 / 2, 1 / 2)),
        ("rougeL", "the gunman police killed", "police killed the gunman", (1 / 2, 1 / 2, 1 / 2)),
        ("rouge2", "police kill the gunman", "police killed the gunman", (1 / 3, 1 / 3, 1 / 3)),
        ("rouge2", "the gunman kill police", "police killed the gunman", (1 / 3, 1 / 3, 1 / 3)),
    ],
)
def test_documented_cases(kind: str, output: str, reference: str, expected: tuple[float, float, float]) -> None:
    assert rouge(output, reference)[kind] == approx(expected, "layer")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [("", ""), ("a b", ""), ("", "a b"), ("!?", "!?"), ("a b", "c d")])
def test_nothing_in_common_is_zero(kind: str, texts: tuple[str, str]) -> None:
    assert rouge(*texts)[kind] == (0, 0, 0)


# ---------------------------------------------------------------------------------------------------------- the oracle


def test_all_figures_by_brute_force() -> None:
    generator = random.Random(0)
    for _ in range(300):
        texts = [
            "".join(
                generator.choice(["a ", "b ", "c ", "Dd-", "a.\n", "b\n", "7 "]) for _ in range(generator.randint(0, 9))
            )
            for _ in range(2)
        ]
        output, reference = (as_published(text) for text in texts)
        found = rouge(*texts)
        for n in (1, 2):
            hits = (grams(output, n) & grams(reference, n)).total()
            expected = ratios(hits, max(0, len(output) - n + 1), max(0, len(reference) - n + 1))
            assert found[f"rouge{n}"] == pytest.approx(expected)
        assert found["rougeL"] == pytest.approx(ratios(subsequence(output, reference), len(output), len(reference)))
        sentences = [[as_published(line) for line in text.split("\n") if line] for text in texts]
        assert found["rougeLsum"] == pytest.approx(ratios(summary_level(*sentences), len(output), len(reference)))


def test_the_longest_common_subsequence_of_long_texts() -> None:
    generator = np.random.default_rng(0)
    for size in (1, 63, 64, 65, 300):
        first, second = (generator.integers(0, 12, size + extra).astype(str).tolist() for extra in (0, 7))
        row = [0] * (len(second) + 1)
        for word in first:
            before = row[:]
            for j, other in enumerate(second):
                row[j + 1] = before[j] + 1 if word == other else max(before[j + 1], row[j])
        assert common(first, second) == row[-1]


# --------------------------------------------------------------------------------------------------------------- words


def test_english_is_cut_as_rouge_score_cuts_it() -> None:
    generator = random.Random(1)
    ascii_text = "".join(generator.choice([chr(code) for code in range(1, 128)]) for _ in range(5000))
    for text in (ascii_text, "Don't stop: it's 3.14% of A_B's e-mail (U.S.)", "x" * 50, ""):
        assert words(text) == as_published(text)


@pytest.mark.parametrize("script", SCRIPTS)
def test_identical_texts_score_100_in_any_script(script: str) -> None:
    text = SCRIPTS[script]
    assert all(score == (1, 1, 1) for score in rouge(text, text).values())
    assert rouge(text, f"{text} {text}")["rouge1"] == pytest.approx((1, 0.5, 2 / 3))
    assert rouge(text, "something else")["rouge1"] == (0, 0, 0)


def test_scripts_without_spaces_go_by_character_and_marks_stay_with_theirs() -> None:
    assert words("東京都2024年 OK") == ["東", "京", "都", "2024", "年", "ok"]
    assert words("กินข้าว") == ["กิ", "น", "ข้", "า", "ว"]
    assert words("แมวcat") == ["แ", "ม", "ว", "cat"]
    assert words("हिन्दी में") == ["हिन्दी", "में"]
    assert words("한국어 문장") == ["한국어", "문장"]
    assert rouge("東京に行く", "東京へ行く")["rougeL"].f1 == pytest.approx(0.8)


def test_case_and_the_two_spellings_of_an_accent_do_not_matter() -> None:
    assert words("CAFE\u0301 Straße") == words("caf\u00e9 STRASSE")


# ---------------------------------------------------------------------------------------------------------------- many


def test_means_over_examples_and_any_choice_of_them() -> None:
    outputs = ["a b c", "x", "the cat\nsat here", ""]
    references = ["a b d", "x", "the cat sat\nhere", "y z"]
    scores = Rouge(outputs, references)
    each = [rouge(*pair) for pair in zip(outputs, references, strict=True)]
    for kind in KINDS:
        f1 = [one[kind].f1 for one in each]
        assert scores.metrics()[kind] == pytest.approx(100 * np.mean(f1))
        assert scores.example_scores().metrics_of(np.array([0, 0, 2]))[kind] == pytest.approx(
            100 * (2 * f1[0] + f1[2]) / 3
        )
        for place, name in enumerate(("precision", "recall", "f1")):
            assert scores.details()[kind][name] == pytest.approx(100 * np.mean([one[kind][place] for one in each]))
    assert overall(scores.example_scores()) == scores.metrics()
    assert scores.worst(2) == [3, 0]
    assert scores.of(1, "rougeL") == (1, 1, 1)


def test_no_example_is_no_score() -> None:
    assert Rouge([], []).metrics() == dict.fromkeys(KINDS, 0.0)
    assert Rouge([], []).worst(3) == []
