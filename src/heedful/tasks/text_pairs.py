"""Base of the tasks on a text or a pair of texts: parsing inputs, encoding, truncation."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from torch import Tensor

from heedful.config import (
    Config,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Head,
    SequenceHead,
    StackConfig,
)
from heedful.data import Kind, Row, Rows
from heedful.errors import HeedfulError, plural
from heedful.models import Model
from heedful.settings import RunSettings
from heedful.tasks import known_models
from heedful.tasks.encoder_task import HIDDEN_SHARE, EncoderTask
from heedful.tasks.model_setup import check_classifier, replace_head, start_of
from heedful.tasks.task import Batch, Encoded, Prediction, short
from heedful.tasks.token_batches import padded, padded_with_mask
from heedful.text import Tokenizer
from heedful.util.input_warnings import CountWarning

log = logging.getLogger("heedful")

SIDES = ("text", "text_pair")
OUTPUT = "LABEL_0"  # the name that transformers gives the only output of a model that returns a number
READS = {  # what a classifier reads, for people
    "first": "the first token",
    "last": "the last token",
    "mean": "the mean of the tokens",
    "max": "the maximum over the tokens",
}


class EncodedPair(NamedTuple):
    """Token ids of a text or a pair of texts, special tokens included, with its labels."""

    ids: list[int]
    segments: list[int]
    labels: tuple[float, ...]  # the ids of the labels, or the number that is learned


class TextPairTask(EncoderTask):
    """Base of the tasks that predict labels or a number for a text or a pair of texts, by a classifier over one token.

    The special tokens around a text, or between two, are those of the model's tokenizer: ``[CLS] text [SEP] pair
    [SEP]`` in two segments for BERT, ``<s> text </s></s> pair </s>`` for RoBERTa and BART, nothing for GPT-2.
    """

    families: ClassVar[tuple[type[Config], ...]] = (EncoderConfig, DecoderConfig, EncoderDecoderConfig)
    needs: ClassVar[str] = "a model of text"
    known_models: ClassVar[known_models.KnownModels | None] = known_models.ENCODERS
    unit = "examples"
    input_names: ClassVar[tuple[str, ...]] = SIDES
    labels: list[str]

    def make_head(self, stack: StackConfig, settings: RunSettings) -> Head:
        """Returns the configuration of a classifier with an output for each label."""
        return SequenceHead(labels=len(self.labels), dropout=stack.dropout.residual)

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores the label names in the model. In training of a new model, the unknown token replaces random tokens."""
        model.labels = list(self.labels)
        self.hidden_share = 0.0 if settings.start_from else HIDDEN_SHARE
        self.model_notes = self.pooling_notes(model)

    def check_head(self, model: Model) -> None:
        """Raises ``HeedfulError`` unless the model has a classifier with an output for every label."""
        check_classifier(self.name, model, self.labels, SequenceHead)
        if isinstance(model.config, EncoderDecoderConfig):
            start_of(model.config)

    def pooling_notes(self, model: Model) -> list[str]:
        """Returns a line for an encoder whose classifier reads other than the class token; else none."""
        config, head = model.config, getattr(model.config, "head", None)
        if not isinstance(config, EncoderConfig) or not isinstance(head, SequenceHead):
            return []
        if head.pooling == config.class_token:
            return []
        note = f"the classifier reads {READS[head.pooling]}; transformers has no such class and cannot open the folder"
        return [f"{note} (--pooling.kind {config.class_token} trains one that it opens)"]

    def set_pooling(self, model: Model, settings: RunSettings, is_new: bool) -> None:
        """Gives a new classifier the pooling of ``--pooling.kind``; BERT's dense layer is for the class token alone.

        Raises ``HeedfulError`` for a classifier that is not new, an adapter or an encoder-decoder, unless the pooling
        is theirs.
        """
        kind, head = settings.pooling.kind, model.config.head
        if kind is None or not isinstance(head, SequenceHead) or kind == head.pooling:
            return
        if not is_new:
            why = f"the classifier in {settings.start_from} has learned with the pooling {head.pooling!r}"
        elif model.adapter is not None or settings.lora.rank is not None:
            why = f"an adapter's files store no pooling, and are read with {head.pooling!r}"
        elif isinstance(model.config, EncoderDecoderConfig):
            why = f"a classifier of an encoder-decoder has the pooling {head.pooling!r}"
        else:
            own = isinstance(model.config, EncoderConfig) and kind == model.config.class_token
            replace_head(model, settings.seed or 0, pooling=kind, pooler=own)
            return
        raise HeedfulError(f"--pooling.kind {kind}: {why}; leave the option out")

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Encodes each row's texts and labels.

        An example longer than ``max_length`` tokens or the model's limit is truncated; in a pair, the longer text
        first.
        """
        limit = min(max_length or self.longest, self.longest)
        examples, cut = self.examples(map(self.texts_of, rows), map(self.targets_of, rows), limit)
        reason = "--data.max-length" if limit == max_length else "the model takes no more"
        note = f"{plural(len(cut))} cut to {limit} tokens ({reason})" if cut else ""
        return Encoded(examples, rows, note, len(cut), [rows[number] for number in cut])

    def examples(
        self, texts: Iterable[tuple[str, ...]], labels: Iterable[tuple[float, ...]], limit: int
    ) -> tuple[list[Any], list[int]]:
        """Encodes texts and pairs: see ``examples_of``."""
        return examples_of(self.tokenizer, texts, labels, limit)

    def texts_of(self, row: Row) -> tuple[str, ...]:
        """Returns the text of a row, or both texts of a pair, as a tuple."""
        return tuple(row.values[name] for name in SIDES if name in self.columns and name in row.values)

    @abstractmethod
    def targets_of(self, row: Row) -> tuple[float, ...]:
        """Returns what a row should teach: the indices of its labels, or its number."""

    def collate(self, examples: Sequence[EncodedPair], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns a batch: ``ids``, ``mask`` and ``segments`` (B, T), and ``labels`` (B, outputs), the targets.

        When a new model is trained, random tokens are replaced by the unknown token.
        """
        ids, mask = padded_with_mask([example.ids for example in examples])
        segments = padded([example.segments for example in examples], 0)
        self.hide_tokens(ids, mask, random)
        return {"ids": ids, "mask": mask, "segments": segments, "labels": self.target_tensor(examples)}

    @abstractmethod
    def target_tensor(self, examples: Sequence[EncodedPair]) -> Tensor:
        """Returns the targets of examples, a tensor (B, outputs of the model)."""

    # --------------------------------------------------------------------------------------------------------- training

    def logits(self, model: Model, batch: Batch) -> Tensor:
        """Returns the classification head's logits (B, labels) in float32.

        An encoder-decoder reads the text in the encoder and, shifted right by one token, in the decoder (Lewis et al.
        2020, section 3.1).
        """
        config, ids, mask = model.config, batch["ids"], batch["mask"]
        if not isinstance(config, EncoderDecoderConfig):
            return super().logits(model, batch)
        target = ids.roll(1, dims=1)
        target[:, 0] = start_of(config)
        return model(ids, target, mask, mask).float()

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def predictions(
        self,
        model: Model,
        inputs: Sequence[Any],
        empty: Any,
        compute: Callable[[Batch], Sequence[tuple[Any, float | None]]],
        batch_tokens: int | None,
    ) -> list[Prediction]:
        """Returns a prediction for each input.

        An input is a text or a pair: ``(text, pair)``, ``{"text": ..., "text_pair": ...}``, or one string with a tab
        between them. Inputs longer than the model takes are truncated, with a warning.

        Args:
            model: the model.
            inputs: texts or pairs of texts.
            empty: output for an input without text.
            compute: returns output and score for each example of a batch.
            batch_tokens: maximum number of tokens in a batch, padding included; None for the default.
        """
        predictions = [Prediction(value, empty, None) for value in inputs]
        pair = self.columns.get("text_pair")
        texts = {index: sides for index, value in enumerate(inputs) if (sides := sides_of(value, pair))}
        if not texts:
            return predictions
        examples, cut = self.examples(texts.values(), [()] * len(texts), self.longest)
        if cut:
            log.warning(
                CountWarning(len(cut), len(inputs), f"cut to {self.longest:,} tokens (the model takes no more)")
            )
        indices = list(texts)
        for batch, outputs in self.map_batches(model, examples, compute, batch_tokens):
            for number, (output, score) in zip(batch, outputs, strict=True):
                index = indices[number]
                predictions[index] = Prediction(inputs[index], output, score)
        return predictions

    def numbers(self, model: Model, inputs: Sequence[Any], batch_tokens: int | None) -> list[Prediction]:
        """Returns the first output of the model for each input, a float, without a score; None for an input without
        text. The arguments are those of ``predictions``.
        """

        def compute(batch: Batch) -> list[tuple[float, None]]:
            return [(number, None) for number in self.logits(model, batch)[:, 0].tolist()]

        return self.predictions(model, inputs, None, compute, batch_tokens)

    def relevance(self, model: Model, query: str, texts: Sequence[str]) -> list[float]:
        """Returns the number of each pair of the query with a text; raises ``HeedfulError`` for a blank one."""
        if not self.ranks_texts:
            return super().relevance(model, query, texts)
        predictions = self.predict(model, [(query, text) for text in texts])
        if any(prediction.output is None for prediction in predictions):
            raise HeedfulError("the query or a text is blank; give texts")
        return [prediction.output for prediction in predictions]

    def trial_inputs(self, texts: Sequence[str]) -> list[Any]:
        """Returns inputs for trying a model, from plain texts; by default the texts themselves.

        For a model of pairs, each text gets the next text as its pair, unless it has a tab and so is a pair already.
        """
        if self.columns.get("text_pair") != "text":
            return list(texts)
        others = [*texts[1:], *texts[:1]]
        return [
            text if "\t" in text else (text, other.split("\t")[0]) for text, other in zip(texts, others, strict=True)
        ]

    def line_of(self, row: Row, label: str) -> str:
        """Returns a row as one line for people: ``text → label``, or ``text + pair → label``."""
        return f"{' + '.join(map(short, self.texts_of(row)))} → {label}"


