"""Question answering: the piece of a text that answers, or none (Devlin et al. 2019, sections 4.2 and 4.3)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from heedful.config import Head, SpanHead, StackConfig
from heedful.data import Kind, Row, Rows, split
from heedful.data.rows import Span
from heedful.data.split import Same, content_digest
from heedful.errors import HeedfulError, nearest, plural
from heedful.metrics.classification import Mistakes
from heedful.metrics.squad import best_thresholds, by_kind, likest_sentences, score, squad_sums
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.pretrained.configuration import config_of
from heedful.settings import DataSettings, RunSettings
from heedful.tasks import defaults
from heedful.tasks.answer_spans import NEVER, NO_ANSWER, Best, WindowsResult, best_spans
from heedful.tasks.encoder_task import EncoderTask, limit_length, longest_of
from heedful.tasks.inputs_and_targets import Side, span_side
from heedful.tasks.model_setup import load_with_head, tokenizer_of
from heedful.tasks.passages import LONGEST, NOWHERE, STRIDE, QuestionWindow, QuestionWindows, question_windows
from heedful.tasks.task import TEXTS, Baseline, Batch, Encoded, Measured, Prediction, short
from heedful.tasks.token_batches import padded, padded_with_mask
from heedful.text import Tokenizer
from heedful.text.post_processor import InputTemplate
from heedful.text.word_boundaries import is_word_border
from heedful.util.input_warnings import CountWarning

log = logging.getLogger("heedful")

ANSWER = 30  # tokens of an answer, where nobody says (as in Devlin et al.'s run_squad.py)
INSIDE = 0.05  # of training's answers, those from which on answers that begin or end inside a word are meant
MORE = 4  # pieces looked at for each one that is wanted, since several widen to the same words
TOGETHER = 512  # inputs whose windows are held at once
WORDS = 200  # tokens of an example: a question and a paragraph


class QuestionAnswering(EncoderTask):
    """An encoder that points at the first and the last token of the answer.

    It reads ``[CLS] question [SEP] context [SEP]`` as its own tokenizer puts it. A context too long for that is read in
    windows that share ``stride`` tokens; one without the whole answer learns to point at ``[CLS]``: not here.

    >>> import heedful
    >>> asked = {"question": "Who came ?", "context": "Then Ann came .", "answers": (Span("Ann", 5),)}
    >>> data = Rows([Row(asked, "set.json", 1)])
    >>> settings = RunSettings(task="question-answering", train=("set.json",), out="qa", preset="bert-tiny")
    >>> task = QuestionAnswering.prepare(data, settings)
    >>> model = heedful.create(task.config(settings), seed=0).eval()
    >>> output = task.predict(model, ["Who came ?\\tThen Ann came ."])[0].output
    >>> output["answer"] == "Then Ann came ."[output["start"] : output["end"]]
    True

    Args:
        tokenizer: of questions and contexts.
        window: most tokens of an example, special ones counted; fewer where the model takes fewer.
        stride: tokens that neighbouring windows share; None is 128, or a third of the window where that is less.
        null_threshold: no answer is given where none scores better than the best by more than this, as logits; None:
            there always is one.
        align_to_words: whether answers that begin or end inside a word are widened to whole words.
    """

    name: ClassVar[str] = "question-answering"
    columns: Mapping[str, Kind] = MappingProxyType({"question": "text", "context": "text", "answers": "answers"})
    input_names: ClassVar[tuple[str, ...]] = ("question", "context")
    unit = "windows"
    main_metric: str = "f1"
    used_settings: ClassVar[frozenset[str]] = TEXTS | {"data.stride"}
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
        """The questions of one article stay together where all rows name theirs (``title``) and there are several, else
        those of one context.
        """
        titles = {row.values.get("title") for row in rows}
        by = "title" if None not in titles and len(titles) > 1 else "context"
        train, held = split(rows, valid, seed, by=by, same=same)
        return Rows(train, rows.skipped, rows.columns), Rows(held, 0, rows.columns)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns settings by the number of questions: windows of 384 tokens that share 128, or less if a model takes
        less; no smoothing.
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
        """Trains the tokenizer on the questions and the contexts of training."""
        texts = dict.fromkeys(row.values[column] for column in ("question", "context") for row in rows)
        return cls._learning(cls.train_tokenizer(texts, settings, max_length=LONGEST), rows, settings)

    @classmethod
    def _learning(cls, tokenizer: Tokenizer, rows: Sequence[Row], settings: RunSettings) -> Self:
        none = any(not row.values["answers"] for row in rows)
        if not any(row.values["answers"] for row in rows):
            raise HeedfulError(
                f"{rows[0].file}:{rows[0].line}: none of {plural(len(rows), 'question')} has an answer, so nothing is "
                'there to point at; give answers: "answers": {"text": ["..."], "answer_start": [0]}'
            )
        data = settings.data
        return cls(
            tokenizer,
            window=data.max_length,
            stride=data.stride,
            null_threshold=0.0 if none else None,
            align_to_words=_at_borders(rows),
        )

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads the folder's model, with a new span head if it has none."""
        folder = cls.model_folder(folder)
        task = cls._learning(tokenizer_of(folder), rows, settings)
        model = load_with_head(folder, SpanHead.kind, settings.seed or 0)
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer; windows, and whether there may be no answer, are those of training."""
        folder = cls.model_folder(folder)
        card = read_card(folder)
        data = card.get("settings", {}).get("data", {})
        return cls(
            tokenizer_of(folder),
            window=data.get("max_length"),
            stride=data.get("stride"),
            null_threshold=card.get("null_threshold"),
            align_to_words=card.get("align_to_words") is not False,
        )

    def card_entries(self) -> dict[str, Any]:
        """``null_threshold``: none where every question of training has an answer; ``align_to_words``: False where
        more than 5 % of training's answers begin or end inside a word.
        """
        return {"null_threshold": self.null_threshold, "align_to_words": self.align_to_words}

    def make_head(self, stack: StackConfig, settings: RunSettings) -> Head:
        """Returns a head for the first and the last token of an answer."""
        return SpanHead()

    def check_head(self, model: Model) -> None:
        """Raises ``HeedfulError`` unless the model has a span head and the tokenizer a class token before pairs."""
        head = model.config.head
        if not isinstance(head, SpanHead):
            raise HeedfulError(
                f"{self.name} needs a span head; this model's head is of kind {head.kind!r}; teach an encoder: "
                f"heedful train {self.name} --from MODEL"
            )
        if not self._around.before:
            raise HeedfulError("the tokenizer puts no class token before a pair; give its template one: it means none")

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @property
    def longest(self) -> int:
        """The maximum number of tokens of a window, special tokens included."""
        return min(self.window, super().longest)

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """The windows of each row; the note says how many contexts have several, and what was cut."""
        made = self._windows(rows, max_length=max_length)
        return Encoded(made.windows, rows, made.note, len(made.unread), [rows[place] for place in made.unread])

    def _windows(
        self, rows: Sequence[Row], stride: int | None = None, max_length: int | None = None
    ) -> QuestionWindows:
        asked = [(row.values["question"], row.values["context"]) for row in rows]
        answers = [row.values["answers"] for row in rows]
        most = min(max_length or self.longest, self.longest)
        return question_windows(self.tokenizer, asked, answers, most, self.stride if stride is None else stride)

    def lengths(self, examples: Sequence[QuestionWindow]) -> np.ndarray:
        """(N, 1): tokens, special ones counted."""
        added = self._around.added
        return np.array([[added + len(w.question) + w.last - w.first] for w in examples], dtype=np.int64)

    def collate(
        self, examples: Sequence[QuestionWindow], random: np.random.Generator | None = None
    ) -> dict[str, Tensor]:
        """``ids``, ``mask``, ``segments``, ``context`` and ``seen``, its tokens that are not blank (B, T); ``labels``
        (B, 2), the places of the answer's first and last token, 0 (the class token) where there is none.
        """
        joined = [self._around.join(w.question, w.passage.ids[w.first : w.last].tolist()) for w in examples]
        ids, mask = padded_with_mask([row for row, _ in joined])
        context, seen = torch.zeros_like(mask), torch.zeros_like(mask)
        labels = torch.zeros(len(examples), 2, dtype=torch.long)
        for i, window in enumerate(examples):
            begins = self._begins(window)
            inside = slice(begins, begins + window.last - window.first)
            context[i, inside] = True
            seen[i, inside] = torch.from_numpy(window.passage.seen[window.first : window.last])
            if window.start != NOWHERE:
                labels[i] = torch.tensor([window.start, window.end]) - window.first + begins
        segments = padded([row for _, row in joined], 0)
        return {"ids": ids, "mask": mask, "segments": segments, "context": context, "seen": seen, "labels": labels}

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns question and context, with the first and the last token of the answer as targets."""
        ids, mask, labels = (batch[name][row] for name in ("ids", "mask", "labels"))
        return [span_side("text", ids, mask, labels, self.tokenizer)]

    @cached_property
    def _around(self) -> InputTemplate:
        return self.tokenizer.around(pair=True)

    def _begins(self, window: QuestionWindow) -> int:
        """The place of the first token of the context."""
        return len(self._around.before) + len(window.question) + len(self._around.between)

    # --------------------------------------------------------------------------------------------------------- training

    def count(self, batch: Batch) -> int:
        """Windows."""
        return len(batch["ids"])

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Σ over windows of −(log p(start) + log p(end)) / 2, p a softmax over the window's tokens (Devlin et al. 2019,
        section 4.2); smoothed, y becomes (1 − ε) y + ε/T.
        """
        return self._losses(self.logits(model, batch), batch, label_smoothing).sum()

    def _losses(self, logits: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """(B,)."""
        real = batch["mask"][..., None]
        log_p = logits.masked_fill(~real, NEVER).log_softmax(1)
        own = log_p.gather(1, batch["labels"][:, None, :]).squeeze(1)
        mean = log_p.masked_fill(~real, 0.0).sum(1) / real.sum(1)
        return -((1 - smoothing) * own + smoothing * mean).mean(1)

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
        """Returns the predictions of the windows of each of so many rows."""
        found = [WindowsResult() for _ in range(rows)]
        longest, aligned = (
            max_answer_length or ANSWER,
            self.align_to_words if align_to_words is None else align_to_words,
        )
        among = MORE * k if aligned and k > 1 else k

        def read(batch: Batch) -> tuple[list[float], list[Best]]:
            logits = self.logits(model, batch)
            told = best_spans(logits, batch["context"], batch["seen"], longest, among).rows()
            return self._losses(logits, batch).tolist(), list(told)

        for places, (losses, told) in self.map_batches(model, windows, read, batch_tokens):
            for place, loss, one in zip(places, losses, told, strict=True):
                found[windows[place].row].add(one, list(self._pieces(windows[place], one, aligned)), loss, k)
        return found

    def _pieces(self, window: QuestionWindow, told: Best, aligned: bool) -> Iterator[tuple[float, Span]]:
        shift = window.first - self._begins(window)
        for each, start, end in zip(told.scores, told.starts, told.ends, strict=True):
            if each > NEVER and (span := window.passage.characters(start + shift, end + shift)).text:
                yield each, window.passage.whole_words(span) if aligned else span

    def measure(
        self, model: Model, examples: Sequence[QuestionWindow], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """``exact_match`` and ``f1`` as SQuAD's own script has them, always of all rows; ``loss`` is over windows.

        Where rows without an answer are among others, also ``HasAns_exact``, ``HasAns_f1``, ``NoAns_exact`` and
        ``NoAns_f1``; where there are such rows, the thresholds that would have been best with what they would have
        given: ``best_exact``, ``best_exact_thresh``, ``best_f1``, ``best_f1_thresh``. No answer is given then where
        none is better by more than ``null_threshold``, by default that of the model, or 0.

        Details: ``by_kind``, where there are both, and the surest ``mistakes``.
        """
        if "top_k" in options:
            raise HeedfulError("top_k has no effect: the best answer is what is scored; leave it out")
        if options.get("stride") is not None:
            examples = self._windows(rows, options["stride"]).windows
        found = self._read(
            model,
            examples,
            len(rows),
            batch_tokens=options.get("batch_tokens"),
            max_answer_length=options.get("max_answer_length"),
            align_to_words=options.get("align_to_words"),
        )
        golds = [[span.text for span in row.values["answers"]] for row in rows]
        has = np.array([bool(answers) for answers in golds])
        threshold = self._threshold(options.get("null_threshold"), 0.0 if not has.all() else None)
        chosen = [one.chosen(threshold) for one in found]
        scores = [score(span.text, answers) for (_, span), answers in zip(chosen, golds, strict=True)]
        each = squad_sums(scores, has, [one.loss for one in found], [one.windows for one in found])
        details = _mistakes(rows, golds, chosen, [one.exact for one in scores]).details()
        metrics = each.metrics_of(np.arange(len(rows)))
        if not has.all():
            outputs, margins = [one.chosen(None)[1].text for one in found], [one.margin for one in found]
            metrics |= best_thresholds(outputs, golds, margins)
            details |= {"by_kind": by_kind(each, has)} if has.any() else {}
        return Measured(metrics, details, each, [_output(span) for _, span in chosen])

    def _threshold(self, asked: float | None, default: float | None) -> float | None:
        own = self.null_threshold if self.null_threshold is not None else default
        return own if asked is None else asked

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """The sentence that is most like the question: see ``likest_sentences``. It learns nothing."""
        said = likest_sentences(*([row.values[column] for row in rows] for column in ("question", "context")))
        golds = [[span.text for span in row.values["answers"]] for row in rows]
        scores = [score(output, answers) for output, answers in zip(said, golds, strict=True)]
        nothing = np.zeros(len(rows))
        each = squad_sums(scores, [bool(answers) for answers in golds], nothing, nothing)
        figures = {name: value for name, value in each.metrics_of(np.arange(len(rows))).items() if name != "loss"}
        return Baseline("the sentence most like the question (TF-IDF)", figures, each)

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
        """``{"answer", "start", "end"}`` for each input: the piece ``context[start:end]`` of the largest probability,
        p(start) · p(end), which is the score. One without an answer has "" from 0 to 0, and the probability of none.

        Args:
            model: the model.
            inputs: each ``(question, context)``, ``{"question": ..., "context": ...}``, or one string with a tab
                between them; where either is blank the answer is empty, without a score. A question is cut to half of a
                window, and a warning says so.
            top_k: with more than 1 the output is a list of at most so many answers, best first, each with
                its ``"score"``.
            stride: tokens that neighbouring windows of a long context share.
            max_answer_length: most tokens of an answer; None is 30.
            null_threshold: no answer where none is better than the best by more than this, as logits; None is that of
                the model, which has one if questions without an answer were among those of training.
            align_to_words: whether a piece that begins or ends inside a word is widened to whole words, as the
                pipeline of ``transformers`` does; the score stays that of the piece. None is as the model was trained:
                False where more than 5 % of training's answers begin or end inside a word, else True.
            batch_tokens: tokens of a batch, padding counted.
            **others: there are none; any is an error.
        """
        for name in others:
            raise HeedfulError(f"the option {name} has no effect for {self.name}; {nearest(name, self.options)}")
        asked = [_asked(one) for one in inputs]
        answers = [Prediction(one, _output(NO_ANSWER), None) for one in inputs]
        there = [i for i, (question, context) in enumerate(asked) if question.strip() and context.strip()]
        threshold, k, cut = self._threshold(null_threshold, None), top_k or 1, 0
        own = self.stride if stride is None else stride
        question_windows(self.tokenizer, [], [], self.longest, own)  # what cannot be shared is said before any input
        for first in range(0, len(there), TOGETHER):
            places = there[first : first + TOGETHER]
            some, unknown = [asked[i] for i in places], [()] * len(places)
            made = question_windows(self.tokenizer, some, unknown, self.longest, own)
            cut += len(made.unread)
            found = self._read(
                model,
                made.windows,
                len(some),
                batch_tokens=batch_tokens,
                max_answer_length=max_answer_length,
                align_to_words=align_to_words,
                k=k,
            )
            for place, one in zip(places, found, strict=True):
                best = one.chosen(threshold)
                several = [best, *(piece for piece in one.pieces if piece is not best)][:k]
                output: Any = _output(best[1])
                if k > 1:
                    output = [{**_output(span), "score": math.exp(each)} for each, span in several]
                answers[place] = Prediction(inputs[place], output, math.exp(best[0]))
        if cut:
            log.warning(
                CountWarning(cut, len(inputs), f"cut to half of the {self.longest:,} tokens of a window", "question")
            )
        return answers

    def trial_inputs(self, texts: Sequence[str]) -> list[Any]:
        """Each text, asked for what it says."""
        return [("What does it say?", text) for text in texts]

    def row_line(self, row: Row) -> str:
        """``question → answer``."""
        answers = row.values["answers"]
        return f"{short(row.values['question'], 80)} → {short(answers[0].text) if answers else '(no answer)'}"


def _at_borders(rows: Sequence[Row]) -> bool:
    """Returns True if nearly all of the answers of some rows begin and end at word borders."""
    answers = [(row.values["context"], span) for row in rows for span in row.values["answers"]]
    inside = sum(
        not (is_word_border(text, span.start) and is_word_border(text, span.start + len(span.text)))
        for text, span in answers
    )
    return inside <= INSIDE * len(answers)


def _asked(one: Any) -> tuple[str, str]:
    """The question and the context of an input."""
    sides: Any = one
    if isinstance(one, str):
        sides = one.split("\t", 1)
    elif isinstance(one, Mapping):
        sides = [one.get("question"), one.get("context")]
    if isinstance(one, str) and not one.strip():
        return "", ""
    if not isinstance(sides, tuple | list) or len(sides) != 2 or not all(isinstance(side, str) for side in sides):
        raise HeedfulError(
            "question-answering takes a question and a context: (question, context), "
            f'{{"question": ..., "context": ...}}, or one string with a tab between them; got {short(repr(one))}'
        )
    return sides[0], sides[1]


def _output(span: Span) -> dict[str, Any]:
    return {"answer": span.text, "start": span.start, "end": span.start + len(span.text)}


def _mistakes(
    rows: Sequence[Row], golds: Sequence[Sequence[str]], chosen: Sequence[tuple[float, Span]], right: Sequence[float]
) -> Mistakes:
    mistakes = Mistakes()
    for place, (row, answers, (each, span)) in enumerate(zip(rows, golds, chosen, strict=True)):
        if not right[place]:
            expected = answers[0] if answers else ""
            mistakes.add(place, short(row.values["question"], 200), expected, span.text, math.exp(each))
    return mistakes
