"""Translation: one text into another, by an encoder-decoder. Columns ``source`` and ``target``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful import presets
from heedful.config import Dropout, EncoderDecoderConfig, LanguageHead, ModelConfig, SpecialTokens, StackConfig
from heedful.data import Row
from heedful.data.batching import ordered
from heedful.errors import HeedfulError
from heedful.evaluation.metrics import translation_metrics
from heedful.generation import decode
from heedful.models import Model
from heedful.settings import ModelSettings, RunSettings, TokenizerSettings, TrainingSettings
from heedful.tasks.task import Answer, Batch, Task
from heedful.text import Tokenizer


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
IGNORED = -100  # the label of padding
Pair = tuple[list[int], list[int]]


class Translation(Task):
    """An encoder-decoder from ``source`` to ``target``, with one vocabulary for both sides or one for each."""

    name: ClassVar[str] = "translation"
    columns: ClassVar[tuple[str, ...]] = ("source", "target")
    decides: ClassVar[str] = "bleu"

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self.source, self.target = source, target

    # ------------------------------------------------------------------------------------------------------- making it

    @classmethod
    def suggest(cls, rows: Sequence[Row], asked: RunSettings) -> RunSettings:
        """By the number of pairs: more data, a larger model, a larger vocabulary, less dropout."""
        size = next(size for most, size in SIZES if len(rows) < most)
        preset = asked.preset or size.preset
        dim = asked.model.dim or encoder_decoder(preset).encoder.dim
        peak = 1e-4 if asked.start_from else 1e-3  # what was learned is easily shaken off
        return replace(
            asked,
            preset=None if asked.start_from else preset,
            max_epochs=size.epochs,
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
        """The tokenizers of a model folder: ``tokenizer.json``, and ``tokenizer.target.json`` where they differ."""
        source = Tokenizer.load(folder)
        own = (Path(folder) / "tokenizer.target.json").is_file()
        return cls(source, Tokenizer.load(folder, "tokenizer.target") if own else source)

    def save(self, folder: str | Path) -> None:
        """Write the tokenizers."""
        self.source.save(folder)
        if self.target is not self.source:
            self.target.save(folder, "tokenizer.target")

    def config(self, settings: RunSettings) -> ModelConfig:
        """The preset with this vocabulary; one embedding for all where the vocabulary is shared."""
        config = encoder_decoder(settings.preset or "transformer-small")
        shared = self.target is self.source
        head = config.head if settings.model.tied is None else LanguageHead(tied=settings.model.tied)
        return replace(
            config,
            source=replace(config.source, vocab_size=self.source.vocab_size),
            target=None if shared else replace(config.source, vocab_size=self.target.vocab_size),
            encoder=changed(config.encoder, settings.model, settings.model.encoder_depth),
            decoder=changed(config.decoder, settings.model, settings.model.decoder_depth),
            head=head,
            special=SpecialTokens(pad=self.target.pad, start=self.target.start, end=(_id(self.target.end),)),
        )

    def check(self, model: Model) -> None:
        """An encoder-decoder with a row for every token; rows to spare are no harm."""
        config = model.config
        if not isinstance(config, EncoderDecoderConfig):
            raise HeedfulError(f"translation needs an encoder-decoder; this model is a {config.kind}")
        sides = ("source", self.source, config.source), ("target", self.target, config.target or config.source)
        for side, tokenizer, embedding in sides:
            if tokenizer.vocab_size > embedding.vocab_size:
                raise HeedfulError(
                    f"the {side} tokenizer has {tokenizer.vocab_size} tokens, the model rows for "
                    f"{embedding.vocab_size}; they do not belong together"
                )

    # ---------------------------------------------------------------------------------------------- examples to tensors

    def encode(self, rows: Sequence[Row]) -> list[Pair]:
        """(source + end, target) ids of each row."""
        sources = self._sources([row.values["source"] for row in rows])
        targets = self.target.encode([row.values["target"] for row in rows])
        return list(zip(sources, targets, strict=True))

    def _sources(self, texts: Sequence[str]) -> list[list[int]]:
        end = _id(self.source.end)
        return [[*ids, end] for ids in self.source.encode(texts)]

    def lengths(self, examples: Sequence[Pair]) -> np.ndarray:
        """(N, 2): source, and target with its start or end token."""
        return np.array([(len(source), len(target) + 1) for source, target in examples], dtype=np.int64)

    def collate(self, examples: Sequence[Pair]) -> dict[str, Tensor]:
        """``source``, ``source_mask``, ``target`` (what the decoder reads) and ``labels`` (what it must say next)."""
        start, end = _id(self.target.start), _id(self.target.end)
        source = padded([source for source, _ in examples], 0)
        return {
            "source": source,
            "source_mask": padded([[1] * len(source) for source, _ in examples], 0).bool(),
            "target": padded([[start, *target] for _, target in examples], 0),
            "labels": padded([[*target, end] for _, target in examples], IGNORED),
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

    # -------------------------------------------------------------------------------------------------------- answering

    def answer(
        self, model: Model, inputs: Sequence[str], *, batch_tokens: int | None = None, **options: Any
    ) -> list[Answer]:
        """Decode each input, alike lengths together; an input without text gets an empty answer."""
        answers = [Answer(text, "", 0.0) for text in inputs]
        asked = [index for index, text in enumerate(inputs) if text.strip()]
        if not asked:
            return answers
        sources = self._sources([inputs[index] for index in asked])
        for batch in ordered([len(ids) for ids in sources], batch_tokens or 4096, max_rows=128):
            ids = padded([sources[i] for i in batch], 0).to(model.device)
            real = padded([[1] * len(sources[i]) for i in batch], 0).bool().to(model.device)
            found = decode(model, ids, real, defaults=model.generation, **options)
            for i, text, score in zip(
                batch, self.target.decode(found.ids.tolist()), found.scores.tolist(), strict=True
            ):
                answers[asked[i]] = Answer(inputs[asked[i]], text, score)
        return answers

    def score(self, outputs: Sequence[Any], rows: Sequence[Row]) -> dict[str, Any]:
        """BLEU, chrF (sacreBLEU) and the share of exactly right targets."""
        return translation_metrics(list(outputs), [row.values["target"] for row in rows])


def encoder_decoder(preset: str) -> EncoderDecoderConfig:
    """The configuration of a preset that translates."""
    config = presets.get(preset)
    if not isinstance(config, EncoderDecoderConfig):
        raise HeedfulError(f"preset {preset!r} is of the {config.kind} family; translation needs an encoder-decoder")
    return config


def changed(stack: StackConfig, model: ModelSettings, depth: int | None) -> StackConfig:
    """The stack with the settings' changes; a new width keeps the ratio of the feed-forward's."""
    given = {name: value for name, value in model.given().items() if name in ("heads", "kv_heads", "activation")}
    dim = model.dim or stack.dim
    dropout = stack.dropout
    if model.dropout is not None:
        dropout = Dropout(embedding=model.dropout, residual=model.dropout)
    return replace(
        stack,
        dim=dim,
        depth=depth or model.depth or stack.depth,
        ff_dim=model.ff_dim or (stack.ff_dim or 4 * stack.dim) * dim // stack.dim,
        dropout=dropout,
        **given,
    )


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows of unequal length as one (B, longest) int64 tensor, ``value`` after their ends."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows], dtype=torch.long)


def _id(special: int | None) -> int:
    if special is None:
        raise HeedfulError("the tokenizer has no start or end token; train a tokenizer, or name them in its config")
    return special
