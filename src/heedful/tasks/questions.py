"""Questions on a text, shared by the tasks that answer them: inputs, split, baseline, mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from heedful.data import Row, Rows, split
from heedful.data.split import Same
from heedful.errors import HeedfulError
from heedful.metrics.classification import Mistakes
from heedful.metrics.example_scores import overall
from heedful.metrics.squad import AnswerScore, most_similar_sentences, score, squad_sums
from heedful.tasks.generated_text_baselines import best_constant, better_of, with_learned
from heedful.tasks.span_regression import SpanRegression
from heedful.tasks.task import Baseline, short


def split_questions(rows: Rows, valid: float | None, seed: int, same: Same) -> tuple[Rows, Rows]:
    """Returns training and validation rows; ``valid`` is the fraction to hold out.

    Questions of one article stay together if all rows have a ``title`` and there are several titles. Otherwise
    questions of one context stay together.
    """
    titles = {row.values.get("title") for row in rows}
    by = "title" if None not in titles and len(titles) > 1 else "context"
    train, held = split(rows, valid, seed, by=by, same=same)
    return Rows(train, rows.skipped, rows.columns), Rows(held, 0, rows.columns)


def question_and_context(value: Any, task: str) -> tuple[str, str]:
    """Returns the question and the context of an input; two empty texts for a blank string.

    An input is ``(question, context)``, ``{"question": ..., "context": ...}``, or one string with a tab between them.
    Raises ``HeedfulError``, naming the ``task``, for any other value.

    >>> question_and_context("Who came?\\tAnn came.", "question-answering")
    ('Who came?', 'Ann came.')
    """
    sides: Any = value
    if isinstance(value, str):
        sides = value.split("\t", 1)
    elif isinstance(value, Mapping):
        sides = [value.get("question"), value.get("context")]
    if isinstance(value, str) and not value.strip():
        return "", ""
    if not isinstance(sides, tuple | list) or len(sides) != 2 or not all(isinstance(side, str) for side in sides):
        raise HeedfulError(
            f"{task} takes a question and a context: (question, context), "
            f'{{"question": ..., "context": ...}}, or one string with a tab between them; got {short(repr(value))}'
        )
    return sides[0], sides[1]


def question_line(question: str, answers: Sequence[str]) -> str:
    """Returns a question and its first answer as one line for people: ``question → answer``."""
    return f"{short(question, 80)} → {short(answers[0]) if answers else '(no answer)'}"


def best_simple_answers(
    rows: Rows,
    learned: Callable[[], Rows],
    references_of: Callable[[Row], Sequence[str]],
    others: Mapping[str, Callable[[Rows], list[str]]] = MappingProxyType({}),
) -> Baseline:
    """Scores the simple method with the highest F1: spans chosen by ridge regression, the sentence of the context most
    similar to the question, and ``others``, which return answers, given the training rows.
    """
    questions, contexts = ([row.values[column] for row in rows] for column in ("question", "context"))

    def spans(known: Rows) -> list[str]:
        answered = [row for row in known if references_of(row)]
        known_questions, known_contexts = ([row.values[name] for row in answered] for name in ("question", "context"))
        regression = SpanRegression(known_questions, known_contexts, [*map(references_of, answered)])
        return regression.answers(questions, contexts)

    sentences = [next(iter(found), "") for found in most_similar_sentences(questions, contexts)]
    methods = with_learned(
        learned,
        {"ridge regression on the words of a span": spans, **others},
        {"the sentence most like the question (TF-IDF)": sentences},
    )
    references = [*map(references_of, rows)]
    return better_of([_scored_answers(name, methods[name], references) for name in methods], "f1")


def constant_answer(rows: Rows, learned: Rows, references_of: Callable[[Row], Sequence[str]]) -> Baseline:
    """Scores the same answer to every question; "" where most training questions have none."""

    def score_answers(name: str, outputs: Sequence[str], rows: Rows) -> Baseline:
        return _scored_answers(name, outputs, [references_of(row) for row in rows])

    return best_constant(learned, rows, lambda row: next(iter(references_of(row)), ""), score_answers, "f1")


def _scored_answers(name: str, outputs: Sequence[str], references: Sequence[Sequence[str]]) -> Baseline:
    """Scores the answers of a simple method, without a loss."""
    scores = [score(output, answers) for output, answers in zip(outputs, references, strict=True)]
    zeros = np.zeros(len(outputs))
    example_scores = squad_sums(scores, [bool(answers) for answers in references], zeros, zeros)
    metrics = {name: value for name, value in overall(example_scores).items() if name != "loss"}
    return Baseline(name, metrics, example_scores)


def mistakes_of(
    rows: Sequence[Row],
    references: Sequence[Sequence[str]],
    answers: Sequence[tuple[str, float]],
    scores: Sequence[AnswerScore],
) -> Mistakes:
    """Returns the answers that match no reference; ``answers`` has the text of each, and its probability."""
    mistakes = Mistakes()
    for index, (row, expected, (text, probability)) in enumerate(zip(rows, references, answers, strict=True)):
        if not scores[index].exact:
            first = expected[0] if expected else ""
            mistakes.add(index, short(row.values["question"], 200), first, text, probability)
    return mistakes
