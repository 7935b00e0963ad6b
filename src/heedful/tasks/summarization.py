"""Summarization: a long text in few words, by an encoder-decoder. Columns ``text`` and ``summary``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from heedful.data import Kind, Row, Rows
from heedful.errors import HeedfulError
from heedful.generation.options import Options
from heedful.metrics.rouge import Rouge
from heedful.models import Model
from heedful.settings import RunSettings
from heedful.tasks import defaults
from heedful.tasks.encoder_decoder_task import Pair, with_loss
from heedful.tasks.encoder_task import overlapping_windows
from heedful.tasks.sequence_to_sequence import SequenceToSequence, whole
from heedful.tasks.task import Baseline, Measured, Prediction, short

SUMMARY = 128  # tokens of a summary at most, where neither a person nor the folder says
END = re.compile(r"(?<=[.!?؟।])\s+|(?<=[。！？])|\n")  # of a sentence or a line
WORST = 20  # examples with the least ROUGE-L that are told of


class Summarization(SequenceToSequence):
    """From ``text`` to ``summary`` (Lewis et al. 2020; Raffel et al. 2020; Zhang et al. 2020).

    A text of more tokens than the model takes is cut at its end: a summary leans on what comes first (news, abstracts).
    In training that is ``--data.max-length``, which a model trained here keeps to in answering; of a published one its
    positions, or the ``model_max_length`` of its tokenizer. How many were cut is always said. ``stride`` splits such a
    text instead.

    The best weights are those of the highest ROUGE-L: of short summaries ROUGE-2 is 0 for many, so that its mean over a
    few hundred is coarse, and ROUGE-1 does not mind disorder.
    """

    name: ClassVar[str] = "summarization"
    columns: Mapping[str, Kind] = MappingProxyType({"text": "text", "summary": "text"})
    main_metric: str = "rougeL"
    options: ClassVar[frozenset[str]] = SequenceToSequence.options | {"stride"}
    most: ClassVar[int] = 512
    cuts: ClassVar[bool] = True
    sizes: ClassVar[defaults.Sizes[defaults.EncoderDecoderSize]] = defaults.SUMMARIZATION

    summaries: int | None = None  # tokens of the longest summary that was learned from, where that is known

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """As all; with the most tokens of a text and of a summary, which the folder keeps."""
        task = super().prepare(rows, settings)
        most = settings.data.max_length or cls.most
        task.source.config["model_max_length"] = most
        longest = max(map(len, whole(task.target, [row.values["summary"] for row in rows])))
        task.summaries = min(longest, most)
        return task

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """As all; what begins here writes no summary that is longer than all that it learned from."""
        super().before_training(model, settings)
        if self.summaries is not None:
            model.generation = {**model.generation, "max_new_tokens": self.summaries}

    @property
    def longest(self) -> int | None:
        """The most tokens of a text: the model's positions, or what its tokenizer's folder says."""
        told = (self.positions, self.source.config.get("model_max_length"))
        return min((int(each) for each in told if each), default=None)

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def measure(
        self, model: Model, examples: Sequence[Pair], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """ROUGE-1, -2, -L and -Lsum, the mean F1 of the first ``most`` rows.

        Details: ``rouge``, by kind the ``precision``, ``recall`` and ``f1``; ``worst``, the examples of least ROUGE-L.
        """
        losses = self.losses(model, examples)
        total, count = losses.sum(0).tolist()
        asked = rows[:most]
        outputs = self.answered(model, examples, rows, most, options)
        scores = Rouge(outputs, [self.wanted(row) for row in asked])
        worst = [
            {
                "place": place,
                "input": short(self.asked(asked[place]), 200),
                "expected": self.wanted(asked[place]),
                "output": outputs[place],
                "rougeL": round(100 * scores.of(place, "rougeL").f1, 2),
            }
            for place in scores.worst(WORST)
        ]
        details = {"rouge": scores.details(), "worst": worst}
        each = with_loss(scores.example_scores(), losses)
        return Measured({"loss": total / count, **scores.metrics()}, details, each, outputs)

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """The first sentence of each text, or its beginning of as many characters as the summaries of ``rows`` have on
        average, ended with a whole word: the prefix that headlines are measured by (Rush et al. 2015, section 7.2).
        Whichever has the higher ROUGE-L, so that nobody beats the weaker one and rejoices.
        """
        texts, wanted = [self.asked(row) for row in rows], [self.wanted(row) for row in rows]
        most = round(sum(map(len, wanted)) / len(wanted))
        ways = {
            "first sentence": list(map(sentence, texts)),
            f"first {most} characters": [lead(t, most) for t in texts],
        }
        scores = {name: Rouge(outputs, wanted) for name, outputs in ways.items()}
        better, other = sorted(scores, key=lambda name: -scores[name].metrics()["rougeL"])
        each = with_loss(scores[better].example_scores(), np.zeros((len(rows), 2)))
        return Baseline(f"lead: the {better}, better here than the {other}", scores[better].metrics(), each)

    def decoding_options(self, model: Model, options: Mapping[str, Any]) -> Options:
        """Returns a call's decoding options; without a limit in call and folder, at most 128 new tokens."""
        bounded = ("max_new_tokens", "max_length")
        if not any({**model.generation, **options}.get(name) for name in bounded):
            options = {**options, "max_new_tokens": min(SUMMARY, self.positions or SUMMARY)}
        return super().decoding_options(model, options)

    def predict(
        self,
        model: Model,
        inputs: Sequence[str],
        *,
        decoding: Options | None = None,
        batch_tokens: int | None = None,
        prefix: str | None = None,
        logprobs: bool = False,
        stride: int | None = None,
        **options: Any,
    ) -> list[Prediction]:
        """The summary of each input, at most 128 tokens where nobody says.

        With ``stride`` a text that is too long is split into pieces that share so many tokens, and their summaries
        stand one after the other, and the log-probabilities of these; such an answer has no score.
        """
        decoding = decoding or self.decoding_options(model, options)
        others: dict[str, Any] = {"batch_tokens": batch_tokens, "prefix": prefix, "logprobs": logprobs}
        if stride is None:
            return super().predict(model, inputs, decoding=decoding, **others)
        room = self._room(prefix)
        if room is not None and stride >= room:
            raise HeedfulError(f"stride={stride}, but a piece has room for {room} tokens; lower it")
        texts = [self._split(text, stride, prefix) if isinstance(text, str) else [text] for text in inputs]
        owners = [place for place, pieces in enumerate(texts) for _ in pieces]
        decoding = decoding.for_rows(owners, len(inputs))
        made = iter(
            super().predict(model, [piece for pieces in texts for piece in pieces], decoding=decoding, **others)
        )
        found = [[next(made) for _ in pieces] for pieces in texts]
        return [joined(text, answers) for text, answers in zip(inputs, found, strict=True)]

    def _room(self, prefix: str | None) -> int | None:
        """The tokens that a text may have beside the prefix; None where there is no limit."""
        before = self.prefix if prefix is None else prefix
        return None if self.longest is None else self.longest - len(whole(self.source, [before])[0])

    def _split(self, text: str, stride: int, prefix: str | None) -> list[str]:
        """The pieces of a text that the model takes, each but the first beginning with the ``stride`` last tokens of
        the one before.
        """
        before, room = self.prefix if prefix is None else prefix, self._room(prefix)
        if self.longest is None or room is None or len(whole(self.source, [before + text])[0]) <= self.longest:
            return [text]
        [(ids, places)] = self.source.offsets([text])
        for size in range(room, stride, -1):
            windows = overlapping_windows(len(ids), size, stride)
            pieces = [text[places[each[0]][0] : places[each[-1]][1]].strip() for each in windows]
            # a piece that begins within a word may have a token more than it had there
            if all(len(made) <= self.longest for made in whole(self.source, [before + piece for piece in pieces])):
                return pieces
        raise HeedfulError(f"stride={stride}, but a piece has room for {room} tokens; lower it")


def joined(text: str, answers: Sequence[Prediction]) -> Prediction:
    """One answer to a text, of those to its pieces."""
    if len(answers) == 1:
        return answers[0]
    said = [log_p for one in answers for log_p in one.logprobs or ()]
    kept = None if answers[0].logprobs is None else said
    return Prediction(text, " ".join(one.output for one in answers if one.output), None, kept)


def sentence(text: str) -> str:
    """The first sentence of a text, or its first line where that is shorter.

    >>> sentence("It is red. It is small."), sentence("東京に行きました。雨でした。")
    ('It is red.', '東京に行きました。')
    """
    return END.split(text.strip(), maxsplit=1)[0]


def lead(text: str, most: int) -> str:
    """The beginning of a text, at most so many characters, up to the end of a word where there is one.

    >>> lead("A small red house.", 9), lead("東京に行きました", 4)
    ('A small', '東京に行')
    """
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    head = text[: most + 1]
    return head.rpartition(" ")[0] or head[:most]
