"""Ranking of given choices by their likelihood: options, batches, predictions, accuracy.

T0 answers by the choice with the highest log-likelihood (Sanh et al. 2022, section 6.2), GPT-3 by the highest per
token on most tasks (Brown et al. 2020, section 2.4), and the language model evaluation harness reports both that of the
sum and that per character (``acc_norm``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from heedful.data import Row, Rows
from heedful.data.batching import evaluation_batches
from heedful.errors import HeedfulError, nearest
from heedful.generation.options import Options
from heedful.generation.scoring import choice_logprobs
from heedful.metrics.example_scores import Metrics, Sums, overall
from heedful.models import Model
from heedful.tasks.encoder_decoder_task import with_loss
from heedful.tasks.task import EVALUATED, Baseline, Measured, Prediction
from heedful.tasks.token_batches import padded_with_mask
from heedful.util import sharding

CHOICES = "choices"  # option of a call, key of an input, and value of a row
OPTIONS = frozenset({CHOICES, "normalise"})  # options of the tasks that rank choices
NORMALISED = ("tokens", "characters")

Texts = Sequence[str]


class RankedPrompt(NamedTuple):
    """Token ids of a prompt, or a source, and of the choices to rank after it."""

    prompt: Sequence[int]
    choices: Sequence[Sequence[int]]


def checked_choices(choices: Any) -> tuple[str, ...]:
    """Returns choices as a tuple; raises ``HeedfulError`` unless they are two or more different texts, none blank."""
    is_list = isinstance(choices, list | tuple) and all(isinstance(text, str) and text.strip() for text in choices)
    if not is_list or len({*choices}) < max(2, len(choices)):
        raise HeedfulError(f"choices are {choices!s:.60}; give two or more different texts: yes,no")
    return tuple(choices)


def check_ranking(choices: Sequence[Texts | None], decoding: Options, normalise: Any, logprobs: bool) -> None:
    """Raises ``HeedfulError`` for an option without an effect: ``normalise`` if no input has choices, and options of
    generation if all have.
    """
    if normalise is not None and not any(choices):
        raise HeedfulError("normalise has no effect without choices; give choices, or leave it out")
    if not choices or not all(choices):
        return
    given = sorted(decoding.given - {"top_k"}) + ["logprobs"] * logprobs
    if given:
        raise HeedfulError(f"{given[0]} has no effect: choices are ranked, not generated; leave the option out")
    if normalise is not None and normalise not in NORMALISED:
        raise HeedfulError(f"unknown normalise {normalise!r}; {nearest(str(normalise), NORMALISED)}")


def answer(
    inputs: Sequence[Any],
    texts: Sequence[Any],
    choices: Sequence[Texts | None],
    decoding: Options,
    rank_texts: Callable[[list[Any], list[Texts]], list[Prediction]],
    generate: Callable[[list[Any], Options], list[Prediction]],
) -> list[Prediction]:
    """Returns the prediction for each input: ``rank_texts`` for those with choices, ``generate`` for the others.

    ``texts`` are the inputs without choices of their own, and ``choices`` those of each, or None.
    """
    if not any(choices):
        return generate(list(texts), decoding)
    ranked = {index: own for index, own in enumerate(choices) if own is not None}
    others = [index for index in range(len(inputs)) if index not in ranked]
    predictions = dict(zip(ranked, rank_texts([texts[i] for i in ranked], [*ranked.values()]), strict=True))
    if others:
        rest = generate([texts[i] for i in others], decoding.for_rows(others, len(inputs)))
        predictions |= dict(zip(others, rest, strict=True))
    return [replace(predictions[index], input=value) for index, value in enumerate(inputs)]


def split_inputs(inputs: Sequence[Any], choices: Any) -> tuple[list[Any], list[tuple[str, ...] | None]]:
    """Returns the inputs without choices of their own, and the choices of each: its own, those of the call, or None.

    An input with its own is a mapping: ``{"source": ..., "choices": [...]}``. With a single other key its value is the
    input.

    >>> split_inputs([{"source": "It is red. Red?", "choices": ["yes", "no"]}, "Blue?"], None)
    (['It is red. Red?', 'Blue?'], [('yes', 'no'), None])
    """
    common = None if choices is None else checked_choices(choices)
    bare, own = list[Any](), list[tuple[str, ...] | None]()
    for value in inputs:
        if isinstance(value, Mapping) and CHOICES in value:
            rest = {name: part for name, part in value.items() if name != CHOICES}
            bare.append(next(iter(rest.values())) if len(rest) == 1 else rest)
            own.append(checked_choices(value[CHOICES]))
        else:
            bare.append(value)
            own.append(common)
    return bare, own


def logprobs(model: Model, prompts: Sequence[RankedPrompt], batch_tokens: int | None = None) -> list[list[float]]:
    """Returns the log-probability of each choice of each prompt (``heedful.generation.scoring``), in batches.

    ``batch_tokens`` is the maximum number of tokens of a batch, of prompts and of all choices; by default 4,096. A
    prompt with more is scored in parts.
    """
    budget = batch_tokens or EVALUATED
    parts = list(_parts(prompts, budget))
    found: list[list[float]] = [[0.0] * len(prompt.choices) for prompt in prompts]
    lengths = [max(len(prompt), sum(map(len, chosen))) for _, prompt, _, chosen in parts]

    def scored(batch: np.ndarray) -> list[list[float]]:
        chosen = [parts[i] for i in batch]
        ids, mask = padded_with_mask([prompt for _, prompt, _, _ in chosen])
        return choice_logprobs(model, ids, mask, [choices for *_, choices in chosen]).tolist()

    batches = evaluation_batches(lengths, budget, max_rows=128) if parts else []
    for batch, rows in sharding.each(batches, scored):
        for i, row in zip(batch, rows, strict=True):
            number, _, first, choices = parts[i]
            found[number][first : first + len(choices)] = row[: len(choices)]
    return found


def _parts(
    prompts: Sequence[RankedPrompt], budget: int
) -> Iterator[tuple[int, Sequence[int], int, Sequence[Sequence[int]]]]:
    """Yields (number of the prompt, its ids, first choice, choices), the choices of at most ``budget`` tokens."""
    for number, (prompt, choices) in enumerate(prompts):
        size = max(1, budget // max(map(len, choices), default=1))
        for first in range(0, len(choices), size):
            yield number, prompt, first, choices[first : first + size]


def normalised_scores(
    scores: Sequence[float], prompt: RankedPrompt, texts: Texts, normalise: str | None
) -> list[float]:
    """Returns log-probabilities unchanged, or divided by each choice's number of ``tokens`` or ``characters``.

    >>> normalised_scores([-3.0, -4.0], RankedPrompt([1], [[5], [6, 7]]), ["no", "yes"], "tokens")
    [-3.0, -2.0]
    """
    if normalise is None:
        return list(scores)
    sizes = map(len, prompt.choices if normalise == "tokens" else texts)
    return [score / size for score, size in zip(scores, sizes, strict=True)]


def rank_choices(
    model: Model,
    inputs: Sequence[Any],
    prompts: Sequence[RankedPrompt],
    texts: Sequence[Texts],
    decoding: Options,
    normalise: str | None,
    batch_tokens: int | None,
) -> list[Prediction]:
    """Returns the prediction for each input: its most probable choice, with its log-probability as the score.

    With ``top_k`` in the call, the output is a list of ``{"text", "score"}``, the best ``top_k``.
    """
    predictions, listed = [], "top_k" in decoding.given
    for value, prompt, own, sums in zip(inputs, prompts, texts, logprobs(model, prompts, batch_tokens), strict=True):
        scores = normalised_scores(sums, prompt, own, normalise)
        best = sorted(range(len(own)), key=lambda i: -scores[i])
        if listed:
            output: Any = [{"text": own[i], "score": scores[i]} for i in best[: decoding.top_k or None]]
        else:
            output = own[best[0]]
        predictions.append(Prediction(value, output, scores[best[0]]))
    return predictions


# ------------------------------------------------------------------------------------------------------------ accuracy


def choices_of_rows(rows: Sequence[Row], targets: Sequence[str], choices: Any) -> list[tuple[str, ...] | None]:
    """Returns the choices of each row of an evaluation: those of the call, its own, or None.

    Raises ``HeedfulError``, with file and line, for a row whose target is none of them.
    """
    common = None if choices is None else checked_choices(choices)
    found = [row.values.get(CHOICES) if common is None else common for row in rows]
    for row, target, own in zip(rows, targets, found, strict=True):
        if own is not None and target not in own:
            raise HeedfulError(
                f"the target {target!s:.40} is none of the choices {', '.join(own)!s:.80}, in {row.file}:{row.line}; "
                "give choices that include it"
            )
    return found


def have_choices(rows: Rows) -> bool:
    """Returns True if all rows have choices of their own."""
    return bool(rows) and all(CHOICES in row.values for row in rows)


def with_choices(name: str, inputs: Sequence[Any], choices: Sequence[Texts | None]) -> list[Any]:
    """Returns inputs of ``predict``: mappings of ``name`` and choices for those that have choices."""
    return [value if own is None else {name: value, CHOICES: own} for value, own in zip(inputs, choices, strict=True)]


def with_accuracy(
    scores: Sums, outputs: Sequence[str], targets: Sequence[str], choices: Sequence[Texts | None]
) -> Sums:
    """Returns the scores with one more metric, ``accuracy``: the percentage of right choices, of those with choices.

    >>> scores = with_accuracy(Sums([[2.0], [4.0]], lambda sums: {"loss": sums[0]}), ["a", "b"], "ab", [None, "bc"])
    >>> scores.metrics_of(np.array([0, 1]))
    {'accuracy': 100.0, 'loss': 6.0}
    """
    width = scores.statistics.shape[1]
    right = [
        (own is not None and output == target, own is not None)
        for output, target, own in zip(outputs, targets, choices, strict=True)
    ]

    def formula(sums: np.ndarray) -> Metrics:
        return {"accuracy": 100 * sums[width] / max(1.0, sums[width + 1]), **scores.formula(sums[:width])}

    return Sums(np.concatenate([scores.statistics, np.array(right, dtype=float)], axis=1), formula)


def measured_choices(
    outputs: Sequence[str], targets: Sequence[str], choices: Sequence[Texts | None], losses: np.ndarray
) -> Measured:
    """Returns ``accuracy`` and ``loss`` of rows that all have choices; ``losses`` as ``with_loss`` takes them."""
    scores = with_accuracy(_no_metrics(len(outputs)), outputs, targets, choices)
    total, count = losses.sum(0).tolist()
    return Measured({"loss": total / count, **overall(scores)}, {}, with_loss(scores, losses), outputs)


def majority_choice(rows: Rows, learned: Rows, target_of: Callable[[Row], str]) -> Baseline:
    """Scores a baseline of rows that all have choices: the most frequent one (``add_majority_choice``)."""
    baseline = add_majority_choice(Baseline("", {}, _no_metrics(len(rows))), rows, learned, target_of)
    assert isinstance(baseline.example_scores, Sums)
    scores = with_loss(baseline.example_scores, np.zeros((len(rows), 2)))
    return Baseline("the most frequent choice", baseline.metrics, scores)


def add_majority_choice(baseline: Baseline, rows: Rows, learned: Rows, target_of: Callable[[Row], str]) -> Baseline:
    """Adds ``accuracy`` to a baseline of rows of which some have choices: that of the most frequent choice.

    It is the most frequent target of the training rows with the same choices; without such rows the first choice.
    """
    choices = [row.values.get(CHOICES) for row in rows]
    if not any(choices):
        return baseline
    counts: dict[Texts, Counter[str]] = defaultdict(Counter)
    for row in learned:
        counts[row.values.get(CHOICES, ())][target_of(row)] += 1
    outputs = ["" if own is None else max(own, key=counts[own].__getitem__) for own in choices]
    assert isinstance(baseline.example_scores, Sums)
    scores = with_accuracy(baseline.example_scores, outputs, list(map(target_of, rows)), choices)
    metrics = {**baseline.metrics, "accuracy": overall(scores)["accuracy"]}
    return Baseline(f"{baseline.name}; of choices the most frequent", metrics, scores)


def _no_metrics(rows: int) -> Sums:
    return Sums(np.zeros((rows, 0)), lambda sums: {})
