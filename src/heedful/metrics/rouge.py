"""ROUGE (Lin 2004): overlap of a text with its reference summary in words, bigrams and word order.

For ASCII text, words are those of Google's ``rouge_score``, and all scores equal its scores without a stemmer.
``rouge_score`` ignores letters beyond ASCII: ``café`` becomes ``caf``, and a Greek or Chinese text has no words, so
that it scores 0 against itself. This module counts letters of every script (see ``words``).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from heedful.metrics.example_scores import Metrics, Sums, overall

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
Words = list[str]

# Scripts without spaces between words: Thai, Lao, Myanmar, Khmer, kana, bopomofo, Han and their marks.
SPACELESS = "".join(
    f"{chr(first)}-{chr(last)}"
    for first, last in (
        *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF)),
        *((0x3005, 0x3007), (0x3031, 0x3035), (0x3040, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF)),
        *((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F), (0xF900, 0xFAFF)),
        *((0xFF66, 0xFF9F), (0x1AFF0, 0x1B16F), (0x20000, 0x323AF)),
    )
)
PLAIN, JOINT = re.compile("[a-z0-9]+"), re.compile(f"(?<=[{SPACELESS}])(?=[^{SPACELESS}])")
ALONE = re.compile(f"[{SPACELESS}]")


class _WordCharacters(dict[int, str]):
    """Table for ``str.translate``: keeps letters, their marks and digits; anything else ends a word."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        category = unicodedata.category(letter)
        begins = bool(ALONE.match(letter)) and category[0] != "M"
        self[code] = ("" if not begins else " ") + letter if category[0] in "LM" or category == "Nd" else " "
        return self[code]


WORD_CHARACTERS = _WordCharacters()


def words(text: str) -> Words:
    """Returns the words of a text: runs of letters and digits in lower case.

    In scripts without spaces between words, each word is a single character with its marks.

    >>> words("Don't panic: 42!")
    ['don', 't', 'panic', '42']
    >>> words("Ein großes Café"), words("東京に2回")
    (['ein', 'grosses', 'café'], ['東', '京', 'に', '2', '回'])
    """
    if text.isascii():
        return PLAIN.findall(text.lower())
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold()).translate(WORD_CHARACTERS)
    return JOINT.sub(" ", folded).split()


class RougeScore(NamedTuple):
    """Precision, recall and F1 of one pair of texts, each from 0 to 1."""

    precision: float
    recall: float
    f1: float


def rouge(output: str, reference: str) -> dict[str, RougeScore]:
    """Returns the scores of a text against a reference, by kind of ROUGE.

    With m hits, precision P = m / |output|, recall R = m / |reference|, F1 = 2PR / (P + R); 0 if a denominator is 0.
    |·| is the number of words, or of bigrams.

    - ``rouge1``, ``rouge2``: hits are the words, or bigrams, that both texts have. A repeated one counts as often as
      both texts have it.
    - ``rougeL``: hits are the longest common subsequence of all words.
    - ``rougeLsum``: each line is a sentence. The hits of a reference sentence are its words in a longest common
      subsequence with any output sentence, none more often than both texts have it. Without line ends it equals
      ``rougeL``. If there are several longest subsequences, the choice is that of ``rouge_score``.

    >>> rouge("testing two", "testing one two")["rougeL"]
    RougeScore(precision=1.0, recall=0.6666666666666666, f1=0.8)
    """
    output_words, reference_words = words(output), words(reference)
    pairs = [list(pairwise(text_words)) for text_words in (output_words, reference_words)]
    lengths = len(output_words), len(reference_words)
    sentences = [[words(line) for line in text.split("\n") if line] for text in (output, reference)]
    return {
        "rouge1": _score((Counter(output_words) & Counter(reference_words)).total(), *lengths),
        "rouge2": _score((Counter(pairs[0]) & Counter(pairs[1])).total(), len(pairs[0]), len(pairs[1])),
        "rougeL": _score(common(output_words, reference_words), *lengths),
        "rougeLsum": _score(_hits(*sentences), *lengths),
    }


def _score(hits: int, output: int, reference: int) -> RougeScore:
    precision, recall = hits / max(output, 1), hits / max(reference, 1)
    return RougeScore(precision, recall, 2 * precision * recall / (precision + recall) if hits else 0.0)


