"""SQuAD's exact match and F1 (Rajpurkar et al. 2016, 2018), and a baseline that answers with a sentence."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heedful.metrics.example_scores import Metrics, Sums
from heedful.metrics.rouge import SPACELESS

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised_answer(text: str) -> str:
    """Returns an answer normalised as in SQuAD's script: lower case, no ASCII punctuation, no articles, single spaces.

    >>> normalised_answer("The  U.S. -- an   example")
    'us example'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(output: str, answer: str) -> float:
    """Returns 1 if the output and the answer are equal after normalisation (`normalised`), else 0."""
    return float(normalised_answer(output) == normalised_answer(answer))


def overlap(output: str, answer: str) -> float:
    """Returns the F1 of the words of output and answer, from 0 to 1: 2 · common words / (words of both).

    Both are normalised (`normalised`). A repeated word counts as often as both texts have it. If neither text has
    words, F1 is 1; if only one has words, F1 is 0.

    >>> round(overlap("in the old town", "the old town hall"), 3)
    0.667
    """
    output_words, answer_words = normalised_answer(output).split(), normalised_answer(answer).split()
    if not output_words or not answer_words:
        return float(output_words == answer_words)
    common = sum((Counter(output_words) & Counter(answer_words)).values())
    return 2 * common / (len(output_words) + len(answer_words))


class AnswerScore(NamedTuple):
    """Exact match and F1 of one answer, each from 0 to 1."""

    exact: float
    f1: float


def score(output: str, answers: Sequence[str]) -> AnswerScore:
    """Returns the best exact match and the best F1 over all `answers`.

    Answers that are empty after normalisation are ignored, as in SQuAD 2.0's script. Without answers, "" is correct.

    >>> score("Denver Broncos", ["Broncos", "the Denver Broncos"])
    AnswerScore(exact=1.0, f1=1.0)
    """
    counted = [answer for answer in answers if normalised_answer(answer)] or [""]
    return AnswerScore(
        max(exact(output, answer) for answer in counted), max(overlap(output, answer) for answer in counted)
    )


class Threshold(NamedTuple):
    """Threshold of the "no answer" score that gives the best result, and that result in percent."""

    score: float  # percent
    value: float


def best_null_threshold(scores: ArrayLike, outputs: Sequence[str], answerable: ArrayLike, null: ArrayLike) -> Threshold:
    """Returns the best threshold for predicting "no answer" on these questions, as SQuAD 2.0's script finds it.

    A question whose `null` is above the threshold gets no answer, which is correct if the question has none. The values
    of `null` are tried in ascending order; a result of 0 means that answering no question is best.

    Args:
        scores: (N,), scores of the predicted answers, from 0 to 1.
        outputs: predicted answers; "" is no answer.
        answerable: (N,), True if the question has an answer.
        null: (N,), log-odds of no answer against the predicted answer.

    >>> best_null_threshold([1.0, 0.0, 0.0], ["a", "b", "c"], [True, False, True], [-2.0, 3.0, 1.0])
    Threshold(score=66.66666666666667, value=-2.0)
    """
    scores, answerable, null = np.asarray(scores, np.float64), np.asarray(answerable, bool), np.asarray(null)
    is_answered = np.array([output != "" for output in outputs], bool)
    order = np.argsort(null, kind="stable")
    gain = np.where(answerable, scores, np.where(is_answered, -1.0, 0.0))[order]
    reached = np.concatenate([[float((~answerable).sum())], gain]).cumsum()
    best = int(reached.argmax())
    value = 0.0 if best == 0 else float(null[order[best - 1]])
    return Threshold(100.0 * float(reached[best]) / max(1, len(scores)), value)


def squad_sums(scores: Sequence[AnswerScore], answerable: ArrayLike, losses: ArrayLike, windows: ArrayLike) -> Sums:
    """Returns the per-example scores of N questions: ``loss``, ``exact_match`` and ``f1``.

    If only some questions have an answer, there are also scores of the questions with and without an answer, named as
    in SQuAD 2.0's script: ``HasAns_exact``, ``HasAns_f1``, ``NoAns_exact``, ``NoAns_f1``.

    Args:
        scores: score of each question.
        answerable: (N,), True if the question has an answer.
        losses: (N,), loss summed over the question's windows.
        windows: (N,), number of the question's windows.

    >>> scores = [AnswerScore(1, 1), AnswerScore(0, 0.5)]
    >>> squad_sums(scores, [True, True], [1.0, 2.0], [1, 2]).metrics_of(np.array([0, 1]))
    {'loss': 1.0, 'exact_match': 50.0, 'f1': 75.0}
    """
    has = np.asarray(answerable, np.float64)[:, None]
    both = np.array([tuple(pair) for pair in scores], np.float64).reshape(-1, 2)
    count, kinds = np.ones_like(has), bool((has == 0).any() and has.any())
    columns = [both, count, np.asarray(losses)[:, None], np.asarray(windows)[:, None]]
    if kinds:
        columns += [both * has, has, both * (1 - has), 1 - has]
    return Sums(np.concatenate(columns, axis=1), _metrics)


