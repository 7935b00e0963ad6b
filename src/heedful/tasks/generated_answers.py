"""Base of generative question answering: windows of a context, the choice of an answer, and SQuAD's scores."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from heedful.data import Kind, Row, Rows
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError, plural
from heedful.generation.options import Options
from heedful.metrics.example_scores import overall
from heedful.metrics.squad import best_thresholds, by_kind, normalised_answer, score, squad_sums
from heedful.models import Model
from heedful.pretrained.folder import find, read_card
from heedful.tasks.generated_text_baselines import nearest_targets
from heedful.tasks.passages import ROOM, TextWindow, TextWindows, text_windows
from heedful.tasks.questions import (
    best_simple_answers,
    constant_answer,
    mistakes_of,
    question_and_context,
    question_line,
    split_questions,
)
from heedful.tasks.task import EVALUATED, Baseline, Encoded, Measured, Prediction, Task
from heedful.tasks.token_batches import GeneratedText, outputs_of_call, prediction_of
from heedful.text import Tokenizer
from heedful.util.input_warnings import CountWarning

log = logging.getLogger("heedful")

NEW_TOKENS = 64  # default maximum number of tokens of an answer
OWN_OPTIONS = frozenset({"batch_tokens", "logprobs", "prefix"})  # options of a call that are not of decoding


class AnswerExample(NamedTuple):
    """Example of one window, as a family encodes it, and the number of its question."""

    example: Any
    row: int


@dataclass
class WindowAnswers:
    """Answers to one question from all windows of its context.

    An answer's score is that of the decoding: the mean log-probability of its tokens, the end token included, unless a
    ``length_penalty`` other than 1 is set for a beam search.
    """

    outputs: list[GeneratedText] = field(default_factory=list)
    null: float = math.inf  # the least mean log-probability of the empty answer over the windows, if computed

    def best(self) -> list[GeneratedText]:
        """Returns the distinct answers that are not empty, best first.

        >>> answers = [GeneratedText(*given, None) for given in (("", -0.1), ("Ann", -0.9), ("Bob", -0.4))]
        >>> [answer.text for answer in WindowAnswers(answers).best()]
        ['Bob', 'Ann']
        """
        nonempty = [output for output in self.outputs if output.text.strip()]
        distinct: dict[str, GeneratedText] = {}
        for output in sorted(nonempty, key=attrgetter("score"), reverse=True):
            distinct.setdefault(output.text, output)
        return list(distinct.values())

    @property
    def margin(self) -> float:
        """log p of the empty answer minus the best answer's score; infinite without an answer."""
        best = self.best()
        return self.null - best[0].score if best else math.inf

    def chosen(self, threshold: float | None) -> list[GeneratedText]:
        """Returns the answers, best first; first of all the empty one if there is no other, or ``margin`` exceeds
        ``threshold``.
        """
        best = self.best()
        if best and (threshold is None or self.margin <= threshold):
            return best
        empty = min(
            (output for output in self.outputs if not output.text.strip()), key=attrgetter("score"), default=None
        )
        log_p = self.null if math.isfinite(self.null) else -math.inf if empty is None else empty.score
        return [GeneratedText("", log_p, None if empty is None else empty.logprobs), *best]