def common(first: Sequence[str], second: Sequence[str]) -> int:
    """Returns the length of the longest common subsequence of two sequences of words (bit-parallel, Hyyrö 2004).

    >>> common("a b c d e".split(), "b e c d".split())
    3
    """
    positions: dict[str, int] = {}  # word: a bit for each of its positions in ``first``
    for position, word in enumerate(first):
        positions[word] = positions.get(word, 0) | 1 << position
    ones = (1 << len(first)) - 1
    row = ones  # one bit for each position of ``first``; 0 where the length grows by one
    for word in second:
        matches = row & positions.get(word, 0)
        row = (row + matches | row - matches) & ones
    return len(first) - row.bit_count()


def _hits(output: Sequence[Words], reference: Sequence[Words]) -> int:
    """Returns the number of hits of ``rougeLsum``."""
    if len(output) == len(reference) == 1:
        return common(output[0], reference[0])
    left = Counter(word for sentence in output for word in sentence)
    left &= Counter(word for sentence in reference for word in sentence)
    hits = 0
    for sentence in reference:
        for position in sorted(set[int]().union(*(_subsequence(sentence, other) for other in output))):
            if left[sentence[position]]:
                left[sentence[position]] -= 1
                hits += 1
    return hits


def _subsequence(first: Words, second: Words) -> set[int]:
    """Returns the positions in ``first`` of a longest common subsequence of two texts.

    The table of lengths is read from the end; of equal choices, a word of ``first`` is skipped.
    """
    lengths = [[0] * (len(second) + 1)]
    for word in first:
        above, row = lengths[-1], [0]
        for position, other in enumerate(second):
            row.append(above[position] + 1 if word == other else max(above[position + 1], row[position]))
        lengths.append(row)
    positions, i, j = set(), len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            positions.add(i - 1)
            i, j = i - 1, j - 1
        elif lengths[i][j - 1] > lengths[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return positions


class Rouge:
    """ROUGE scores of many pairs of texts; each metric is the mean over the pairs, in percent.

    >>> scores = Rouge(["testing two", "x"], ["testing one two", "y"])
    >>> scores.metrics()["rougeL"], scores.details()["rouge1"]["recall"]
    (40.0, 33.33333333333333)
    """

    def __init__(self, outputs: Sequence[str], references: Sequence[str]) -> None:
        scores = [rouge(*pair) for pair in zip(outputs, references, strict=True)]
        values = np.array([[score[kind] for kind in KINDS] for score in scores])
        self.scores = values.reshape(len(scores), len(KINDS), 3)

    def metrics(self) -> Metrics:
        """Returns the mean F1 of each kind of ROUGE, 0 to 100."""
        return overall(self.example_scores())

    def details(self) -> dict[str, dict[str, float]]:
        """Returns the means of ``precision``, ``recall`` and ``f1``, 0 to 100, by kind of ROUGE."""
        means = 100 * self.scores.sum(0) / max(1, len(self.scores))
        return {
            kind: dict(zip(RougeScore._fields, row.tolist(), strict=True))
            for kind, row in zip(KINDS, means, strict=True)
        }

    def example_scores(self) -> Sums:
        """Returns the per-example scores, the F1 of each kind of ROUGE, for intervals and comparisons."""
        ones = np.ones((len(self.scores), 1))
        return Sums(np.hstack([self.scores[:, :, 2], ones]), _means)

    def of(self, place: int, kind: str) -> RougeScore:
        """Returns the score of one kind of ROUGE for the pair of texts at index ``place``."""
        return RougeScore(*self.scores[place, KINDS.index(kind)].tolist())

    def worst(self, most: int) -> list[int]:
        """Returns the indices of the ``most`` pairs of texts with the lowest ``rougeL``, the lowest first."""
        return [int(index) for index in np.argsort(self.scores[:, KINDS.index("rougeL"), 2], kind="stable")[:most]]


def _means(sums: Any) -> Metrics:
    return {kind: 100 * float(total) / max(1.0, float(sums[-1])) for kind, total in zip(KINDS, sums, strict=False)}
