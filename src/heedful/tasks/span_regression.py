"""Simple method of extractive question answering: ridge regression on the words at both ends of a span and inside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heedful.metrics.rouge import SPACELESS
from heedful.metrics.squad import most_similar_sentences, score
from heedful.tasks.baselines import evenly_spaced, sklearn_module

QUESTIONS = 1_000  # maximum number of training questions
SENTENCES = 2  # of a context, the most similar to the question, in which answers are sought
SPANS = 12  # random spans of each training question, beside its answer and those that differ from it by a word
LONGEST = 20  # maximum number of words of an answer
NEAR = 10  # words of the question farther away than this many words are all as far
FEATURES = 1 << 16  # number of hashed features of a word
PENALTY = 30.0  # of ridge regression
BLOCK = 250  # questions answered at a time

_WORDS = re.compile(rf"[{SPACELESS}]|[^\W{SPACELESS}]+|[^\w\s]")


class SpanRegression:
    """Predicts the F1 of spans by ridge regression; the answer is the span with the highest prediction.

    Spans are of at most 20 words, of the two sentences of a context that are most similar to the question
    (``most_similar_sentences``). A span's features are those of its first word, those of its last word, those of its n
    words summed and divided by √n, and n. A word's features are itself, its neighbors, their shapes, the words at the
    question's beginning, and the distance to the nearest word of the question.

    Args:
        questions: training questions; of more than 1,000, evenly spaced ones are used.
        contexts: the context of each question.
        answers: the accepted answers to each question.

    >>> contexts = ["Ann came on 3 May by bus.", "Bob left on 5 June by car.", "Eve slept on 7 July at home."] * 9
    >>> questions = ["When did Ann come ?", "When did Bob leave ?", "When did Eve sleep ?"] * 9
    >>> model = SpanRegression(questions, contexts, [["3 May"], ["5 June"], ["7 July"]] * 9)
    >>> model.answers(["When did Tom go ?"], ["Tom went on 8 May by car."])
    ['8 May']
    """

    def __init__(self, questions: Sequence[str], contexts: Sequence[str], answers: Sequence[Sequence[str]]) -> None:
        chosen = evenly_spaced(len(questions), QUESTIONS)
        passages = _passages([questions[i] for i in chosen], [contexts[i] for i in chosen])
        random, spans, targets, shift = np.random.default_rng(0), list[NDArray[np.int64]](), list[float](), 0
        for i, passage in zip(chosen, passages, strict=True):
            own = passage.training_spans(answers[i], random)
            targets += [score(passage.text(span), answers[i]).f1 for span in own]
            spans.append(own + shift)
            shift += len(passage.words)
        weights = np.zeros(3 * FEATURES + LONGEST)
        if targets:
            vectors = _span_vectors(_word_vectors(passages), np.concatenate(spans))
            model = sklearn_module("linear_model").Ridge(alpha=PENALTY, solver="lsqr", tol=1e-3, max_iter=60)
            weights = model.fit(vectors, targets).coef_
        self._first, self._last, self._inside = weights[: 3 * FEATURES].reshape(3, FEATURES)
        self._length = weights[3 * FEATURES :]

    def answers(self, questions: Sequence[str], contexts: Sequence[str]) -> list[str]:
        """Returns the answer to each question, a span of its context; "" if the context has no words."""
        texts = list[str]()
        passages = _passages(questions, contexts)
        for first in range(0, len(passages), BLOCK):
            block, shift = passages[first : first + BLOCK], 0
            vectors = _word_vectors(block)
            at_first, at_last = vectors @ self._first, vectors @ self._last
            inside = np.concatenate([[0.0], np.cumsum(vectors @ self._inside)])
            for passage in block:
                firsts, lasts = (passage.spans() + shift).T
                lengths = lasts - firsts + 1
                means = (inside[lasts + 1] - inside[firsts]) / np.sqrt(lengths)
                predicted = at_first[firsts] + at_last[lasts] + means + self._length[lengths - 1]
                texts.append(passage.text(passage.spans()[predicted.argmax()]) if len(predicted) else "")
                shift += len(passage.words)
        return texts


class _Word(NamedTuple):
    sentence: int
    start: int
    end: int


class _Passage(NamedTuple):
    """Sentences that are most similar to a question, their words, and the features of each word."""

    sentences: list[str]
    words: list[_Word]
    features: list[list[str]]

    def text(self, span: Iterable[int]) -> str:
        first, last = (self.words[place] for place in span)
        return self.sentences[first.sentence][first.start : last.end]

    def spans(self) -> NDArray[np.int64]:
        """Returns the first and last word (N, 2) of each span of at most 20 words within a sentence."""
        numbers = np.array([word.sentence for word in self.words], dtype=np.int64)
        firsts, lasts = np.nonzero(np.tri(len(numbers), k=LONGEST - 1) * np.tri(len(numbers)).T)
        is_inside = numbers[firsts] == numbers[lasts]
        return np.stack([firsts[is_inside], lasts[is_inside]], axis=1)

    def training_spans(self, answers: Sequence[str], random: np.random.Generator) -> NDArray[np.int64]:
        """Returns random spans, the span of an answer, and those with one word more or less at an end."""
        spans = self.spans()
        kept = {tuple(span) for span in random.permutation(spans)[:SPANS].tolist()}
        known = {tuple(span) for span in spans.tolist()}
        for first, last in self._answer_span(answers):
            begins, ends = ({(first + by, last) for by in (-1, 0, 1)}, {(first, last + by) for by in (-1, 1)})
            kept |= known & {*begins, *ends, (first, first), (last, last)}
        return np.array(sorted(kept), dtype=np.int64).reshape(-1, 2)

    def _answer_span(self, answers: Sequence[str]) -> list[tuple[int, int]]:
        """Returns the first and last word of the first answer in these sentences; nothing without one."""
        for answer in answers:
            for number, sentence in enumerate(self.sentences):
                start = sentence.find(answer) if answer else -1
                inside = [
                    place
                    for place, word in enumerate(self.words)
                    if start >= 0
                    and word.sentence == number
                    and word.start >= start
                    and word.end <= start + len(answer)
                ]
                if inside:
                    return [(inside[0], min(inside[-1], inside[0] + LONGEST - 1))]
        return []


def _passages(questions: Sequence[str], contexts: Sequence[str]) -> list[_Passage]:
    passages = []
    for question, found in zip(questions, most_similar_sentences(questions, contexts, SENTENCES), strict=True):
        words = [
            _Word(number, match.start(), match.end())
            for number, sentence in enumerate(found)
            for match in _WORDS.finditer(sentence)
        ]
        own = _WORDS.findall(question.lower())
        features = [
            part for number, sentence in enumerate(found) for part in _features(own, _WORDS.findall(sentence), number)
        ]
        passages.append(_Passage(found, words, features))
    return passages


def _features(question: Sequence[str], words: Sequence[str], sentence: int) -> list[list[str]]:
    """Returns the features of each word of a sentence; ``question`` has the question's words in lower case."""
    known, lower = {*question}, ["<", *(word.lower() for word in words), ">"]
    shapes = ["<", *map(_shape, words), ">"]
    shared = np.flatnonzero([word in known and len(word) > 3 for word in lower])
    begin, two = question[0] if question else "", " ".join(question[:2])
    features = []
    for i in range(1, len(words) + 1):
        word, shape, before, after = lower[i], shapes[i], shapes[i - 1], shapes[i + 1]
        distance = min(NEAR, int(np.abs(shared - i).min())) if len(shared) else NEAR
        is_shared = word in known
        features.append(
            [
                f"word {word}",
                f"before {lower[i - 1]}",
                f"after {lower[i + 1]}",
                f"shapes {before} {shape} {after}",
                f"to {begin}: {shape}",
                f"to {two}: {shape}",
                f"to {begin}: {word}",
                f"to {begin}: before {lower[i - 1]}",
                f"to {begin}: after {lower[i + 1]}",
                f"to {begin}: {before} {shape}",
                f"to {begin}: {shape} {after}",
                f"shared {is_shared} {shape}",
                f"shared before {lower[i - 1] in known}",
                f"shared after {lower[i + 1] in known}",
                f"distance {distance}",
                f"sentence {sentence}",
                f"place {min(i, 4)}",
            ]
        )
    return features


