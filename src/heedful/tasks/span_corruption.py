"""Fill-mask by an encoder-decoder: it gives back the spans that are hidden from a text (Raffel et al. 2020)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import EncoderDecoderConfig, SpecialTokens
from heedful.data import Kind, Row, Rows
from heedful.data.batching import evaluation_batches
from heedful.data.masking import LENGTH, SHARE, Corruption
from heedful.data.split import Same, content_digest
from heedful.data.token_stream import StreamWindow
from heedful.errors import HeedfulError, InputError
from heedful.generation import decode
from heedful.generation.options import Options
from heedful.metrics.example_scores import Sums, overall
from heedful.metrics.language_model import span_metrics
from heedful.models import Model
from heedful.pretrained.folder import find
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks import defaults
from heedful.tasks.documents import divided, sampled
from heedful.tasks.encoder_decoder_task import EncoderDecoderTask
from heedful.tasks.masked_windows import (
    SEED,
    contexts,
    cut_up,
    documents_of,
    frequencies,
    last_words,
    texts_of,
    window_frequencies,
    window_of,
)
from heedful.tasks.model_setup import positions_of, preset_of, special_id
from heedful.tasks.published import encoder_decoder_of
from heedful.tasks.task import (
    EVALUATED,
    Baseline,
    Batch,
    Encoded,
    LoggedSample,
    Measured,
    Prediction,
    check_texts,
    short,
)
from heedful.tasks.token_batches import IGNORED, new_token_logprobs, padded_with_mask, seed_per_prompt
from heedful.text import Tokenizer
from heedful.text.mask_filling import check_sentinels, fill_sentinels, sentinel_ids, sentinel_spans, span_text
from heedful.util import sharding
from heedful.util.input_warnings import CountWarning

SENTINELS = 100  # of a vocabulary that is trained here, as T5's own have
A_HOLE = 16  # tokens of an answer for each hole at most, where neither a person nor the folder says

log = logging.getLogger("heedful")


class SpanCorruption(EncoderDecoderTask):
    """An encoder-decoder that reads a text with holes, ``<extra_id_0>``, ``<extra_id_1>``, ..., and writes each hole's
    sentinel with what is in it, one more sentinel after the last, and the end token (Raffel et al. 2020, section
    3.1.4). What it learns from plain text any task of an encoder-decoder can begin with.

    Documents are joined and read in windows as ``FillMask`` reads them; which spans are hidden is drawn anew each time.

    >>> import heedful
    >>> data = Rows([Row({"text": "the cow says moo and the owl says hoo"}, "farm.txt", 1)])
    >>> settings = RunSettings(task="fill-mask", train=("farm.txt",), out="farm", preset="transformer-tiny")
    >>> task = SpanCorruption.prepare(data, settings)
    >>> model = heedful.create(task.config(settings), seed=0).eval()
    >>> task.predict(model, ["the <extra_id_0> says moo"])[0].output.endswith("says moo")
    True

    Args:
        source: of the text, with sentinels.
        target: the same.
        special: the ids that the model names; None: the tokenizer's.
        positions: the most tokens of either side, where the model has so many learned positions.
    """

    name: ClassVar[str] = "fill-mask"
    columns: Mapping[str, Kind] = MappingProxyType({"text": "document"})
    main_metric: str = (
        "perplexity"  # not "loss": it counts other tokens than an encoder's, so they must not be compared
    )
    used_settings: ClassVar[frozenset[str]] = EncoderDecoderTask.used_settings | {"masking"}
    options: ClassVar[frozenset[str]] = EncoderDecoderTask.options - {"stop_strings"}

    window: int | None = None  # tokens of a window, special ones counted, where nobody says

    def __init__(
        self, source: Tokenizer, target: Tokenizer, special: SpecialTokens | None = None, positions: int | None = None
    ) -> None:
        if target is not source:
            raise HeedfulError(
                f"{self.name} needs one vocabulary for what is read and what is written, and this model has two; take "
                "another"
            )
        super().__init__(source, target, special, positions)
        self.sentinels = sentinel_ids(source)
        self.silent = False  # while a run shows what its model has learned so far
        around = source.around()
        self.before = around.before
        self.after = around.after or (() if around.before else (special_id(source.end),))
        ordinary = np.array([i not in source.special for i in range(source.vocab_size)])
        ordinary[self.sentinels] = False
        self.corruption = self.asked = Corruption(self.sentinels, ordinary)  # in learning, and in being measured

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Of many documents some are held back, of few the last part of each that has lines, cut at a line's end."""
        return divided(rows, valid, seed, same)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], asked: RunSettings) -> RunSettings:
        """By the length of the text; wider models take smaller steps, and so does what starts from a model."""
        if asked.masking.unit not in (None, "span"):
            raise HeedfulError(
                f"--masking.unit {asked.masking.unit} has no effect for an encoder-decoder, from which spans are "
                "hidden; leave it out"
            )
        characters = sum(len(row.values["text"]) for row in rows)
        if asked.start_from is None:
            dim = asked.model.dim or preset_of(str(asked.preset), EncoderDecoderConfig, cls.name).encoder.dim
            return defaults.span_corruption(characters, asked, dim)
        config = encoder_decoder_of(find(asked.start_from), cls.name)
        longest = min(asked.data.max_length or defaults.MAX_LENGTH, positions_of(config) or defaults.MAX_LENGTH)
        made = defaults.span_corruption(characters, asked, config.encoder.dim)
        return replace(
            made,
            max_epochs=defaults.FINETUNING_EPOCHS,
            data=DataSettings(max_length=longest),
            tokenizer=TokenizerSettings(),
            model=ModelSettings(),
        )

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Train the tokenizer on the training documents."""
        asked = settings.tokenizer
        texts = (row.values["text"] for row in sampled(rows))
        tokenizer = Tokenizer.train(
            texts, asked.size or 8000, asked.kind or "bpe", bool(asked.lowercase), sentinels=SENTINELS
        )
        task = cls(tokenizer, tokenizer)
        task.window = settings.data.max_length
        return task

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """As all, with windows as long as in its training."""
        task = super().load(folder)
        task.window = window_of(find(folder), cls.name)
        return task

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Hide what the settings say: by default 15 % of the tokens, in spans of three on average."""
        asked = settings.masking
        self.corruption = replace(self.corruption, share=asked.share or SHARE, length=asked.length or LENGTH)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """All rows as one stream of tokens, in windows of ``max_length`` before any is hidden, special ones counted."""
        most, longest = max_length or self.window or defaults.MAX_LENGTH, self.longest
        if longest is not None and most > longest:
            raise HeedfulError(f"the model reads {longest} tokens, not {most}; lower --data.max-length")
        added = len(self.before) + len(self.after)
        hidden, spans = self.corruption.counts(most - added)
        if spans >= len(self.sentinels):
            raise HeedfulError(
                f"{hidden} of {most} tokens in {spans} spans, but the tokenizer has {len(self.sentinels)} sentinels, "
                "one of them for the end; lower --data.max-length or --masking.share, or raise --masking.length"
            )
        if longest is not None and added + hidden + spans + 1 > longest:
            raise HeedfulError(
                f"{hidden} hidden tokens in {spans} spans are more than the {longest} that the model writes; lower "
                "--masking.share"
            )
        examples, note = cut_up(self.source, rows, most - added, added, self.asked.ordinary)
        return Encoded(examples, rows, note)

    def lengths(self, examples: Sequence[StreamWindow]) -> np.ndarray:
        """(N, 2): the source and the target of each window, as far as its tokens can all be hidden."""
        rows = contexts(examples)
        sizes, alike = np.unique(rows, return_inverse=True)
        counts = np.array([self.corruption.counts(length) for length in sizes.tolist()], dtype=np.int64)
        hidden, spans = counts[alike].T
        added = len(self.before) + len(self.after)
        return np.stack([rows - hidden + spans, hidden + spans + 1], axis=1) + added

    def collate(self, examples: Sequence[StreamWindow], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """``source``, ``source_mask``, ``target`` and ``labels`` of windows with spans hidden.

        With ``random`` windows begin elsewhere each time and other spans are hidden, as the settings say. Without it
        15 % of the tokens of each window are, in spans of three on average, always the same ones: whatever a model was
        trained on, its figures can be compared.
        """
        texts = texts_of(examples, random)
        if random is None:
            split = [self.asked.split(text, flags) for text, flags in zip(texts, self._fixed(examples), strict=True)]
        else:
            split = [self.corruption(text, random) for text in texts]
        return self.tensors([(self._framed(source), self._framed(target)) for source, target in split])

    def _fixed(self, examples: Sequence[StreamWindow]) -> list[np.ndarray]:
        """Which tokens of each window are hidden where it is measured."""
        drawn = (np.random.default_rng([SEED, window.place]) for window in examples)
        return [self.asked.hidden(text, own) for text, own in zip(texts_of(examples), drawn, strict=True)]

    def _framed(self, ids: Sequence[int]) -> list[int]:
        return [*self.before, *ids, *self.after]

    # ---------------------------------------------------------------------------------------- evaluation and prediction

    @torch.no_grad()
    def measure(
        self,
        model: Model,
        examples: Sequence[StreamWindow],
        rows: Rows,
        *,
        most: int | None = None,
        batch_tokens: int | None = None,
        **options: Any,
    ) -> Measured:
        """``loss``, ``perplexity`` = exp(loss) and ``accuracy`` (percent) of the hidden tokens, each given those before
        it in the target, and that its span goes on: −log p(token) / Σ p(any token of text). Where spans end is not
        asked: sentinels and end tokens are not counted. Of all windows, whatever ``most`` is.

        Any of ``options`` is an error.
        """
        for name in options:
            raise HeedfulError(f"{name} has no effect: tokens are scored, nothing is filled in; leave it out")
        sums, stream = np.zeros((len(rows), 3)), examples[0].stream
        window_sums = np.zeros((stream.windows, 3))
        ordinary = torch.from_numpy(self.asked.ordinary).to(model.device)

        def read(batch: Batch) -> np.ndarray:
            labels = batch["labels"]
            told = (labels != IGNORED) & ordinary[labels.clamp(min=0)]
            logits, truth = model(batch["source"], batch["target"], batch["source_mask"])[told].float(), labels[told]
            logits[:, : len(ordinary)].masked_fill_(~ordinary, -math.inf)
            logits[:, len(ordinary) :] = -math.inf  # rows to spare
            losses = F.cross_entropy(logits, truth, reduction="none")
            each = torch.stack([losses, (logits.argmax(-1) == truth).float(), torch.ones_like(losses)], 1)
            return each.double().cpu().numpy()

        for places, each in self.map_batches(model, examples, read, batch_tokens):
            asked = [examples[i] for i in places]
            at = [
                window.place * stream.context + np.flatnonzero(flags)
                for window, flags in zip(asked, self._fixed(asked), strict=True)
            ]
            np.add.at(sums, documents_of(stream, np.concatenate(at)), each)
            np.add.at(window_sums, np.concatenate(at) // stream.context, each)
        scored = Sums(sums, span_metrics)
        details = {"tokens": len(stream.tokens), "hidden": int(sums[:, 2].sum())}
        return Measured(overall(scored), details, scored, window_scores=Sums(window_sums, span_metrics))

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Each token with its frequency in the training text, one added to every count, whatever stands around it."""
        loss, right = frequencies(self.source, self.asked.ordinary, rows, learned())
        metrics = {"loss": loss, "perplexity": math.exp(loss), "accuracy": right}
        return Baseline("the tokens' frequencies in the training text", metrics)

    def quick_baseline(self, examples: Sequence[StreamWindow], rows: Rows, learned: Rows) -> Baseline | None:
        """None: the simple method is the ``guess``."""
        return None

    def guess(self, examples: Sequence[StreamWindow], rows: Rows, learned: Rows) -> Baseline | None:
        """Each token with its frequency in the training text, window by window."""
        sums = window_frequencies(self.source, self.asked.ordinary, examples[0].stream, learned)
        scored = Sums(sums, span_metrics)
        return Baseline("the tokens' frequencies in the training text", overall(scored), scored)

    def predict(
        self,
        model: Model,
        inputs: Sequence[Any],
        *,
        decoding: Options | None = None,
        batch_tokens: int | None = None,
        logprobs: bool = False,
        **options: Any,
    ) -> list[Prediction]:
        """Each text with what the model writes in the place of ``<extra_id_0>``, ``<extra_id_1>``, ..., and by itself
        what it wrote for each; a text without words gets an empty answer.

        At most 16 tokens a hole where nobody says. Of a text longer than the model reads the part around its holes is
        read, and a warning says so; another one where the model writes no sentinel, as one that learned another task
        since may do.
        """
        check_texts(self.name, inputs)
        answers = [Prediction(text, "", None, [] if logprobs else None, []) for text in inputs]
        asked = [i for i, text in enumerate(inputs) if text.strip()]
        decoding = decoding or self.decoding_options(model, options)
        holes = [check_sentinels(inputs[i], i, len(inputs)) for i in asked]
        sources = self._read(inputs, asked, max(batch_tokens or 0, EVALUATED)) if asked else []
        own = seed_per_prompt(decoding.for_rows(asked, len(inputs)), sources)
        bounded = bool(decoding.max_new_tokens or decoding.max_length)

        def decoded(limit: Mapping[str, Any], chosen: Sequence[int]) -> list[tuple[list[int], float, Any]]:
            ids, real = padded_with_mask([sources[i] for i in chosen], self.pad)
            found = decode(
                model, ids, real, decoding=replace(own.for_rows(chosen, len(asked)), **limit), logprobs=logprobs
            )
            said = new_token_logprobs(found, [1] * len(chosen))
            return list(zip(found.ids.tolist(), found.scores.tolist(), said, strict=True))

        without = 0  # texts to which no hole came back
        for number in sorted(set(holes)):  # a text may say as much in a batch as alone
            if number >= (most := len(self.sentinels)):
                raise HeedfulError(f"{number} holes in a text, but the tokenizer has {most - 1} for it; ask with fewer")
            alike = [i for i, count in enumerate(holes) if count == number]
            limit: dict[str, Any] = {} if bounded else {"max_new_tokens": A_HOLE * number + 2}
            batches = evaluation_batches([len(sources[i]) for i in alike], batch_tokens or EVALUATED, max_rows=128)
            chosen = [[alike[i] for i in batch] for batch in batches]
            for together, told in sharding.each(chosen, partial(decoded, limit)):
                for i, (row, score, log_p) in zip(together, told, strict=True):
                    text, without = inputs[asked[i]], without + (not set(row) & set(self.sentinels[:number]))
                    spans = [span_text(self.source, span) for span in sentinel_spans(row[1:], self.sentinels, number)]
                    filled, fills = fill_sentinels(self.source, text, spans), [span.strip() for span in spans]
                    answers[asked[i]] = Prediction(text, filled, score, log_p, fills)
        if without and not self.silent:
            log.warning(
                CountWarning(
                    without,
                    len(inputs),
                    "without an answer: the model writes no <extra_id_0>, so it was not trained to fill in, or has "
                    "unlearned it; train it: heedful train fill-mask --from MODEL",
                )
            )
        return answers

    def _read(self, inputs: Sequence[str], positions: Sequence[int], held: int) -> list[list[int]]:
        """Returns the ids of the inputs at ``positions``; of one longer than the model takes, or than ``held``, those
        around its holes.
        """
        room = min(held, self.longest or held) - len(self.before) - len(self.after)
        sources, cut = self.source.encode([inputs[i] for i in positions]), 0
        for i, ids in enumerate(sources):
            if len(ids) <= room:
                continue
            places = [place for place, token in enumerate(ids) if token in self.sentinels]
            spare = room - (places[-1] - places[0] + 1)
            if spare < 0:
                raise InputError(
                    positions[i],
                    f"has holes {places[-1] - places[0] + 1:,} tokens apart, but the model reads {room:,}; fill fewer "
                    "at a time",
                    len(inputs),
                )
            first = min(max(0, places[0] - spare // 2), len(ids) - room)
            sources[i], cut = ids[first : first + room], cut + 1
        if cut:
            log.warning(
                CountWarning(
                    cut,
                    len(positions),
                    f"longer than the {room:,} tokens that the model reads; so many around the holes were read",
                )
            )
        return [self._framed(ids) for ids in sources]

    def logged_samples(self, model: Model, rows: Rows, measured: Measured) -> list[LoggedSample]:
        """As all: the first words of texts, the last of them guessed."""
        self.silent = True
        try:
            return last_words(self, model, rows)
        finally:
            self.silent = False

    def trial_inputs(self, texts: Sequence[str]) -> list[Any]:
        """Each text with its last word missing."""
        return [" ".join([*text.split()[:-1], "<extra_id_0>"]) for text in texts]

    def row_line(self, row: Row) -> str:
        """The beginning of the text."""
        return short(row.values["text"][:200])
