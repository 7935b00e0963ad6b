"""A tiny model of each family in a folder of its own, with fresh weights, as `train` would leave it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from heedful.config import (
    DecoderConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ExpertsConfig,
    ImageHead,
    LearnedPosition,
    MaskedHead,
    ModelConfig,
    PatchConfig,
    RotaryPosition,
    SequenceHead,
    SinusoidalPosition,
    SpecialTokens,
    StackConfig,
    VisionConfig,
)
from heedful.models import build
from heedful.pretrained.preprocessing import Preprocessing, write_preprocessing
from heedful.text import Tokenizer

TEXTS = ["a small dog sees two cats", "the cats see a red ball", "le chien voit les chats", "un ballon rouge"]
STACK = StackConfig(dim=16, depth=2, heads=4, position=LearnedPosition(length=32))


def _encoder(size: int) -> ModelConfig:
    return EncoderConfig(
        embedding=EmbeddingConfig(vocab_size=size, segments=2),
        encoder=replace(STACK, placement="post", embedding_norm=True),
        head=SequenceHead(labels=2),
        special=SpecialTokens(pad=0, start=1, end=(2,)),
    )


def _decoder(size: int) -> ModelConfig:
    return DecoderConfig(
        embedding=EmbeddingConfig(vocab_size=size),
        decoder=replace(STACK, causal=True),
        special=SpecialTokens(pad=0, start=2, end=(2,)),
    )


def _pair(size: int) -> EncoderDecoderConfig:
    stack = replace(STACK, position=SinusoidalPosition())
    return EncoderDecoderConfig(
        source=EmbeddingConfig(vocab_size=size, scale="sqrt"),
        encoder=stack,
        decoder=replace(stack, depth=3, heads=2, causal=True, cross=True),
        special=SpecialTokens(pad=0, start=1, end=(2,)),
    )


def _vision(size: int) -> ModelConfig:
    return VisionConfig(
        patches=PatchConfig(image_size=(12, 12), patch_size=4, channels=1),
        encoder=replace(STACK, position=LearnedPosition(length=10)),
        head=ImageHead(labels=3),
    )


def _patches(size: int) -> ModelConfig:
    return VisionConfig(
        patches=PatchConfig(image_size=(12, 12), patch_size=4, channels=1, prefix="none"),
        encoder=replace(STACK, position=LearnedPosition(length=9)),
        head=ImageHead(labels=3),
    )


def _filler(size: int) -> ModelConfig:
    return replace(_encoder(size), head=MaskedHead())


def _judge(size: int) -> ModelConfig:
    return replace(_pair(size), head=SequenceHead(labels=2, pooling="last"))


def _short(size: int) -> ModelConfig:
    pair = _pair(size)
    encoder, decoder = (replace(stack, position=LearnedPosition(length=32)) for stack in (pair.encoder, pair.decoder))
    return replace(pair, encoder=encoder, decoder=decoder)


def _experts(size: int) -> ModelConfig:
    stack = replace(STACK, depth=4, causal=True, experts=ExpertsConfig(number=4, per_token=2, step=2))
    return replace(_decoder(size), decoder=stack)


def _capacity(size: int) -> ModelConfig:
    pair = _pair(size)
    experts = ExpertsConfig(number=2, per_token=1, normalize=False, capacity=1)
    return replace(pair, encoder=replace(pair.encoder, experts=experts))


def _long(size: int) -> ModelConfig:
    stack = StackConfig(dim=8, depth=1, heads=2, position=RotaryPosition(), causal=True)
    return replace(_decoder(size), decoder=stack)


MADE = {
    "filler": (_filler, "both"),
    "judge": (_judge, "end"),
    "short": (_short, "end"),
    "long": (_long, "none"),
    "experts": (_experts, "none"),
    "capacity": (_capacity, "end"),
    "encoder": (_encoder, "both"),
    "decoder": (_decoder, "none"),
    "pair": (_pair, "end"),
    "vision": (_vision, "end"),
    "patches": (_patches, "end"),
}
SEEN = ["cat", "dog", "ball"]
LABELS = {"encoder": ["no", "yes"], "judge": ["no", "yes"], "vision": SEEN, "patches": SEEN}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model: "encoder" (a classifier), "filler" (a masked language model), "decoder", "long" (a
    decoder of any number of positions), "pair" (encoder-decoder), "judge" (one that classifies), "short" (one of 32
    positions), "experts" (a decoder with two experts a token in each second block), "capacity" (a pair whose encoder
    drops tokens), "vision", "patches" (one without a class token).
    """

    @cache
    def make(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("looking") / kind
        config, template = MADE[kind]
        tokenizer = Tokenizer.train(TEXTS, 300, template=template)
        if kind == "filler":
            tokenizer.backend.add_special_tokens(["<mask>"])
            tokenizer.config["mask_token"] = "<mask>"
            tokenizer.config["split_special_tokens"] = tokenizer.backend.encode_special_tokens = False
        with torch.random.fork_rng():
            torch.manual_seed(1)
            model = build(config(tokenizer.vocab_size))
        model.labels = LABELS.get(kind, [])
        for p in model.parameters():  # fresh weights are small, and every pattern nearly uniform
            p.data.mul_(3.0)
        model.save_pretrained(folder)
        if kind in ("vision", "patches"):
            write_preprocessing(Preprocessing(size=12, mean=(0.5,), std=(0.5,)), folder)
        else:
            tokenizer.save(folder)
        return folder

    return make