class GeneratedAnswers(Task):
    """Base of tasks that generate the answer to a question about a context.

    A context of more tokens than the model reads is split into overlapping windows, in training and afterwards. In
    training, each window that contains one of the answers learns the first of them, and the other windows learn the
    empty answer. If no window contains one, the windows that share most words with question and answer learn it. In
    prediction, each window has an answer, and the one with the highest score (``WindowAnswers``) is returned. The empty
    answer is returned if every window has it, or by ``null_threshold``.
    """

    name: ClassVar[str] = "generative-question-answering"
    columns: Mapping[str, Kind] = MappingProxyType({"question": "text", "context": "text", "answers": "references"})
    input_names: ClassVar[tuple[str, ...]] = ("question", "context")
    main_metric: str = "f1"

    answer_room: int = 0  # tokens of a decoder's context that are kept for the answer
    window: int | None = None  # tokens of a window in training; None: as many as the model reads
    stride: int | None = None  # tokens that neighbouring windows share; None: as in ``question_windows``

    # ------------------------------------------------------------------------------------------ what a family overrides

    @property
    @abstractmethod
    def context_tokenizer(self) -> Tokenizer:
        """The tokenizer of the contexts."""

    @property
    @abstractmethod
    def window_tokens(self) -> int:
        """The maximum number of tokens of a window, with its question and special tokens."""

    @classmethod
    @abstractmethod
    def input_text(cls, value: Any) -> str:
        """Returns the text that the model reads for a question with its context, before any prefix."""

    @abstractmethod
    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Returns the number of tokens of each text as the model reads it, special tokens included."""

    @abstractmethod
    def encode_windows(self, rows: Rows, max_length: int | None) -> Encoded:
        """Encodes windows, which are rows with at most one answer; some may be left out."""

    @abstractmethod
    def empty_examples(self, texts: Sequence[str]) -> list[Any]:
        """Returns examples with an empty answer for texts that include any prefix."""

    @abstractmethod
    def generated(self, model: Model, texts: Sequence[str], decoding: Options, **options: Any) -> list[Prediction]:
        """Returns the answer for each text, which includes any prefix."""

    @abstractmethod
    def answer_losses(self, model: Model, examples: Sequence[AnswerExample]) -> np.ndarray:
        """Returns an array (N, 2): for each example Σ −log p over its answer's tokens, and the number of these."""

    @abstractmethod
    def decoding_options(self, model: Model, options: Mapping[str, Any]) -> Options:
        """Returns the decoding options of a call; unset options have the values stored in the model's folder."""

    def evaluation_options(
        self, model: Model, examples: Sequence[AnswerExample], options: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Returns the options of an evaluation in training; by default the same."""
        return options

    # --------------------------------------------------------------------------------------------------------- creation

    def load_windows(self, folder: str | Path) -> None:
        """Reads window and stride of the training, if the model of ``folder`` was trained for this task."""
        card = read_card(find(folder))
        if card.get("task") == self.name:
            data = card.get("settings", {}).get("data", {})
            self.window, self.stride = data.get("max_length"), data.get("stride")

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Returns training and validation rows, as ``split_questions``."""
        return split_questions(rows, valid, seed, same)

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Encodes the windows of each row. The note says how many contexts are split, and what is left out."""
        return self._encode(rows, max_length, None)

    def _encode(self, rows: Rows, max_length: int | None, stride: int | None) -> Encoded:
        split = self._windows([(row.values["question"], row.values["context"]) for row in rows], max_length, stride)
        window_rows = Rows(columns=rows.columns)
        for index, windows in groupby(split.windows, key=lambda window: window.row):
            own = list(windows)
            for window, target in zip(own, window_targets(own, rows[index].values["answers"]), strict=True):
                window_rows.append(_window_row(window, rows[index], target))
        encoded = self.encode_windows(window_rows, max_length)
        numbers = [row.values["row"] for row in encoded.rows]
        examples = [AnswerExample(*pair) for pair in zip(encoded.examples, numbers, strict=True)]
        unread = {*split.cut, *(row.values["row"] for row in encoded.unread)}
        notes = "; ".join(note for note in (split.note, encoded.note) if note)
        return Encoded(examples, rows, notes, len(unread), [rows[index] for index in sorted(unread)])

    def _windows(
        self,
        questions: Sequence[tuple[str, str]],
        max_length: int | None,
        stride: int | None,
        prefix: str | None = None,
    ) -> TextWindows:
        most = min(max_length or self.window_tokens, self.window_tokens)
        stride = self.stride if stride is None else stride

        def count(pairs: Sequence[tuple[str, str]]) -> list[int]:
            return self.token_counts([self.prefixed(pair, prefix) for pair in pairs])

        [empty] = count([("", "")])
        if most < empty + ROOM:
            kept = f" beside the {plural(self.answer_room, 'token')} of an answer" if self.answer_room else ""
            raise HeedfulError(
                f"windows of {plural(most, 'token')}{kept} have no room for a question and a text, which need "
                f"{empty + ROOM}; give a larger --data.max-length, or a shorter prefix"
            )
        return text_windows(self.context_tokenizer, questions, most, stride, count)

    def prefixed(self, pair: tuple[str, str], prefix: str | None) -> str:
        """Returns the text that the model reads for (question, context); ``prefix`` is put before it."""
        return (prefix or "") + self.input_text(pair)

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def measure(
        self, model: Model, examples: Sequence[AnswerExample], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Returns ``exact_match`` and ``f1`` of the first ``most`` rows, computed as by SQuAD's script, and ``loss``.

        Answers are compared with all references of a row. If some rows have none, the metrics include the best
        thresholds and their scores: ``best_exact``, ``best_exact_thresh``, ``best_f1``, ``best_f1_thresh``. If others
        have some, there are also ``HasAns_exact``, ``HasAns_f1``, ``NoAns_exact`` and ``NoAns_f1``.

        The details have the most confident ``mistakes`` and, if there are rows with and rows without an answer,
        ``by_kind``.
        """
        stride, threshold = (options.pop(name, None) for name in ("stride", "null_threshold"))
        if stride is not None:
            examples = self._encode(rows, None, stride).examples
        losses = np.zeros((len(rows), 2))
        np.add.at(losses, [example.row for example in examples], self.answer_losses(model, examples))
        chosen = rows[:most]
        golds = [list(row.values["answers"]) for row in chosen]
        answerable = np.array([bool(answers) for answers in golds])
        questions = [(row.values["question"], row.values["context"]) for row in chosen]
        needs_null = threshold is not None or not answerable.all()
        options = dict(options if most is None else self.evaluation_options(model, examples, options))
        results, _ = self._answer(model, questions, stride, needs_null, self._resolved(model, options), options)
        outputs = [result.chosen(threshold)[0] for result in results]
        scores = [score(output.text, answers) for output, answers in zip(outputs, golds, strict=True)]
        nats, tokens = losses[: len(chosen)].T
        example_scores = squad_sums(scores, answerable, nats, tokens)
        predicted = [(output.text, math.exp(min(0.0, output.score))) for output in outputs]
        details = mistakes_of(chosen, golds, predicted, scores).details()
        metrics = {**overall(example_scores), "loss": float(losses[:, 0].sum() / max(1.0, losses[:, 1].sum()))}
        if not answerable.all():
            bare = [result.chosen(None)[0].text for result in results]
            metrics |= best_thresholds(bare, golds, [result.margin for result in results])
            details |= {"by_kind": by_kind(example_scores, answerable)} if answerable.any() else {}
        return Measured(metrics, details, example_scores, [output.text for output in outputs])

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores the best of three baselines: spans chosen by ridge regression (``span_regression``), the answer to the
        nearest training question, and the sentence most similar to the question.
        """

        def nearest(known: Rows) -> list[str]:
            return nearest_targets(known, rows, lambda row: row.values["question"], self.expected)

        others = {"the answer to the most similar training question": nearest}
        return best_simple_answers(rows, learned, lambda row: row.values["answers"], others)

    def guess(self, examples: Sequence[Any], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that has the same answer to every question."""
        return constant_answer(rows, learned, lambda row: row.values["answers"])

    def predict(
        self,
        model: Model,
        inputs: Sequence[Any],
        *,
        stride: int | None = None,
        null_threshold: float | None = None,
        **options: Any,
    ) -> list[Prediction]:
        """Returns the answer to each input as a text, by default of at most as many tokens as in training, or 64.

        The score is the mean log-probability of the answer's tokens, the end token included. With
        ``num_return_sequences`` > 1 the output is a list of ``{"text", "score"}``, the best of all windows.

        Args:
            model: the model.
            inputs: questions with contexts: ``(question, context)``, ``{"question": ..., "context": ...}``, or one
                string with a tab between them. If either is blank, the answer is empty, without a score. A question
                that does not fit with its context is truncated to half of a window, with a warning.
            stride: number of tokens that neighbouring windows of a long context share; None for that of training.
            null_threshold: the empty answer is returned if its log-probability exceeds the best answer's score by more
                than this. It is the mean over the end token and any tokens that the tokenizer adds, in the window where
                it is lowest: an answer may be in any window. None returns an answer if a window has one.
            **options: ``batch_tokens``, ``logprobs``, ``decoding`` and, of an encoder-decoder, ``prefix`` as in
                ``SequenceToSequence.predict``; all others are decoding options.
        """
        questions = [question_and_context(value, self.name) for value in inputs]
        filled = [index for index, pair in enumerate(questions) if all(side.strip() for side in pair)]
        decoding: Options = outputs_of_call(options.pop("decoding", None) or self._resolved(model, options))
        predictions = [prediction_of(value, [], decoding) for value in inputs]
        if options.get("logprobs") and decoding.num_return_sequences == 1:
            predictions = [replace(prediction, logprobs=[]) for prediction in predictions]
        own, needs_null = decoding.for_rows(filled, len(inputs)), null_threshold is not None
        results, cut = self._answer(model, [questions[i] for i in filled], stride, needs_null, own, options)
        for index, result in zip(filled, results, strict=True):
            answers = result.chosen(null_threshold)
            predictions[index] = prediction_of(inputs[index], answers[: decoding.num_return_sequences], decoding)
        if cut:
            log.warning(CountWarning(cut, len(inputs), "cut to half of a window", "question"))
        return predictions

    def _resolved(self, model: Model, options: dict[str, Any]) -> Options:
        """Returns the decoding options of a call, and removes them from ``options``."""
        return self.decoding_options(model, {name: options.pop(name) for name in [*options] if name not in OWN_OPTIONS})

    def _answer(
        self,
        model: Model,
        questions: Sequence[tuple[str, str]],
        stride: int | None,
        needs_null: bool,
        decoding: Options,
        options: Mapping[str, Any],
    ) -> tuple[list[WindowAnswers], int]:
        """Returns the answers to each question, and the number of truncated questions.

        ``needs_null`` computes the log-probability of the empty answer in each window; ``options`` are some of
        ``OWN_OPTIONS``.
        """
        prefix, tokens = options.get("prefix"), options.get("batch_tokens")
        results = [WindowAnswers() for _ in questions]
        split = self._windows(questions, max(tokens or 0, EVALUATED), stride, prefix)
        if not questions:
            return results, 0
        texts = [self.prefixed((window.question, window.context), prefix) for window in split.windows]
        own = decoding.for_rows([window.row for window in split.windows], len(questions))
        passed = {name: value for name, value in options.items() if name != "prefix"}
        for window, prediction in zip(split.windows, self.generated(model, texts, own, **passed), strict=True):
            results[window.row].outputs += _outputs(prediction)
        if needs_null:
            examples = [AnswerExample(example, 0) for example in self.empty_examples(texts)]
            for window, (nats, count) in zip(split.windows, self.answer_losses(model, examples), strict=True):
                results[window.row].null = min(results[window.row].null, -float(nats) / float(count))
        return results, len(split.cut)

    def expected(self, row: Row) -> str:
        """Returns the first answer of a row; "" if it has none."""
        return next(iter(row.values["answers"]), "")

    def trial_inputs(self, texts: Sequence[str]) -> list[Any]:
        """Returns inputs for trying a model: a general question on each text."""
        return [("What does it say?", text) for text in texts]

    def row_line(self, row: Row) -> str:
        """Returns a row as one line for people: ``question → answer``."""
        return question_line(row.values["question"], row.values["answers"])


def _outputs(prediction: Prediction) -> list[GeneratedText]:
    """Returns the one or several outputs of a prediction."""
    if isinstance(prediction.output, list):
        return [GeneratedText(one["text"], one["score"], one.get("logprobs")) for one in prediction.output]
    return [GeneratedText(prediction.output, prediction.score or 0.0, prediction.logprobs)]


def _window_row(window: TextWindow, row: Row, answer: str) -> Row:
    """Returns a window as a row with its question, its part of the context, and at most one answer."""
    values = {"question": window.question, "context": window.context, "answers": (answer,) if answer else ()}
    return Row({**values, "row": window.row}, row.file, row.line, row.name)


def window_targets(windows: Sequence[TextWindow], answers: Sequence[str]) -> list[str]:
    """Returns what each window of one question learns: the first of the ``answers``, or "".

    >>> windows = [TextWindow("Who came?", text, 0) for text in ("Ann came.", "It rained.")]
    >>> window_targets(windows, ["my aunt", "Ann"]), window_targets(windows, ["she came late"])
    (['my aunt', ''], ['she came late', ''])
    """
    first = next(iter(answers), "")
    if len(windows) == 1:
        return [first]
    evidence = [float(any(answer in window.context for answer in answers)) for window in windows]
    if not any(evidence):
        words = {*normalised_answer(f"{windows[0].question} {first}").split()}
        evidence = [float(len(words.intersection(normalised_answer(window.context).split()))) for window in windows]
    return [first if amount == max(evidence) else "" for amount in evidence]
