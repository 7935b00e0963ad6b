"""Bases of translation, summarization and generated answers: text pairs, a prefix, generated outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from heedful.config import EncoderDecoderConfig, SpecialTokens
from heedful.data import Row, Rows
from heedful.errors import HeedfulError, plural
from heedful.generation.options import Options
from heedful.models import Model
from heedful.pretrained.folder import find
from heedful.settings import DataSettings, RunSettings
from heedful.tasks import defaults
from heedful.tasks.choices import RankedPrompt, answer, check_ranking, rank_choices, split_inputs, with_choices
from heedful.tasks.encoder_decoder_task import EncoderDecoderTask, Pair
from heedful.tasks.model_setup import positions_of, preset_of, special_id
from heedful.tasks.published import encoder_decoder_of, prefix_of, task_specific_params
from heedful.tasks.r_drop import agreement_of
from heedful.tasks.task import EVALUATED, Encoded, Prediction, arrow_joined, check_texts
from heedful.tasks.token_batches import outputs_of_call, padded_with_mask, prediction_of
from heedful.tasks.used_settings import SEQUENCES
from heedful.text import Tokenizer
from heedful.text.bpe_dropout import BpeDropout
from heedful.text.post_processor import InputTemplate
from heedful.util.input_warnings import CountWarning, InputWarning

log = logging.getLogger("heedful")


class SequenceToSequence(EncoderDecoderTask):
    """Base of the tasks from a source text (first column) to a target text (second column).

    ``prefix`` is put before every source in training and prediction; it tells T5 its task (Raffel et al. 2020, section
    2.4). ``folder_generation`` has the generation settings of a published folder for this task.

    The arguments are those of ``EncoderDecoderTask``.
    """

    used_settings: ClassVar[frozenset[str]] = SEQUENCES
    options: ClassVar[frozenset[str]] = EncoderDecoderTask.options | {"prefix"}
    sizes: ClassVar[defaults.Sizes[defaults.EncoderDecoderSize]]  # defaults by the number of pairs
    default_length: ClassVar[int]  # default maximum number of tokens of a side
    truncates: ClassVar[bool] = False  # True: a source that is too long is truncated; False: its pair is left out

    def __init__(
        self, source: Tokenizer, target: Tokenizer, special: SpecialTokens | None = None, positions: int | None = None
    ) -> None:
        super().__init__(source, target, special, positions)
        self.prefix, self.folder_generation = "", dict[str, Any]()
        self.bpe_dropout: Sequence[BpeDropout] = ()  # in training with BPE-dropout: of source and target
        self.silent = False  # True: no warning about truncated sources, since ``encode`` has given a note

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default training settings that suit the number of pairs.

        With more data, model and vocabulary are larger and the dropout is lower.
        """
        size = defaults.size_for(len(rows), cls.sizes)
        preset = given.preset or size.preset
        longest, prefix = cls.default_length, None
        if given.start_from is None:
            dim = given.model.dim or preset_of(preset, EncoderDecoderConfig, cls.name).encoder.dim
        else:
            folder = find(given.start_from)
            config = encoder_decoder_of(folder, cls.name)
            dim, longest = config.encoder.dim, min(positions_of(config) or cls.default_length, cls.default_length)
            prefix = prefix_of(folder, cls.name) or None
        suggested = defaults.encoder_decoder(size, given, dim)
        return replace(suggested, data=DataSettings(max_length=longest, prefix=prefix))

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model and trains its tokenizer, or one each for source and target."""
        size, kind = settings.tokenizer.size or 8000, settings.tokenizer.kind or "bpe"

        def trained(*sides: Callable[[Row], Iterable[str]]) -> Tokenizer:
            texts = (text for row in rows for side in sides for text in side(row))
            return Tokenizer.train(texts, size, kind, bool(settings.tokenizer.lowercase))

        if settings.tokenizer.shared:
            tokenizer = trained(cls.source_vocabulary, cls.target_vocabulary)
            return cls(tokenizer, tokenizer)
        return cls(trained(cls.source_vocabulary), trained(cls.target_vocabulary))

    @classmethod
    def source_vocabulary(cls, row: Row) -> Sequence[str]:
        """Returns the texts of a row from which the source vocabulary is learned."""
        return [row.values[next(iter(cls.columns))]]

    @classmethod
    def target_vocabulary(cls, row: Row) -> Sequence[str]:
        """Returns the texts of a row from which the target vocabulary is learned."""
        return [row.values[list(cls.columns)[1]]]

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizers, and the folder's prefix and generation settings for this task."""
        folder = find(folder)
        task = super().load(folder)
        task.prefix = prefix_of(folder, cls.name)
        task.folder_generation = {
            name: value for name, value in task_specific_params(folder, cls.name).items() if name != "prefix"
        }
        return task

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores the settings of prefix, R-Drop and BPE-dropout in the task."""
        self.prefix, self.agreement = settings.data.prefix or "", agreement_of(model, settings)
        if rate := settings.tokenizer.dropout:
            self.bpe_dropout = [BpeDropout(tokenizer, rate) for tokenizer in (self.source, self.target)]

    def check_model(self, model: Model) -> None:
        """Raises ``HeedfulError`` for a model that does not fit, and gives the model the folder's generation settings.

        The model must be an encoder-decoder with a language-model head, an embedding for every token, and a start
        token.
        """
        super().check_model(model)
        if self.folder_generation:
            model.generation = {**model.generation, **self.folder_generation}

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def source_text(self, row: Row) -> str:
        """Returns the source text of a row, without the prefix."""
        return str(row.values[next(iter(self.columns))])

    def target_text(self, row: Row) -> str:
        """Returns the target text of a row."""
        return str(row.values[list(self.columns)[1]])

    def encode_sources(self, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
        """Returns the ids of source texts, special tokens included, truncated to ``most`` tokens."""
        return encode_with_special(self.source, texts, most)

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of target texts, special tokens included."""
        return encode_with_special(self.target, texts)

    def input_and_target(self, row: Row) -> tuple[str, str]:
        """Returns source and target of a row."""
        return self.source_text(row), self.target_text(row)

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Encodes source and target of each row, special tokens included.

        If a side is longer than ``max_length`` or the model's limit, the pair is left out. In tasks with ``truncates``,
        a long source is truncated instead.
        """
        most = min((limit for limit in (max_length, self.longest) if limit is not None), default=None)
        reason = "--data.max-length" if most == max_length else "the model takes no more"
        texts = [self.prefix + self.source_text(row) for row in rows]
        sources, long = self.encode_sources(texts), []
        if self.truncates and most is not None:
            long = [index for index, ids in enumerate(sources) if len(ids) > most]
            if long and most <= (least := len(self.encode_sources([self.prefix])[0])):
                raise HeedfulError(f"{most} tokens leave no room for text ({reason}); give {least + 1} or more")
            for index, ids in zip(long, self.encode_sources([texts[i] for i in long], most), strict=True):
                sources[index] = ids
        target_texts = [self.target_text(row) for row in rows]
        targets = self.encode_targets(target_texts)
        for dropout, given, rows_of_ids in zip(
            self.bpe_dropout, (texts, target_texts), (sources, targets), strict=False
        ):
            rows_of_ids[:] = dropout.with_word_starts(given, rows_of_ids, most)
        examples = list(zip(sources, targets, strict=True))
        fits = [most is None or max(map(len, pair)) <= most for pair in examples]
        left_out = len(fits) - sum(fits)
        if left_out == len(fits):
            remedy = (
                "raise --data.max-length" if most == max_length else "the model takes no more; give shorter examples"
            )
            raise HeedfulError(
                f"every example is longer than {plural(most or 0, 'token')}, in {rows[0].file}; {remedy}"
            )
        fitting = Rows(compress(rows, fits), rows.skipped, rows.columns)
        notes = [f"{len(long):,} of {plural(len(rows), 'text')} cut to {most} tokens"] if long else []
        notes += [f"{plural(left_out)} longer than {most} tokens left out"] if left_out else []
        truncated = {*long}
        unread = [row for index, row in enumerate(rows) if index in truncated or not fits[index]]
        note = f"{', '.join(notes)} ({reason})" if notes else ""
        return Encoded(list(compress(examples, fits)), fitting, note, len(unread), unread)

    def lengths(self, examples: Sequence[Pair]) -> np.ndarray:
        """Returns the number of tokens of source and target of each pair, as an array (N, 2)."""
        return np.array([(len(source), len(target)) for source, target in examples], dtype=np.int64)

    def collate(self, examples: Sequence[Pair], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns pairs of token ids as a batch of tensors, in training with BPE-dropout if it is set.

        They are ``source`` and ``source_mask`` (B, S), ``target`` (B, T), the decoder's input, and ``labels`` (B, T),
        the next tokens.
        """
        if random is None or not self.bpe_dropout:
            return self.tensors(examples)
        drop_source, drop_target = self.bpe_dropout
        pairs = [(drop_source(source, random), drop_target(target, random)) for source, target in examples]
        return self.tensors(pairs)

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def limited_options(self, model: Model, examples: Sequence[Pair], options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the options with a limit of about 1.5 times as many tokens as the longest target (``with_limit``)."""
        longest = max(len(target) for _, target in examples) - 1
        return self.with_limit(model, options, int(1.5 * longest) + 10)

    def outputs_for(
        self,
        model: Model,
        examples: Sequence[Pair],
        rows: Rows,
        most: int | None,
        options: Mapping[str, Any],
        choices: Sequence[Sequence[str] | None] = (),
    ) -> list[str]:
        """Returns the outputs for the first ``most`` rows (None: all).

        With ``most`` and no ``max_length`` in the options, outputs are limited (``limited_options``). ``choices`` has
        the choices of each of these rows, or None; if a row has some, its output is one of them.
        """
        inputs: list[Any] = [self.source_text(row) for row in rows[:most]]
        if any(choices):
            inputs = with_choices("source", inputs, choices)
        if most is not None and not (choices and all(choices)):
            options = self.limited_options(model, examples, options)
        self.silent = True
        try:
            predictions = self.predict(model, inputs, **options)
        finally:
            self.silent = False
        return [prediction.output for prediction in predictions]

    def predict(
        self,
        model: Model,
        inputs: Sequence[str],
        *,
        decoding: Options | None = None,
        batch_tokens: int | None = None,
        prefix: str | None = None,
        logprobs: bool = False,
        choices: Sequence[str] | None = None,
        normalise: str | None = None,
        **options: Any,
    ) -> list[Prediction]:
        """Generates the output for each input, in batches of similar lengths; "" for an input without text.

        With ``num_return_sequences`` > 1 the output is a list of ``{"text", "score"}``, samples or the best beams; an
        empty one for an input without text.

        Args:
            model: the model.
            inputs: the source texts. A text with more tokens than the model takes, or than a batch holds, is truncated,
                with a warning.
            decoding: resolved decoding options (``decoding_options``), instead of ``options``.
            batch_tokens: maximum number of tokens in a batch, padding included; by default 4,096.
            prefix: text to put before each input, instead of the folder's prefix.
            logprobs: if True, predictions have log p of each generated token, also of tokens that the output does not
                show: the end token, and the rest of the token that ends a stop string.
            choices: the output is the most probable of these texts, its end token included, and the score its log p
                (:mod:`heedful.tasks.choices`). An input with choices of its own is a mapping, ``{"source": ...,
                "choices": [...]}``.
            normalise: divides the log p of a choice by its number of "tokens" or "characters"; None: the sum.
            **options: decoding options. With ``stop_strings`` an output ends after the first stop string, and includes
                it.
        """
        decoding = outputs_of_call(decoding or self.decoding_options(model, options))
        texts, own = split_inputs(inputs, choices)
        check_texts(self.name, texts)
        check_ranking(own or [choices], decoding, normalise, logprobs)

        def ranked(some: list[Any], hub_choices: list[Sequence[str]]) -> list[Prediction]:
            return self._rank(model, some, hub_choices, decoding, normalise, batch_tokens, prefix)

        def generated(some: list[Any], options_of_rows: Options) -> list[Prediction]:
            return self._generate(model, some, options_of_rows, batch_tokens, prefix, logprobs)

        return answer(inputs, texts, own, decoding, ranked, generated)

    def _generate(
        self,
        model: Model,
        inputs: Sequence[str],
        decoding: Options,
        batch_tokens: int | None,
        prefix: str | None,
        logprobs: bool,
    ) -> list[Prediction]:
        """Returns the generated output for each input, in batches of similar lengths."""
        predictions = [prediction_of(text, [], decoding) for text in inputs]
        if logprobs and decoding.num_return_sequences == 1:
            predictions = [replace(prediction, logprobs=[]) for prediction in predictions]
        filled = [index for index, text in enumerate(inputs) if text.strip()]
        if not filled:
            return predictions
        prefix = self.prefix if prefix is None else prefix
        sources = self._encode_inputs([prefix + inputs[i] for i in filled], filled, max(batch_tokens or 0, EVALUATED))
        own_options = decoding.for_rows(filled, len(inputs))

        def batch_of(batch: np.ndarray) -> tuple[Tensor, Tensor]:
            return padded_with_mask([sources[i] for i in batch], self.pad)

        lengths = [len(ids) for ids in sources]
        for i, outputs in self.generated_texts(model, lengths, sources, batch_of, own_options, batch_tokens, logprobs):
            predictions[filled[i]] = prediction_of(inputs[filled[i]], outputs, decoding)
        return predictions

    def _rank(
        self,
        model: Model,
        texts: Sequence[str],
        choices: Sequence[Sequence[str]],
        decoding: Options,
        normalise: str | None,
        batch_tokens: int | None,
        prefix: str | None,
    ) -> list[Prediction]:
        """Returns the most probable of the choices of each text; "" for a text that is blank."""
        predictions = [Prediction(text, [] if "top_k" in decoding.given else "", None) for text in texts]
        filled = [index for index, text in enumerate(texts) if text.strip()]
        if not filled:
            return predictions
        prefix = self.prefix if prefix is None else prefix
        sources = self._encode_inputs([prefix + texts[i] for i in filled], filled, max(batch_tokens or 0, EVALUATED))
        targets = {own: self.encode_targets(own) for own in {*map(tuple, choices)}}
        asked = [choices[i] for i in filled]
        prompts = [RankedPrompt(ids, targets[tuple(own)]) for ids, own in zip(sources, asked, strict=True)]
        ranked = rank_choices(model, [texts[i] for i in filled], prompts, asked, decoding, normalise, batch_tokens)
        for index, prediction in zip(filled, ranked, strict=True):
            predictions[index] = prediction
        return predictions

    def _encode_inputs(self, texts: Sequence[str], indices: Sequence[int], limit: int) -> list[list[int]]:
        """Returns the ids of the inputs at ``indices``, truncated to ``limit`` and to the model's limit."""
        most = limit if self.longest is None else min(limit, self.longest)
        sources = self.encode_sources(texts)
        long = [i for i, ids in enumerate(sources) if len(ids) > most]
        remedy = "a larger batch_tokens reads more" if most == limit else "the model takes no more"
        if self.truncates and long and not self.silent:
            log.warning(CountWarning(len(long), len(texts), f"cut to {most:,} tokens ({remedy})"))
        for i in [] if self.truncates else long:
            text = f"has {len(sources[i]):,} tokens, only {most:,} of them are read ({remedy})"
            log.warning(InputWarning(indices[i], text))
        for i, ids in zip(long, self.encode_sources([texts[i] for i in long], most), strict=True):
            sources[i] = ids
        return sources

    def row_line(self, row: Row) -> str:
        """Returns a row as one line for people: ``source → target``."""
        return arrow_joined([self.prefix + self.source_text(row), self.target_text(row)])


class BoundedSequenceToSequence(SequenceToSequence):
    """Base of tasks from a long text to a short one, whose lengths are limited.

    A new model reads as many tokens as in training, ``--data.max-length``; a published one as many as it has positions,
    or the ``model_max_length`` of its tokenizer. A new model generates no more tokens than the longest training target
    has. The arguments are those of ``EncoderDecoderTask``.
    """

    default_new_tokens: ClassVar[int]  # maximum length of an output where neither the call nor the folder has one
    longest_target: int | None = None  # tokens of the longest training target, if known

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model, trains its tokenizers, and stores the maximum length of sources and
        targets.
        """
        task = super().prepare(rows, settings)
        limit = settings.data.max_length or cls.default_length
        task.source.config["model_max_length"] = limit
        longest = max(map(len, encode_with_special(task.target, [task.target_text(row) for row in rows])))
        task.longest_target = min(longest, limit)
        return task

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores the settings that training needs; a new model will generate no more tokens than the longest target
        has.
        """
        super().before_training(model, settings)
        if self.longest_target is not None:
            model.generation = {**model.generation, "max_new_tokens": self.longest_target}

    @property
    def longest(self) -> int | None:
        """The maximum number of tokens of a source: the model's positions, or its tokenizer's ``model_max_length``."""
        limits = (self.positions, self.source.config.get("model_max_length"))
        return min((int(limit) for limit in limits if limit), default=None)

    def decoding_options(self, model: Model, options: Mapping[str, Any]) -> Options:
        """Returns the decoding options of a call; unset options have the values stored in the model's folder.

        If neither limits the length, at most ``default_new_tokens`` tokens are generated.
        """
        limits = ("max_new_tokens", "max_length")
        if all({**model.generation, **options}.get(name) is None for name in limits):
            most = self.default_new_tokens
            options = {**options, "max_new_tokens": min(most, self.positions or most)}
        return super().decoding_options(model, options)


def encode_with_special(
    tokenizer: Tokenizer, texts: Sequence[str], most: int | None = None, template: InputTemplate | None = None
) -> list[list[int]]:
    """Returns the ids of each text with the tokenizer's special tokens; if it adds none, with the end token.

    A text of more than ``most`` tokens is truncated at its end. ``template`` stands for the tokenizer's own.
    """
    template = template or tokenizer.template()
    after = template.after or (() if template.before else (special_id(tokenizer.end),))
    room = None if most is None else max(0, most - len(template.before) - len(after))
    return [[*template.before, *ids[:room], *after] for ids in tokenizer.encode(texts)]