def _metrics(sums: NDArray[np.float64]) -> Metrics:
    em, f1, count, loss, windows, *kinds = sums.tolist()
    metrics = {"loss": loss / max(1, windows), "exact_match": _percent(em, count), "f1": _percent(f1, count)}
    parts = {"HasAns": kinds[:3], "NoAns": kinds[3:]} if kinds else {}
    for name, (right, partly, number) in parts.items():
        metrics |= {f"{name}_exact": _percent(right, number), f"{name}_f1": _percent(partly, number)}
    return metrics


def _percent(part: float, whole: float) -> float:
    return 100.0 * part / max(1.0, whole)


def best_thresholds(
    outputs: Sequence[str], answers: Sequence[Sequence[str]], null: Sequence[float]
) -> dict[str, float]:
    """Returns the best thresholds for "no answer" and their scores, by exact match and by F1.

    The keys are ``best_exact``, ``best_exact_thresh``, ``best_f1`` and ``best_f1_thresh``. ``null`` has the log-odds of
    no answer against the predicted answer of each question.

    >>> best_thresholds(["a", "b"], [["a"], []], [-1.0, 1.0])["best_f1_thresh"]
    -1.0
    """
    scores = [score(output, accepted) for output, accepted in zip(outputs, answers, strict=True)]
    is_answerable = [bool(accepted) for accepted in answers]
    metrics: dict[str, float] = {}
    for name, values in (("exact", [pair.exact for pair in scores]), ("f1", [pair.f1 for pair in scores])):
        best = best_null_threshold(values, outputs, is_answerable, null)
        metrics |= {f"best_{name}": best.score, f"best_{name}_thresh": best.value}
    return metrics


def by_kind(scores: Sums, answerable: ArrayLike) -> dict[str, dict[str, float]]:
    """Returns ``exact_match``, ``f1`` and the number of ``examples``, for questions with and without an answer."""
    is_answerable, metrics = np.asarray(answerable, bool), {}
    for kind, indices in (
        ("answerable", is_answerable.nonzero()[0]),
        ("without answer", (~is_answerable).nonzero()[0]),
    ):
        values = scores.metrics_of(indices)
        metrics[kind] = {"exact_match": values["exact_match"], "f1": values["f1"], "examples": len(indices)}
    return metrics


_ENDS = re.compile(r"(?<=[.!?])[\"')\]]*\s+|(?<=[。！？])\s*|\n\s*\n\s*")
_WORDS = re.compile(rf"[{SPACELESS}]|[^\W{SPACELESS}]+")


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of a text.

    The text is split after ``.``, ``!`` or ``?`` if white space follows, after 。, ！ or ？, and at blank lines.

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


def most_similar_sentences(questions: Sequence[str], texts: Sequence[str], most: int = 1) -> list[list[str]]:
    """Returns the ``most`` sentences of each text that are most similar to its question, the most similar first.

    Words are runs of letters, digits and underscores; in scripts without spaces, single characters. Similarity
    is the cosine of their distinct words, each weighted by ln((1 + N) / (1 + n)) + 1 if n of the N sentences of
    all texts contain it (TF-IDF without repetitions). Of equally similar sentences the first comes first.

    >>> most_similar_sentences(["Where did Ann go?"], ["Bob stayed here. Ann did go north. Bob slept."])
    [['Ann did go north.']]
    >>> most_similar_sentences(["猫在哪里？"], ["狗在花园里睡觉。猫在屋顶上。"])
    [['猫在屋顶上。']]
    """
    split = {text: [(sentence, _words(sentence)) for sentence in sentences(text)] for text in dict.fromkeys(texts)}
    counts = Counter(word for pairs in split.values() for _, words in pairs for word in words)
    total = sum(map(len, split.values()))
    weights = {word: math.log((1 + total) / (1 + count)) + 1 for word, count in counts.items()}

    def similarity(question_words: frozenset[str], words: frozenset[str]) -> float:
        # fsum is exact: other sums depend on the order of a set, and so on the hashes of its words
        size = math.fsum(weights[word] ** 2 for word in words)
        return math.fsum(weights[word] ** 2 for word in question_words & words) / math.sqrt(size) if size else 0.0

    chosen = []
    for question, text in zip(questions, texts, strict=True):
        question_words = _words(question)
        ranked = sorted(split[text], key=lambda pair: similarity(question_words, pair[1]), reverse=True)
        chosen.append([sentence for sentence, _ in ranked[:most]])
    return chosen


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORDS.findall(text.casefold()))