def _shape(word: str) -> str:
    if any(character.isdigit() for character in word):
        return "0"
    return ("X" if word[0].isupper() else "x") if word[0].isalpha() else word


def _word_vectors(passages: Sequence[_Passage]) -> Any:
    """Returns the hashed features of all words of ``passages``, sparse (words, FEATURES)."""
    hasher = sklearn_module("feature_extraction").FeatureHasher(
        FEATURES, input_type="string", dtype=np.float32, alternate_sign=False
    )
    return hasher.transform(chain.from_iterable(passage.features for passage in passages))


def _span_vectors(words: Any, spans: NDArray[np.int64]) -> Any:
    """Returns the features of ``spans`` (N, 2), sparse (N, 3 · FEATURES + LONGEST); ``words`` has those of words."""
    sparse = import_module("scipy.sparse")
    lengths = spans[:, 1] - spans[:, 0] + 1
    rows = np.arange(len(spans) + 1)
    inside = np.concatenate([np.arange(first, last + 1) for first, last in spans])
    scale = np.repeat(1 / np.sqrt(lengths), lengths).astype(np.float32)
    sums = sparse.csr_matrix((scale, inside, np.cumsum([0, *lengths])), shape=(len(spans), words.shape[0]))
    length = sparse.csr_matrix((np.ones(len(spans), np.float32), lengths - 1, rows), shape=(len(spans), LONGEST))
    return sparse.hstack([words[spans[:, 0]], words[spans[:, 1]], sums @ words, length]).tocsr()
