"""Translation: one text into another, by an encoder-decoder. Columns ``source`` and ``target``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from heedful.checkpoints.configuration import config_of, home
from heedful.checkpoints.folder import find
from heedful.config import EncoderDecoderConfig, LanguageHead, ModelConfig, SpecialTokens
from heedful.data import Kind, Row, Rows
from heedful.data.batching import ordered
from heedful.errors import HeedfulError
from heedful.evaluation.metrics import exact_match, translation_metrics
from heedful.generation import decode
from heedful.generation.options import NAMES, part, resolve
from heedful.generation.stopping import cut
from heedful.models import Model
from heedful.settings import (
    DataSettings,
    ModelSettings,
    RunSettings,
    TokenizerSettings,
    TrainingSettings,
)
from heedful.tasks.shared import (
    IGNORED,
    changed,
    check_texts,
    check_vocabulary,
    masked,
    padded,
    positions_of,
    preset_of,
    seeded,
    special_id,
    start_of,
)
from heedful.tasks.task import EVALUATED, Answer, Batch, Encoded, Measured, Task, shown
from heedful.text import Tokenizer

log = logging.getLogger("heedful")


class Size(NamedTuple):
    """What a number of pairs suggests."""

    preset: str
    vocabulary: int
    dropout: float
    epochs: int
    warmup: int
    batch_tokens: int


# below so many pairs: this
SIZES: tuple[tuple[float, Size], ...] = (
    (10_000, Size("transformer-tiny", 2000, 0.3, 100, 400, 1024)),
    (100_000, Size("transformer-small", 5000, 0.3, 30, 400, 1024)),
    (1_000_000, Size("transformer-small", 8000, 0.1, 20, 1000, 2048)),
    (float("inf"), Size("transformer-base", 32000, 0.1, 10, 4000, 4096)),
)
LONGEST = 256  # tokens of a side, where nobody says
Pair = tuple[list[int], list[int]]


class Translation(Task):
    """An encoder-decoder from ``source`` to ``target``, with one vocabulary for both sides or one for each.

    Each tokenizer says what stands around its texts: ``text </s>`` in ours, T5's and Marian's, ``<s> text </s>`` in
    BART's. The decoder reads the model's start token and then the target, but for its last token.

    Args:
        source: of the source texts.
        target: of the target texts; the same object where they share one.
        special: the ids that the model names; None: the target tokenizer's.
        positions: the most tokens of either side, where the model has so many learned positions.
    """

    name: ClassVar[str] = "translation"
    columns: Mapping[str, Kind] = MappingProxyType({"source": "text", "target": "text"})
    decides: str = "bleu"
    without: ClassVar[frozenset[str]] = frozenset({"data.label_separator", "image", "model.patch_size"})
    options: ClassVar[frozenset[str]] = frozenset({*NAMES, "batch_tokens"} - {"num_return_sequences"})

    def __init__(
        self, source: Tokenizer, target: Tokenizer, special: SpecialTokens | None = None, positions: int | None = None
    ) -> None:
        self.source, self.target, self.positions = source, target, positions
        given = special or SpecialTokens(pad=target.pad, start=target.start)
        self.first, self.pad = given.start, given.pad or 0

    # ------------------------------------------------------------------------------------------------------- making it

    @classmethod
    def suggest(cls, rows: Sequence[Row], asked: RunSettings) -> RunSettings:
        """By the number of pairs: more data, a larger model, a larger vocabulary, less dropout."""
        size = next(size for most, size in SIZES if len(rows) < most)
        preset = asked.preset or size.preset
        longest = LONGEST
        if asked.start_from is None:
            dim = asked.model.dim or preset_of(preset, EncoderDecoderConfig, cls.name).encoder.dim
        else:
            begun = _config(find(asked.start_from))
            dim, longest = begun.encoder.dim, min(positions_of(begun) or LONGEST, LONGEST)
        peak = 1e-4 if asked.start_from else 1e-3  # what was learned is easily shaken off
        return replace(
            asked,
            preset=None if asked.start_from else preset,
            max_epochs=size.epochs,
            data=DataSettings(max_length=longest),
            tokenizer=TokenizerSettings()
            if asked.start_from
            else TokenizerSettings(kind="bpe", size=size.vocabulary, shared=True),
            model=ModelSettings(dropout=None if asked.preset or asked.start_from else size.dropout),
            training=TrainingSettings(
                lr=round(peak * (256 / dim) ** 0.5, 6),  # wider models want smaller steps
                schedule="cosine",
                warmup=min(size.warmup, (asked.max_steps or 10**9) // 5 + 1),  # a short run has no time for a long one
                batch_tokens=size.batch_tokens,
                accumulate=1,
                label_smoothing=0.1,
                clip=1.0,
                weight_decay=0.01,
                betas=(0.9, 0.98),
                eps=1e-9,
                average=0.1,
                patience=10,
                log_every=50,
            ),
        )

    @classmethod
    def prepare(cls, rows: Sequence[Row], settings: RunSettings) -> Self:
        """Train the tokenizer, or two of them, on the training texts."""
        size, kind = settings.tokenizer.size or 8000, settings.tokenizer.kind or "bpe"

        def trained(*columns: str) -> Tokenizer:
            texts = (row.values[column] for row in rows for column in columns)
            return Tokenizer.train(texts, size, kind, settings.tokenizer.lowercase)

        if settings.tokenizer.shared:
            tokenizer = trained(*cls.columns)
            return cls(tokenizer, tokenizer)
        return cls(trained("source"), trained("target"))

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The tokenizers of a model folder, two where source and target differ, and the ids that its model names."""
        folder = find(folder)
        config = _config(folder)
        folder = folder if Tokenizer.lies_in(folder) else home(folder)
        source = Tokenizer.load(folder)
        own = Tokenizer.lies_in(folder, "tokenizer.target")
        target = Tokenizer.load(folder, "tokenizer.target") if own else source
        return cls(source, target, config.special, positions_of(config))

    def save(self, folder: str | Path) -> None:
        """Write the tokenizers."""
        self.source.save(folder)
        if self.target is not self.source:
            self.target.save(folder, "tokenizer.target")

    def config(self, settings: RunSettings) -> ModelConfig:
        """The preset with this vocabulary; one embedding for all where the vocabulary is shared."""
        config = preset_of(settings.preset or "transformer-small", EncoderDecoderConfig, self.name)
        shared = self.target is self.source
        head = config.head if settings.model.tied is None else LanguageHead(tied=settings.model.tied)
        return replace(
            config,
            source=replace(config.source, vocab_size=self.source.vocab_size),
            target=None if shared else replace(config.source, vocab_size=self.target.vocab_size),
            encoder=changed(config.encoder, settings.model, settings.model.encoder_depth),
            decoder=changed(config.decoder, settings.model, settings.model.decoder_depth),
            head=head,
            special=SpecialTokens(pad=self.target.pad, start=self.target.start, end=(special_id(self.target.end),)),
        )

    def check(self, model: Model) -> None:
        """An encoder-decoder that predicts tokens, with a row for every token; rows to spare are no harm."""
        config = model.config
        if not isinstance(config, EncoderDecoderConfig) or not isinstance(config.head, LanguageHead):
            raise HeedfulError(
                f"{self.name} needs an encoder-decoder with a language-model head; this model is of kind "
                f"{config.kind!r}, its head of kind {config.head.kind!r}"
            )
        sides = ("source", self.source, config.source), ("target", self.target, config.target or config.source)
        for side, tokenizer, embedding in sides:
            check_vocabulary(tokenizer, embedding, f"{side} tokenizer")
        start_of(config)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Rows, max_length: int | None = None) -> Encoded:
        """Source and target ids of each row, with what their tokenizers put around them; pairs with a side longer than
        ``max_length``, or than the model has positions for, are left out.
        """
        most = min((each for each in (max_length, self.positions) if each is not None), default=None)
        sources = whole(self.source, [row.values["source"] for row in rows])
        targets = whole(self.target, [row.values["target"] for row in rows])
        examples = list(zip(sources, targets, strict=True))
        fits = [most is None or max(map(len, pair)) <= most for pair in examples]
        left_out, asked = len(fits) - sum(fits), most == max_length
        if left_out == len(fits):
            remedy = "raise --data.max-length" if asked else "the model takes no more, give shorter ones"
            raise HeedfulError(f"every example is longer than {most} tokens; {remedy}")
        kept = Rows(compress(rows, fits), rows.skipped, rows.columns)
        reason = "--data.max-length" if asked else "the model takes no more"
        note = f"{left_out:,} examples longer than {most} tokens left out ({reason})" if left_out else ""
        return Encoded(list(compress(examples, fits)), kept, note)

    def lengths(self, examples: Sequence[Pair]) -> np.ndarray:
        """(N, 2): source and target."""
        return np.array([(len(source), len(target)) for source, target in examples], dtype=np.int64)

    def collate(self, examples: Sequence[Pair], random: np.random.Generator | None = None) -> dict[str, Tensor]:
        """``source``, ``source_mask``, ``target`` (what the decoder reads) and ``labels`` (what it must say next);
        nothing in it is random.
        """
        source, mask = masked([source for source, _ in examples], self.pad)
        start = special_id(self.first)
        return {
            "source": source,
            "source_mask": mask,
            "target": padded([[start, *target[:-1]] for _, target in examples], self.pad),
            "labels": padded([target for _, target in examples], IGNORED),
        }

    # --------------------------------------------------------------------------------------------------------- learning

    def count(self, batch: Batch) -> int:
        """Target tokens, end tokens included."""
        return int((batch["labels"] != IGNORED).sum())

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Σ over target tokens of (1 − ε)(−log p(y)) + ε/V Σ_v(−log p(v)). Szegedy et al. 2016, section 7.

        Padding stands after the last real token, where no real token can see it: the decoder needs no mask for it.
        """
        logits = model(batch["source"], batch["target"], batch["source_mask"])
        return F.cross_entropy(
            logits.flatten(0, 1).float(),
            batch["labels"].flatten(),
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=label_smoothing,
        )

    # ------------------------------------------------------------------------------------ measuring, answering, telling

    def measure(
        self, model: Model, examples: Sequence[Pair], rows: Rows, *, most: int | None = None, **options: Any
    ) -> Measured:
        """BLEU, chrF (sacreBLEU) and the share of exactly right targets, of the first ``most`` rows.

        Rows that say of themselves that no answer can be exact are left out; where rows name their ``format``, the
        exact match of each format is among the details.
        """
        total, count = self.loss(model, examples)
        asked = rows[:most]
        if most is not None and "max_length" not in options:  # a fresh model would babble on
            longest = max(len(target) for _, target in examples) - 1
            least = int(model.generation.get("min_new_tokens") or 0)
            options = {"max_new_tokens": max(int(1.5 * longest) + 10, least), **options}
        outputs = [answer.output for answer in self.answer(model, [row.values["source"] for row in asked], **options)]
        pairs = [(output, row.values["target"]) for output, row in zip(outputs, asked, strict=True)]
        fair = [row.values.get("exact") != "no" for row in asked]
        metrics = translation_metrics(*zip(*compress(pairs, fair), strict=True)) if any(fair) else {}
        details: dict[str, Any] = {}
        if all("format" in row.values for row in asked):
            formats = [row.values["format"] for row in asked]
            details["by_format"] = {
                name: {
                    "exact_match": exact_match(*zip(*compress(pairs, chosen), strict=True)),
                    "examples": sum(chosen),
                    "counted": all(compress(fair, chosen)),
                }
                for name in sorted(set(formats))
                for chosen in [[one == name for one in formats]]
            }
        return Measured({"loss": total / count, **metrics}, details)

    def answer(
        self, model: Model, inputs: Sequence[str], *, batch_tokens: int | None = None, **options: Any
    ) -> list[Answer]:
        """Decode each input, alike lengths together; an input without text gets an empty answer.

        An input of more tokens than the model has positions, or than one batch holds (``batch_tokens``, at least
        4,096), is cut to so many, and a warning says so. With ``stop_strings`` an answer ends right after the first of
        them, which is shown.
        """
        check_texts(self.name, inputs)
        answers = [Answer(text, "", None) for text in inputs]
        asked = [index for index, text in enumerate(inputs) if text.strip()]
        if not asked:
            return answers
        strings = resolve(options, model.generation).stop_strings
        sources = self._read([inputs[index] for index in asked], asked, max(batch_tokens or 0, EVALUATED))
        own = seeded(part(options, asked, len(inputs)), sources)
        for batch in ordered([len(ids) for ids in sources], batch_tokens or EVALUATED, max_rows=128):
            ids, real = masked([sources[i] for i in batch], self.pad)
            made = part(own, batch, len(asked))
            found = decode(model, ids, real, defaults=model.generation, tokenizer=self.target, **made)
            for i, text, score in zip(
                batch, self.target.decode(found.ids.tolist()), found.scores.tolist(), strict=True
            ):
                answers[asked[i]] = Answer(inputs[asked[i]], cut(text, strings), score)
        return answers

    def _read(self, texts: Sequence[str], places: Sequence[int], held: int) -> list[list[int]]:
        """The ids of the inputs at these ``places``, at most as many as the model has positions for or are ``held``."""
        most = held if self.positions is None else min(held, self.positions)
        sources = whole(self.source, texts)
        for i, ids in enumerate(sources):
            if len(ids) > most:
                remedy = "a larger batch_tokens reads more" if most == held else "the model takes no more"
                log.warning(f"input {places[i]} has {len(ids):,} tokens, only {most:,} of them are read ({remedy})")
                sources[i] = whole(self.source, texts[i : i + 1], most)[0]
        return sources

    def sample(self, row: Row) -> str:
        """``source → target``."""
        return shown([row.values[column] for column in self.columns])


def whole(tokenizer: Tokenizer, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
    """The ids of each text with what the tokenizer puts around one; the end token where it puts nothing. Of a text that
    is longer than ``most`` so, its beginning.
    """
    around = tokenizer.around()
    after = around.after or (() if around.before else (special_id(tokenizer.end),))
    room = None if most is None else max(0, most - len(around.before) - len(after))
    return [[*around.before, *ids[:room], *after] for ids in tokenizer.encode(texts)]


def _config(folder: Path) -> EncoderDecoderConfig:
    config = config_of(folder)
    if not isinstance(config, EncoderDecoderConfig):
        raise HeedfulError(f"translation needs an encoder-decoder; the model in {folder} is of kind {config.kind!r}")
    return config
