"""Random inputs for verified models, greedy decoding, and the difference of two outputs.

Rows are drawn from a fixed seed, so that a verification can be repeated. Shapes: B rows, T tokens, U of a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from heedful.config import (
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    EnsembleConfig,
    LanguageHead,
    LearnedPosition,
    MaskedHead,
    ModelConfig,
    NoHead,
    SequenceHead,
    SpanHead,
    TokenHead,
    VisionConfig,
    patches_of,
    source_tokens,
)
from heedful.generation import generate
from heedful.tasks.model_setup import stacks_of
from heedful.verify.check_report import Skipped
from heedful.verify.verified_folder import TEXTS, VerifiedFolder

Side = Literal["none", "left", "right", "mixed"]

NEW = 12  # tokens generated for a prompt
PROMPT = 24  # maximum tokens of a prompt
LONGEST = 12  # maximum tokens of a random row: enough for masks and relative positions to have an effect
TOKENWISE = (NoHead, LanguageHead, MaskedHead, TokenHead, SpanHead)  # heads with an output for each token


@dataclass(frozen=True)
class InputRow:
    """One example: ids (T,), with an encoder-decoder's target (U,) and segments (T,); or pixels (C, H, W)."""

    ids: Tensor
    target: Tensor | None = None
    segments: Tensor | None = None


@dataclass(frozen=True)
class ModelCall:
    """Arguments of a model's call. Masks are None if there is no padding."""

    ids: Tensor  # (B, T), or pixels (B, C, H, W)
    mask: Tensor | None = None  # (B, T), True for a non-padding token
    target: Tensor | None = None  # (B, U)
    target_mask: Tensor | None = None  # (B, U)
    segments: Tensor | None = None  # (B, T)


def token_limit(config: ModelConfig, max_tokens: int = LONGEST) -> int:
    """Returns the maximum number of tokens in a row: ``max_tokens``, or fewer if there are fewer learned positions."""
    stacks = stacks_of(config) if patches_of(config) is None else stacks_of(config)[1:]  # an image has its patches
    learned = [s.position.length for s in stacks if isinstance(s.position, LearnedPosition)]
    return min([max_tokens, *learned])


def random_rows(config: ModelConfig, shares: Sequence[float], seed: int = 0) -> list[InputRow]:
    """Returns random input rows for a model.

    Each of ``shares`` gives a row of this share of the maximum length. Special tokens are not drawn, unless the
    vocabulary has no others.
    """
    random = torch.Generator().manual_seed(seed)
    if (patches := patches_of(config)) is not None:
        shape = (patches.channels, *patches.image_size)
        images = [InputRow(torch.randn(shape, generator=random, dtype=torch.float64)) for _ in shares]
        if not isinstance(config, EncoderDecoderConfig):
            return images
        lengths = [max(1, round(share * token_limit(config))) for share in shares]
        targets = [_random_ids(config, length, config.tokens.vocab_size, random) for length in lengths]
        return [replace(image, target=target) for image, target in zip(images, targets, strict=True)]
    assert not isinstance(config, VisionConfig | EnsembleConfig)
    source = source_tokens(config)

    def random_ids(count: int, vocabulary: int) -> Tensor:
        return _random_ids(config, count, vocabulary, random)

    rows, max_tokens = [], token_limit(config)
    for share in shares:
        length = max(1, round(share * max_tokens))
        ids, target, segments = random_ids(length, source.vocab_size), None, None
        if isinstance(config, EncoderDecoderConfig):
            # not the source's length
            target = random_ids(max(1, round((1.2 - share) * max_tokens * 0.8)), config.tokens.vocab_size)
            start = config.special.start
            target[0] = target[0] if start is None else start
            if isinstance(
                config.head, SequenceHead
            ):  # BART and T5 read the whole text in the decoder too, up to its end token
                ids[-1] = next(iter(config.special.end), ids[-1])
                target = torch.cat((target[:1], ids[:-1]))
        if isinstance(config, EncoderConfig) and config.segments:
            segments = torch.arange(length) * config.segments // length
        rows.append(InputRow(ids, target, segments))
    return rows


def _random_ids(config: ModelConfig, count: int, vocabulary: int, random: torch.Generator) -> Tensor:
    """Returns ``count`` random ids that are not special tokens, unless the vocabulary has no others."""
    assert not isinstance(config, VisionConfig | EnsembleConfig)
    special = {config.special.pad or 0, config.special.start, *config.special.end}
    plain = torch.tensor([i for i in range(vocabulary) if i not in special] or list(range(vocabulary)))
    return plain[torch.randint(len(plain), (count,), generator=random)]


