"""Base task of encoder-decoders: vocabularies, model creation, batches, loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import EncoderDecoderConfig, LanguageHead, ModelConfig, SpecialTokens, patches_of, source_tokens
from heedful.data.batching import evaluation_batches
from heedful.errors import HeedfulError
from heedful.generation import decode
from heedful.generation.options import NAMES, Options, resolve
from heedful.generation.stopping import cut_at_stop
from heedful.kernels.varlen import needs_mask_if_right_padded
from heedful.metrics.example_scores import Metrics, Sums
from heedful.models import EncoderDecoder, Model
from heedful.pretrained.configuration import home
from heedful.pretrained.folder import find
from heedful.settings import RunSettings
from heedful.tasks.inputs_and_targets import Side, input_side, next_token_side
from heedful.tasks.model_setup import (
    check_vocabulary,
    model_of,
    positions_of,
    preset_of,
    special_id,
    start_of,
    with_settings,
)
from heedful.tasks.output_loss import output_loss
from heedful.tasks.published import encoder_decoder_of
from heedful.tasks.r_drop import interleave_passes, repeat_batch
from heedful.tasks.task import EVALUATED, Batch, Task
from heedful.tasks.token_batches import (
    IGNORED,
    GeneratedText,
    by_prompt,
    label_index,
    new_token_logprobs,
    padded,
    padded_with_mask,
    seed_per_prompt,
    with_label_index,
)
from heedful.tasks.used_settings import ENCODER_DECODER
from heedful.text import Tokenizer
from heedful.util import sharding
from heedful.util.exact import as_float64

Pair = tuple[list[int], list[int]]


class EncoderDecoderTask(Task):
    """Base of the tasks of encoder-decoders, with one vocabulary for source and target or one for each.

    Each tokenizer adds its special tokens: ``text </s>`` in those of Heedful, T5 and Marian, ``<s> text </s>`` in those
    of BART. The decoder reads the model's start token and then the target without its last token.

    Args:
        source: tokenizer of the source texts.
        target: tokenizer of the target texts; the same object if they share one.
        special: the model's special token ids; None takes the target tokenizer's.
        positions: maximum number of tokens of each side, if the model's positions are limited.
    """

    unit = "target_tokens"
    used_settings: ClassVar[frozenset[str]] = ENCODER_DECODER
    # a source is read at once, and generation begins with the start token alone
    options: ClassVar[frozenset[str]] = frozenset({*NAMES, "batch_tokens", "logprobs"}) - {
        *("context_keep", "prefill_chunk_size")
    }
    display_options: ClassVar[frozenset[str]] = frozenset({"logprobs", "num_return_sequences"})

    def __init__(
        self, source: Tokenizer, target: Tokenizer, special: SpecialTokens | None = None, positions: int | None = None
    ) -> None:
        self.source, self.target, self.positions = source, target, positions
        special = special or SpecialTokens(pad=target.pad, start=target.start)
        self.first, self.pad = special.start, special.pad or 0
        self.agreement = 0.0  # α of R-Drop

    # --------------------------------------------------------------------------------------------------------- creation

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Loads the tokenizers of a model folder, two if source and target differ, and the model's special tokens."""
        folder = find(folder)
        config = encoder_decoder_of(folder, cls.name)
        tokenizer_folder = folder if Tokenizer.has_files(folder) else home(folder)
        source = Tokenizer.load(tokenizer_folder)
        has_target = Tokenizer.has_files(tokenizer_folder, "tokenizer.target")
        target = Tokenizer.load(tokenizer_folder, "tokenizer.target") if has_target else source
        return cls(source, target, config.special, positions_of(config))

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizers to ``folder``."""
        self.source.save(folder)
        if self.target is not self.source:
            self.target.save(folder, "tokenizer.target")

    def config(self, settings: RunSettings) -> ModelConfig:
        """Returns the configuration of a new model: the preset with the changes in the settings and the size of the
        vocabulary.

        Source and target have one embedding if they share a vocabulary.
        """
        config = preset_of(settings.preset or "transformer-small", EncoderDecoderConfig, self.name)
        shared = self.target is self.source
        head = config.head if settings.model.tied is None else LanguageHead(tied=settings.model.tied)
        return replace(
            config,
            source=replace(source_tokens(config), vocab_size=self.source.vocab_size),
            target=None if shared else replace(source_tokens(config), vocab_size=self.target.vocab_size),
            encoder=with_settings(config.encoder, settings.model, settings.model.encoder_depth),
            decoder=with_settings(config.decoder, settings.model, settings.model.decoder_depth),
            head=head,
            special=SpecialTokens(pad=self.target.pad, start=self.target.start, end=(special_id(self.target.end),)),
        )

    def check_model(self, model: Model) -> None:
        """Raises ``HeedfulError`` for a model that does not fit the task.

        It must be an encoder-decoder with a language-model head, an embedding for every token, and a start token.
        """
        config = model.config
        if not isinstance(config, EncoderDecoderConfig) or not isinstance(config.head, LanguageHead):
            raise HeedfulError(
                f"{self.name} needs an encoder-decoder with a language-model head; this model is of kind "
                f"{config.kind!r} and its head of kind {config.head.kind!r}; choose another model"
            )
        if patches_of(config) is not None:
            raise HeedfulError(f"{self.name} needs a model that reads text, but this one reads images; choose another")
        sides = ("source", self.source, source_tokens(config)), ("target", self.target, config.tokens)
        for side, tokenizer, embedding in sides:
            check_vocabulary(tokenizer, embedding, f"{side} tokenizer")
        if not self.source.languages:  # of which one may begin the target
            start_of(config)

    def decoding_options(self, model: Model, options: Mapping[str, Any]) -> Options:
        """Returns the decoding options of a call; unset options have the values stored in the model's folder."""
        return resolve(options, model.generation)

    # ---------------------------------------------------------------------------------------------- examples to tensors

    @property
    def reads(self) -> int | None:
        """``longest``: further tokens of an input are not read."""
        return self.longest

    @property
    def longest(self) -> int | None:
        """The maximum number of tokens of a source; None if there is no limit."""
        return self.positions

    def tensors(self, pairs: Sequence[Pair]) -> dict[str, Tensor]:
        """Returns pairs of token ids as tensors.

        They are ``source`` and ``source_mask`` (B, S), ``target`` (B, T), the decoder's input, and ``labels`` (B, T),
        the next tokens.
        """
        source, mask = padded_with_mask([source for source, _ in pairs], self.pad)
        return {"source": source, "source_mask": mask, **self.target_tensors([target for _, target in pairs])}

    def target_tensors(self, targets: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Returns the ids of targets as ``target`` (B, T), the decoder's input, and ``labels`` (B, T), the next
        tokens.
        """
        start = special_id(self.first)
        return {
            "target": padded([[start, *target[:-1]] for target in targets], self.pad),
            "labels": padded(targets, IGNORED),
        }

    def sides(self, batch: Batch, row: int = 0) -> list[Side]:
        """Returns the two token sequences of a batch's ``row``; ``heedful audit`` shows them.

        They are the source, without targets, and the decoder's input, whose targets are the next tokens.
        """
        return [
            input_side("source", batch["source"][row], batch["source_mask"][row], self.source),
            next_token_side("target", batch["target"][row], batch["labels"][row], self.target),
        ]

    # --------------------------------------------------------------------------------------------------------- training

    def count(self, batch: Batch) -> int:
        """Returns the number of target tokens, end tokens included."""
        return int((batch["labels"] != IGNORED).sum())

    def complete(self, batch: Batch) -> Batch:
        """Adds the indices of the target tokens, for which the head is computed."""
        return with_label_index(batch)

    def objective(self, model: Model, batch: Batch, label_smoothing: float = 0.0) -> Tensor:
        """Returns the loss of a batch, Σ over target tokens of (1 − ε)(−log p(y)) + ε/V Σ_v(−log p(v)).

        ε is the label smoothing and V the size of the vocabulary (Szegedy et al. 2016, section 7). The head is not
        computed for padding. With ``--model.r-drop`` the loss is that of :mod:`heedful.tasks.r_drop`.
        """
        model = model_of(EncoderDecoder, model, self.name)
        index = label_index(batch)
        if self.agreement:
            index = torch.cat((index, index + batch["labels"].numel()))
            batch = repeat_batch(batch)
        target_mask = batch["labels"] != IGNORED if needs_mask_if_right_padded(model.decoder) else None
        hidden = model.hidden(batch["source"], batch["target"], batch.get("source_mask"), target_mask)
        hidden, labels = (x.flatten(0, 1).index_select(0, index) for x in (hidden, batch["labels"]))
        if not self.agreement:
            return output_loss(model.head, hidden, labels, label_smoothing)
        return (
            output_loss(
                model.head, interleave_passes(hidden), interleave_passes(labels), label_smoothing, self.agreement
            )
            / 2
        )

    def losses(self, model: Model, examples: Sequence[Any]) -> np.ndarray:
        """Returns an array (N, 2): for each example Σ −log p over its target tokens, and the number of these tokens."""
        losses = np.zeros((len(examples), 2))

        def sums(batch: Batch) -> np.ndarray:
            logits, labels = model(batch["source"], batch["target"], batch.get("source_mask")), batch["labels"]
            nats = F.cross_entropy(logits.transpose(1, 2).float(), labels, ignore_index=IGNORED, reduction="none")
            return torch.stack([as_float64(nats).sum(1).cpu(), (labels != IGNORED).sum(1).cpu()], 1).numpy()

        for indices, batch_losses in self.map_batches(model, examples, sums):
            losses[indices] = batch_losses
        return losses

    # ------------------------------------------------------------------------------------------------------- prediction

    def with_limit(self, model: Model, options: Mapping[str, Any], most: int) -> Mapping[str, Any]:
        """Returns the options of an evaluation in training with ``max_new_tokens``, since a new model does not end its
        texts.

        It is ``most``, but no less than the minimum length of the model's folder, and no more than the model's
        positions. A length that the options set is kept.
        """
        if "max_length" in options:
            return options
        limit = max(most, int(model.generation.get("min_new_tokens") or 0))
        return {"max_new_tokens": min(limit, self.positions or limit), **options}

    def generated_texts(
        self,
        model: Model,
        lengths: Sequence[int],
        keys: Sequence[Sequence[int]],
        sources: Callable[[np.ndarray], tuple[Tensor, Tensor | None]],
        decoding: Options,
        batch_tokens: int | None = None,
        logprobs: bool = False,
    ) -> Iterator[tuple[int, list[GeneratedText]]]:
        """Yields (index of a source, its outputs), generated in batches of sources of similar lengths.

        Args:
            model: the model.
            lengths: number of tokens of each source.
            keys: whole numbers that differ between different sources, such as their ids: equal sources draw different
                random numbers.
            sources: returns the source tensor and mask of the sources with the given indices.
            decoding: the decoding options; a list of seeds has one for each source.
            batch_tokens: maximum number of tokens in a batch; by default 4,096.
            logprobs: if True, outputs have log p of each generated token.
        """
        seeded = seed_per_prompt(decoding, keys)

        def decoded(batch: np.ndarray) -> list[list[GeneratedText]]:
            own_options = seeded.for_rows(batch, len(lengths))
            generated = decode(model, *sources(batch), decoding=own_options, tokenizer=self.target, logprobs=logprobs)
            texts = [cut_at_stop(text, seeded.stop_strings) for text in self.target.decode(generated.ids.tolist())]
            log_p = new_token_logprobs(generated, [1] * len(texts))
            return by_prompt(map(GeneratedText, texts, generated.scores.tolist(), log_p), decoding)

        for batch, outputs in sharding.each(
            evaluation_batches(lengths, batch_tokens or EVALUATED, max_rows=128), decoded
        ):
            yield from zip(batch.tolist(), outputs, strict=True)


def with_loss(scores: Sums, losses: np.ndarray) -> Sums:
    """Returns the scores of N examples with one more metric, ``loss``, the mean per token.

    ``losses`` (N or more, 2) has the summed loss and the number of tokens of each example.

    >>> scores = with_loss(Sums([[1], [0]], lambda sums: {"right": sums[0]}), np.array([[6.0, 3], [1.0, 1]]))
    >>> scores.metrics_of(np.array([0, 1]))
    {'loss': 1.75, 'right': 1.0}
    """
    width = scores.statistics.shape[1]

    def formula(sums: np.ndarray) -> Metrics:
        return {"loss": sums[width] / max(1.0, sums[width + 1]), **scores.formula(sums[:width])}

    return Sums(np.concatenate([scores.statistics, losses[: len(scores)]], axis=1), formula)
