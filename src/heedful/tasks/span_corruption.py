"""Fill-mask by an encoder-decoder: span corruption (Raffel et al. 2020)."""

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
from heedful.tasks.documents import sampled_documents, split_documents
from heedful.tasks.encoder_decoder_task import EncoderDecoderTask
from heedful.tasks.masked_windows import (
    SEED,
    document_numbers,
    frequency_metrics,
    frequency_sums,
    last_word_samples,
    trained_window,
    window_ids,
    window_lengths,
    window_stream,
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
from heedful.tasks.token_batches import (
    IGNORED,
    new_token_logprobs,
    outputs_of_call,
    padded_with_mask,
    seed_per_prompt,
)
from heedful.tasks.used_settings import USED_SETTINGS
from heedful.text import Tokenizer
from heedful.text.mask_filling import check_sentinels, fill_sentinels, sentinel_ids, sentinel_spans, span_text
from heedful.util import sharding
from heedful.util.input_warnings import CountWarning

SENTINELS = 100  # of a new vocabulary, as in T5's
TOKENS_PER_SPAN = 16  # default maximum number of generated tokens for each masked span

log = logging.getLogger("heedful")


class SpanCorruption(EncoderDecoderTask):
    """An encoder-decoder that fills the masked spans of a text (Raffel et al. 2020, section 3.1.4).

    The source has a sentinel (``<extra_id_0>``, ``<extra_id_1>``, ...) in place of each span. The target is each
    sentinel followed by its span, one more sentinel, and the end token. This task learns from plain text; it is the
    pretraining for the other tasks of encoder-decoders.

    Documents are joined and read in windows as by ``FillMask``; in training the masked spans are drawn anew each time.

    >>> import heedful
    >>> data = Rows([Row({"text": "the cow says moo and the owl says hoo"}, "farm.txt", 1)])
    >>> settings = RunSettings(task="fill-mask", train=("farm.txt",), out="farm", preset="transformer-tiny")
    >>> task = SpanCorruption.prepare(data, settings)
    >>> model = heedful.create(task.config(settings), seed=0).eval()
    >>> task.predict(model, ["the <extra_id_0> says moo"])[0].output.endswith("says moo")
    True

    Args:
        source: tokenizer of the text, with sentinels.
        target: the same object.
        special: the model's special token ids; None takes the tokenizer's.
        positions: maximum number of tokens of each side, if the model's positions are limited.
    """

    name: ClassVar[str] = "fill-mask"
    columns: Mapping[str, Kind] = MappingProxyType({"text": "document"})
    main_metric: str = (
        "perplexity"  # not "loss", which counts other tokens than an encoder's and must not be compared with it
    )
    used_settings: ClassVar[frozenset[str]] = USED_SETTINGS["SpanCorruption"]
    options: ClassVar[frozenset[str]] = EncoderDecoderTask.options - {"stop_strings", "num_return_sequences"}

    window: int | None = None  # default number of tokens of a window, special tokens included

    def __init__(
        self, source: Tokenizer, target: Tokenizer, special: SpecialTokens | None = None, positions: int | None = None
    ) -> None:
        if target is not source:
            raise HeedfulError(
                f"{self.name} needs one vocabulary for source and target, but this model has two; choose another model"
            )
        super().__init__(source, target, special, positions)
        self.sentinels = sentinel_ids(source)
        self.silent = False  # True: no warning about outputs without sentinels, as for samples in a run's log
        template = source.template()
        self.before = template.before
        self.after = template.after or (() if template.before else (special_id(source.end),))
        ordinary = np.array([i not in source.special for i in range(source.vocab_size)])
        ordinary[self.sentinels] = False
        self.corruption = self.evaluation_corruption = Corruption(self.sentinels, ordinary)

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def split_rows(cls, rows: Rows, valid: float | None, seed: int, same: Same = content_digest) -> tuple[Rows, Rows]:
        """Returns training and validation rows.

        Holds out some documents for validation or, if there are few, the last lines of each. ``valid`` is the fraction
        to hold out.
        """
        return split_documents(rows, valid, seed, same)

    @classmethod
    def suggested_settings(cls, rows: Sequence[Row], given: RunSettings) -> RunSettings:
        """Returns default training settings that suit the length of the text.

        Wider models and fine-tuning get a lower learning rate.
        """
        if given.masking.unit not in (None, "span"):
            raise HeedfulError(
                f"--masking.unit {given.masking.unit} has no effect for an encoder-decoder, which always masks spans; "
                "leave the option out"
            )
        characters = sum(len(row.values["text"]) for row in rows)
        if given.start_from is None:
            dim = given.model.dim or preset_of(str(given.preset), EncoderDecoderConfig, cls.name).encoder.dim
            return defaults.span_corruption(characters, given, dim)
        config = encoder_decoder_of(find(given.start_from), cls.name)
        longest = min(given.data.max_length or defaults.MAX_LENGTH, positions_of(config) or defaults.MAX_LENGTH)
        suggested = defaults.span_corruption(characters, given, config.encoder.dim)
        return replace(
            suggested,
            max_epochs=defaults.FINETUNING_EPOCHS,
            data=DataSettings(max_length=longest),
            tokenizer=TokenizerSettings(),
            model=ModelSettings(),
        )

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Creates the task for a new model and trains its tokenizer on the training documents."""
        given = settings.tokenizer
        texts = (row.values["text"] for row in sampled_documents(rows))
        tokenizer = Tokenizer.train(
            texts, given.size or 8000, given.kind or "bpe", bool(given.lowercase), sentinels=SENTINELS
        )
        task = cls(tokenizer, tokenizer)
        task.window = settings.data.max_length
        return task

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizer and the window length used in training."""
        task = super().load(folder)
        task.window = trained_window(find(folder), cls.name)
        return task

    def before_training(self, model: Model, settings: RunSettings) -> None:
        """Stores the share of masked tokens (by default 15 %) and the mean length of spans (3) from the settings."""
        masking = settings.masking
        self.corruption = replace(
            self.corruption, share=masking.probability or SHARE, length=masking.span_length or LENGTH
        )

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Joins all documents to one stream of tokens and returns its windows of ``max_length`` tokens.

        The length is counted before masking and includes special tokens.
        """
        most, longest = max_length or self.window or defaults.MAX_LENGTH, self.longest
        if longest is not None and most > longest:
            raise HeedfulError(
                f"--data.max-length {most} is more than the {longest} tokens that the model reads; lower it"
            )
        added = len(self.before) + len(self.after)
        hidden, spans = self.corruption.counts(most - added)
        if spans >= len(self.sentinels):
            raise HeedfulError(
                f"masking makes {spans} spans in {most} tokens, but the tokenizer has {len(self.sentinels)} sentinels, "
                "one of them for the target's end; lower --data.max-length or --masking.probability, or raise "
                "--masking.span-length"
            )
        if longest is not None and added + hidden + spans + 1 > longest:
            raise HeedfulError(
                f"{hidden} masked tokens in {spans} spans need a target of {added + hidden + spans + 1} tokens, but "
                f"the model generates at most {longest}; lower --masking.probability"
            )
        examples, note = window_stream(self.source, rows, most - added, added, self.evaluation_corruption.ordinary)
        return Encoded(examples, rows, note)

    def lengths(self, examples: Sequence[StreamWindow]) -> np.ndarray:
        """Returns the number of tokens of each window's source and target after masking, as an array (N, 2).

        The numbers assume that every token can be masked.
        """
        lengths = window_lengths(examples)
        distinct, index = np.unique(lengths, return_inverse=True)
        counts = np.array([self.corruption.counts(length) for length in distinct.tolist()], dtype=np.int64)
        hidden, spans = counts[index].T
        added = len(self.before) + len(self.after)
        return np.stack([lengths - hidden + spans, hidden + spans + 1], axis=1) + added

    def collate(self, examples: Sequence[StreamWindow], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """Returns ``source``, ``source_mask``, ``target`` and ``labels`` of windows with masked spans.

        In training (with ``random``), the windows begin at random positions, and random spans are masked as the
        settings say. In evaluation, 15 % of each window's tokens are masked, in spans of three on average and always
        the same, so that models trained with different settings can be compared.
        """
        texts = window_ids(examples, random)
        if random is None:
            split = [
                self.evaluation_corruption.split(text, flags)
                for text, flags in zip(texts, self._masked_in_evaluation(examples), strict=True)
            ]
        else:
            split = [self.corruption(text, random) for text in texts]
        return self.tensors([(self._framed(source), self._framed(target)) for source, target in split])

    def _masked_in_evaluation(self, examples: Sequence[StreamWindow]) -> list[np.ndarray]:
        """Returns flags of the tokens of each window that are masked in evaluation."""
        generators = (np.random.default_rng([SEED, window.number]) for window in examples)
        pairs = zip(window_ids(examples), generators, strict=True)
        return [self.evaluation_corruption.hidden(text, generator) for text, generator in pairs]

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
        """Returns ``loss``, ``perplexity`` = exp(loss) and ``accuracy`` (percent) on the masked tokens of all windows.

        Each token is predicted from the earlier tokens of the target, given that its span goes on: the loss is
        −log(p(token) / Σ p(any token of text)). Sentinels and end tokens are not counted. ``most`` has no effect.

        Raises:
            HeedfulError: ``options`` has an option; none has an effect here.
        """
        for name in options:
            raise HeedfulError(
                f"{name} has no effect: evaluation scores tokens and fills in no text; leave the option out"
            )
        row_sums, stream = np.zeros((len(rows), 3)), examples[0].stream
        window_sums = np.zeros((stream.windows, 3))
        ordinary = torch.from_numpy(self.evaluation_corruption.ordinary).to(model.device)

        def read(batch: Batch) -> np.ndarray:
            labels = batch["labels"]
            counted = (labels != IGNORED) & ordinary[labels.clamp(min=0)]
            logits = model(batch["source"], batch["target"], batch["source_mask"])[counted].float()
            truth = labels[counted]
            logits[:, : len(ordinary)].masked_fill_(~ordinary, -math.inf)
            logits[:, len(ordinary) :] = -math.inf  # rows of the embedding without a token
            losses = F.cross_entropy(logits, truth, reduction="none")
            sums = torch.stack([losses, (logits.argmax(-1) == truth).float(), torch.ones_like(losses)], 1)
            return sums.cpu().double().numpy()

        for indices, token_sums in self.map_batches(model, examples, read, batch_tokens):
            windows = [examples[i] for i in indices]
            positions = np.concatenate(
                [
                    window.number * stream.context + np.flatnonzero(flags)
                    for window, flags in zip(windows, self._masked_in_evaluation(windows), strict=True)
                ]
            )
            np.add.at(row_sums, document_numbers(stream, positions), token_sums)
            np.add.at(window_sums, positions // stream.context, token_sums)
        scored = Sums(row_sums, span_metrics)
        details = {"tokens": len(stream.tokens), "hidden": int(row_sums[:, 2].sum())}
        return Measured(overall(scored), details, scored, window_scores=Sums(window_sums, span_metrics))

    def baseline(self, rows: Rows, learned: Callable[[], Rows]) -> Baseline:
        """Scores a baseline that ignores the context: a token's probability is its training frequency (count + 1)."""
        loss, accuracy = frequency_metrics(self.source, self.evaluation_corruption.ordinary, rows, learned())
        metrics = {"loss": loss, "perplexity": math.exp(loss), "accuracy": accuracy}
        return Baseline("the tokens' frequencies in the training text", metrics)

    def quick_baseline(self, examples: Sequence[StreamWindow], rows: Rows, learned: Rows) -> Baseline | None:
        """Returns None: the only simple method of this task is ``guess``, which ignores the context."""
        return None

    def guess(self, examples: Sequence[StreamWindow], rows: Rows, learned: Rows) -> Baseline | None:
        """Scores a baseline that ignores the context: each token is predicted by its frequency in the training text.

        The scores are those of each window.
        """
        sums = frequency_sums(self.source, self.evaluation_corruption.ordinary, examples[0].stream, learned)
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
        """Returns each text with its spans filled, and the ``fills``, the text of each span; "" for a text without
        words.

        Spans are written ``<extra_id_0>``, ``<extra_id_1>`` and so on. By default at most 16 tokens are generated for
        each span. If a text is longer than the model takes, only the part around its spans is read, with a warning.
        Another warning counts the outputs without a sentinel; a model that was fine-tuned for another task writes such
        outputs.
        """
        check_texts(self.name, inputs)
        predictions = [Prediction(text, "", None, [] if logprobs else None, []) for text in inputs]
        nonblank = [i for i, text in enumerate(inputs) if text.strip()]
        decoding = outputs_of_call(decoding or self.decoding_options(model, options))
        span_counts = [check_sentinels(inputs[i], i, len(inputs)) for i in nonblank]
        sources = self._encode_inputs(inputs, nonblank, max(batch_tokens or 0, EVALUATED)) if nonblank else []
        seeded = seed_per_prompt(decoding.for_rows(nonblank, len(inputs)), sources)
        has_limit = bool(decoding.max_new_tokens or decoding.max_length)

        def decoded(limit: Mapping[str, Any], chosen: Sequence[int]) -> list[tuple[list[int], float, Any]]:
            ids, mask = padded_with_mask([sources[i] for i in chosen], self.pad)
            own_options = replace(seeded.for_rows(chosen, len(nonblank)), **limit)
            generated = decode(model, ids, mask, decoding=own_options, logprobs=logprobs)
            log_p = new_token_logprobs(generated, [1] * len(chosen))
            return list(zip(generated.ids.tolist(), generated.scores.tolist(), log_p, strict=True))

        without_sentinel = 0  # number of outputs
        for count in sorted(set(span_counts)):  # so that a text has the same limit in a batch as alone
            if count >= (most := len(self.sentinels)):
                raise HeedfulError(
                    f"a text has {count} spans to fill, but the tokenizer has sentinels for {most - 1}; give fewer "
                    "spans"
                )
            same = [i for i, own_count in enumerate(span_counts) if own_count == count]
            limit: dict[str, Any] = {} if has_limit else {"max_new_tokens": TOKENS_PER_SPAN * count + 2}
            batches = evaluation_batches([len(sources[i]) for i in same], batch_tokens or EVALUATED, max_rows=128)
            chosen = [[same[i] for i in batch] for batch in batches]
            for batch, outputs in sharding.each(chosen, partial(decoded, limit)):
                for i, (ids, score, log_p) in zip(batch, outputs, strict=True):
                    text = inputs[nonblank[i]]
                    without_sentinel += not set(ids) & set(self.sentinels[:count])
                    spans = [span_text(self.source, span) for span in sentinel_spans(ids[1:], self.sentinels, count)]
                    filled, fills = fill_sentinels(self.source, text, spans), [span.strip() for span in spans]
                    predictions[nonblank[i]] = Prediction(text, filled, score, log_p, fills)
        if without_sentinel and not self.silent:
            log.warning(
                CountWarning(
                    without_sentinel,
                    len(inputs),
                    "without output: the model wrote no <extra_id_0>, because it never learned to fill spans, or later "
                    "training overwrote this; train it: heedful train fill-mask --from MODEL",
                )
            )
        return predictions

    def _encode_inputs(self, inputs: Sequence[str], positions: Sequence[int], limit: int) -> list[list[int]]:
        """Returns the ids of the inputs at ``positions``; of an input longer than the model takes, or than ``limit``,
        the ids around its spans.
        """
        room = min(limit, self.longest or limit) - len(self.before) - len(self.after)
        sources, cut = self.source.encode([inputs[i] for i in positions]), 0
        for i, ids in enumerate(sources):
            if len(ids) <= room:
                continue
            sentinel_indices = [index for index, token in enumerate(ids) if token in self.sentinels]
            spare = room - (sentinel_indices[-1] - sentinel_indices[0] + 1)
            if spare < 0:
                raise InputError(
                    positions[i],
                    f"has {room - spare:,} tokens from its first to its last span, but the model takes {room:,}; give "
                    "fewer spans",
                    len(inputs),
                )
            first = min(max(0, sentinel_indices[0] - spare // 2), len(ids) - room)
            sources[i], cut = ids[first : first + room], cut + 1
        if cut:
            log.warning(
                CountWarning(
                    cut,
                    len(positions),
                    f"longer than the {room:,} tokens that the model takes; only the tokens around the spans were read",
                )
            )
        return [self._framed(ids) for ids in sources]

    def logged_samples(self, model: Model, rows: Rows, measured: Measured) -> list[LoggedSample]:
        """Returns samples for the run's log: the first words of some texts, with the last word masked and predicted."""
        self.silent = True
        try:
            return last_word_samples(self, model, rows)
        finally:
            self.silent = False

    def trial_inputs(self, texts: Sequence[str]) -> list[Any]:
        """Returns inputs for trying a model: each text with its last word masked."""
        return [" ".join([*text.split()[:-1], "<extra_id_0>"]) for text in texts]

    def row_line(self, row: Row) -> str:
        """Returns the beginning of the text."""
        return short(row.values["text"][:200])
