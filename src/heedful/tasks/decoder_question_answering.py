"""Generative question answering by a decoder, which reads context and question and continues with the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from heedful.config import ModelConfig
from heedful.data import Row, Rows
from heedful.generation.options import Options
from heedful.models import Model
from heedful.pretrained.folder import find, read_card
from heedful.settings import RunSettings
from heedful.tasks.conversations import InstructionExample, answer_losses, encode_instructions
from heedful.tasks.generated_answers import NEW_TOKENS, AnswerExample, GeneratedAnswers
from heedful.tasks.inputs_and_targets import Side
from heedful.tasks.passages import STRIDE
from heedful.tasks.questions import question_and_context
from heedful.tasks.task import Batch, Encoded, Prediction
from heedful.tasks.text_generation import TextGeneration
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer

CONTEXT = 512  # default tokens of an example of a new model, or of a model without a limit


class DecoderQuestionAnswering(GeneratedAnswers):
    """A decoder that reads the context, ``Question:``, the question and ``Answer:``, and writes the answer.

    Only the answer and the end token are learned, as in instruction tuning (``heedful.tasks.conversations``). The texts
    are those of ``text-generation``, whose task encodes them and generates.

    Args:
        writer: the task of text generation with the tokenizer and the context of the model.
        answer_tokens: number of tokens of the context that are kept for the answer; at most half of them.
    """

    unit = "answer_tokens"
    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["DecoderQuestionAnswering"]
    options: ClassVar[frozenset[str]] = TextGeneration.options | {"stride", "null_threshold"}
    display_options: ClassVar[frozenset[str]] = TextGeneration.display_options

    def __init__(self, writer: TextGeneration, answer_tokens: int | None = None) -> None:
        self.writer, self.answer_tokens = writer, answer_tokens or NEW_TOKENS
        self.tokenizer, self.end = writer.tokenizer, writer.end

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default training settings as for instructions, in examples of 512 tokens, or less if the model takes
        less; windows share 128 tokens, or less if they are short.
        """
        suggested = TextGeneration.suggested_settings(_instructions(rows), given)
        longest = given.data.max_length or suggested.data.max_length or CONTEXT
        if given.start_from is None and given.data.max_length is None:
            longest = CONTEXT
            windows = (suggested.training.batch_tokens or longest) // (suggested.data.max_length or longest)
            suggested = replace(suggested, training=replace(suggested.training, batch_tokens=windows * longest))
        answer = 1 + max((len(row.values["answers"][0].encode()) for row in rows if row.values["answers"]), default=0)
        window = longest - min(answer, longest // 2)  # at least: an answer has no more tokens than bytes
        data = replace(suggested.data, max_length=longest, stride=min(STRIDE, longest // 3, window // 2))
        return replace(suggested, data=data)

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model, and trains its tokenizer on prompts and answers."""
        return cls._for_training(TextGeneration.prepare(_instructions(rows), settings), rows)

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task and model of a folder for fine-tuning."""
        writer, model = TextGeneration.for_fine_tuning(folder, _instructions(rows), settings)
        return cls._for_training(writer, rows), model

    @classmethod
    def _for_training(cls, writer: TextGeneration, rows: Sequence[Row]) -> Self:
        answers = [row.values["answers"][0] for row in rows if row.values["answers"]]
        return cls(writer, 1 + max(map(len, writer.tokenizer.encode(answers)), default=0))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer, the number of tokens that the model reads, and the windows of its training."""
        task = cls(TextGeneration.load(folder), read_card(find(folder)).get("answer_tokens"))
        task.load_windows(folder)
        return task

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer."""
        self.writer.save(folder)

    def card_entries(self) -> dict[str, Any]:
        """Returns the task's entry for ``heedful.json``: ``answer_tokens``, of the longest training answer."""
        return {"answer_tokens": self.answer_tokens}

    def config(self, settings: RunSettings) -> ModelConfig:
        """Returns the configuration of a new model, as for text generation."""
        return self.writer.config(settings)

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores the windows; the model will answer greedily, with no more tokens than the longest training answer."""
        model.generation = {**model.generation, "do_sample": False, "max_new_tokens": self.answer_tokens}
        self.window, self.stride = settings.data.max_length, settings.data.stride

    def check_model(self, model: Model) -> None:
        """Raises ``HeedfulError`` for a model that is no decoder with a language-model head."""
        self.writer.check_model(model)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @classmethod
    def input_text(cls, value: Any) -> str:
        """Returns the prompt for a question with its context.

        >>> DecoderQuestionAnswering.input_text(("Who came?", "Ann came."))
        'Ann came.\\n\\nQuestion: Who came?\\nAnswer:\\n'
        """
        question, context = question_and_context(value, cls.name)
        return f"{context.strip()}\n\nQuestion: {question.strip()}\nAnswer:\n"

    @property
    def context_tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return self.tokenizer

    @property
    def answer_room(self) -> int:  # type: ignore[override]  # a constant of other families
        """The number of tokens of the context that are kept for the answer."""
        return min(self.answer_tokens, self._context() // 2)

    @property
    def window_tokens(self) -> int:
        """The maximum number of tokens of a prompt: the context of training, without the tokens kept for an answer."""
        return self._context() - self.answer_room

    def _context(self, max_length: int | None = None) -> int:
        """Returns the number of tokens of an example: that of training, or less if the model takes less."""
        return min((limit for limit in (max_length, self.writer.context, self.window) if limit), default=CONTEXT)

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Returns the number of tokens of each prompt, begin tokens included."""
        return list(map(len, self._prompts(texts)))

    def _prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of prompts as the model continues them: after the tokens that its tokenizer puts first."""
        return [[*self.writer.before, *ids] for ids in self.tokenizer.encode(texts)]

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Encodes the windows of each row; raises ``HeedfulError`` if the model reads no ``max_length`` tokens."""
        self.writer.checked_length(max_length)
        return super().encode(rows, max_length)

    def encode_windows(self, rows: Rows, max_length: int | None) -> Encoded:
        """Encodes the prompt and the answer of each window; a window with a longer answer is left out."""
        before, most = self.writer.before, self._context(max_length)
        return encode_instructions(self.tokenizer, _instructions(rows), before, self.end, most)

    def empty_examples(self, texts: Sequence[str]) -> list[InstructionExample]:
        """Returns prompts that are followed by the end token."""
        prompts = self._prompts(texts)
        return [InstructionExample([*ids, self.end], [False] * len(ids) + [True], 0) for ids in prompts]

    def lengths(self, examples: Sequence[AnswerExample]) -> np.ndarray:
        """Returns the number of tokens of each example, as an array (N, 1)."""
        return self.writer.lengths([example.example for example in examples])

    def collate(
        self, examples: Sequence[AnswerExample], random: np.random.Generator | None = None
    ) -> dict[str, Tensor]:
        """Returns a batch: ``ids`` (B, T), and ``labels`` (B, T), the next tokens of the answers."""
        return self.writer.collate([example.example for example in examples], random)

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns a list with one token sequence, a ``Side``, of a batch's ``row``: prompt and answer."""
        return self.writer.sides(batch, row)

    # --------------------------------------------------------------------------------------------------------- training

    def count(self, batch: Batch) -> int:
        """Returns the number of answer tokens in a batch, end tokens included."""
        return self.writer.count(batch)

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss of a batch, Σ over answer tokens of −log p(token | prompt, earlier tokens)."""
        return self.writer.objective(model, batch, label_smoothing)

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def answer_losses(self, model: Model, examples: Sequence[AnswerExample]) -> np.ndarray:
        """Returns an array (N, 2): for each example Σ −log p over its answer's tokens, and the number of these."""
        losses = np.zeros((len(examples), 2))
        for indices, sums in self.map_batches(model, examples, partial(answer_losses, model)):
            losses[indices] = np.stack(sums, 1)
        return losses

    def decoding_options(self, model: Model, options: Mapping[str, Any]) -> Options:
        """Returns the decoding options of a call; unset options have the values stored in the model's folder.

        If neither limits the length, an answer has at most as many tokens as the longest in training, or 64.
        """
        limits = ("max_new_tokens", "max_length")
        if all({**model.generation, **options}.get(name) is None for name in limits):
            options = {**options, "max_new_tokens": self.answer_tokens}
        return self.writer.decoding_options(model, options)

    def generated(self, model: Model, texts: Sequence[str], decoding: Options, **options: Any) -> list[Prediction]:
        """Returns the continuation of each prompt, without the prompt and without white space around it."""
        predictions = self.writer.predict(model, texts, decoding=decoding, **options)
        return [_continuation(prediction) for prediction in predictions]


def _continuation(prediction: Prediction) -> Prediction:
    """Returns a prediction of text generation without its prompt."""
    begin, output = len(prediction.input), prediction.output
    if isinstance(output, list):
        return replace(prediction, output=[{**one, "text": one["text"][begin:].strip()} for one in output])
    return replace(prediction, output=output[begin:].strip())


def _instructions(rows: Sequence[Row]) -> Rows:
    """Returns rows with a prompt and its completion, the first answer, beside their own values."""
    made = Rows()
    for row in rows:
        prompt, answers = DecoderQuestionAnswering.input_text(row.values), row.values["answers"]
        values = {**row.values, "prompt": prompt, "completion": answers[0] if answers else ""}
        made.append(Row(values, row.file, row.line, row.name))
    return made