def columns_of(rows: Sequence[Row], kind: Kind = "label") -> dict[str, Kind]:
    """Returns the columns of training rows and their kinds; ``text_pair`` is among them if the rows have it."""
    pair: dict[str, Kind] = {"text_pair": "text"} if "text_pair" in rows[0].values else {}
    return {"text": "text", **pair, "label": kind}


def sides_of(value: Any, pair: Kind | None) -> tuple[str, ...]:
    """Returns the text of an input as a tuple, or both texts of a pair; () if one is blank.

    Args:
        value: a text; or a pair: ``(text, pair)``, ``{"text": ..., "text_pair": ...}``, or one string with a tab
            between them.
        pair: the kind of the column ``text_pair``: None if there is none, "text?" if it is optional.

    Raises:
        HeedfulError: the value has another form.
    """
    sides: tuple[Any, ...]
    if isinstance(value, str):
        sides = tuple(value.split("\t", 1)) if pair else (value,)
    elif isinstance(value, Mapping):
        sides = tuple(value[name] for name in SIDES if name in value)
    else:
        sides = tuple(value) if isinstance(value, tuple | list) else (value,)
    are_texts = all(isinstance(side, str) for side in sides)
    if are_texts and sides and not all(side.strip() for side in sides):
        return ()
    if not are_texts or len(sides) not in {None: (1,), "text": (2,), "text?": (1, 2)}[pair]:
        expected = {None: "a text", "text": "two texts", "text?": "a text, or two"}[pair]
        form = ": (text, pair), or one string with a tab between them" if pair else ""
        raise HeedfulError(f"this model takes {expected}{form}; got {short(repr(value))}")
    return sides


