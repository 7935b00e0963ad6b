"""Resizes stored models: more or fewer positions, other image sizes, more tokens."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.config import (
    EmbeddingConfig,
    EncoderDecoderConfig,
    LanguageHead,
    LearnedPosition,
    MaskedHead,
    ModelConfig,
    PatchConfig,
    RotaryPosition,
    StackConfig,
    VisionConfig,
    patches_of,
)
from heedful.errors import HeedfulError
from heedful.pretrained.rules import Tensors

EMBEDDINGS = ("embedding.token.weight", "target_embedding.token.weight")
OUTPUTS = ("head.output.weight", "head.output.bias")


def resized(
    config: ModelConfig,
    *,
    positions: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    vocab_size: int | None = None,
) -> ModelConfig:
    """Returns the configuration with other sizes; raises for a size that the model does not have."""
    if image_size is not None:
        if positions is not None:
            raise HeedfulError(
                "positions and image_size are both given, but image_size sets the positions of images; give only "
                "image_size"
            )
        config = _with_images(config, image_size)
    if positions is not None:
        config = _with_positions(config, _whole("positions", positions))
    if vocab_size is not None:
        config = _with_tokens(config, _whole("vocab_size", vocab_size))
    return config


def resize_tensors(tensors: Tensors, old: ModelConfig, new: ModelConfig) -> list[str]:
    """Resizes tensors, by our names, from configuration ``old`` to ``new``; returns the names of new rows.

    Stored rows are kept. Rows of new positions are drawn as in a new model, N(0, σ²) with σ the stack's ``init_std``.
    Rows of new tokens are drawn around the mean of the stored rows with the same σ, so that no new token is likelier
    than an average one (Hewitt 2021, "Initializing New Word Embeddings for Pretrained Language Models"). A new token's
    bias is the mean bias. Positions of an image are interpolated on the grid of its patches, bicubic; those of prefix
    tokens are kept (Dosovitskiy et al. 2021, section 3.2).
    """
    fresh, patches, new_patches = [], patches_of(old), patches_of(new)
    for name, stack in _parts(old, StackConfig).items():
        before, after = stack.position, getattr(new, name).position
        key = f"{name}.position.table.weight"
        if before == after or not isinstance(before, LearnedPosition) or key not in tensors:
            continue
        _check(key, tensors[key], before.length + before.offset)
        if name == "encoder" and patches is not None and new_patches is not None:
            tensors[key] = _interpolated(tensors[key], patches, new_patches)
        else:
            drawn = torch.randn(max(0, after.length - before.length), stack.width) * stack.init_std
            fresh += _lengthened(tensors, key, after.length + after.offset, drawn)
    return fresh + _more_tokens(tensors, old, new)


def _more_tokens(tensors: Tensors, old: ModelConfig, new: ModelConfig) -> list[str]:
    embeddings, new_embeddings = _parts(old, EmbeddingConfig), _parts(new, EmbeddingConfig)
    fresh: list[str] = []
    if embeddings == new_embeddings:
        return fresh
    *_, main = _parts(old, StackConfig).values()  # of the tokens: an encoder of images may have another width
    over_tokens = isinstance(new.head, LanguageHead | MaskedHead)
    largest = max(embedding.vocab_size for embedding in new_embeddings.values())
    noise = torch.randn(largest, max(main.dim, main.width))  # shared, so that tied tables remain equal
    for key in (*EMBEDDINGS, *(OUTPUTS if over_tokens else ())):
        if key not in tensors:
            continue
        side = "source" if key == EMBEDDINGS[0] and "source" in embeddings else list(embeddings)[-1]
        before, rows = embeddings[side], new_embeddings[side].vocab_size
        _check(key, tensors[key], before.vocab_size)
        mean = tensors[key].float().mean(0)
        std = main.init_std if before.scale == "none" else 1 / math.sqrt(main.width)
        drawn = (
            mean + noise[before.vocab_size : rows, : len(mean)] * std
            if mean.dim()
            else mean.expand(rows - before.vocab_size)
        )
        fresh += _lengthened(tensors, key, rows, drawn)
    return fresh


def _parts(config: ModelConfig, kind: type[Any]) -> dict[str, Any]:
    """Returns the parts of one kind (stacks or embeddings) in a model's configuration, by field."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return {name: value for name, value in values.items() if isinstance(value, kind)}