def batch_of(rows: Sequence[InputRow], side: Side, pad: int | None) -> ModelCall:
    """Returns input rows as one batch, padded with the id ``pad`` on a side.

    ``side`` is "left"; "right"; "mixed", for left, right and both sides in turn; or "none", for rows of equal length.
    """
    ids_of_rows = [row.ids for row in rows]
    targets = [row.target for row in rows if row.target is not None]  # of all rows, or of none
    segments_of_rows = [row.segments for row in rows if row.segments is not None]
    target = target_mask = segments = None
    if side == "none":
        target = torch.stack(targets) if targets else None
        segments = torch.stack(segments_of_rows) if segments_of_rows else None
        return ModelCall(torch.stack(ids_of_rows), target=target, segments=segments)
    mask: Tensor | None = None
    if ids_of_rows[0].dim() > 1:  # images, which have no padding
        ids = torch.stack(ids_of_rows)
    else:
        ids, mask = _padded(ids_of_rows, side, pad or 0)
    if targets:
        target, target_mask = _padded(targets, side, pad or 0)
    if segments_of_rows:
        segments, _ = _padded(segments_of_rows, side, 0)
    return ModelCall(ids, mask, target, target_mask, segments)


def _padded(rows: Sequence[Tensor], side: Side, pad: int) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows)) + (side == "mixed")  # one more: every row has padding
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        spare = width - len(row)
        before = {"left": spare, "right": 0, "mixed": (spare, 0, spare // 2)[number % 3], "none": 0}[side]
        ids[number, before : before + len(row)] = row
        mask[number, before : before + len(row)] = True
    return ids, mask


@torch.no_grad()
def model_output(model: Any, call: ModelCall) -> Tensor:
    """Returns the output of a model of heedful for one call."""
    config = model.config
    source = call.ids if patches_of(config) is None else call.ids.to(model.dtype)
    if isinstance(config, VisionConfig):
        return model(source)
    if isinstance(config, EncoderDecoderConfig):
        return model(source, call.target, call.mask, call.target_mask)
    return (
        model(call.ids, call.mask, call.segments) if isinstance(config, EncoderConfig) else model(call.ids, call.mask)
    )


def rows_without_padding(output: Tensor, call: ModelCall, config: ModelConfig) -> list[Tensor]:
    """Returns the output of each row of a call, without padding."""
    real = call.target_mask if isinstance(config, EncoderDecoderConfig) else call.mask
    if real is None or not isinstance(config.head, TOKENWISE):
        return list(output)
    return [row[mask] for row, mask in zip(output, real, strict=True)]


def largest_distance(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Returns the largest difference over all rows, relative to the largest expected value; infinite for NaN."""
    if any(a.shape != b.shape for a, b in zip(actual, expected, strict=True)):
        return float("inf")
    difference = max(float((a.double() - b.double()).abs().max()) for a, b in zip(actual, expected, strict=True))
    largest = max(float(b.abs().max()) for b in expected)
    broken = any(not bool(tensor.isfinite().all()) for tensor in (*actual, *expected))
    return float("inf") if broken else difference / largest if largest else difference


def need_language_head(verified: VerifiedFolder) -> DecoderConfig | EncoderDecoderConfig:
    """Returns the configuration of a model that generates; raises ``Skipped`` for another model."""
    config = verified.config
    if not isinstance(config, DecoderConfig | EncoderDecoderConfig) or not isinstance(config.head, LanguageHead):
        raise Skipped("the model does not generate text")
    return config


def prompts(verified: VerifiedFolder) -> list[Tensor]:
    """Returns prompts as ids (T,): the user's texts, or else ``TEXTS``, and two random prompts.

    Texts are left out if the folder has no tokenizer. For a model of images, returns three random images (C, H, W).
    """
    config = need_language_head(verified)
    if patches_of(config) is not None:
        return [row.ids.to(torch.float32) for row in random_rows(config, (0.7, 0.2, 0.5))]
    encoded: list[list[int]] = []
    if verified.tokenizer is not None:
        end = list(config.special.end[:1]) if isinstance(config, EncoderDecoderConfig) else []
        encoded = [ids + end for ids in verified.tokenizer.encode(list(verified.texts or TEXTS)) if ids]
    vocabulary = source_tokens(config).vocab_size
    max_tokens = max(1, token_limit(config, PROMPT + NEW) - new_tokens(verified))
    texts = [torch.tensor(ids[:max_tokens]) for ids in encoded if max(ids) < vocabulary]
    return [*texts, *(row.ids[:max_tokens] for row in random_rows(config, (0.7, 0.2)))]


def new_tokens(verified: VerifiedFolder) -> int:
    """Returns the number of tokens to generate, which is lower for a model with few learned positions."""
    return min(NEW, token_limit(verified.config, PROMPT + NEW) // 2)


def greedy_ids(model: Any, ids: Tensor, mask: Tensor | None, count: int) -> Tensor:
    """Returns the ids of greedy decoding with the folder's generation settings, without its stop strings."""
    defaults = {**model.generation, "stop_strings": None}
    return generate(model, ids, mask, defaults=defaults, do_sample=False, num_beams=1, max_new_tokens=count)