def examples_of(
    tokenizer: Tokenizer, texts: Iterable[tuple[str, ...]], labels: Iterable[tuple[float, ...]], limit: int
) -> tuple[list[EncodedPair], list[int]]:
    """Encodes texts and pairs as examples of at most ``limit`` tokens.

    Returns the examples, and the indices of those that were truncated.
    """
    texts = list(texts)
    encoded = iter(tokenizer.encode([side for sides in texts for side in sides]))
    templates = {number: tokenizer.template(pair=number == 2) for number in set(map(len, texts))}
    examples, cut = [], []
    for number, (sides, targets) in enumerate(zip(texts, labels, strict=True)):
        parts = [next(encoded) for _ in sides]
        fitting = fitted(parts, limit, templates[len(sides)].added)
        if fitting != parts:
            cut.append(number)
        examples.append(EncodedPair(*templates[len(sides)].join(*fitting), targets))
    return examples, cut


def fitted(parts: list[list[int]], limit: int, added: int) -> list[list[int]]:
    """Truncates one or two lists of ids at their ends, the longer one first, to fit into ``limit`` tokens.

    ``added`` is the number of special tokens that must fit too. Raises ``HeedfulError`` if no room is left for text.
    """
    room = limit - added
    if room < len(parts):
        raise HeedfulError(f"--data.max-length {limit} has no room for text; give {added + len(parts)} or more")
    if sum(map(len, parts)) <= room:
        return parts
    if len(parts) == 1:
        return [parts[0][:room]]
    first, second = parts
    shorter = min(len(first), len(second), room // 2)
    if len(first) <= len(second):
        return [first[:shorter], second[: room - shorter]]
    return [first[: room - shorter], second[:shorter]]


def check_one_output(model: Model) -> None:
    """Raises ``HeedfulError`` for a classifier with several outputs, which is not a model that returns a number."""
    head = model.config.head
    if isinstance(head, SequenceHead) and head.labels != 1:
        raise HeedfulError(f"the model has {head.labels} outputs, but regression needs one; choose another model")