def _with_positions(config: ModelConfig, length: int) -> ModelConfig:
    if isinstance(config, VisionConfig):
        raise HeedfulError("positions applies to text models; for this image model give image_size")
    stacks = _parts(config, StackConfig)
    if patches_of(config) is not None:
        del stacks["encoder"]  # its positions are the patches
    for name, stack in stacks.items():
        if not isinstance(stack.position, LearnedPosition | RotaryPosition):
            kind = stack.position.kind
            raise HeedfulError(f"positions is {length}, but {kind!r} positions have no maximum; leave it out")
        stacks[name] = replace(stack, position=replace(stack.position, length=length))
    return replace(config, **stacks)


def _with_images(config: ModelConfig, size: int | tuple[int, int]) -> ModelConfig:
    old = patches_of(config)
    if old is None or not isinstance(config, VisionConfig | EncoderDecoderConfig):
        raise HeedfulError(f"image_size is {size}, but this model reads text; leave it out")
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2:
        raise HeedfulError(f"image_size is {size}; give one number, or height and width")
    height, width = (_whole("image_size", side) for side in sides)
    patches = replace(old, image_size=(height, width))
    position = config.encoder.position
    if isinstance(position, LearnedPosition):
        position = replace(position, length=patches.tokens)
    encoder = replace(config.encoder, position=position)
    if isinstance(config, VisionConfig):
        return replace(config, patches=patches, encoder=encoder)
    return replace(config, source=patches, encoder=encoder)


def _with_tokens(config: ModelConfig, size: int) -> ModelConfig:
    embeddings = _parts(config, EmbeddingConfig)
    if not embeddings:
        raise HeedfulError(f"vocab_size is {size}, but this model has no vocabulary; leave it out")
    most = max(embedding.vocab_size for embedding in embeddings.values())
    if size < most:
        raise HeedfulError(
            f"vocab_size is {size}, but {most} tokens are stored and none can be removed; give {most} or more"
        )
    larger = {name: replace(embedding, vocab_size=size) for name, embedding in embeddings.items()}
    return replace(config, **larger)


def _whole(name: str, value: object) -> int:
    if type(value) is not int or not 1 <= value < 2**31:
        raise HeedfulError(f"{name} is {value!r}; give a whole number of 1 or more")
    return value


def _check(key: str, tensor: Tensor, rows: int) -> None:
    if tensor.dim() < 1 or len(tensor) != rows:
        raise HeedfulError(
            f"{key} has the shape {tuple(tensor.shape)}, but config.json says {rows} rows; correct config.json"
        )


def _lengthened(tensors: Tensors, key: str, rows: int, drawn: Tensor) -> list[str]:
    """Resizes a table to ``rows`` rows, new ones from ``drawn``; returns the names of the new rows."""
    stored = tensors[key]
    tensors[key] = torch.cat((stored[:rows], drawn.to(stored)))
    return [f"{key}[{len(stored)}:{rows}]"] if rows > len(stored) else []


def _interpolated(table: Tensor, old: PatchConfig, new: PatchConfig) -> Tensor:
    """Returns a table of positions (prefix + patches, D) interpolated on another grid of patches."""
    (height, width), (new_height, new_width) = (
        (patches.image_size[0] // patches.patch_size, patches.image_size[1] // patches.patch_size)
        for patches in (old, new)
    )
    prefix, rows = table[: old.prefix_tokens], table[old.prefix_tokens :]
    if (height, width) == (new_height, new_width):
        return table
    grid = rows.float().unflatten(0, (height, width)).permute(2, 0, 1)[None]  # (1, D, H, W)
    grid = F.interpolate(grid, (new_height, new_width), mode="bicubic", align_corners=False)
    return torch.cat((prefix, grid[0].flatten(1).t().to(table)))
