"""Summarization by an encoder-decoder. Columns ``text`` and ``summary``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from heedful.data import Kind, Rows
from heedful.errors import HeedfulError
from heedful.generation.options import Options
from heedful.metrics.rouge import Rouge
from heedful.models import Model
from heedful.tasks import defaults, known_models
from heedful.tasks.encoder_decoder_task import Pair, with_loss
from heedful.tasks.encoder_task import overlapping_windows
from heedful.tasks.generated_text_baselines import best_constant, better_of, nearest_targets, with_learned
from heedful.tasks.sequence_to_sequence import BoundedSequenceToSequence, encode_with_special
from heedful.tasks.task import Baseline, Measured, Prediction, short
from heedful.tasks.token_batches import outputs_of_call

SENTENCE_END = re.compile(r"(?<=[.!?؟।])\s+|(?<=[。！？])|\n")
WORST = 20  # number of examples with the lowest ROUGE-L in the details


class Summarization(BoundedSequenceToSequence):
    """Summarization: generates the column ``summary`` from the column ``text``.

    A text of more tokens than the model takes is truncated at its end, since summaries rely on the beginning (news,
    abstracts). The limit is ``--data.max-length``, in training and afterwards; for a published model it is the number
    of its positions or the ``model_max_length`` of its tokenizer. A note or a warning says how many texts were
    truncated. With the option ``stride``, such a text is split instead.

    The best weights are those with the highest ROUGE-L. ROUGE-2 of many short summaries is 0, so its mean over a few
    hundred is coarse, and ROUGE-1 ignores word order.

    Lewis et al. 2020; Raffel et al. 2020; Zhang et al. 2020.
    """

    name: ClassVar[str] = "summarization"
    columns: Mapping[str, Kind] = MappingProxyType({"text": "text", "summary": "text"})
    main_metric: str = "rougeL"
    options: ClassVar[frozenset[str]] = BoundedSequenceToSequence.options | {"stride"}
    known_models: ClassVar[known_models.KnownModels | None] = known_models.SEQUENCE_TO_SEQUENCE
    default_length: ClassVar[int] = 512
    default_new_tokens: ClassVar[int] = 128
    truncates: ClassVar[bool] = True
    sizes: ClassVar[defaults.Sizes[defaults.EncoderDecoderSize]] = defaults.SUMMARIZATION

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def measure(
        self, model: Model, examples: Sequence[Pair], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Returns ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum: the mean F1 of the first ``most`` rows.

        The details have ``rouge``, the ``precision``, ``recall`` and ``f1`` of each kind, and ``worst``, the examples
        with the lowest ROUGE-L.
        """
        losses = self.losses(model, examples)
        total, count = losses.sum(0).tolist()
        chosen = rows[:most]
        outputs = self.outputs_for(model, examples, rows, most, options)
        scores = Rouge(outputs, [self.target_text(row) for row in chosen])
        worst = [
            {
                "place": index,
                "input": short(self.source_text(chosen[index]), 200),
                "expected": self.target_text(chosen[index]),
                "output": outputs[index],
                "rougeL": round(100 * scores.of(index, "rougeL").f1, 2),
            }
            for index in scores.worst(WORST)
        ]
        details = {"rouge": scores.details(), "worst": worst}
        example_scores = with_loss(scores.example_scores(), losses)
        return Measured({"loss": total / count, **scores.metrics()}, details, example_scores, outputs)

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores the best of three baselines by ROUGE-L: two whose summary is the beginning of the text, and the
        summary of the nearest training text.

        The beginning is the first sentence, or as many characters as summaries have on average, cut at a word's end
        (the prefix baseline of Rush et al. 2015, section 7.2).
        """
        texts, targets = [self.source_text(row) for row in rows], [self.target_text(row) for row in rows]
        length = round(sum(map(len, targets)) / len(targets))
        leads = {
            "lead: the first sentence": list(map(first_sentence, texts)),
            f"lead: the first {length} characters": [beginning(text, length) for text in texts],
        }

        def nearest(known: Rows) -> list[str]:
            return nearest_targets(known, rows, self.source_text, self.target_text)

        methods = with_learned(learned, {"the summary of the most similar training text": nearest}, leads)
        return better_of([self._scored_texts(name, methods[name], rows) for name in methods], "rougeL")

    def guess(self, examples: Sequence[Pair], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that writes the same summary of every text."""
        return best_constant(learned, rows, self.target_text, self._scored_texts, "rougeL")

    def _scored_texts(self, name: str, outputs: Sequence[str], rows: Rows) -> Baseline:
        scores = Rouge(outputs, [self.target_text(row) for row in rows])
        return Baseline(name, scores.metrics(), with_loss(scores.example_scores(), np.zeros((len(rows), 2))))

    def predict(
        self, model: Model, inputs: Sequence[str], *, stride: int | None = None, **options: Any
    ) -> list[Prediction]:
        """Returns the summary of each input, by default at most 128 tokens; options as in
        ``SequenceToSequence.predict``.

        With ``stride``, a text that is too long is split into pieces, and neighbouring pieces share ``stride`` tokens.
        The output of such a text joins the summaries of its pieces, with their log-probabilities, and has no score.
        """
        if stride is None:
            return super().predict(model, inputs, **options)
        shared = {name: options.pop(name) for name in ("batch_tokens", "prefix", "logprobs") if name in options}
        decoding: Options = options.pop("decoding", None) or self.decoding_options(model, options)
        if outputs_of_call(decoding).num_return_sequences > 1:
            raise HeedfulError("stride joins one summary of each piece; leave num_return_sequences out, or stride")
        prefix: str = self.prefix if shared.get("prefix") is None else shared["prefix"]
        room = self._room(prefix)
        if room is not None and stride >= room:
            raise HeedfulError(f"stride is {stride}, but a piece has room for only {room} tokens of text; give less")
        pieces = [self._split(text, stride, prefix) if isinstance(text, str) else [text] for text in inputs]
        owners = [index for index, of_text in enumerate(pieces) for _ in of_text]
        decoding = decoding.for_rows(owners, len(inputs))
        summaries = iter(super().predict(model, list(chain.from_iterable(pieces)), decoding=decoding, **shared))
        return [
            joined_summaries(text, [next(summaries) for _ in of_text])
            for text, of_text in zip(inputs, pieces, strict=True)
        ]

    def _room(self, prefix: str) -> int | None:
        """Returns the number of tokens that a text may have after the prefix; None if there is no limit."""
        return None if self.longest is None else self.longest - len(encode_with_special(self.source, [prefix])[0])

    def _split(self, text: str, stride: int, prefix: str) -> list[str]:
        """Splits a text into pieces that the model can read. Each piece after the first begins with the last ``stride``
        tokens of the piece before it.
        """
        limit, room = self.longest, self._room(prefix)
        if limit is None or room is None or len(encode_with_special(self.source, [prefix + text])[0]) <= limit:
            return [text]
        [(ids, offsets)] = self.source.encode_with_offsets([text])
        for size in range(room, stride, -1):
            windows = overlapping_windows(len(ids), size, stride)
            pieces = [text[offsets[window[0]][0] : offsets[window[-1]][1]].strip() for window in windows]
            # a piece that begins inside a word may have a token more than it has in the text
            encoded = encode_with_special(self.source, [prefix + piece for piece in pieces])
            if all(len(ids_of_piece) <= limit for ids_of_piece in encoded):
                return pieces
        raise HeedfulError(f"stride is {stride}, but a piece has room for only {room} tokens of text; give less")


def joined_summaries(text: str, summaries: Sequence[Prediction]) -> Prediction:
    """Returns the predictions for the pieces of a text as one prediction for the text."""
    if len(summaries) == 1:
        return summaries[0]
    logprobs = [log_p for summary in summaries for log_p in summary.logprobs or ()]
    output = " ".join(summary.output for summary in summaries if summary.output)
    return Prediction(text, output, None, None if summaries[0].logprobs is None else logprobs)


def first_sentence(text: str) -> str:
    """Returns the first sentence of a text, or its first line if that is shorter.

    >>> first_sentence("It is red. It is small."), first_sentence("東京に行きました。雨でした。")
    ('It is red.', '東京に行きました。')
    """
    return SENTENCE_END.split(text.strip(), maxsplit=1)[0]


def beginning(text: str, most: int) -> str:
    """Returns the first ``most`` characters of a text, shortened to whole words if they contain an end of a word.

    >>> beginning("A small red house.", 9), beginning("東京に行きました", 4)
    ('A small', '東京に行')
    """
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    head = text[: most + 1]
    return head.rpartition(" ")[0] or head[:most]
