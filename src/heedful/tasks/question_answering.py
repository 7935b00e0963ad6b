"""Extractive question answering: a span of the context, or no answer (Devlin et al. 2019, sections 4.2 and 4.3)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from heedful.config import Head, SpanHead, StackConfig
from heedful.data import Kind, Row, Rows
from heedful.data.rows import Span
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError, nearest, plural
from heedful.metrics.example_scores import overall
from heedful.metrics.squad import best_thresholds, by_kind, score, squad_sums
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.pretrained.configuration import config_of
from heedful.settings import DataSettings, RunSettings
from heedful.tasks import defaults, known_models
from heedful.tasks.answer_spans import NEVER, NO_ANSWER, ScoredSpan, WindowSpans, WindowsResult, best_spans
from heedful.tasks.encoder_task import EncoderTask, limit_length, longest_of
from heedful.tasks.inputs_and_targets import Side, span_side
from heedful.tasks.model_setup import load_with_head, tokenizer_of
from heedful.tasks.passages import LONGEST, NOWHERE, STRIDE, QuestionWindow, QuestionWindows, question_windows
from heedful.tasks.questions import (
    best_simple_answers,
    constant_answer,
    mistakes_of,
    question_and_context,
    question_line,
    split_questions,
)
from heedful.tasks.task import Baseline, Batch, Encoded, Measured, Prediction
from heedful.tasks.token_batches import padded, padded_with_mask
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer
from heedful.text.post_processor import InputTemplate
from heedful.text.word_boundaries import is_word_border
from heedful.util.input_warnings import CountWarning

log = logging.getLogger("heedful")

ANSWER = 30  # default maximum number of tokens of an answer (as in Devlin et al.'s run_squad.py)
INSIDE = 0.05  # share of training answers with an end inside a word, up to which answers are widened to words
MORE = 4  # spans computed for each requested one, since several may widen to the same words
INPUTS_AT_ONCE = 512  # inputs whose windows are in memory at a time
WORDS = 200  # typical number of tokens of a question and its paragraph


class QuestionAnswering(EncoderTask):
    """An encoder that predicts the first and the last token of the answer.

    It reads ``[CLS] question [SEP] context [SEP]``, or the pair template of its tokenizer. A longer context is read in
    windows that share ``stride`` tokens. The target of a window without the whole answer is ``[CLS]``: no answer.

    >>> import heedful
    >>> values = {"question": "Who came ?", "context": "Then Ann came .", "answers": (Span("Ann", 5),)}
    >>> data = Rows([Row(values, "set.json", 1)])
    >>> settings = RunSettings(task="question-answering", train=("set.json",), out="qa", preset="bert-tiny")
    >>> task = QuestionAnswering.prepare(data, settings)
    >>> model = heedful.create(task.config(settings), seed=0).eval()
    >>> output = task.predict(model, ["Who came ?\\tThen Ann came ."])[0].output
    >>> output["answer"] == "Then Ann came ."[output["start"] : output["end"]]
    True

    Args:
        tokenizer: tokenizer of questions and contexts.
        window: maximum number of tokens of an example, special tokens included; less if the model takes less.
        stride: number of tokens that neighbouring windows share; None for 128, or a third of the window if that is
            less.
        null_threshold: "no answer" is predicted if its summed logits exceed those of the best span by more than this;
            None always predicts a span.
        align_to_words: widens answers that begin or end inside a word to whole words.
    """

    name: ClassVar[str] = "question-answering"
    known_models: ClassVar[known_models.KnownModels | None] = known_models.ENCODERS
    columns: Mapping[str, Kind] = MappingProxyType({"question": "text", "context": "text", "answers": "answers"})
    input_names: ClassVar[tuple[str, ...]] = ("question", "context")
    unit = "windows"
    main_metric: str = "f1"
    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["QuestionAnswering"]
    options: ClassVar[frozenset[str]] = frozenset(
        {"batch_tokens", "top_k", "stride", "max_answer_length", "null_threshold", "align_to_words"}
    )
    display_options: ClassVar[frozenset[str]] = frozenset({"top_k"})

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        window: int | None = None,
        stride: int | None = None,
        null_threshold: float | None = None,
        align_to_words: bool = True,
    ) -> None:
        self.tokenizer, self.window, self.stride = tokenizer, window or LONGEST, stride
        self.null_threshold, self.align_to_words = null_threshold, align_to_words

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Returns training and validation rows, as ``split_questions``."""
        return split_questions(rows, valid, seed, same)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default training settings that suit the number of questions, without label smoothing.

        Windows have 384 tokens and share 128; they are shorter if the model takes less.
        """
        longest = given.data.max_length or LONGEST
        if given.start_from:
            folder = cls.model_folder(given.start_from)
            tokenizer = tokenizer_of(folder)
            limit_length(tokenizer, config_of(folder))
            longest = min(longest, longest_of(tokenizer))
            suggested = defaults.encoder_finetuning(len(rows), given, given.start_from)
        else:
            suggested = defaults.encoder(len(rows), given, WORDS)
        return replace(
            suggested,
            data=DataSettings(max_length=longest, stride=min(STRIDE, longest // 3)),
            training=replace(suggested.training, label_smoothing=0.0),
        )

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model and trains its tokenizer on questions and contexts."""
        texts = dict.fromkeys(row.values[column] for column in ("question", "context") for row in rows)
        return cls._for_training(cls.train_tokenizer(texts, settings, max_length=LONGEST), rows, settings)

    @classmethod
    def _for_training(cls, tokenizer: Tokenizer, rows: Sequence[Row], settings: RunSettings) -> Self:
        unanswerable = any(not row.values["answers"] for row in rows)
        if not any(row.values["answers"] for row in rows):
            raise HeedfulError(
                f"{rows[0].file}:{rows[0].line}: none of {plural(len(rows), 'question')} has an answer, so there is "
                'nothing to learn; give answers: "answers": {"text": ["..."], "answer_start": [0]}'
            )
        data = settings.data
        return cls(
            tokenizer,
            window=data.max_length,
            stride=data.stride,
            null_threshold=0.0 if unanswerable else None,
            align_to_words=_at_borders(rows),
        )

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task and model of a folder for fine-tuning; a model without a span head gets a new one."""
        folder = cls.model_folder(folder)
        task = cls._for_training(tokenizer_of(folder), rows, settings)
        model = load_with_head(folder, SpanHead.kind, settings.seed or 0)
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer, and the window, stride and threshold used in training."""
        folder = cls.model_folder(folder)
        card = read_card(folder)
        data = card.get("settings", {}).get("data", {})
        return cls(
            tokenizer_of(folder),
            window=data.get("max_length"),
            stride=data.get("stride"),
            null_threshold=card.get("null_threshold"),
            # true for a model of others, as in their pipeline; earlier versions wrote no such entry and did not align
            align_to_words=bool(card.get("align_to_words", "task" not in card)),
        )

    def card_entries(self) -> dict[str, Any]:
        """Returns the task's entries for ``heedful.json``: ``null_threshold`` and ``align_to_words``.

        ``null_threshold`` is None if every training question has an answer. ``align_to_words`` is False if more than 5
        % of the training answers begin or end inside a word.
        """
        return {"null_threshold": self.null_threshold, "align_to_words": self.align_to_words}

    def make_head(self, stack: StackConfig, settings: RunSettings) -> Head:
        """Returns the configuration of a head that scores each token as the first and as the last of an answer."""
        return SpanHead()

    def check_head(self, model: Model) -> None:
        """Raises ``HeedfulError`` for a model without a span head, or a tokenizer that puts no class token before a
        pair.
        """
        head = model.config.head
        if not isinstance(head, SpanHead):
            raise HeedfulError(
                f"{self.name} needs a span head; this model's head is of kind {head.kind!r}; train one: "
                f"heedful train {self.name} --from MODEL"
            )
        if not self._around.before:
            raise HeedfulError(
                "the tokenizer puts no class token before a pair; add one to its template: it is the target of "
                "questions without an answer"
            )

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @property
    def reads(self) -> None:
        """No limit: longer contexts are split into windows."""
        return None

    @property
    def longest(self) -> int:
        """The maximum number of tokens of a window, special tokens included."""
        return min(self.window, super().longest)

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Splits each row into windows of at most ``max_length`` tokens.

        The note of the result says how many contexts need several windows and how many questions were truncated.
        """
        split = self._windows(rows, max_length=max_length)
        return Encoded(split.windows, rows, split.note, len(split.unread), [rows[index] for index in split.unread])

    def _windows(
        self, rows: Sequence[Row], stride: int | None = None, max_length: int | None = None
    ) -> QuestionWindows:
        questions = [(row.values["question"], row.values["context"]) for row in rows]
        answers = [row.values["answers"] for row in rows]
        most = min(max_length or self.longest, self.longest)
        return question_windows(self.tokenizer, questions, answers, most, self.stride if stride is None else stride)

    def lengths(self, examples: Sequence[QuestionWindow]) -> np.ndarray:
        """Returns the number of tokens of each window, special tokens included, as an array (N, 1)."""
        added = self._around.added
        return np.array([[added + len(w.question) + w.last - w.first] for w in examples], dtype=np.int64)

    def collate(
        self, examples: Sequence[QuestionWindow], random: np.random.Generator | None = None
    ) -> dict[str, Tensor]:
        """Returns a batch of B windows as tensors.

        - ``ids``, ``mask`` and ``segments`` (B, T)
        - ``context`` (B, T), True for tokens of the context
        - ``visible`` (B, T), True for context tokens that are not white space alone
        - ``labels`` (B, 2), the positions of the answer's first and last token, or of the class token for no answer
        """
        joined = [self._around.join(w.question, w.passage.ids[w.first : w.last].tolist()) for w in examples]
        ids, mask = padded_with_mask([row for row, _ in joined])
        context, visible = torch.zeros_like(mask), torch.zeros_like(mask)
        labels = self._class_tokens(mask)[:, None].repeat(1, 2)
        for i, window in enumerate(examples):
            offset = self._context_start(window)
            inside = slice(offset, offset + window.last - window.first)
            context[i, inside] = True
            visible[i, inside] = torch.from_numpy(window.passage.visible[window.first : window.last])
            if window.start != NOWHERE:
                labels[i] = torch.tensor([window.start, window.end]) - window.first + offset
        segments = padded([row for _, row in joined], 0)
        return {
            "ids": ids,
            "mask": mask,
            "segments": segments,
            "context": context,
            "visible": visible,
            "labels": labels,
        }

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns a list with one token sequence, a ``Side``, of a batch's ``row``: question and context.

        ``heedful audit`` shows it. In it the first and the last token of the answer are marked as targets.
        """
        ids, mask, labels = (batch[name][row] for name in ("ids", "mask", "labels"))
        return [span_side("text", ids, mask, labels, self.tokenizer)]

    @cached_property
    def _around(self) -> InputTemplate:
        return self.tokenizer.template(pair=True)

    def _class_tokens(self, mask: Tensor) -> Tensor:
        """Returns the positions (B,) of the class token, last in XLNet's template, else first; ``mask`` is (B, T)."""
        is_last = self.tokenizer.class_token in self._around.after and not self._around.before
        return mask.sum(1) - 1 if is_last else mask.new_zeros(len(mask), dtype=torch.long)

    def _context_start(self, window: QuestionWindow) -> int:
        """Returns the position of the first token of the context."""
        return len(self._around.before) + len(window.question) + len(self._around.between)

    # --------------------------------------------------------------------------------------------------------- training

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss of a batch, Σ over windows of −(log p(start) + log p(end)) / 2.

        p is a softmax over the window's T tokens (Devlin et al. 2019, section 4.2). Label smoothing ε turns the one-hot
        target y into (1 − ε) y + ε/T.
        """
        return self._losses(self.logits(model, batch), batch, label_smoothing).sum()

    def _losses(self, logits: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """Returns the losses (B,) of the windows."""
        mask = batch["mask"][..., None]
        log_p = logits.masked_fill(~mask, NEVER).log_softmax(1)
        target = log_p.gather(1, batch["labels"][:, None, :]).squeeze(1)
        mean = log_p.masked_fill(~mask, 0.0).sum(1) / mask.sum(1)
        return -((1 - smoothing) * target + smoothing * mean).mean(1)

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    @torch.no_grad()
    def _read(
        self,
        model: Model,
        windows: Sequence[QuestionWindow],
        rows: int,
        *,
        batch_tokens: int | None = None,
        max_answer_length: int | None = None,
        align_to_words: bool | None = None,
        k: int = 1,
    ) -> list[WindowsResult]:
        """Returns the combined result of the windows of each of ``rows`` questions."""
        results = [WindowsResult() for _ in range(rows)]
        longest = max_answer_length or ANSWER
        align = self.align_to_words if align_to_words is None else align_to_words
        computed = MORE * k if align and k > 1 else k

        def read(batch: Batch) -> tuple[list[float], list[WindowSpans]]:
            logits = self.logits(model, batch)
            spans = best_spans(
                logits, batch["context"], batch["visible"], longest, computed, self._class_tokens(batch["mask"])
            ).rows()
            return self._losses(logits, batch).tolist(), list(spans)

        for indices, (losses, batch_spans) in self.map_batches(model, windows, read, batch_tokens):
            for index, loss, spans in zip(indices, losses, batch_spans, strict=True):
                window = windows[index]
                results[window.row].add(spans, list(self._scored_spans(window, spans, align)), loss, k)
        return results

    def _scored_spans(self, window: QuestionWindow, spans: WindowSpans, align: bool) -> Iterator[ScoredSpan]:
        """Yields the spans of a window as characters of the context; with ``align``, widened to whole words."""
        shift = window.first - self._context_start(window)
        for log_p, start, end in zip(spans.scores, spans.starts, spans.ends, strict=True):
            if log_p > NEVER and (span := window.passage.characters(start + shift, end + shift)).text:
                yield log_p, window.passage.whole_words(span) if align else span

    def measure(
        self, model: Model, examples: Sequence[QuestionWindow], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Returns ``exact_match`` and ``f1`` over all rows, computed as by SQuAD's script, and ``loss`` over windows.

        If some rows have no answer, the metrics include the best thresholds and their scores: ``best_exact``,
        ``best_exact_thresh``, ``best_f1``, ``best_f1_thresh``. "No answer" is predicted above ``null_threshold``
        (default: the model's, or 0). If other rows have an answer, there are also ``HasAns_exact``, ``HasAns_f1``,
        ``NoAns_exact`` and ``NoAns_f1``.

        The details have the most confident ``mistakes`` and, if there are rows with and rows without an answer,
        ``by_kind``.
        """
        if "top_k" in options:
            raise HeedfulError("top_k has no effect: only the best answer is scored; leave top_k out")
        if options.get("stride") is not None:
            examples = self._windows(rows, options["stride"]).windows
        results = self._read(
            model,
            examples,
            len(rows),
            batch_tokens=options.get("batch_tokens"),
            max_answer_length=options.get("max_answer_length"),
            align_to_words=options.get("align_to_words"),
        )
        golds = [[span.text for span in row.values["answers"]] for row in rows]
        answerable = np.array([bool(answers) for answers in golds])
        threshold = self._threshold(options.get("null_threshold"), 0.0 if not answerable.all() else None)
        chosen = [result.chosen(threshold) for result in results]
        scores = [score(span.text, answers) for (_, span), answers in zip(chosen, golds, strict=True)]
        losses, windows = [result.loss for result in results], [result.windows for result in results]
        example_scores = squad_sums(scores, answerable, losses, windows)
        predicted = [(span.text, math.exp(log_p)) for log_p, span in chosen]
        details = mistakes_of(rows, golds, predicted, scores).details()
        metrics = overall(example_scores)
        if not answerable.all():
            outputs, margins = (
                [result.chosen(None)[1].text for result in results],
                [result.margin for result in results],
            )
            metrics |= best_thresholds(outputs, golds, margins)
            details |= {"by_kind": by_kind(example_scores, answerable)} if answerable.any() else {}
        return Measured(metrics, details, example_scores, [_output(span) for _, span in chosen])

    def _threshold(self, given: float | None, default: float | None) -> float | None:
        own = self.null_threshold if self.null_threshold is not None else default
        return own if given is None else given

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores the better one of two baselines: spans chosen by ridge regression (``span_regression``), and the
        sentence most similar to the question.
        """
        return best_simple_answers(rows, learned, _answer_texts)

    def guess(self, examples: Sequence[Any], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that has the same answer to every question."""
        return constant_answer(rows, learned, _answer_texts)

    def predict(
        self,
        model: Model,
        inputs: Sequence[Any],
        *,
        top_k: int | None = None,
        stride: int | None = None,
        max_answer_length: int | None = None,
        null_threshold: float | None = None,
        align_to_words: bool | None = None,
        batch_tokens: int | None = None,
        **others: Any,
    ) -> list[Prediction]:
        """Returns ``{"answer", "start", "end"}`` for each input.

        The answer is the span ``context[start:end]`` with the highest probability p(start) · p(end), which is the
        score. "No answer" is "" with start and end 0; its score is its probability.

        Args:
            model: the model.
            inputs: questions with contexts: ``(question, context)``, ``{"question": ..., "context": ...}``, or one
                string with a tab between them. If either is blank, the answer is empty, without a score. A question is
                truncated to half of a window, with a warning.
            top_k: if more than 1, the output is a list of at most ``top_k`` answers, best first, each with its
                ``"score"``.
            stride: number of tokens that neighbouring windows of a long context share.
            max_answer_length: maximum number of tokens of an answer; None for 30.
            null_threshold: "no answer" is predicted if its summed logits exceed those of the best span by more than
                this; None for the model's threshold, which exists if training had questions without an answer.
            align_to_words: widens a span that begins or ends inside a word to whole words, as the pipeline of
                ``transformers`` does; its score is unchanged. None takes the value stored with the model: False if more
                than 5 % of the training answers begin or end inside a word, else True.
            batch_tokens: maximum number of tokens in a batch, padding included.
            **others: not accepted; any other option raises ``HeedfulError``.
        """
        for name in others:
            raise HeedfulError(f"the option {name} has no effect for {self.name}; {nearest(name, self.options)}")
        questions = [question_and_context(value, self.name) for value in inputs]
        predictions = [Prediction(value, _output(NO_ANSWER), None) for value in inputs]
        nonblank = [i for i, (question, context) in enumerate(questions) if question.strip() and context.strip()]
        threshold, k, cut = self._threshold(null_threshold, None), top_k or 1, 0
        stride = self.stride if stride is None else stride
        question_windows(self.tokenizer, [], [], self.longest, stride)  # raises for a stride that is too large
        read = partial(self._read, model, batch_tokens=batch_tokens, max_answer_length=max_answer_length, k=k)
        for first in range(0, len(nonblank), INPUTS_AT_ONCE):
            indices = nonblank[first : first + INPUTS_AT_ONCE]
            block, no_answers = [questions[i] for i in indices], [()] * len(indices)
            split = question_windows(self.tokenizer, block, no_answers, self.longest, stride)
            cut += len(split.unread)
            results = read(split.windows, len(block), align_to_words=align_to_words)
            for index, result in zip(indices, results, strict=True):
                predictions[index] = _prediction(inputs[index], result, threshold, k)
        if cut:
            half = (self.longest - self._around.added) // 2
            reason = f"cut to {half:,} tokens (half of a window of {self.longest:,}, without its special tokens)"
            log.warning(CountWarning(cut, len(inputs), reason, "question"))
        return predictions

    def trial_inputs(self, texts: Sequence[str]) -> list[Any]:
        """Returns inputs for trying a model: a general question on each text."""
        return [("What does it say?", text) for text in texts]

    def row_line(self, row: Row) -> str:
        """Returns a row as one line for people: ``question → answer``."""
        return question_line(row.values["question"], [span.text for span in row.values["answers"]])


def _at_borders(rows: Sequence[Row]) -> bool:
    """Returns True if at least 95 % of the answers begin and end at word borders."""
    answers = [(row.values["context"], span) for row in rows for span in row.values["answers"]]
    inside = sum(
        not (is_word_border(text, span.start) and is_word_border(text, span.start + len(span.text)))
        for text, span in answers
    )
    return inside <= INSIDE * len(answers)


def _prediction(value: Any, result: WindowsResult, threshold: float | None, k: int) -> Prediction:
    """Returns the prediction for an input: the best answer, or with ``k`` above 1 a list of the ``k`` best."""
    best = result.chosen(threshold)
    output: Any = _output(best[1])
    if k > 1:
        answers = [best, *(scored for scored in result.spans if scored is not best)][:k]
        output = [{**_output(span), "score": math.exp(log_p)} for log_p, span in answers]
    return Prediction(value, output, math.exp(best[0]))


def _output(span: Span) -> dict[str, Any]:
    return {"answer": span.text, "start": span.start, "end": span.start + len(span.text)}


def _answer_texts(row: Row) -> list[str]:
    return [span.text for span in row.values["answers"]]
