"""Base of the tasks of encoders: tokenizer, model, lengths and checks, written once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from heedful import presets
from heedful.config import (
    Config,
    EncoderConfig,
    Head,
    ModelConfig,
    SequenceHead,
    SpecialTokens,
    StackConfig,
    patches_of,
    source_tokens,
)
from heedful.data import Row
from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.pretrained.configuration import config_of
from heedful.pretrained.folder import find
from heedful.settings import RunSettings
from heedful.tasks import defaults
from heedful.tasks.inputs_and_targets import Side, input_side
from heedful.tasks.model_setup import (
    check_vocabulary,
    positions_of,
    preset_of,
    special_id,
    tokenizer_of,
    with_positions,
    with_settings,
)
from heedful.tasks.task import Batch, Task
from heedful.text import Tokenizer
from heedful.text.tokenizer import Kind as TokenizerKind

NO_LIMIT = 512  # maximum number of tokens if neither the model nor its tokenizer has a limit
HIDDEN_SHARE = 0.1  # share of tokens that classifiers hide in training a new model, so that it relies on no single one
TEXT_KINDS = ("text", "text?", "texts", "words")  # the columns from which the tokenizer of a new model learns
VOCABULARY = 8_000  # tokens of a new tokenizer, unless the settings say otherwise


class EncoderTask(Task):
    """Base of tasks with one tokenizer and a model of text: an encoder, in some tasks also another family.

    Adds to ``Task`` the tokenizer, the model's configuration, lengths and checks. A subclass adds its head
    (``make_head``, ``check_head``), its examples, loss, metrics and predictions. Examples have an attribute ``ids``,
    their token ids; a subclass with other examples overrides ``lengths``. One that learns more than a tokenizer before
    training, such as label names, overrides ``__init__``, ``prepare``, ``load`` and ``card_entries``.
    """

    families: ClassVar[tuple[type[Config], ...]] = (EncoderConfig,)
    needs: ClassVar[str] = "an encoder"  # the families, for messages
    tokenizer: Tokenizer
    hidden_share = 0.0  # of the tokens, in training

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model: trains its tokenizer on all columns of texts or words."""
        names = [name for name, kind in cls.columns.items() if kind in TEXT_KINDS]
        values = (row.values[name] for row in rows for name in names if name in row.values)
        texts = (value if isinstance(value, str) else " ".join(value) for value in values)
        return cls(cls.train_tokenizer(texts, settings))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer of a model folder."""
        return cls(tokenizer_of(cls.model_folder(folder)))

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default training settings that suit the number of rows.

        For a pretrained model, they are those of published fine-tuning.
        """
        if given.start_from:
            return defaults.encoder_finetuning(len(rows), given, given.start_from)
        return defaults.encoder(len(rows), given)

    @classmethod
    def train_tokenizer(
        cls,
        texts: Iterable[str],
        settings: RunSettings,
        kind: TokenizerKind = "wordpiece",
        max_length: int = defaults.MAX_LENGTH,
        mask: bool = False,
    ) -> Tokenizer:
        """Trains the tokenizer of a new model on the training texts and returns it.

        ``kind`` and ``max_length`` apply if the settings do not set them; ``mask`` adds a mask token.
        """
        given = settings.tokenizer
        tokenizer = Tokenizer.train(
            texts, given.size or VOCABULARY, given.kind or kind, bool(given.lowercase), template="both", mask=mask
        )
        tokenizer.config["model_max_length"] = settings.data.max_length or max_length
        config = presets.get(settings.preset) if settings.preset else None
        if isinstance(config, EncoderConfig) and config.class_token == "last":
            tokenizer.config["padding_side"] = "left"  # transformers reads the last column
        return tokenizer

    @classmethod
    def model_folder(cls, folder: str | Path) -> Path:
        """Returns the path of a model folder; raises ``HeedfulError`` if the model's family does not fit the task."""
        resolved = find(folder)
        config = config_of(resolved)
        if not isinstance(config, cls.families):
            raise HeedfulError(
                f"{cls.name} needs {cls.needs}; the model in {folder} is of kind {config.kind!r}; choose another model"
            )
        return resolved

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer; the label names are saved with the model."""
        self.tokenizer.save(folder)

    def config(self, settings: RunSettings) -> ModelConfig:
        """Returns the configuration of a new model: the preset with the changes in the settings and the task's head.

        It has as many embeddings as the tokenizer has tokens, and no more positions than the longest example needs.
        """
        config = preset_of(settings.preset or "bert-tiny", EncoderConfig, self.name)
        # BERT's own N(0, 0.02²) is for wide models: narrow ones may long predict one class only
        stack = replace(with_settings(config.encoder, settings.model, None), init="xavier")
        stack = with_positions(stack, self.longest)
        start, end = special_id(self.tokenizer.start), special_id(self.tokenizer.end)
        head = self.make_head(stack, settings)
        if isinstance(head, SequenceHead) and isinstance(config, EncoderConfig):
            pooling = settings.pooling.kind or config.class_token
            head = replace(head, pooling=pooling, pooler=head.pooler and pooling == config.class_token)
        return replace(
            config,
            embedding=replace(config.embedding, vocab_size=self.tokenizer.vocab_size),
            encoder=stack,
            special=SpecialTokens(pad=self.tokenizer.pad, start=start, end=(end,)),
            head=head,
        )

    @abstractmethod
    def make_head(self, stack: StackConfig, settings: RunSettings) -> Head:
        """Returns the configuration of the head of a new model with this stack."""

    def check_model(self, model: Model) -> None:
        """Raises ``HeedfulError`` for a model that does not fit, and limits the length of examples to the model's
        positions.

        A model fits if it has the family and the head of the task, and an embedding for each token of the tokenizer.
        """
        config = model.config
        if patches_of(config) is not None or not isinstance(config, self.families):
            raise HeedfulError(
                f"{self.name} needs {self.needs}; this model is of kind {config.kind!r}; choose another model"
            )
        self.check_head(model)
        check_vocabulary(self.tokenizer, source_tokens(config))
        limit_length(self.tokenizer, config)

    @abstractmethod
    def check_head(self, model: Model) -> None:
        """Raises ``HeedfulError`` for a model whose head does not fit the task."""

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @property
    def reads(self) -> int | None:
        """``longest``: further tokens of an input are not read."""
        return self.longest

    @property
    def longest(self) -> int:
        """The maximum number of tokens of an example, special tokens included."""
        return longest_of(self.tokenizer)

    def input_ids(self, texts: Sequence[str], max_length: int | None = None) -> list[list[int]]:
        """Returns the token ids of each text with the special tokens around it, at most ``longest``, ``max_length``."""
        template = self.tokenizer.template()
        most = min(max_length or self.longest, self.longest) - template.added
        return [template.join(ids[:most])[0] for ids in self.tokenizer.encode(texts)]

    def lengths(self, examples: Sequence[Any]) -> np.ndarray:
        """Returns the number of tokens of each example, special tokens included, as an array (N, 1)."""
        return np.array([[len(example.ids)] for example in examples], dtype=np.int64)

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns a list with one token sequence, a ``Side``, of a batch's ``row``: the input text.

        ``heedful audit`` shows it. In it no token has a target, because the label belongs to the whole text.
        """
        return [input_side("text", batch["ids"][row], batch["mask"][row], self.tokenizer)]

    def hide_tokens(self, ids: Tensor, mask: Tensor, random: np.random.Generator | None) -> None:
        """In training, replaces each token of ``ids`` by the unknown token with probability ``hidden_share``, in place.

        Special tokens are never replaced. Without ``random`` nothing is changed.
        """
        if random is None or not self.hidden_share or self.tokenizer.unknown is None:
            return
        hidden = torch.from_numpy(random.random(ids.shape) < self.hidden_share) & mask
        template = self.tokenizer.template()
        for special in {*template.before, *template.after}:
            hidden &= ids != special
        ids[hidden] = self.tokenizer.unknown

    # --------------------------------------------------------------------------------------------------------- training

    def count(self, batch: Batch) -> int:
        """Returns the number of examples in a batch, one prediction each."""
        return len(batch["ids"])

    def logits(self, model: Model, batch: Batch) -> Tensor:
        """Returns the head's output for a batch, its ``ids`` and ``mask`` (B, T), in float32.

        A model with segments gets the batch's ``segments`` (B, T), if it has them, for the two texts of a pair.
        """
        config = model.config
        if isinstance(config, EncoderConfig) and config.segments > 1:
            return model(batch["ids"], batch["mask"], batch.get("segments")).float()
        return model(batch["ids"], batch["mask"]).float()


def longest_of(tokenizer: Tokenizer) -> int:
    """Returns the maximum number of tokens of an example, special tokens included, stored with the tokenizer."""
    return int(tokenizer.config.get("model_max_length", NO_LIMIT))


def limit_length(tokenizer: Tokenizer, config: ModelConfig) -> None:
    """Lowers the tokenizer's maximum length of an example to the number of the model's positions."""
    limits = (tokenizer.config.get("model_max_length"), positions_of(config))
    tokenizer.config["model_max_length"] = min((number for number in limits if number), default=NO_LIMIT)


def overlapping_windows(length: int, size: int, stride: int) -> list[range]:
    """Returns windows of at most ``size`` positions that together cover positions 0 to ``length`` − 1.

    Neighbouring windows share ``stride`` positions. The last window ends at the end, and none is contained in another.

    >>> overlapping_windows(10, 5, 2)
    [range(0, 5), range(3, 8), range(6, 10)]
    >>> overlapping_windows(3, 5, 2)
    [range(0, 3)]
    """
    step = size - stride
    if step < 1:
        raise ValueError(f"stride {stride} is too large for windows of {size} positions; lower it")
    starts = range(0, max(1, length - stride), step)
    return [range(start, min(start + size, length)) for start in starts]
