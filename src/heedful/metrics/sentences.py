"""The sentence that is most like a question: what is to be beaten by a model that reads."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from heedful.metrics.rouge import SPACELESS

_ENDS = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[。！？])\s*|\n\s*\n\s*")
_WORDS = re.compile(rf"[{SPACELESS}]|[^\W{SPACELESS}]+")


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text: it is cut after ``.``, ``!`` and ``?`` with a blank, after 。！？, and at blank lines.

    >>> list(sentences("It rained. We stayed (and slept!)  Then?"))
    ['It rained.', 'We stayed (and slept!)', 'Then?']
    """
    first = 0
    for match in _ENDS.finditer(text):
        end = match.start() + len(match[0].rstrip())  # a closing bracket or quote is the sentence's
        if piece := text[first:end].strip():
            yield piece
        first = match.end()
    if piece := text[first:].strip():
        yield piece


def likest_sentences(questions: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Of the text of each question the sentence whose words are most like the question's.

    Words are runs of letters, digits and underscores, of scripts without spaces between words the characters. Likeness
    is the cosine of their different words, each weighted by ln((1 + N) / (1 + n)) + 1, of the N sentences of
    all texts n having it (TF-IDF without repetitions). Of equals the first is taken.

    >>> likest_sentences(["Where did Ann go?"], ["Bob stayed here. Ann did go north. Bob slept."])
    ['Ann did go north.']
    >>> likest_sentences(["猫在哪里？"], ["狗在花园里睡觉。猫在屋顶上。"])
    ['猫在屋顶上。']
    """
    cut = {text: [(one, _words(one)) for one in sentences(text)] for text in dict.fromkeys(texts)}
    found = Counter(word for pieces in cut.values() for _, words in pieces for word in words)
    total = sum(map(len, cut.values()))
    weights = {word: math.log((1 + total) / (1 + count)) + 1 for word, count in found.items()}

    def likeness(asked: frozenset[str], words: frozenset[str]) -> float:
        size = sum(weights[word] ** 2 for word in words)
        return sum(weights[word] ** 2 for word in asked & words) / math.sqrt(size) if size else 0.0

    chosen = []
    for question, text in zip(questions, texts, strict=True):
        asked = _words(question)
        chosen.append(max(cut[text], key=lambda piece: likeness(asked, piece[1]))[0])
    return chosen


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORDS.findall(text.casefold()))
