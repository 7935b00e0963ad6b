"""Base task of encoder-decoders: vocabularies, model creation, batches, loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import EncoderDecoderConfig, LanguageHead, ModelConfig, SpecialTokens
from heedful.errors import HeedfulError
from heedful.generation.options import NAMES, Options, resolve
from heedful.metrics.example_scores import Metrics, Sums
from heedful.models import EncoderDecoder, Model
from heedful.pretrained.configuration import home
from heedful.pretrained.folder import find
from heedful.settings import RunSettings
from heedful.tasks.inputs_and_targets import Side, input_side, next_token_side
from heedful.tasks.model_setup import check_vocabulary, positions_of, preset_of, special_id, start_of, with_settings
from heedful.tasks.output_loss import output_loss
from heedful.tasks.published import encoder_decoder_of
from heedful.tasks.r_drop import beside, twice
from heedful.tasks.task import TEXTS, Batch, Task
from heedful.tasks.token_batches import IGNORED, padded, padded_with_mask
from heedful.text import Tokenizer

Pair = tuple[list[int], list[int]]
# what an encoder-decoder hears besides
SIDES = frozenset({"model.encoder_depth", "model.decoder_depth", "model.tied"})


class EncoderDecoderTask(Task):
    """An encoder-decoder that reads one row of tokens and writes another, with one vocabulary for both or one for each.

    Each tokenizer says what stands around its texts: ``text </s>`` in ours, T5's and Marian's, ``<s> text </s>`` in
    BART's. The decoder reads the model's start token and then the target, but for its last token.

    Args:
        source: of the source texts.
        target: of the target texts; the same object where they share one.
        special: the ids that the model names; None: the target tokenizer's.
        positions: the most tokens of either side, where the model has so many learned positions.
    """

    unit = "target_tokens"
    used_settings: ClassVar[frozenset[str]] = TEXTS | SIDES
    options: ClassVar[frozenset[str]] = frozenset({*NAMES, "batch_tokens", "logprobs"} - {"num_return_sequences"})
    display_options: ClassVar[frozenset[str]] = frozenset({"logprobs"})

    def __init__(
        self, source: Tokenizer, target: Tokenizer, special: SpecialTokens | None = None, positions: int | None = None
    ) -> None:
        self.source, self.target, self.positions = source, target, positions
        given = special or SpecialTokens(pad=target.pad, start=target.start)
        self.first, self.pad = given.start, given.pad or 0
        self.agreement = 0.0  # R-Drop's α, where training is told one

    # ------------------------------------------------------------------------------------------------------- making it

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The tokenizers of a model folder, two where source and target differ, and the ids that its model names."""
        found = find(folder)
        config = encoder_decoder_of(found, cls.name)
        place = found if Tokenizer.lies_in(found) else home(found)
        source = Tokenizer.load(place)
        own = Tokenizer.lies_in(place, "tokenizer.target")
        target = Tokenizer.load(place, "tokenizer.target") if own else source
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
            encoder=with_settings(config.encoder, settings.model, settings.model.encoder_depth),
            decoder=with_settings(config.decoder, settings.model, settings.model.decoder_depth),
            head=head,
            special=SpecialTokens(pad=self.target.pad, start=self.target.start, end=(special_id(self.target.end),)),
        )

    def check_model(self, model: Model) -> None:
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

    def decoding_options(self, model: Model, options: Mapping[str, Any]) -> Options:
        """Returns a call's decoding options, resolved over those of the model's folder."""
        return resolve(options, model.generation)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @property
    def longest(self) -> int | None:
        """The most tokens of a source that the model takes, where it has such a limit."""
        return self.positions

    def tensors(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """``source``, ``source_mask``, ``target`` (what the decoder reads) and ``labels`` (what it must say next) of
        the ids of sources and targets.
        """
        source, mask = padded_with_mask([source for source, _ in pairs], self.pad)
        start = special_id(self.first)
        return {
            "source": source,
            "source_mask": mask,
            "target": padded([[start, *target[:-1]] for _, target in pairs], self.pad),
            "labels": padded([target for _, target in pairs], IGNORED),
        }

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns the source, and the decoder's input with the next token as target."""
        return [
            input_side("source", batch["source"][row], batch["source_mask"][row], self.source),
            next_token_side("target", batch["target"][row], batch["labels"][row], self.target),
        ]

    # --------------------------------------------------------------------------------------------------------- learning

    def count(self, batch: Batch) -> int:
        """Target tokens, end tokens included."""
        return int((batch["labels"] != IGNORED).sum())

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Σ over target tokens of (1 − ε)(−log p(y)) + ε/V Σ_v(−log p(v)). Szegedy et al. 2016, section 7. The head is
        computed for real tokens alone. With ``--model.r-drop`` as :mod:`heedful.tasks.r_drop` says.
        """
        assert isinstance(model, EncoderDecoder)
        batch = twice(batch) if self.agreement else batch
        real = batch["labels"] != IGNORED
        hidden = model.hidden(batch["source"], batch["target"], batch["source_mask"], real)[real]
        labels = batch["labels"][real]
        if not self.agreement:
            return output_loss(model.head, hidden, labels, label_smoothing)
        return output_loss(model.head, beside(hidden), beside(labels), label_smoothing, self.agreement) / 2

    def losses(self, model: Model, examples: Sequence[Any]) -> np.ndarray:
        """(N, 2): Σ −log p of each example's target tokens, and how many these are."""
        found = np.zeros((len(examples), 2))

        def sums(batch: Batch) -> np.ndarray:
            logits, labels = model(batch["source"], batch["target"], batch["source_mask"]), batch["labels"]
            lost = F.cross_entropy(logits.transpose(1, 2).float(), labels, ignore_index=IGNORED, reduction="none")
            return torch.stack([lost.double().sum(1), (labels != IGNORED).sum(1)], 1).cpu().numpy()

        for places, each in self.map_batches(model, examples, sums):
            found[places] = each
        return found


def with_loss(scores: Sums, losses: np.ndarray) -> Sums:
    """The scores of examples with their mean loss a token beside, of ``losses`` (N, 2) or more.

    >>> scores = with_loss(Sums([[1], [0]], lambda sums: {"right": sums[0]}), np.array([[6.0, 3], [1.0, 1]]))
    >>> scores.metrics_of(np.array([0, 1]))
    {'loss': 1.75, 'right': 1.0}
    """
    width = scores.statistics.shape[1]

    def formula(sums: np.ndarray) -> Metrics:
        return {"loss": sums[width] / max(1.0, sums[width + 1]), **scores.formula(sums[:width])}

    return Sums(np.concatenate([scores.statistics, losses[: len(scores)]], axis=1), formula)
