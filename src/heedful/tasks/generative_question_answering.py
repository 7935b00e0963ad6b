"""Generative question answering by an encoder-decoder (Raffel et al. 2020, appendix D)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from heedful.data import Row, Rows
from heedful.generation.options import Options
from heedful.models import Model
from heedful.settings import RunSettings
from heedful.tasks import defaults, known_models
from heedful.tasks.encoder_decoder_task import Pair
from heedful.tasks.generated_answers import NEW_TOKENS, AnswerExample, GeneratedAnswers
from heedful.tasks.passages import STRIDE
from heedful.tasks.questions import question_and_context
from heedful.tasks.sequence_to_sequence import BoundedSequenceToSequence, encode_with_special
from heedful.tasks.task import Encoded, Prediction
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer


class GenerativeQuestionAnswering(GeneratedAnswers, BoundedSequenceToSequence):
    """An encoder-decoder that reads ``question: ... context: ...`` and writes the answer.

    This is the format of T5 (Raffel et al. 2020, appendix D.15) and of the fine-tuned T5 and BART models that follow
    it. ``prefix`` stands before it.

    >>> import heedful
    >>> data = Rows([Row({"question": "Who came?", "context": "Ann came.", "answers": ("Ann",)}, "set.json", 1)])
    >>> settings = RunSettings(task="generative-question-answering", train=("-",), out="-", preset="transformer-tiny")
    >>> task = GenerativeQuestionAnswering.prepare(data, settings)
    >>> model = heedful.create(task.config(settings), seed=0).eval()
    >>> [prediction] = task.predict(model, ["Who came?\\tAnn came."], max_new_tokens=2)
    >>> type(prediction.output)
    <class 'str'>
    """

    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["GenerativeQuestionAnswering"]
    options: ClassVar[frozenset[str]] = BoundedSequenceToSequence.options | {"stride", "null_threshold"}
    known_models: ClassVar[known_models.KnownModels | None] = known_models.SEQUENCE_TO_SEQUENCE
    default_length: ClassVar[int] = 512
    default_new_tokens: ClassVar[int] = NEW_TOKENS
    sizes: ClassVar[defaults.Sizes[defaults.EncoderDecoderSize]] = defaults.SUMMARIZATION

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default training settings that suit the number of questions.

        Windows have 512 tokens and share 128; they are shorter if the model takes less.
        """
        suggested = super().suggested_settings(rows, given)
        longest = given.data.max_length or suggested.data.max_length or cls.default_length
        if given.start_from is not None:
            longest = min(longest, cls.load(given.start_from).longest or longest)
        return replace(suggested, data=replace(suggested.data, stride=min(STRIDE, longest // 3)))

    @classmethod
    def source_vocabulary(cls, row: Row) -> Sequence[str]:
        """Returns the texts of a row from which the source vocabulary is learned."""
        return [cls.input_text(row.values)]

    @classmethod
    def target_vocabulary(cls, row: Row) -> Sequence[str]:
        """Returns the texts of a row from which the target vocabulary is learned."""
        return list(row.values["answers"])

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizers, prefix and generation settings of a folder, and the windows of its training."""
        task = super().load(folder)
        task.load_windows(folder)
        return task

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores the settings that training needs, and the windows."""
        super().before_training(model, settings)
        self.window, self.stride = settings.data.max_length, settings.data.stride

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @classmethod
    def input_text(cls, value: Any) -> str:
        """Returns ``question: ... context: ...`` for a question with its context.

        White space before each is removed, as in the example ``run_seq2seq_qa.py`` of ``transformers``.

        >>> GenerativeQuestionAnswering.input_text((" Who came?", " Ann came."))
        'question: Who came? context: Ann came.'
        """
        question, context = question_and_context(value, cls.name)
        return f"question: {question.lstrip()} context: {context.lstrip()}"

    def source_text(self, row: Row) -> str:
        """Returns the source text of a row, without the prefix."""
        return self.input_text(row.values)

    def target_text(self, row: Row) -> str:
        """Returns the first answer of a row; "" if it has none."""
        return self.expected(row)

    @property
    def context_tokenizer(self) -> Tokenizer:
        """The source tokenizer."""
        return self.source

    @property
    def window_tokens(self) -> int:
        """The maximum number of tokens of a window: that of training, or less if the model takes less; by default 512
        if there is no limit.
        """
        limits = [limit for limit in (self.longest, self.window) if limit]
        return min(limits, default=self.default_length)

    def prefixed(self, pair: tuple[str, str], prefix: str | None) -> str:
        """Returns the text that the model reads for (question, context), after the folder's prefix or ``prefix``."""
        return super().prefixed(pair, self.prefix if prefix is None else prefix)

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Returns the number of source tokens of each text, special tokens included."""
        return list(map(len, encode_with_special(self.source, texts)))

    def encode_windows(self, rows: Rows, max_length: int | None) -> Encoded:
        """Encodes the source and the answer of each window; a window with a longer answer is left out."""
        return BoundedSequenceToSequence.encode(self, rows, max_length)

    def empty_examples(self, texts: Sequence[str]) -> list[Pair]:
        """Returns the texts as sources, each with the tokens of an empty target: the end token, in BART two tokens."""
        [empty] = encode_with_special(self.target, [""])
        return [(source, empty) for source in encode_with_special(self.source, texts)]

    def lengths(self, examples: Sequence[Any]) -> np.ndarray:
        """Returns the number of tokens of source and target of each window, as an array (N, 2)."""
        return super().lengths(_pairs(examples))

    def collate(self, examples: Sequence[Any], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns windows as a batch of tensors, as in ``SequenceToSequence.collate``."""
        return super().collate(_pairs(examples), random)

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def answer_losses(self, model: Model, examples: Sequence[AnswerExample]) -> np.ndarray:
        """Returns an array (N, 2): for each example Σ −log p over its target tokens, and the number of these."""
        return self.losses(model, examples)

    decoding_options = BoundedSequenceToSequence.decoding_options

    def evaluation_options(
        self, model: Model, examples: Sequence[AnswerExample], options: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Returns the options with a maximum length that suits the examples' answers (``limited_options``)."""
        return self.limited_options(model, _pairs(examples), options)

    def generated(self, model: Model, texts: Sequence[str], decoding: Options, **options: Any) -> list[Prediction]:
        """Returns the answer for each text, which includes any prefix."""
        return BoundedSequenceToSequence.predict(self, model, texts, decoding=decoding, prefix="", **options)


def _pairs(examples: Sequence[Any]) -> list[Pair]:
    return [example.example for example in examples]
