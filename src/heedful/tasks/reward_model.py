"""Reward model: a number for an answer, higher for the answer that people prefer (Ouyang et al. 2022, section 3.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from heedful.config import SequenceHead
from heedful.data import Kind, Row, Rows
from heedful.data.preferences import ANSWERS, Turns, turn_texts
from heedful.errors import HeedfulError
from heedful.metrics.example_scores import overall
from heedful.metrics.preference import preference_scores
from heedful.models import Model
from heedful.pretrained import read_card
from heedful.settings import RunSettings
from heedful.tasks.conversations import add_default_template, answer_parts, instruction_texts, tokenizer_with_template
from heedful.tasks.inputs_and_targets import Side
from heedful.tasks.model_setup import load_with_head
from heedful.tasks.preferences import (
    are_preferences,
    chance_baseline,
    check_smoothing,
    linear_baseline,
    of_pairs,
    preference_line,
    preference_loss,
)
from heedful.tasks.task import Baseline, Batch, Encoded, Measured, Prediction
from heedful.tasks.text_pairs import OUTPUT, SIDES, EncodedPair, TextPairTask, check_one_output
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer, chat_template

COLUMNS: dict[str, Kind] = {
    "prompt": "turns?",  # the first: equal prompts stay on one side of a split
    "chosen": "turns",
    "rejected": "turns",
    "text": "text?",
    "text_pair": "text?",
}


class AnswerPair(NamedTuple):
    """Token ids of the chosen and of the rejected answer, each with its prompt."""

    chosen: EncodedPair
    rejected: EncodedPair


class RewardModel(TextPairTask):
    """Variant of text classification that learns a reward from chosen and rejected answers to prompts.

    The model's single output is the reward r(x, y) of the answer y to the prompt x, which the model reads as a pair of
    texts, x first. The loss of a pair with the chosen answer y_w and the rejected y_l is −log σ(r(x, y_w) − r(x, y_l))
    (Ouyang et al. 2022, equation 1), so that only differences of rewards have a meaning. Messages are written with the
    chat template, the answer's as the second text. The folder is that of a regression model with one label, which
    ``transformers`` opens as ``...ForSequenceClassification``.
    """

    name: ClassVar[str] = "text-classification"
    columns: Mapping[str, Kind] = MappingProxyType(COLUMNS)
    main_metric: str = "accuracy"
    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["RewardModel"]
    options: ClassVar[frozenset[str]] = frozenset({"batch_tokens"})
    unit = "pairs"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.labels = tokenizer, [OUTPUT]

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default training settings that suit the number of rows, without label smoothing.

        For a pretrained model, they are those of published fine-tuning.
        """
        check_smoothing(given)
        suggested = super().suggested_settings(rows, given)
        return replace(suggested, training=replace(suggested.training, label_smoothing=0.0))

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model: trains its tokenizer on prompts and answers."""
        task = cls(cls.train_tokenizer((text for row in rows for text in instruction_texts(row)), settings))
        add_default_template(task.tokenizer, rows)
        return task

    @classmethod
    def for_fine_tuning(cls, folder: str | Path, rows: Sequence[Row], settings: RunSettings) -> tuple[Self, Model]:
        """Loads task and model of a folder; the model gets a new output layer unless it is a reward model already."""
        folder = cls.model_folder(folder)
        card = read_card(folder)
        labels = None if "preference" in card and card.get("task") == cls.name else 1
        model = load_with_head(folder, SequenceHead.kind, settings.seed or 0, labels)
        task = cls(tokenizer_with_template(folder))
        add_default_template(task.tokenizer, rows)
        task.check_model(model)
        return task, model

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer, with its chat template if it has one."""
        return cls(tokenizer_with_template(cls.model_folder(folder)))

    def card_entries(self) -> dict[str, Any]:
        """Returns the entry ``preference`` for ``heedful.json``, which tells a reward model from a regression."""
        return {"preference": {"output": OUTPUT}}

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores in the model that its output is a number."""
        super().before_training(model, settings)
        model.regression = True

    def check_head(self, model: Model) -> None:
        """Raises ``HeedfulError`` unless the model has a classifier's head with one output."""
        check_one_output(model)
        super().check_head(model)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Encodes each pair of answers as one example; an answer longer than ``max_length`` with its prompt is cut."""
        if not are_preferences(rows):
            raise HeedfulError(
                f"{rows[0].file}: a reward model is scored on rows with chosen and rejected answers; give such rows"
            )
        answers = Rows(
            replace(row, values=dict(zip(SIDES, self._sides(row, row.values["prompt"], row.values[name]), strict=True)))
            for row in rows
            for name in ANSWERS
        )
        encoded = super().encode(answers, max_length)
        pairs = zip(encoded.examples[::2], encoded.examples[1::2], strict=True)
        note = encoded.note.replace("example", "answer")
        return encoded._replace(examples=[AnswerPair(*pair) for pair in pairs], rows=rows, note=note)

    def targets_of(self, row: Row) -> tuple[float, ...]:
        """Returns (): the target of a pair is that its first answer has the higher reward."""
        return ()

    def target_tensor(self, examples: Sequence[EncodedPair]) -> Tensor:
        """Returns a tensor (B, 0), since single answers have no targets."""
        return torch.empty(len(examples), 0)

    def _sides(self, row: Row | None, prompt: Turns, answer: Turns) -> tuple[str, str]:
        """Returns prompt and answer as texts; messages are rendered with the chat template."""
        if isinstance(prompt, str) and isinstance(answer, str):
            return prompt, answer
        parts = answer_parts(self.tokenizer, row, prompt, answer)
        start = next(number for number, (_, is_answer) in enumerate(parts) if is_answer)
        return "".join(text for text, _ in parts[:start]), "".join(text for text, _ in parts[start:])

    def lengths(self, examples: Sequence[Any]) -> np.ndarray:
        """Returns the numbers of tokens of each pair's answers with their prompts, (N, 2); of other texts (N, 1)."""
        if not isinstance(examples[0], AnswerPair):
            return super().lengths(examples)
        return np.array([[len(answer.ids) for answer in example] for example in examples], dtype=np.int64)

    def collate(self, examples: Sequence[Any], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns a batch of pairs: ``ids``, ``mask`` and ``segments`` (B, 2, T), the chosen answer first.

        When a new model is trained, random tokens are replaced by the unknown token.
        """
        if not isinstance(examples[0], AnswerPair):
            return super().collate(examples, random)
        batch = super().collate([answer for example in examples for answer in example], random)
        return {name: batch[name].unflatten(0, (-1, 2)) for name in ("ids", "mask", "segments")}

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns the token sequences of a pair's answers with their prompts; no token has a target."""
        answers = ({name: tensor[:, i] for name, tensor in batch.items()} for i in range(len(ANSWERS)))
        return [
            side._replace(name=name)
            for name, answer in zip(ANSWERS, answers, strict=True)
            for side in super(RewardModel, self).sides(answer, row)
        ]

    # --------------------------------------------------------------------------------------------------------- training

    def rewards(self, model: Model, batch: Batch) -> Tensor:
        """Returns the rewards (B, 2) of the chosen and the rejected answers of a batch."""
        flat = {name: tensor.flatten(0, 1) for name, tensor in batch.items()}
        return self.logits(model, flat)[:, 0].unflatten(0, (-1, 2))

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss of a batch, Σ over pairs of −log σ(r_w − r_l).

        With label smoothing ε a term is (1 − ε)(−log σ(r_w − r_l)) + ε(−log σ(r_l − r_w)).
        """
        rewards = self.rewards(model, batch)
        return preference_loss(rewards[:, 0] - rewards[:, 1], label_smoothing)

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    @torch.no_grad()
    def measure(
        self, model: Model, examples: Sequence[Any], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """Returns ``accuracy``, the percentage of pairs whose chosen answer has the higher reward, with ``loss`` and
        ``margin``, and the mean rewards of both answers (``heedful.metrics.preference``).

        All pairs are scored; ``most`` has no effect. The outputs are "chosen" or "rejected", the preferred answer.
        """
        rewards = of_pairs(self, model, examples, self.rewards, options.get("batch_tokens"))
        scores = preference_scores(rewards)
        outputs = [ANSWERS[int(rejected >= chosen)] for chosen, rejected in rewards]
        return Measured(overall(scores), example_scores=scores, outputs=outputs)

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores a baseline: a linear reward of words, character n-grams and length (``baselines.linear_rewards``)."""
        return linear_baseline(rows, learned())

    def guess(self, examples: Sequence[Any], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that has the same reward for all answers."""
        return chance_baseline(rows)

    def predict(self, model: Model, inputs: Sequence[Any], **options: Any) -> list[Prediction]:
        """Returns the reward of each input, a float, without a score; None for an input without text.

        An input is a text; a prompt and its answer, as (prompt, answer), ``{"text": ..., "text_pair": ...}`` or one
        string with a tab between them; or a list of messages that ends with the assistant's.
        """
        texts = [self._conversation(value) if chat_template.is_conversation(value) else value for value in inputs]
        predictions = self.numbers(model, texts, options.get("batch_tokens"))
        return [replace(prediction, input=value) for prediction, value in zip(predictions, inputs, strict=True)]

    def _conversation(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        """Returns prompt and answer of a conversation as texts."""
        last = messages[-1]
        if not isinstance(last, Mapping) or last.get("role") != "assistant":
            raise HeedfulError(
                "the last message is not the assistant's, so there is no answer to score; end with an answer"
            )
        return self._sides(None, tuple(messages[:-1]), (last,))

    @property
    def ranks_texts(self) -> bool:
        """True: a text's reward is that of an answer to the query."""
        return True

    @property
    def input_columns(self) -> dict[str, Kind]:
        """Columns of a file of inputs: a text, or a prompt as ``text`` and its answer as ``text_pair``."""
        return {"text": "text", "text_pair": "text?"}

    def shown_input(self, row: Row) -> Any:
        """Returns the last message of the chosen answer."""
        return turn_texts(row.values["chosen"])[-1]

    def input_and_target(self, row: Row) -> tuple[Any, Any]:
        """Returns the last messages of prompt and answers, and "chosen", what the model should prefer."""
        prompt, chosen, rejected = (turn_texts(row.values[name])[-1] for name in ("prompt", *ANSWERS))
        return f"{prompt} → {chosen} | {rejected}", ANSWERS[0]

    def row_line(self, row: Row) -> str:
        """Returns a row as one line for people: ``prompt → chosen, not rejected``."""
        return preference_line(row)
