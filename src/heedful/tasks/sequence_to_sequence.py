"""Base of translation and summarization: text pairs, a prefix, generated outputs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from heedful.config import EncoderDecoderConfig, SpecialTokens
from heedful.data import Row, Rows
from heedful.data.batching import evaluation_batches
from heedful.errors import HeedfulError, many
from heedful.generation import decode
from heedful.generation.options import Options
from heedful.generation.stopping import cut
from heedful.models import Model
from heedful.pretrained.folder import find
from heedful.settings import DataSettings, RunSettings
from heedful.tasks import defaults
from heedful.tasks.encoder_decoder_task import EncoderDecoderTask, Pair
from heedful.tasks.model_setup import positions_of, preset_of, special_id
from heedful.tasks.published import encoder_decoder_of, prefix_of, specific
from heedful.tasks.r_drop import agreement_of
from heedful.tasks.task import EVALUATED, Encoded, Prediction, arrow_joined, check_texts
from heedful.tasks.token_batches import new_token_logprobs, padded_with_mask, seed_per_prompt
from heedful.text import Tokenizer
from heedful.text.bpe_dropout import BpeDropout
from heedful.util import sharding
from heedful.util.input_warnings import CountWarning, InputWarning

log = logging.getLogger("heedful")


class SequenceToSequence(EncoderDecoderTask):
    """An encoder-decoder from the first column to the second.

    ``prefix`` stands before every source, in learning and in answering, where nobody says otherwise: what T5 is told
    its task by (Raffel et al. 2020, section 2.4). ``told`` is how a published folder wants answers to this task
    generated.

    Args:
        source: of the source texts.
        target: of the target texts; the same object where they share one.
        special: the ids that the model names; None: the target tokenizer's.
        positions: the most tokens of either side, where the model has so many learned positions.
    """

    used_settings: ClassVar[frozenset[str]] = EncoderDecoderTask.used_settings | {
        *("data.prefix", "tokenizer.shared", "tokenizer.dropout", "model.r_drop")
    }
    options: ClassVar[frozenset[str]] = EncoderDecoderTask.options | {"prefix"}
    sizes: ClassVar[defaults.Sizes[defaults.EncoderDecoderSize]]  # below so many pairs: this
    most: ClassVar[int]  # tokens of a side, where nobody says
    cuts: ClassVar[bool] = False  # whether a source that is too long is cut; else its pair is left out

    def __init__(
        self, source: Tokenizer, target: Tokenizer, special: SpecialTokens | None = None, positions: int | None = None
    ) -> None:
        super().__init__(source, target, special, positions)
        self.prefix, self.told = "", dict[str, Any]()
        self.dropped: Sequence[BpeDropout] = ()  # of source and target, where words are cut anew in training
        self.silent = False  # while rows are answered of which ``encode`` told what was cut

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], asked: RunSettings) -> RunSettings:
        """By the number of pairs: more data, a larger model, a larger vocabulary, less dropout."""
        size = defaults.size_for(len(rows), cls.sizes)
        preset = asked.preset or size.preset
        longest, prefix = cls.most, None
        if asked.start_from is None:
            dim = asked.model.dim or preset_of(preset, EncoderDecoderConfig, cls.name).encoder.dim
        else:
            folder = find(asked.start_from)
            begun = encoder_decoder_of(folder, cls.name)
            dim, longest = begun.encoder.dim, min(positions_of(begun) or cls.most, cls.most)
            prefix = prefix_of(folder, cls.name) or None
        made = defaults.encoder_decoder(size, asked, dim)
        return replace(made, data=DataSettings(max_length=longest, prefix=prefix))

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Train the tokenizer, or two of them, on the training texts."""
        size, kind = settings.tokenizer.size or 8000, settings.tokenizer.kind or "bpe"
        source, target = list(cls.columns)[:2]

        def trained(*columns: str) -> Tokenizer:
            texts = (row.values[column] for row in rows for column in columns)
            return Tokenizer.train(texts, size, kind, bool(settings.tokenizer.lowercase))

        if settings.tokenizer.shared:
            tokenizer = trained(source, target)
            return cls(tokenizer, tokenizer)
        return cls(trained(source), trained(target))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """As all, with what the folder says of the task: its prefix and how to generate."""
        task, found = super().load(folder), find(folder)
        task.prefix = prefix_of(found, cls.name)
        task.told = {name: value for name, value in specific(found, cls.name).items() if name != "prefix"}
        return task

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Take over the prefix, which ``heedful.json`` keeps with the other settings."""
        self.prefix, self.agreement = settings.data.prefix or "", agreement_of(model, settings)
        if rate := settings.tokenizer.dropout:
            self.dropped = [BpeDropout(tokenizer, rate) for tokenizer in (self.source, self.target)]

    def check_model(self, model: Model) -> None:
        """As all. From then on the model generates as a published folder says for this task, where that differs from
        what it says for all.
        """
        super().check_model(model)
        if self.told:
            model.generation = {**model.generation, **self.told}

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def asked(self, row: Row) -> str:
        """Returns the input text of a row, without the prefix."""
        return str(row.values[next(iter(self.columns))])

    def wanted(self, row: Row) -> str:
        """Returns the target text of a row."""
        return str(row.values[list(self.columns)[1]])

    def input_and_target(self, row: Row) -> tuple[str, str]:
        """The source as it is asked, and the target."""
        return self.asked(row), self.wanted(row)

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Source and target ids of each row, with what their tokenizers put around them; pairs with a side longer than
        ``max_length``, or than the model takes, are left out, or where the task cuts sources, their sources cut.
        """
        most = min((each for each in (max_length, self.longest) if each is not None), default=None)
        reason = "--data.max-length" if most == max_length else "the model takes no more"
        texts = [self.prefix + self.asked(row) for row in rows]
        sources, few = whole(self.source, texts), []
        if self.cuts and most is not None:
            few = [place for place, ids in enumerate(sources) if len(ids) > most]
            if few and most <= (least := len(whole(self.source, [self.prefix])[0])):
                raise HeedfulError(f"{most} tokens have no room for text ({reason}); give {least + 1} or more")
            for place, ids in zip(few, whole(self.source, [texts[i] for i in few], most), strict=True):
                sources[place] = ids
        wanted = [self.wanted(row) for row in rows]
        targets = whole(self.target, wanted)
        for drop, given, rows_of in zip(self.dropped, (texts, wanted), (sources, targets), strict=False):
            rows_of[:] = drop.with_word_starts(given, rows_of, most)
        examples = list(zip(sources, targets, strict=True))
        fits = [most is None or max(map(len, pair)) <= most for pair in examples]
        left_out = len(fits) - sum(fits)
        if left_out == len(fits):
            asked = most == max_length
            remedy = "raise --data.max-length" if asked else "the model takes no more, give shorter ones"
            raise HeedfulError(f"every example is longer than {many(most or 0, 'token')}, in {rows[0].file}; {remedy}")
        kept = Rows(compress(rows, fits), rows.skipped, rows.columns)
        notes = [f"{len(few):,} of {many(len(rows), 'text')} cut to {most} tokens"] if few else []
        notes += [f"{many(left_out)} longer than {most} tokens left out"] if left_out else []
        cut = {*few}
        unread = [row for place, row in enumerate(rows) if place in cut or not fits[place]]
        note = f"{', '.join(notes)} ({reason})" if notes else ""
        return Encoded(list(compress(examples, fits)), kept, note, len(unread), unread)

    def lengths(self, examples: Sequence[Pair]) -> np.ndarray:
        """(N, 2): source and target."""
        return np.array([(len(source), len(target)) for source, target in examples], dtype=np.int64)

    def collate(self, examples: Sequence[Pair], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """The pairs as tensors; nothing in them is random, unless merges are dropped."""
        if random is None or not self.dropped:
            return self.tensors(examples)
        left, right = self.dropped
        return self.tensors([(left(source, random), right(target, random)) for source, target in examples])

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    def answered(
        self, model: Model, examples: Sequence[Pair], rows: Rows, most: int | None, options: Mapping[str, Any]
    ) -> list[str]:
        """Returns the model's outputs for the first ``most`` rows, at most about as long as their targets."""
        if most is not None and "max_length" not in options:  # a fresh model would babble on
            longest = max(len(target) for _, target in examples) - 1
            least = int(model.generation.get("min_new_tokens") or 0)
            options = {"max_new_tokens": max(int(1.5 * longest) + 10, least), **options}
        self.silent = True
        try:
            answers = self.predict(model, [self.asked(row) for row in rows[:most]], **options)
        finally:
            self.silent = False
        return [answer.output for answer in answers]

    def predict(
        self,
        model: Model,
        inputs: Sequence[str],
        *,
        decoding: Options | None = None,
        batch_tokens: int | None = None,
        prefix: str | None = None,
        logprobs: bool = False,
        **options: Any,
    ) -> list[Prediction]:
        """Decode each input, alike lengths together; an input without text gets an empty answer.

        An input of more tokens than the model takes, or than one batch holds (``batch_tokens``, at least 4,096), is cut
        to so many, and a warning says so. ``prefix`` stands before each in place of the folder's own. With
        ``stop_strings`` an answer ends right after the first of them, which is shown. With ``logprobs`` each answer has
        log p of its tokens, as the model itself says it (``heedful.generation.decode.Generated``), those included that
        are not shown: the end token, and what follows a stop string in its last token. ``decoding`` stands for the
        decoding options, where the caller has resolved them (``decoding_options``).
        """
        check_texts(self.name, inputs)
        decoding = decoding or self.decoding_options(model, options)
        answers = [Prediction(text, "", None, [] if logprobs else None) for text in inputs]
        asked = [index for index, text in enumerate(inputs) if text.strip()]
        if not asked:
            return answers
        before = self.prefix if prefix is None else prefix
        sources = self._read([before + inputs[index] for index in asked], asked, max(batch_tokens or 0, EVALUATED))
        own = seed_per_prompt(decoding.for_rows(asked, len(inputs)), sources)

        def decoded(batch: np.ndarray) -> list[tuple[str, float, list[float] | None]]:
            ids, real = padded_with_mask([sources[i] for i in batch], self.pad)
            resolved = own.for_rows(batch, len(asked))
            found = decode(model, ids, real, decoding=resolved, tokenizer=self.target, logprobs=logprobs)
            texts, said = self.target.decode(found.ids.tolist()), new_token_logprobs(found, [1] * len(batch))
            return list(zip(texts, found.scores.tolist(), said, strict=True))

        batches = evaluation_batches([len(ids) for ids in sources], batch_tokens or EVALUATED, max_rows=128)
        for batch, told in sharding.each(batches, decoded):
            for i, (text, score, log_p) in zip(batch, told, strict=True):
                answers[asked[i]] = Prediction(inputs[asked[i]], cut(text, own.stop_strings), score, log_p)
        return answers

    def _read(self, texts: Sequence[str], places: Sequence[int], held: int) -> list[list[int]]:
        """The ids of the inputs at these ``places``, at most as many as the model takes or are ``held``."""
        most = held if self.longest is None else min(held, self.longest)
        sources = whole(self.source, texts)
        long = [i for i, ids in enumerate(sources) if len(ids) > most]
        remedy = "a larger batch_tokens reads more" if most == held else "the model takes no more"
        if self.cuts and long and not self.silent:
            log.warning(CountWarning(len(long), len(texts), f"cut to {most:,} tokens ({remedy})"))
        for i in [] if self.cuts else long:
            text = f"has {len(sources[i]):,} tokens, only {most:,} of them are read ({remedy})"
            log.warning(InputWarning(places[i], text))
        for i, ids in zip(long, whole(self.source, [texts[i] for i in long], most), strict=True):
            sources[i] = ids
        return sources

    def row_line(self, row: Row) -> str:
        """``source → target``."""
        return arrow_joined([self.prefix + self.asked(row), self.wanted(row)])


def whole(tokenizer: Tokenizer, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
    """The ids of each text with what the tokenizer puts around one; the end token where it puts nothing. Of a text that
    is longer than ``most`` so, its beginning.
    """
    around = tokenizer.around()
    after = around.after or (() if around.before else (special_id(tokenizer.end),))
    room = None if most is None else max(0, most - len(around.before) - len(after))
    return [[*around.before, *ids[:room], *after] for ids in tokenizer.encode(texts)]
