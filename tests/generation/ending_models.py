"""Tiny models with large random weights: their rows end at different steps, with one of two end tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import heedful
from heedful.config import (
    AlibiPosition,
    DecoderConfig,
    EmbeddingConfig,
    EncoderDecoderConfig,
    LearnedPosition,
    NoPosition,
    Position,
    RelativePosition,
    RotaryPosition,
    SinusoidalPosition,
    SpecialTokens,
    StackConfig,
)
from heedful.models.base import Model
from relative_schemes import CONTENT

ENDS = (5, 11)
POSITIONS: dict[str, Position] = {
    "sinusoidal": SinusoidalPosition(),
    "rotary": RotaryPosition(),
    "alibi": AlibiPosition(),
    "relative": RelativePosition(buckets=8, max_distance=12),
    "none": NoPosition(),
    **{position.kind: position for position in CONTENT},
}


def tiny_model(vocab: int, *, learned: int, end_factor: float, cross: bool = False, **settings: Any) -> Model:
    """A decoder, or with ``cross`` an encoder-decoder; ``learned`` is the length of the position scheme "learned"."""
    torch.manual_seed(0)
    position = (POSITIONS | {"learned": LearnedPosition(length=learned)})[settings.pop("position")]
    decoder = StackConfig(
        **{"depth": 2, "heads": 4, "init": "normal"} | settings, position=position, causal=True, cross=cross
    )
    embedding, special = EmbeddingConfig(vocab_size=vocab), SpecialTokens(pad=0, start=1, end=ENDS)
    if cross:
        encoder = replace(decoder, causal=False, cross=False)
        config: Any = EncoderDecoderConfig(source=embedding, encoder=encoder, decoder=decoder, special=special)
    else:
        config = DecoderConfig(embedding=embedding, decoder=decoder, special=special)
    model = heedful.create(config).eval()
    model.head.output.weight.data[list(ENDS)] *= end_factor
    return model
